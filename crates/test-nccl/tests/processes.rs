//! Ranks as processes: every collective through memory that several have mapped, and a rank that is killed while others
//! wait for it.
//!
//! This program is both sides: as the parent it starts itself once for each rank and reads what they print. The GPU is a
//! simulated one, or with `--real-gpu` the first that CUDA's driver has.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use ronde_collective::types::{DType, ReduceOp};
use ronde_cuda::{Device, Scratch, Stream};
use ronde_nccl::{Communicator, Error, Launch, Library, UniqueId, Who};

const REAL: &str = "--real-gpu";
const ROLE: &str = "RONDE_TEST_NCCL_RANK";
const ID: &str = "RONDE_TEST_NCCL_ID";
const RANKS: usize = 3;
const LIMIT: Duration = Duration::from_secs(120); // Ends tests that hang, and none on a busy machine.

fn main() -> ExitCode {
    if !std::env::args().any(|argument| argument == REAL) {
        // SAFETY: the simulated driver behaves like CUDA's, as far as this test goes.
        unsafe { ronde_cuda::install(ronde_simulated_cuda::lookup) };
    }
    if let (Ok(rank), Ok(id)) = (std::env::var(ROLE), std::env::var(ID)) {
        return match rank_of(rank.parse().expect("a number"), &id) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                println!("error: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let mut status = ExitCode::SUCCESS;
    for (name, scenario) in [("a rank is killed", killed as fn() -> _), ("an error on demand", on_demand)] {
        match scenario() {
            Ok(()) => println!("test {name} ... ok"),
            Err(complaint) => {
                println!("test {name} ... FAILED\n{complaint}");
                status = ExitCode::FAILURE;
            }
        }
    }
    status
}

/// All ranks get what they should; then one is killed while the others wait for it in a sum, and they give up.
fn killed() -> Result<(), String> {
    let mut ranks = Ranks::start("")?;
    ranks.all_say("all is right")?;
    ranks.children[RANKS - 1].kill().map_err(|error| error.to_string())?;
    for rank in 0..RANKS - 1 {
        ranks.says(rank, "gave up")?;
    }
    Ok(())
}

/// The variable makes every rank's first call fail.
fn on_demand() -> Result<(), String> {
    Ranks::start("error@1")?.all_say("error: ncclAllReduce failed")
}

/// The processes. However the test ends, none is left.
struct Ranks {
    children: Vec<Child>,
    lines: Vec<Lines<BufReader<ChildStdout>>>,
}

impl Ranks {
    fn start(orders: &str) -> Result<Ranks, String> {
        let who = Who { rank: 0, host: "here".into(), gpu: "GPU 0".into() };
        let id = library().unique_id(&who).map_err(|error| error.to_string())?;
        let hex: String = id.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut ranks = Ranks { children: Vec::new(), lines: Vec::new() };
        for rank in 0..RANKS {
            let mut command = Command::new(&program);
            command.args(std::env::args().skip(1).filter(|argument| argument == REAL));
            command.env(ROLE, rank.to_string()).env(ID, &hex).env("RONDE_TEST_NCCL", orders);
            let mut child = command.stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
            ranks.lines.extend(child.stdout.take().map(|pipe| BufReader::new(pipe).lines()));
            ranks.children.push(child);
        }
        Ok(ranks)
    }

    /// Reads the next line of a rank, which begins like this.
    fn says(&mut self, rank: usize, expected: &str) -> Result<(), String> {
        let line = self.lines[rank].next().and_then(Result::ok).unwrap_or_default();
        if line.starts_with(expected) {
            Ok(())
        } else {
            Err(format!("rank {rank} says {line:?}, not {expected:?}"))
        }
    }

    fn all_say(&mut self, expected: &str) -> Result<(), String> {
        (0..RANKS).try_for_each(|rank| self.says(rank, expected))
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.children {
            // One that has ended already needs nothing but to be waited for.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn library() -> &'static Library {
    // SAFETY: the functions are like NCCL's, and stay.
    unsafe { Library::with(ronde_test_nccl::lookup) }.expect("all functions are there")
}

#[derive(Debug, thiserror::Error)]
enum Wrong {
    #[error(transparent)]
    Nccl(#[from] Error),
    #[error(transparent)]
    Cuda(#[from] ronde_cuda::Error),
    #[error("waited too long")]
    Late,
    #[error("the {what} gave {got} as element {at}, not {expected}")]
    Value { what: &'static str, at: usize, got: i32, expected: i32 },
}

fn rank_of(rank: usize, hex: &str) -> Result<(), Wrong> {
    let begin = Instant::now();
    let in_time = || if begin.elapsed() < LIMIT { Ok(()) } else { Err(Wrong::Late) };
    let mut id = [0; UniqueId::LEN];
    for (at, byte) in id.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).expect("two digits");
    }
    let device = Device::open(0)?;
    let entered = device.clone();
    let _entered = entered.enter()?;
    let stream = Stream::new(&device)?;
    let who = Who { rank, host: "here".into(), gpu: "GPU 0".into() };
    let communicator = Communicator::new(library(), &UniqueId::from_bytes(id), rank, RANKS, who, &in_time)?;
    let rank = Rank { rank, stream, communicator, in_time: &in_time };
    rank.reductions()?;
    rank.copies()?;
    println!("all is right");
    let memory = rank.filled(1, |_| 0)?;
    if rank.rank == RANKS - 1 {
        std::thread::park_timeout(LIMIT); // sleep: it is killed here, before it joins the next sum
        return Err(Wrong::Late);
    }
    rank.launch().all_reduce(memory.address(), memory.address(), 1, DType::I32, ReduceOp::Sum)?;
    rank.communicator.abort("a rank was killed");
    rank.stream.synchronize()?;
    println!("gave up");
    Ok(())
}

/// Elements of a tensor: more than fit a slot.
const COUNT: usize = 700_001;

/// What a rank brings as element `at`.
fn value(rank: usize, at: usize) -> i32 {
    (10 * rank + at % 7) as i32
}

struct Rank<'a> {
    rank: usize,
    stream: Stream,
    communicator: Communicator,
    in_time: &'a dyn Fn() -> Result<(), Wrong>,
}

impl Rank<'_> {
    fn launch(&self) -> Launch<'_, Wrong> {
        // SAFETY: all memory is this rank's, and lives until the stream is through.
        unsafe { self.communicator.on(self.stream.handle(), self.in_time) }
    }

    /// Sums, then a maximum in parts that are gathered again, all in place.
    fn reductions(&self) -> Result<(), Wrong> {
        let memory = self.filled(COUNT, |at| value(self.rank, at))?;
        self.launch().all_reduce(memory.address(), memory.address(), COUNT, DType::I32, ReduceOp::Sum)?;
        self.expect("sum", &memory, |at| (0..RANKS).map(|rank| value(rank, at)).sum())?;
        let memory = self.filled(RANKS * COUNT, |at| value(self.rank, at))?;
        let own = memory.address() + (self.rank * COUNT * size_of::<i32>()) as u64;
        self.launch().reduce_scatter(memory.address(), own, COUNT, DType::I32, ReduceOp::Max)?;
        self.launch().all_gather(own, memory.address(), COUNT, DType::I32)?;
        self.expect("maximum", &memory, |at| value(RANKS - 1, at))
    }

    /// A broadcast, and what everybody sends everybody.
    fn copies(&self) -> Result<(), Wrong> {
        let memory = self.filled(COUNT, |at| value(self.rank, at))?;
        self.launch().broadcast(memory.address(), memory.address(), COUNT, DType::I32, 1)?;
        self.expect("broadcast", &memory, |at| value(1, at))?;
        let sent = self.filled(RANKS * COUNT, |at| value(self.rank, at / COUNT))?;
        let received = self.filled(RANKS * COUNT, |_| -1)?;
        self.launch().group(|group| {
            for peer in 0..RANKS {
                let at = (peer * COUNT * size_of::<i32>()) as u64;
                group.send(sent.address() + at, COUNT, DType::I32, peer)?;
                group.recv(received.address() + at, COUNT, DType::I32, peer)?;
            }
            Ok(())
        })?;
        self.expect("exchange", &received, |at| value(at / COUNT, self.rank))
    }

    /// Device memory with these elements.
    fn filled(&self, count: usize, element: impl Fn(usize) -> i32) -> Result<Scratch, Wrong> {
        let memory = Scratch::new(self.stream.device(), count * size_of::<i32>())?;
        let elements: Vec<i32> = (0..count).map(element).collect();
        // SAFETY: as many bytes here as there; the copy is over when this returns.
        unsafe { self.stream.copy_in(elements.as_ptr().cast(), memory.address(), memory.len()) }?;
        self.stream.synchronize()?;
        Ok(memory)
    }

    /// Waits for the stream, and compares.
    fn expect(
        &self,
        what: &'static str,
        memory: &Scratch,
        element: impl Fn(usize) -> i32,
    ) -> Result<(), Wrong> {
        let mark = self.stream.record()?;
        while !mark.reached()? {
            self.communicator.health()?;
            (self.in_time)()?;
            std::thread::yield_now();
        }
        let mut elements = vec![0; memory.len() / size_of::<i32>()];
        // SAFETY: as many bytes here as there.
        unsafe { self.stream.copy_out(memory.address(), elements.as_mut_ptr().cast(), memory.len()) }?;
        self.stream.synchronize()?;
        let wrong = elements.iter().enumerate().find(|&(at, &got)| got != element(at));
        wrong.map_or(Ok(()), |(at, &got)| Err(Wrong::Value { what, at, got, expected: element(at) }))
    }
}
