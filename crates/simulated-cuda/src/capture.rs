//! Graph capture, as far as it concerns those who do not capture: the stream that is being captured, and the calls that
//! end a capture unless their thread has said that it does not mind.
//!
//! A test says which stream is captured ([`Simulation::capture`](crate::Simulation::capture)); nothing is recorded. The
//! capture is a global one, as PyTorch's are: a call that may be unsafe meanwhile, by whatever thread, is refused and
//! breaks it, unless that thread is in the relaxed mode.

use std::cell::Cell;
use std::ffi::c_uint;
use std::sync::Mutex;

use crate::handles::{Handle, lock};
use crate::pointer::Out;
use crate::status::{CAPTURE_ISOLATION, CAPTURE_UNSUPPORTED, Code, Result, demand};
use crate::stream;

const RELAXED: c_uint = 2;
const NONE: c_uint = 0;
const ACTIVE: c_uint = 1;

/// What CUDA calls potentially unsafe, of what there is here.
const UNSAFE: [&str; 10] = [
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemAllocHost_v2",
    "cuMemFreeHost",
    "cuMemHostRegister_v2",
    "cuModuleLoadDataEx",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuStreamQuery",
    "cuStreamSynchronize",
];

struct Capture {
    stream: Handle,
    broken_by: Option<&'static str>,
}

static CAPTURE: Mutex<Option<Capture>> = Mutex::new(None);

thread_local! {
    /// Global, until the thread says otherwise.
    static MODE: Cell<c_uint> = const { Cell::new(0) };
}

/// Begins a capture of a stream.
pub(crate) fn begin(stream: Handle) {
    *lock(&CAPTURE) = Some(Capture { stream, broken_by: None });
}

/// Ends it; gives the call that broke it, if one did.
pub(crate) fn end() -> Option<&'static str> {
    lock(&CAPTURE).take().and_then(|capture| capture.broken_by)
}

/// What a call by this thread must return at once, if a capture is under way that it would disturb.
pub(crate) fn disturbed_by(name: &'static str) -> Option<Code> {
    if MODE.get() == RELAXED || !UNSAFE.contains(&name) {
        return None;
    }
    let mut capture = lock(&CAPTURE);
    let capture = capture.as_mut()?;
    capture.broken_by.get_or_insert(name);
    Some(CAPTURE_UNSUPPORTED)
}

/// What joins a stream that is captured with one that is not breaks the capture.
pub(crate) fn join(stream: Handle, name: &'static str) -> Result {
    match lock(&CAPTURE).as_mut().filter(|capture| capture.stream == stream) {
        Some(capture) => {
            capture.broken_by.get_or_insert(name);
            Err(CAPTURE_ISOLATION)
        }
        None => Ok(()),
    }
}

/// `cuThreadExchangeStreamCaptureMode`
pub(crate) fn exchange_mode(mode: Out<c_uint>) -> Result {
    mode.exchange(|wanted| demand(wanted <= RELAXED).map(|()| MODE.replace(wanted)))
}

/// `cuStreamIsCapturing`
pub(crate) fn is_capturing(handle: Handle, status: Out<c_uint>) -> Result {
    stream::resolve(handle)?;
    let is_captured = lock(&CAPTURE).as_ref().is_some_and(|capture| capture.stream == handle);
    status.put(if is_captured { ACTIVE } else { NONE })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::entries::{cuEventRecord, cuMemFree_v2, cuStreamIsCapturing};
    use crate::status::{INVALID_VALUE, SUCCESS};
    use crate::testing::Desk;

    #[test]
    fn threads_that_do_not_relax_break_a_capture() {
        let desk = Desk::new();
        desk.simulation.capture(0);
        let mut mode = RELAXED;
        assert_eq!(exchange_mode(Out::to(&mut mode)), Ok(()));
        // SAFETY: as CUDA demands; nothing is at that address.
        assert_eq!(unsafe { cuMemFree_v2(16) }, INVALID_VALUE);
        assert_eq!(exchange_mode(Out::to(&mut mode)), Ok(()));
        assert_eq!((mode, desk.simulation.end_capture()), (RELAXED, None));
        desk.simulation.capture(0);
        // SAFETY: as above.
        assert_eq!(unsafe { cuMemFree_v2(16) }, CAPTURE_UNSUPPORTED);
        assert_eq!(desk.simulation.end_capture(), Some("cuMemFree_v2"));
    }

    #[test]
    fn what_is_captured_is_known_and_joined_with_nothing() {
        let desk = Desk::new();
        let (mut status, mut event) = (NONE, 0);
        assert_eq!(crate::event::create(Out::to(&mut event), 0), Ok(()));
        desk.simulation.capture(0);
        // SAFETY: as CUDA demands.
        unsafe {
            assert_eq!(cuStreamIsCapturing(0, Out::to(&mut status)), SUCCESS);
            assert_eq!(cuEventRecord(event, 0), CAPTURE_ISOLATION);
        }
        assert_eq!((status, desk.simulation.end_capture()), (ACTIVE, Some("cuEventRecord")));
        assert_eq!(crate::event::destroy(event), Ok(()));
    }
}
