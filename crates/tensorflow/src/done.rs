//! Keeping the callback by which an asynchronous kernel says that it has finished.
//!
//! The C interface hands a kernel the address of a `std::function<void()>` that dies when the kernel's compute function
//! returns, which is long before a collective has ended, and it has no function to copy one. So the copy is made here, the
//! way libstdc++ does: a `std::function` is two words of data, a manager that copies and destroys those, and an invoker.
//! Every build of TensorFlow for Linux uses libstdc++, whose layout is part of its stable binary interface. That this is so is
//! made sure once, when the library is loaded: the name of a method in TensorFlow tells the type of the callback (`api.rs`),
//! and [`works`] has TensorFlow call a function that was put together here. Should either fail, kernels wait for their
//! collective instead.

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use crate::api::RawDone;

/// What the manager is asked to do.
const CLONE: c_int = 2;
const DESTROY: c_int = 3;

/// TensorFlow's `TF_RunAsyncOpKernelDoneCallback`.
pub(crate) type Run = unsafe extern "C" fn(*mut RawDone);

type Data = [*mut c_void; 2];
type Manager = unsafe extern "C" fn(target: *mut Data, source: *const Data, operation: c_int) -> bool;
type Invoker = unsafe extern "C" fn(data: *const Data);

/// A `std::function<void()>`.
#[repr(C)]
struct Function {
    data: Data,
    manager: Option<Manager>,
    invoker: Option<Invoker>,
}

/// A callback that outlives the compute function it was given to. To be called once.
pub(crate) struct Done {
    function: Box<Function>,
    run: Run,
}

// SAFETY: TensorFlow lets a kernel call it from any thread.
unsafe impl Send for Done {}

impl Done {
    /// Copies the callback.
    ///
    /// # Safety
    /// `callback` is what TensorFlow gave a compute function that has not returned, and [`works`] has said yes.
    pub(crate) unsafe fn keep(run: Run, callback: *mut RawDone) -> Done {
        // SAFETY: as promised, this is a function of that layout.
        let original = unsafe { &*callback.cast::<Function>() };
        let mut function = Box::new(Function {
            data: [std::ptr::null_mut(); 2],
            manager: original.manager,
            invoker: original.invoker,
        });
        if let Some(manager) = original.manager {
            // SAFETY: the manager that came with the data; the target is vacant.
            unsafe { manager(&raw mut function.data, &raw const original.data, CLONE) };
        }
        Done { function, run }
    }

    /// Tells TensorFlow that the kernel has finished, whose context is not valid any more afterwards.
    pub(crate) fn call(mut self) {
        // SAFETY: a function of TensorFlow's, complete and alive.
        unsafe { (self.run)((&raw mut *self.function).cast()) };
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        let data = &raw mut self.function.data;
        if let Some(manager) = self.function.manager {
            // SAFETY: destroyed once, by its own manager.
            unsafe { manager(data, data, DESTROY) };
        }
    }
}

thread_local! {
    /// The data with which the invoker of the probe was called.
    static PROBED: Cell<*const Data> = const { Cell::new(std::ptr::null()) };
}

unsafe extern "C" fn note(data: *const Data) {
    PROBED.set(data);
}

unsafe extern "C" fn manage_nothing(_: *mut Data, _: *const Data, _: c_int) -> bool {
    false
}

extern "C" fn do_nothing() {}

/// An object as the other C++ library keeps in a `std::function`: it begins with the address of a table of methods.
#[repr(C)]
struct Stranger {
    methods: *const [extern "C" fn(); 16],
}

/// The probe. What follows the function is where the other C++ library, libc++, has the object to call, so that it calls
/// a method that does nothing instead of whatever the memory holds.
#[repr(C)]
struct Probe {
    function: Function,
    strangers: [*const Stranger; 4],
}

/// Whether `run` takes a `std::function` apart as [`Done`] puts it together.
pub(crate) fn works(run: Run) -> bool {
    let methods = [do_nothing as extern "C" fn(); 16];
    let stranger = Stranger { methods: &raw const methods };
    let mut probe = Probe {
        function: Function {
            data: [std::ptr::null_mut(); 2],
            manager: Some(manage_nothing),
            invoker: Some(note),
        },
        strangers: [&raw const stranger; 4],
    };
    PROBED.set(std::ptr::null());
    // SAFETY: a function in the layout of either C++ library, which lives until this returns.
    unsafe { run((&raw mut probe).cast()) };
    std::ptr::eq(PROBED.get(), &raw const probe.function.data)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// What TensorFlow does, with libstdc++.
    unsafe extern "C" fn as_libstdcxx(callback: *mut RawDone) {
        // SAFETY: the tests pass functions of that layout.
        let function = unsafe { &*callback.cast::<Function>() };
        if let (Some(_), Some(invoker)) = (function.manager, function.invoker) {
            // SAFETY: as above.
            unsafe { invoker(&raw const function.data) };
        }
    }

    /// What it would do with libc++, whose object comes after 32 bytes and is called by its seventh method.
    unsafe extern "C" fn as_libcxx(callback: *mut RawDone) {
        // SAFETY: the probe has an object there.
        let stranger = unsafe { &**callback.cast::<*const Stranger>().add(4) };
        // SAFETY: it has sixteen methods.
        (unsafe { &*stranger.methods })[6]();
    }

    #[test]
    fn the_layout_of_libstdcxx_is_recognised() {
        assert!(works(as_libstdcxx));
    }

    #[test]
    fn another_layout_is_recognised_as_such() {
        assert!(!works(as_libcxx));
    }

    static CALLS: AtomicUsize = AtomicUsize::new(0);
    static ALIVE: AtomicUsize = AtomicUsize::new(1);

    unsafe extern "C" fn count_call(_: *const Data) {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }

    unsafe extern "C" fn count_copies(target: *mut Data, source: *const Data, operation: c_int) -> bool {
        match operation {
            CLONE => {
                ALIVE.fetch_add(1, Ordering::Relaxed);
                // SAFETY: both are data of functions.
                unsafe { *target = *source };
            }
            DESTROY => {
                ALIVE.fetch_sub(1, Ordering::Relaxed);
            }
            _ => {}
        }
        false
    }

    #[test]
    fn a_kept_callback_outlives_the_original_and_is_destroyed_after_its_call() {
        let mut original = Box::new(Function {
            data: [std::ptr::null_mut(); 2],
            manager: Some(count_copies),
            invoker: Some(count_call),
        });
        // SAFETY: a function of that layout.
        let done = unsafe { Done::keep(as_libstdcxx, (&raw mut *original).cast()) };
        drop(original);
        assert_eq!(ALIVE.load(Ordering::Relaxed), 2);
        done.call();
        assert_eq!((CALLS.load(Ordering::Relaxed), ALIVE.load(Ordering::Relaxed)), (1, 1));
    }
}
