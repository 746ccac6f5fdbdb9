//! The library that compiled JAX programs call: a handler of XLA's foreign function interface over the engine's table.
//!
//! Python loads it, gives it the engine (`ronde_attach`) and registers `ronde_jax_collective` with XLA under the name that
//! its lowering rules use (`python/ronde/jax/_effects.py`). From then on a program calls it on XLA's threads, without the
//! interpreter. It keeps nothing but the address of the engine's table.
//!
//! | Module | What it is |
//! |---|---|
//! | `xla` | XLA's structs, as C |
//! | `frame` | a call, read safely |
//! | `elements` | XLA's element types as the engine's |
//! | `collective` | a call as a request, and its results |

mod collective;
mod elements;
mod frame;
#[cfg(test)]
mod tests;
mod xla;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::OnceLock;

use ronde_bridge::{Engine, Table};

use crate::frame::{Frame, Refusal};
use crate::xla::{CallFrame, ErrorCode};

static ENGINE: OnceLock<Engine> = OnceLock::new();

/// Takes the engine's functions; false if they are of another version.
///
/// # Safety
/// `table` is null, or points to a [`Table`] (at least to its version) that stays valid until the process ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ronde_attach(table: *const Table) -> bool {
    // SAFETY: as promised.
    match unsafe { Engine::new(table) } {
        Some(engine) => {
            ENGINE.get_or_init(|| engine);
            true
        }
        None => false,
    }
}

/// Does one collective of a compiled program. Its attributes say which; they come from `python/ronde/jax/collectives.py`.
///
/// # Safety
/// `call_frame` is XLA's, with all that its interface promises.
#[unsafe(no_mangle)]
unsafe extern "C" fn ronde_jax_collective(call_frame: *const CallFrame) -> *mut xla::Error {
    // SAFETY: as promised.
    let frame = unsafe { Frame::new(&*call_frame) };
    if frame.answered() || !frame.executes() {
        return ptr::null_mut();
    }
    // A panic must not unwind into XLA.
    let outcome = catch_unwind(AssertUnwindSafe(|| match ENGINE.get() {
        Some(&engine) => frame.check().and_then(|()| collective::run(engine, frame)),
        None => Err(Refusal::new(ErrorCode::FailedPrecondition, "the library was not given an engine")),
    }));
    match outcome {
        Ok(Ok(())) => ptr::null_mut(),
        Ok(Err(refusal)) => frame.failure(&refusal),
        Err(_) => {
            frame.failure(&Refusal::new(ErrorCode::Internal, "a collective has panicked; this is a bug"))
        }
    }
}
