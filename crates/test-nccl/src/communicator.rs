//! One rank's communicator: from the meeting of its ranks to its end.
//!
//! Like NCCL's non-blocking ones it answers "in progress" to everything that starts something, and wants to be asked
//! until that is done before the next call; a caller that does not is told so.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use ronde_cuda::{Device, Mark};

use crate::answer::{Code, Failure, IN_PROGRESS, INVALID_ARGUMENT, REMOTE_ERROR, SUCCESS, SYSTEM_ERROR};
use crate::call::Reduction;
use crate::injection::{self, Injection, Trouble};
use crate::joined::{Asked, Joined};
use crate::ledger::{Identity, Ledger};
use crate::meeting::{self, Hello, MOST_RANKS};
use crate::works::{self, Rounds};

/// How often a started call is reported as in progress.
const LOOKS: u32 = 2;

/// Between two looks at a stream whose communicator is to be freed.
const LOOK: Duration = Duration::from_millis(1);

/// How far it is.
enum Progress {
    /// The ranks are coming together.
    Joining,
    /// A call was started; so many times it is still reported as in progress.
    Busy(u32),
    /// The next call may come.
    Ready,
    /// Ends when the stream has come past the mark.
    Finalizing(Arc<Mark>),
    /// Nothing is left to do but to free it.
    Finalized,
    /// Nothing is left to do but to abort it.
    Failed(Failure),
}

/// See the module's text.
pub(crate) struct Communicator {
    id: u64,
    rank: usize,
    size: usize,
    orders: Vec<Injection>,
    /// Calls so far.
    calls: AtomicU64,
    /// Nobody waits for anything of it any more.
    given_up: AtomicBool,
    ledger: Arc<Ledger>,
    progress: Mutex<Progress>,
    joined: Mutex<Option<Joined>>,
    /// The same as in `joined`, for whoever gives up while a call is under way.
    rounds: OnceLock<Arc<Rounds>>,
    /// Sums with a factor, by number.
    scaled: Mutex<Vec<Option<Reduction>>>,
    last: Mutex<String>,
}

impl Communicator {
    /// Begins to take this rank's place. The device is the one whose context is current.
    pub(crate) fn begin(name: &[u8; 32], rank: usize, size: usize) -> Result<Arc<Communicator>, Failure> {
        if size > MOST_RANKS || rank >= size {
            let text = format!("rank {rank} of {size}: this library does {MOST_RANKS} ranks at most");
            return Err(Failure::new(INVALID_ARGUMENT, text));
        }
        let orders = injection::orders(rank).map_err(Failure::misuse)?;
        let device = current_device()?;
        let identity = Identity { process: std::process::id(), device: device.ordinal() };
        let communicator = Arc::new(Communicator {
            id: name.iter().fold(0, |id: u64, byte| id.rotate_left(8) ^ u64::from(*byte)),
            rank,
            size,
            orders,
            calls: AtomicU64::new(0),
            given_up: AtomicBool::new(false),
            ledger: Ledger::of(identity),
            progress: Mutex::new(Progress::Joining),
            joined: Mutex::default(),
            rounds: OnceLock::new(),
            scaled: Mutex::default(),
            last: Mutex::default(),
        });
        match communicator.trouble(0) {
            Some(Trouble::Error) => return Err(Failure::new(SYSTEM_ERROR, "an error on demand")),
            // It stays in progress.
            Some(Trouble::Hang) => return Ok(communicator),
            Some(Trouble::Async) | None => {}
        }
        let hello = Hello { rank, size, identity, counts: communicator.ledger.counts() };
        let (joining, name) = (communicator.clone(), *name);
        std::thread::spawn(move || {
            let end = match joining.join(&device, &name, hello) {
                Ok(()) if joining.trouble(0) == Some(Trouble::Async) => Progress::Failed(remote()),
                Ok(()) => Progress::Ready,
                Err(failure) => Progress::Failed(failure),
            };
            *lock(&joining.progress) = end;
        });
        Ok(communicator)
    }

