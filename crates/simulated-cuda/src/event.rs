//! Events: a point in a stream that others can wait for.
//!
//! Recording an event replaces its point; whoever waits does so for the point there is when the wait is given.
//! An event that was never recorded has none, and waiting for it is nothing, as in CUDA.

use std::ffi::c_uint;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::capture;
use crate::context::{self, Device};
use crate::handles::{Handle, Table, lock};
use crate::pointer::Out;
use crate::status::{NOT_READY, NOT_SUPPORTED, Result, demand};
use crate::stream;

struct Event {
    device: &'static Device,
    recorded: Mutex<Option<Arc<Point>>>,
}

/// A place in a stream's work.
#[derive(Default)]
struct Point {
    reached: Mutex<bool>,
    changed: Condvar,
}

impl Point {
    fn reach(&self) {
        *lock(&self.reached) = true;
        self.changed.notify_all();
    }

    fn wait(&self) {
        let reached = lock(&self.reached);
        drop(self.changed.wait_while(reached, |reached| !*reached).unwrap_or_else(PoisonError::into_inner));
    }
}

static EVENTS: Table<Event> = Table::new(0xE);

/// `CU_EVENT_BLOCKING_SYNC`, `CU_EVENT_DISABLE_TIMING` and `CU_EVENT_INTERPROCESS`.
const FLAGS: c_uint = 7;
const INTERPROCESS: c_uint = 4;

/// How many events are alive.
pub(crate) fn count() -> usize {
    EVENTS.count()
}

/// `cuEventCreate`
pub(crate) fn create(event: Out<Handle>, flags: c_uint) -> Result {
    let device = context::current()?;
    demand(flags & !FLAGS == 0)?;
    if flags & INTERPROCESS != 0 {
        return Err(NOT_SUPPORTED);
    }
    event.put_with(|| Ok(EVENTS.add(Arc::new(Event { device, recorded: Mutex::default() }))))
}

/// `cuEventDestroy`
pub(crate) fn destroy(event: Handle) -> Result {
    context::current_or_failed()?;
    EVENTS.take(event).map(drop)
}

/// `cuEventRecord`
pub(crate) fn record(event: Handle, stream: Handle) -> Result {
    capture::join(stream, "cuEventRecord")?;
    let stream = stream::resolve(stream)?;
    let event = EVENTS.get(event)?;
    stream::same_device(&stream, event.device)?;
    let point = Arc::new(Point::default());
    *lock(&event.recorded) = Some(Arc::clone(&point));
    stream.always(move || point.reach());
    Ok(())
}

/// `cuStreamWaitEvent`
pub(crate) fn wait(stream: Handle, event: Handle, flags: c_uint) -> Result {
    capture::join(stream, "cuStreamWaitEvent")?;
    let stream = stream::resolve(stream)?;
    let event = EVENTS.get(event)?;
    demand(flags == 0)?;
    if let Some(point) = lock(&event.recorded).clone() {
        stream.always(move || point.wait());
    }
    Ok(())
}

/// `cuEventQuery`
pub(crate) fn query(event: Handle) -> Result {
    let event = EVENTS.get(event)?;
    let point = lock(&event.recorded).clone();
    if point.is_none_or(|point| *lock(&point.reached)) { event.device.check() } else { Err(NOT_READY) }
}

/// `cuEventSynchronize`
pub(crate) fn synchronize(event: Handle) -> Result {
    context::current()?;
    let event = EVENTS.get(event)?;
    let point = lock(&event.recorded).clone();
    if let Some(point) = point {
        point.wait();
    }
    event.device.check()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::INVALID_HANDLE;
    use crate::testing::Desk;
    use std::sync::mpsc::channel;

    #[test]
    fn a_stream_waits_for_the_point_that_was_recorded_last() {
        let desk = Desk::new();
        let [first, second] = [desk.stream(), desk.stream()];
        let event = desk.event();
        let (say, said) = channel();
        let (release, held) = channel::<()>();
        let sayer = say.clone();
        stream::resolve(first).expect("stream").always(move || {
            held.recv().expect("released");
            sayer.send("first").expect("receiver");
        });
        assert_eq!(record(event, first), Ok(()));
        assert_eq!(wait(second, event, 0), Ok(()));
        stream::resolve(second).expect("stream").always(move || say.send("second").expect("receiver"));
        assert_eq!(query(event), Err(NOT_READY));
        assert_eq!(stream::query(second), Err(NOT_READY));
        release.send(()).expect("held");
        assert_eq!(synchronize(event), Ok(()));
        assert_eq!(query(event), Ok(()));
        assert_eq!(stream::synchronize(second), Ok(()));
        assert!(said.iter().eq(["first", "second"]));
        desk.free_streams(&[first, second]);
        assert_eq!(destroy(event), Ok(()));
        assert_eq!(record(event, 0), Err(INVALID_HANDLE));
        assert_eq!(wait(0, event, 0), Err(INVALID_HANDLE));
    }

    #[test]
    fn an_event_that_was_never_recorded_holds_nobody() {
        let desk = Desk::new();
        let event = desk.event();
        assert_eq!(query(event), Ok(()));
        assert_eq!(wait(0, event, 0), Ok(()));
        assert_eq!(synchronize(event), Ok(()));
        assert_eq!(stream::synchronize(0), Ok(()));
        assert_eq!(destroy(event), Ok(()));
    }

    #[test]
    fn events_are_recorded_in_streams_of_their_device_and_waited_for_in_any() {
        let desk = Desk::new();
        let event = desk.event();
        assert_eq!(record(event, 0), Ok(()));
        desk.on(1, || {
            assert_eq!(record(event, 0), Err(INVALID_HANDLE));
            assert_eq!(wait(0, event, 0), Ok(()));
            assert_eq!(stream::synchronize(0), Ok(()));
        });
        assert_eq!(destroy(event), Ok(()));
    }
}
