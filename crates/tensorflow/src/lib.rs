//! The TensorFlow plug-in: Horovod's operations, with kernels that call the engine.
//!
//! `tf.load_op_library` loads this library, and makes Python functions of the operations that are registered meanwhile; so
//! that is done by the library's constructor ([`register`]). Everything goes through TensorFlow's C interface, which is looked
//! up in the TensorFlow of the process: one build serves all versions since 2.13. The library has no state of a job. Python
//! gives it the table of the engine's functions afterwards ([`ronde_attach`]).
//!
//! | Module | What it is |
//! |---|---|
//! | `api` | TensorFlow's C functions, looked up |
//! | `status`, `tensor`, `context`, `node`, `dtype` | what these functions pass around, as Rust values |
//! | `definitions`, `shapes` | the operations, and the shapes of their outputs |
//! | `kernels` | what a node does when it runs |
//! | `names` | how ranks find each other's requests |
//! | `done` | the callback that says that an asynchronous kernel has finished |
//!
//! Where there is no TensorFlow nothing is registered; [`ronde_tensorflow_problem`] says what was in the way.

mod api;
mod context;
mod definitions;
mod done;
mod dtype;
mod kernels;
mod names;
mod node;
mod shapes;
mod status;
mod tensor;

use std::ffi::{CString, c_char};
use std::sync::OnceLock;

use ronde_bridge::{Engine, Table};

use crate::status::{Code, Refusal};

static ENGINE: OnceLock<Engine> = OnceLock::new();
static PROBLEM: OnceLock<CString> = OnceLock::new();
static CALLBACKS_CAN_BE_KEPT: OnceLock<bool> = OnceLock::new();

/// Run by the loader, before `dlopen` returns.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = register;

extern "C" fn register() {
    if let Err(problem) = register_all() {
        let _ = PROBLEM.set(CString::new(problem).unwrap_or_default());
    }
}

fn register_all() -> Result<(), String> {
    let api = api::look_up()?;
    let _ = CALLBACKS_CAN_BE_KEPT.set(api.callbacks_are_known && done::works(api.functions.run_done));
    for definition in &definitions::ALL {
        definition
            .register(api)
            .and_then(|()| kernels::register(api, definition))
            .map_err(|refusal| format!("TensorFlow refuses {}: {}", definition.text(), refusal.text()))?;
    }
    Ok(())
}

/// Whether a kernel may return before its collective has ended.
fn callbacks_can_be_kept() -> bool {
    CALLBACKS_CAN_BE_KEPT.get().copied().unwrap_or(false)
}

/// The engine, once Python has said where it is.
fn engine() -> Result<Engine, Refusal> {
    ENGINE.get().copied().ok_or_else(|| {
        Refusal::new(
            Code::FailedPrecondition,
            "the library has no engine yet: import horovod.tensorflow first",
        )
    })
}

/// Takes the engine's functions; false if they are of another version.
///
/// # Safety
/// `table` is null, or points to a table that stays valid until the process ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ronde_attach(table: *const Table) -> bool {
    // SAFETY: as promised.
    let engine = unsafe { Engine::new(table) };
    engine.map(|engine| ENGINE.get_or_init(|| engine)).is_some()
}

/// Why the operations are not there; null if they are. The text stays valid.
#[unsafe(no_mangle)]
pub extern "C" fn ronde_tensorflow_problem() -> *const c_char {
    PROBLEM.get().map_or(std::ptr::null(), |problem| problem.as_ptr())
}

/// Whether many collectives of a graph can be in flight; if not, each occupies a thread, and those that belong together
/// should be one grouped operation.
#[unsafe(no_mangle)]
pub extern "C" fn ronde_tensorflow_is_asynchronous() -> bool {
    callbacks_can_be_kept()
}

/// Counts the operations without a name of a process set from 0 again, as all its members do when it is registered.
#[unsafe(no_mangle)]
pub extern "C" fn ronde_tensorflow_start_over(set: u32) {
    names::start_over(set);
}
