//! What tests ask of the driver: counts of calls and of live things, failures to order, streams to hold.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::handles::lock;
use crate::ranges::{self, Kind};
use crate::status::{Code, NOT_INITIALIZED, SUCCESS};
use crate::{capture, context, device, driver, event, module, physical, pool, stream};

/// The controls of this process's driver, for one test at a time.
///
/// ```
/// # use ronde_simulated_cuda::{Simulation, lookup};
/// let simulation = Simulation::begin();
/// let before = simulation.live();
/// assert!(!lookup(c"cuInit").is_null());
/// // … what is tested …
/// assert_eq!(simulation.live(), before, "nothing is left");
/// assert_eq!(simulation.calls("cuStreamSynchronize"), 0, "nothing waited on the host");
/// ```
pub struct Simulation {
    _alone: MutexGuard<'static, ()>,
}

/// How many things there are of each kind that somebody has to free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Times that primary contexts are retained.
    pub contexts: usize,
    /// Streams, without the default ones.
    pub streams: usize,
    /// Events.
    pub events: usize,
    /// Device memory of `cuMemAlloc`, `cuMemAllocAsync` and `cuMemAllocFromPoolAsync`.
    pub allocations: usize,
    /// Pools of `cuMemPoolCreate`.
    pub pools: usize,
    /// Pinned host memory of `cuMemAllocHost`.
    pub pinned: usize,
    /// Ranges of `cuMemHostRegister`.
    pub registered: usize,
    /// Handles of `cuMemCreate` and `cuMemImportFromShareableHandle`.
    pub physical: usize,
    /// Reserved ranges of addresses.
    pub reservations: usize,
    /// Physical memory that is mapped.
    pub mappings: usize,
    /// Modules. They end with their context.
    pub modules: usize,
}

static ALONE: Mutex<()> = Mutex::new(());
static TALLIES: Mutex<BTreeMap<&'static str, Tally>> = Mutex::new(BTreeMap::new());
static PAUSED: Mutex<bool> = Mutex::new(false);
static RESUMED: Condvar = Condvar::new();

/// How many calls of all functions there were.
static CALLS: AtomicU64 = AtomicU64::new(0);

#[derive(Default)]
struct Tally {
    calls: u64,
    /// The number of the last one, among the calls of all functions.
    last: u64,
    failures: VecDeque<Code>,
}

impl Simulation {
    /// Waits until no other test of this process has the controls, and takes them: four devices, no call counted,
    /// none to fail, no stream held, no device in an error. What earlier tests left alive stays alive.
    pub fn begin() -> Simulation {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        lock(&TALLIES).clear();
        device::set_count(device::DEFAULT_COUNT);
        context::forget_faults();
        Simulation { _alone: alone }
    }

    /// Says how many devices there are from now on.
    ///
    /// # Panics
    /// If that is more than 64.
    pub fn set_devices(&self, count: usize) {
        device::set_count(count);
    }

    /// Counts what is alive. Memory that is freed in a stream is alive until the stream gets there.
    pub fn live(&self) -> Live {
        Live {
            contexts: context::retained(),
            streams: stream::count(),
            events: event::count(),
            allocations: ranges::count(Kind::Device),
            pools: pool::count(),
            pinned: ranges::count(Kind::Pinned),
            registered: ranges::count(Kind::Registered),
            physical: physical::count(),
            reservations: physical::reservations(),
            mappings: ranges::count(Kind::Mapped),
            modules: module::count(),
        }
    }

    /// How often a function was called since [`begin`](Simulation::begin), failures included.
    ///
    /// # Panics
    /// If the driver has no function of that name.
    pub fn calls(&self, name: &str) -> u64 {
        lock(&TALLIES).get(known(name)).map_or(0, |tally| tally.calls)
    }

    /// The number of a function's last call, among the calls of all functions, so that two functions can be compared: the one called
    /// later has the larger number. 0 if it was not called since [`begin`](Simulation::begin).
    ///
    /// # Panics
    /// If the driver has no function of that name.
    pub fn last(&self, name: &str) -> u64 {
        lock(&TALLIES).get(known(name)).map_or(0, |tally| tally.last)
    }

