//! Contexts: one a device, the primary one, current to threads by a stack each has.
//!
//! A device that came to an error keeps it: calls in its context return it until a test forgets it.

use std::cell::RefCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

use crate::device;
use crate::handles::Handle;
use crate::module;
use crate::pointer::Out;
use crate::status::{CONTEXT_IS_DESTROYED, Code, INVALID_CONTEXT, Result, SUCCESS};
use crate::stream::Stream;

/// A device with its primary context.
pub(crate) struct Device {
    pub(crate) index: usize,
    retained: AtomicUsize,
    fault: AtomicU32,
    /// The default stream, which nobody creates.
    pub(crate) default: OnceLock<Arc<Stream>>,
}

static DEVICES: LazyLock<Vec<Device>> = LazyLock::new(|| (0..device::MOST).map(Device::new).collect());

/// Contexts of all devices, as handles: the first one, and how far the next is away.
const FIRST: Handle = 0xC0_0000_0000;
const APART: Handle = 0x100;

thread_local! {
    static STACK: RefCell<Vec<&'static Device>> = const { RefCell::new(Vec::new()) };
}

impl Device {
    fn new(index: usize) -> Device {
        let (retained, fault) = (AtomicUsize::new(0), AtomicU32::new(SUCCESS));
        Device { index, retained, fault, default: OnceLock::new() }
    }

    /// The context's handle.
    fn handle(&self) -> Handle {
        FIRST + self.index * APART
    }

    /// Ends the device with an error, unless it has one.
    pub(crate) fn fail(&self, code: Code) {
        let _ = self.fault.compare_exchange(SUCCESS, code, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The error it came to, as one of a call.
    pub(crate) fn check(&self) -> Result {
        match self.fault.load(Ordering::Relaxed) {
            SUCCESS => Ok(()),
            code => Err(code),
        }
    }
}

/// The device whose context is current to this thread, whatever error it is in.
pub(crate) fn current_or_failed() -> Result<&'static Device> {
    let device = STACK.with_borrow(|stack| stack.last().copied()).ok_or(INVALID_CONTEXT)?;
    if device.retained.load(Ordering::Relaxed) == 0 { Err(CONTEXT_IS_DESTROYED) } else { Ok(device) }
}

/// The device whose context is current to this thread.
pub(crate) fn current() -> Result<&'static Device> {
    let device = current_or_failed()?;
    device.check().map(|()| device)
}

/// `cuDevicePrimaryCtxRetain`
pub(crate) fn retain(context: Out<Handle>, device: c_int) -> Result {
    let device = &DEVICES[device::index(device)?];
    context.put(device.handle())?;
    device.retained.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// `cuDevicePrimaryCtxRelease`. With the last one all that belongs to the context ends in CUDA. Here only modules do,
/// which are loaded for as long as a context lives; that other things were forgotten shall show in what is alive.
pub(crate) fn release(device: c_int) -> Result {
    let device = &DEVICES[device::index(device)?];
    let fewer = |count: usize| count.checked_sub(1);
    let before = device.retained.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
    if before.map_err(|_| INVALID_CONTEXT)? == 1 {
        module::unload_all(device);
    }
    Ok(())
}

/// `cuCtxPushCurrent`
pub(crate) fn push(context: Handle) -> Result {
    let device = DEVICES.iter().find(|device| device.handle() == context).ok_or(INVALID_CONTEXT)?;
    if device.retained.load(Ordering::Relaxed) == 0 {
        return Err(CONTEXT_IS_DESTROYED);
    }
    STACK.with_borrow_mut(|stack| stack.push(device));
    Ok(())
}

/// `cuCtxPopCurrent`, whose result nobody has to take.
pub(crate) fn pop(context: Out<Handle>) -> Result {
    let device = STACK.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)?;
    context.put_if_wanted(device.handle());
    Ok(())
}

/// How often contexts are retained, all together.
pub(crate) fn retained() -> usize {
    DEVICES.iter().map(|device| device.retained.load(Ordering::Relaxed)).sum()
}

/// The error a device is in.
pub(crate) fn fault(device: usize) -> Option<Code> {
    DEVICES.get(device)?.check().err()
}

/// Makes all devices usable again.
pub(crate) fn forget_faults() {
    for device in DEVICES.iter() {
        device.fault.store(SUCCESS, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Simulation;
    use crate::status::INVALID_DEVICE;
    use crate::testing::Desk;
    use crate::{memory, word};

    #[test]
    fn words_of_a_stream_want_no_context_and_copies_do() {
        let desk = Desk::new();
        let (stream, mut address) = (desk.stream(), 0);
        assert_eq!(memory::allocate(Out::to(&mut address), 4), Ok(()));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(word::write(stream, address, 1, 0), Ok(()));
                assert_eq!(word::write(0, address, 1, 0), Err(INVALID_CONTEXT));
                assert_eq!(memory::set(address, 1, 4, stream), Err(INVALID_CONTEXT));
            });
        });
        assert_eq!(crate::stream::synchronize(stream), Ok(()));
        assert_eq!(memory::free(address), Ok(()));
        desk.free_streams(&[stream]);
    }

    #[test]
    fn calls_want_a_context_that_is_current_to_their_thread_and_retained() {
        let simulation = Simulation::begin();
        assert_eq!(device::init(0), Ok(()));
        let before = simulation.live();
        let info = || memory::info(Out::to(&mut 0), Out::to(&mut 0));
        let mut handle = 0;
        assert_eq!(push(FIRST + 5), Err(INVALID_CONTEXT));
        assert_eq!(retain(Out::to(&mut handle), 99), Err(INVALID_DEVICE));
        assert_eq!(retain(Out::to(&mut handle), 1), Ok(()));
        assert_eq!(info(), Err(INVALID_CONTEXT));
        assert_eq!(push(handle), Ok(()));
        assert_eq!(info(), Ok(()));
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(info(), Err(INVALID_CONTEXT)));
        });
        assert_eq!(release(1), Ok(()));
        assert_eq!(info(), Err(CONTEXT_IS_DESTROYED));
        assert_eq!(release(1), Err(INVALID_CONTEXT));
        let mut popped = 0;
        assert_eq!(pop(Out::to(&mut popped)), Ok(()));
        assert_eq!(popped, handle);
        assert_eq!(pop(Out::to(&mut popped)), Err(INVALID_CONTEXT));
        assert_eq!(simulation.live(), before);
    }
}
