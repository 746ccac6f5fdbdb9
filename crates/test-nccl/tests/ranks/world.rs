//! Ranks as threads, each with a GPU, a stream, and memory to fill and read.

use std::cell::RefCell;
use std::sync::{Arc, Once, mpsc};
use std::time::{Duration, Instant};

use ronde_collective::types::DType;
use ronde_cuda::{Device, Scratch, Stream};
use ronde_nccl::{Communicator, Error, Launch, Library, UniqueId, Who};
use ronde_simulated_cuda::{Live, Simulation};

/// A longer wait never ends, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// The simulated driver, for one test at a time.
pub(crate) fn simulation() -> Simulation {
    static ONCE: Once = Once::new();
    let simulation = Simulation::begin();
    // SAFETY: the simulated driver behaves like CUDA's, as far as these tests go.
    ONCE.call_once(|| unsafe { ronde_cuda::install(ronde_simulated_cuda::lookup) });
    ronde_test_nccl::inject(&[]);
    simulation
}

pub(crate) fn library() -> &'static Library {
    // SAFETY: the functions are like NCCL's, and stay.
    unsafe { Library::with(ronde_test_nccl::lookup) }.expect("all functions are there")
}

pub(crate) fn unique_id() -> UniqueId {
    let who = Who { rank: 0, host: "here".into(), gpu: "GPU 0".into() };
    library().unique_id(&who).expect("an id")
}

/// What ends a test's calls.
#[derive(Debug)]
pub(crate) struct Wrong(pub(crate) String);

impl From<Error> for Wrong {
    fn from(error: Error) -> Wrong {
        Wrong(error.to_string())
    }
}

impl From<ronde_cuda::Error> for Wrong {
    fn from(error: ronde_cuda::Error) -> Wrong {
        Wrong(error.to_string())
    }
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// One rank: a thread with a GPU.
pub(crate) struct Rank {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) device: Arc<Device>,
    pub(crate) stream: Arc<Stream>,
    begin: Instant,
    /// Memory that the stream may use until it is through, however the test ends.
    kept: RefCell<Vec<Scratch>>,
}

/// Device memory of a rank.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    address: u64,
    len: usize,
}

impl Room {
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// Runs a rank on each of these GPUs; returns what each returns.
pub(crate) fn run<T: Send>(gpus: &[i32], body: impl Fn(&Rank) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let ranks: Vec<_> = gpus
            .iter()
            .enumerate()
            .map(|(rank, &gpu)| {
                let (body, size) = (&body, gpus.len());
                scope.spawn(move || {
                    let device = Device::open(gpu).expect("a device");
                    let stream = Arc::new(Stream::new(&device).expect("a stream"));
                    let entered = device.clone();
                    let _entered = entered.enter().expect("its context");
                    let kept = RefCell::default();
                    let rank = Rank { rank, size, device, stream, begin: Instant::now(), kept };
                    let result = body(&rank);
                    rank.stream.synchronize().expect("nothing went wrong on the device");
                    result
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}

impl Rank {
    /// Goes on until a test has taken too long.
    pub(crate) fn in_time(&self) -> Result<(), Wrong> {
        if self.begin.elapsed() < LIMIT { Ok(()) } else { Err(Wrong("waited too long".into())) }
    }

    pub(crate) fn who(&self) -> Who {
        Who { rank: self.rank, host: "here".into(), gpu: format!("GPU {}", self.device.ordinal()) }
    }

    pub(crate) fn join(&self, id: &UniqueId) -> Result<Communicator, Wrong> {
        Communicator::new(library(), id, self.rank, self.size, self.who(), &|| self.in_time())
    }

    /// Calls on this rank's stream.
    pub(crate) fn on<'a>(
        &self,
        communicator: &'a Communicator,
        check: &'a dyn Fn() -> Result<(), Wrong>,
    ) -> Launch<'a, Wrong> {
        // SAFETY: stream and memory are this rank's, and live until the stream was waited for.
        unsafe { communicator.on(self.stream.handle(), check) }
    }

    /// Device memory with these bytes in it, when the stream gets there.
    pub(crate) fn filled(&self, bytes: &[u8]) -> Room {
        let memory = self.room(bytes.len());
        // SAFETY: of that size; copies from pageable memory are done when they return.
        unsafe { self.stream.copy_in(bytes.as_ptr(), memory.address(), bytes.len()) }.expect("a copy");
        memory
    }

    pub(crate) fn room(&self, bytes: usize) -> Room {
        let memory = Scratch::new(&self.device, bytes).expect("device memory");
        let room = Room { address: memory.address(), len: bytes };
        self.kept.borrow_mut().push(memory);
        room
    }

    /// What is in device memory once the stream is through; fails if that takes too long or a communicator fails.
    pub(crate) fn read(&self, memory: &Room, communicator: &Communicator) -> Result<Vec<u8>, Wrong> {
        self.wait(communicator)?;
        let mut bytes = vec![0; memory.len()];
        // SAFETY: of that size.
        unsafe { self.stream.copy_out(memory.address(), bytes.as_mut_ptr(), bytes.len()) }?;
        self.stream.synchronize()?;
        Ok(bytes)
    }

    /// Waits for the stream as an engine would: looking at the communicator meanwhile.
    pub(crate) fn wait(&self, communicator: &Communicator) -> Result<(), Wrong> {
        let mark = self.stream.record()?;
        while !mark.reached()? {
            communicator.health()?;
            if let Err(late) = self.in_time() {
                communicator.abort("too late");
                return Err(late);
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// Numbers as bytes of a type. Small whole numbers, which every type holds exactly.
pub(crate) fn bytes(dtype: DType, values: impl Iterator<Item = i32>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for value in values {
        match dtype {
            DType::I8 | DType::U8 => bytes.push(value as u8),
            DType::I32 => bytes.extend(value.to_le_bytes()),
            DType::I64 => bytes.extend(i64::from(value).to_le_bytes()),
            DType::F32 => bytes.extend((value as f32).to_le_bytes()),
            DType::F64 => bytes.extend(f64::from(value).to_le_bytes()),
            DType::BF16 => bytes.extend(&(value as f32).to_le_bytes()[2..]),
            other => panic!("no test uses {other}"),
        }
    }
    bytes
}

/// Two threads that tell each other how far they are.
pub(crate) fn channel() -> (mpsc::Sender<()>, std::sync::Mutex<mpsc::Receiver<()>>) {
    let (sender, receiver) = mpsc::channel();
    (sender, std::sync::Mutex::new(receiver))
}

/// All that communicators and ranks had of the driver is freed, when their streams are through. What a device keeps for
/// the next one stays.
pub(crate) fn assert_nothing_is_left(simulation: &Simulation) {
    let left = || {
        let live = simulation.live();
        Live { contexts: 0, events: 0, modules: 0, ..live }
    };
    let deadline = Instant::now() + LIMIT;
    while left() != Live::default() && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(left(), Live::default());
}