    /// Makes the next call of a function return `code` without doing anything. Orders add up: two of them let
    /// two calls fail.
    ///
    /// # Panics
    /// If the driver has no function of that name, or the code is that of success.
    pub fn fail_next(&self, name: &str, code: u32) {
        assert_ne!(code, SUCCESS, "a failure needs a code");
        lock(&TALLIES).entry(known(name)).or_default().failures.push_back(code);
    }

    /// Lets no stream of any device begin anything more. What one is doing at this moment goes on to its end.
    pub fn pause(&self) {
        *lock(&PAUSED) = true;
    }

    /// Lets streams go on.
    pub fn resume(&self) {
        resume();
    }

    /// Says that somebody captures a stream into a graph from now on.
    pub fn capture(&self, stream: u64) {
        capture::begin(stream as usize);
    }

    /// Ends the capture; gives the name of the call that broke it, if one did.
    pub fn end_capture(&self) -> Option<&'static str> {
        capture::end()
    }

    /// The error that a kernel or a copy ended a device with, if one did.
    pub fn fault(&self, device: usize) -> Option<u32> {
        context::fault(device)
    }
}

/// Streams go on for whoever comes next, also after a failed test, and so do calls.
impl Drop for Simulation {
    fn drop(&mut self) {
        resume();
        capture::end();
        for tally in lock(&TALLIES).values_mut() {
            tally.failures.clear();
        }
    }
}

fn resume() {
    *lock(&PAUSED) = false;
    RESUMED.notify_all();
}

fn known(name: &str) -> &'static str {
    let found = driver::NAMES.iter().find(|known| **known == name);
    found.unwrap_or_else(|| panic!("the simulated driver has no function {name}"))
}

/// Counts a call. Gives the code that it must return at once, if there is one.
pub(crate) fn enter(name: &'static str) -> Option<Code> {
    let mut tallies = lock(&TALLIES);
    let tally = tallies.entry(name).or_default();
    tally.calls += 1;
    tally.last = 1 + CALLS.fetch_add(1, Ordering::Relaxed);
    let failure = tally.failures.pop_front();
    failure
        .or_else(|| (!device::ready_for(name)).then_some(NOT_INITIALIZED))
        .or_else(|| capture::disturbed_by(name))
}

/// Waits while streams are held.
pub(crate) fn pass() {
    let mut paused = lock(&PAUSED);
    while *paused {
        paused = RESUMED.wait(paused).unwrap_or_else(PoisonError::into_inner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::entries::{cuDeviceGetCount, cuInit};
    use crate::pointer::Out;

    #[test]
    fn calls_are_counted_and_fail_as_often_as_ordered() {
        let simulation = Simulation::begin();
        simulation.fail_next("cuInit", 100);
        simulation.fail_next("cuInit", 999);
        // SAFETY: as CUDA demands.
        let codes = [(); 3].map(|()| unsafe { cuInit(0) });
        assert_eq!(codes, [100, 999, 0]);
        assert_eq!(simulation.calls("cuInit"), 3);
        assert_eq!(simulation.calls("cuMemCreate"), 0);
        let first = simulation.last("cuInit");
        // SAFETY: as CUDA demands.
        unsafe { cuDeviceGetCount(Out::to(&mut 0)) };
        assert!(0 < first && first < simulation.last("cuDeviceGetCount"));
        assert_eq!(simulation.last("cuMemCreate"), 0);
    }

    #[test]
    fn a_simulation_begins_with_four_devices_and_has_as_many_as_it_is_told() {
        let count = || {
            let mut count = 0;
            // SAFETY: as CUDA demands.
            assert_eq!(unsafe { (cuInit(0), cuDeviceGetCount(Out::to(&mut count))) }, (0, 0));
            count
        };
        let simulation = Simulation::begin();
        simulation.set_devices(2);
        assert_eq!(count(), 2);
        drop(simulation);
        let _simulation = Simulation::begin();
        assert_eq!(count(), 4);
    }

    #[test]
    #[should_panic(expected = "no function cuMemcreate")]
    fn a_misspelled_name_is_not_silently_never_called() {
        Simulation::begin().calls("cuMemcreate");
    }
}