    /// Meets the others.
    fn join(&self, device: &Arc<Device>, name: &[u8; 32], hello: Hello) -> Result<(), Failure> {
        let memory = works::memory(device, self.size)?;
        let meeting =
            meeting::meet(name, hello, memory.descriptor(), &self.given_up).map_err(
                |failure| match failure {
                    meeting::Failure::Disagreement(text) => Failure::misuse(text),
                    other => Failure::new(SYSTEM_ERROR, other.to_string()),
                },
            )?;
        let joined = Joined::new(self.id, self.rank, device, memory, meeting)?;
        // Whoever gives up meanwhile finds either nothing, or all that there is to release.
        let mut place = lock(&self.joined);
        if self.given_up.load(Ordering::SeqCst) {
            return Err(Failure::new(SYSTEM_ERROR, "the communicator was aborted"));
        }
        let _ = self.rounds.set(joined.rounds());
        *place = Some(joined);
        Ok(())
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    fn trouble(&self, call: u64) -> Option<Trouble> {
        self.orders.iter().find(|order| order.call == call).map(|order| order.trouble)
    }

    /// Whether a call may come now. Counts it; what is to go wrong with it on demand comes back.
    pub(crate) fn admit(&self) -> Result<Option<Trouble>, Failure> {
        match &*lock(&self.progress) {
            Progress::Ready => {}
            Progress::Joining | Progress::Busy(_) => {
                return Err(Failure::misuse("a call while the one before is in progress"));
            }
            Progress::Finalizing(_) | Progress::Finalized => {
                return Err(Failure::misuse("a call after ncclCommFinalize"));
            }
            Progress::Failed(failure) => return Err(failure.clone()),
        }
        match self.trouble(1 + self.calls.fetch_add(1, Ordering::Relaxed)) {
            Some(Trouble::Error) => Err(Failure::new(SYSTEM_ERROR, "an error on demand")),
            other => Ok(other),
        }
    }

    /// Starts what was asked in one group.
    ///
    /// # Safety
    /// The memory that the calls name belongs to this rank's device until the streams are past.
    pub(crate) unsafe fn launch(&self, asked: &[Asked]) -> Result<(), Failure> {
        let mut joined = lock(&self.joined);
        let Some(joined) = joined.as_mut() else {
            return Err(Failure::new(INVALID_ARGUMENT, "the communicator is gone"));
        };
        // SAFETY: as the caller promises.
        unsafe { joined.launch(asked, &self.given_up) }?;
        let remote_error = asked.iter().any(|asked| asked.trouble == Some(Trouble::Async));
        *lock(&self.progress) = if remote_error { Progress::Failed(remote()) } else { Progress::Busy(LOOKS) };
        Ok(())
    }

    /// How far it is, as `ncclCommGetAsyncError` says it.
    pub(crate) fn state(&self) -> Code {
        let mut progress = lock(&self.progress);
        match &mut *progress {
            Progress::Joining => return IN_PROGRESS,
            Progress::Failed(failure) => return failure.code,
            Progress::Busy(0) => *progress = Progress::Ready,
            Progress::Busy(looks) => {
                *looks -= 1;
                return IN_PROGRESS;
            }
            Progress::Finalizing(mark) => match mark.reached() {
                Ok(true) => *progress = Progress::Finalized,
                Ok(false) => return IN_PROGRESS,
                Err(error) => *progress = Progress::Failed(error.into()),
            },
            Progress::Ready | Progress::Finalized => {}
        }
        if let Some(verdict) = self.verdict() {
            *progress = Progress::Failed(verdict);
        }
        if let Progress::Failed(failure) = &*progress { failure.code } else { SUCCESS }
    }

    /// What ranks disagreed about, unless a call is under way just now, which will see it.
    fn verdict(&self) -> Option<Failure> {
        self.joined.try_lock().ok()?.as_ref()?.verdict()
    }

    /// Begins the end in order.
    pub(crate) fn finalize(&self) -> Result<(), Failure> {
        self.admit()?;
        let mut joined = lock(&self.joined);
        let Some(joined) = joined.as_mut() else {
            return Err(Failure::new(INVALID_ARGUMENT, "the communicator is gone"));
        };
        *lock(&self.progress) = Progress::Finalizing(joined.end()?);
        Ok(())
    }

    /// Frees it once its stream is through. `give_up` makes that at once: nothing of it waits for others any more.
    pub(crate) fn free(self: Arc<Communicator>, give_up: bool) {
        self.given_up.store(true, Ordering::SeqCst);
        // What it had launched is compared no more, from now on: it may have ended on one rank earlier than on another.
        self.ledger.close(self.id);
        if !self.freed(give_up) {
            std::thread::spawn(move || {
                while !self.freed(give_up) {
                    std::thread::sleep(LOOK); // sleep: between two looks
                }
            });
        }
    }

    /// Tries to free it.
    fn freed(&self, give_up: bool) -> bool {
        if let Some(rounds) = self.rounds.get()
            && give_up
        {
            rounds.release();
        }
        let Ok(mut joined) = self.joined.try_lock() else { return false };
        if joined.as_ref().is_some_and(|joined| !joined.is_idle()) {
            return false;
        }
        *joined = None;
        true
    }

    /// Remembers a sum with a factor; returns its number.
    pub(crate) fn add_scaled(&self, factor: f64) -> i32 {
        let mut scaled = lock(&self.scaled);
        scaled.push(Some(Reduction::scaled_sum(factor)));
        FIRST_SCALED + i32::try_from(scaled.len() - 1).unwrap_or(i32::MAX - FIRST_SCALED)
    }

    /// Forgets one. `false` if there is none of that number.
    pub(crate) fn remove_scaled(&self, number: i32) -> bool {
        let mut scaled = lock(&self.scaled);
        usize::try_from(number - FIRST_SCALED)
            .ok()
            .and_then(|at| scaled.get_mut(at))
            .is_some_and(|place| place.take().is_some())
    }

    /// The reduction of a number.
    pub(crate) fn reduction(&self, number: i32) -> Option<Reduction> {
        Reduction::built_in(number).or_else(|| {
            let at = usize::try_from(number - FIRST_SCALED).ok()?;
            *lock(&self.scaled).get(at)?
        })
    }

    /// Keeps what there is to say about a failure.
    pub(crate) fn remember(&self, failure: &Failure) {
        lock(&self.last).clone_from(&failure.text);
    }

    /// What there is to say about the last failure.
    pub(crate) fn last(&self) -> String {
        if let Progress::Failed(failure) = &*lock(&self.progress) {
            return failure.text.clone();
        }
        lock(&self.last).clone()
    }
}

/// The first number of a reduction that is not built in.
const FIRST_SCALED: i32 = 5;

fn remote() -> Failure {
    Failure::new(REMOTE_ERROR, "a remote error on demand")
}

/// Devices that were used, kept for good: compiled kernels are kept with them.
static DEVICES: Mutex<Vec<Arc<Device>>> = Mutex::new(Vec::new());

/// The device whose context is current to this thread.
fn current_device() -> Result<Arc<Device>, Failure> {
    let mut devices = lock(&DEVICES);
    if let Some(device) = devices.iter().find(|device| device.is_current()) {
        return Ok(device.clone());
    }
    for ordinal in 0..Device::count()? {
        let device = Device::open(i32::try_from(ordinal).unwrap_or(i32::MAX))?;
        if device.is_current() {
            devices.push(device.clone());
            return Ok(device);
        }
    }
    Err(Failure::misuse("no device's primary context is current to the calling thread"))
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use ronde_collective::types::DType;
    use ronde_cuda::Scratch;
    use ronde_simulated_cuda::Simulation;

    use super::*;
    use crate::call::{Collective, Kind, Request};

    /// More than any stream here takes, however busy the machine is.
    const LIMIT: Duration = Duration::from_secs(120);

    /// The only rank of a communicator on a device whose context is current.
    fn alone(name: u8) -> Arc<Communicator> {
        let communicator = Communicator::begin(&[name; 32], 0, 1).expect("a communicator");
        assert_eq!(settled(&communicator), SUCCESS);
        communicator
    }

    fn settled(communicator: &Communicator) -> Code {
        loop {
            match communicator.state() {
                IN_PROGRESS => std::thread::yield_now(),
                code => return code,
            }
        }
    }

    fn device() -> Arc<Device> {
        // SAFETY: the simulated driver behaves like CUDA's, as far as these tests go.
        unsafe { ronde_cuda::install(ronde_simulated_cuda::lookup) };
        Device::open(0).expect("a device")
    }

    #[test]
    fn a_communicator_whose_stream_is_through_is_freed_at_once_without_recording_a_point() {
        let simulation = Simulation::begin();
        let device = device();
        let _entered = device.enter().expect("its context");
        for (name, give_up) in [(1, false), (2, true)] {
            let streams = simulation.live().streams;
            let communicator = alone(name);
            if !give_up {
                communicator.finalize().expect("a begun end");
                assert_eq!(settled(&communicator), SUCCESS);
            }
            // A point that is recorded from here on is not reached before streams are resumed.
            simulation.pause();
            let recorded = simulation.calls("cuEventRecord");
            communicator.free(give_up);
            assert_eq!(simulation.live().streams, streams);
            assert_eq!(simulation.calls("cuEventRecord"), recorded);
            simulation.resume();
        }
    }

    #[test]
    fn a_communicator_is_freed_only_after_the_work_of_a_call_that_failed_half_way() {
        let simulation = Simulation::begin();
        let device = device();
        let _entered = device.enter().expect("its context");
        let memory = Scratch::new(&device, 4).expect("memory");
        let streams = simulation.live().streams;
        let communicator = alone(3);
        simulation.pause();
        // The copy into the slot is given to the stream before the kernel is launched.
        simulation.fail_next("cuLaunchKernel", 719);
        let reduction = Reduction::built_in(0);
        let what = Collective { kind: Kind::AllReduce, count: 1, dtype: DType::F32, reduction, root: 0 };
        let request = Request::Collective { what, src: memory.address(), dst: memory.address() };
        let asked = Asked { request, stream: 0, trouble: None };
        // SAFETY: the memory is kept until the stream is through.
        let failed = unsafe { communicator.launch(&[asked]) };
        assert!(failed.is_err_and(|failure| failure.text.contains("launch")));
        let (say, said) = channel();
        std::thread::spawn(move || {
            communicator.free(true);
            say.send(()).expect("the test waits");
        });
        said.recv_timeout(LIMIT).expect("freeing a communicator does not wait for its stream");
        assert_eq!(simulation.live().streams, streams + 1, "the copy has not been made");
        simulation.resume();
        let begin = Instant::now();
        while simulation.live().streams > streams && begin.elapsed() < LIMIT {
            std::thread::yield_now();
        }
        assert_eq!(simulation.live().streams, streams);
    }
}
