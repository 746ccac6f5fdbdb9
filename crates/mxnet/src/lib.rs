//! Collectives as operations of MXNet's dependency engine.
//!
//! MXNet runs operations on arrays in the background, in an order that follows from which arrays they read and write. A
//! collective has to be one of them: it must see what was computed before, and what is computed after must see its result,
//! while the script goes on. So it is pushed into MXNet's queue with the arrays it reads and writes, and calls the engine of the
//! job when its turn comes. `python/ronde/mxnet` calls what is exported here; nothing here touches Python.
//!
//! No header of MXNet is used: its functions are looked up at run time in the library that Python has loaded. What is relied
//! on besides the C interface is written down where it is used, and does not change any more: 1.9.1 was MXNet's last release.
//!
//! | Module | What it is |
//! |---|---|
//! | [`library`] | MXNet's functions |
//! | [`mod@array`] | its arrays |
//! | [`operation`] | a collective in MXNet's queue |
//! | [`turns`] | those of one name, one after the other |
//! | [`completion`] | telling MXNet how it ended |
//! | [`pending`] | waiting for all of them |

mod array;
mod completion;
mod library;
mod operation;
mod pending;
mod turns;

use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;
use std::time::Duration;

use ronde_bridge::{Engine, Kind, ReduceOp, Table};

use crate::library::{Handle, Library};
use crate::operation::{Operation, Surroundings, Wanted};

static ENGINE: OnceLock<Engine> = OnceLock::new();
static SURROUNDINGS: OnceLock<Surroundings> = OnceLock::new();

/// Takes the table of the engine's functions; false if it is of another version.
///
/// # Safety
/// `table` points to a [`Table`] that stays valid until the process ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ronde_attach(table: *const Table) -> bool {
    // SAFETY: as promised.
    unsafe { Engine::new(table) }.is_some_and(|engine| {
        ENGINE.get_or_init(|| engine);
        true
    })
}

/// Finds MXNet's functions in its library, which is loaded already; false if that is not so, or if one is missing.
///
/// `naive` says that MXNet runs operations where they are pushed.
///
/// # Safety
/// `path` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ronde_mxnet_open(path: *const c_char, naive: bool) -> bool {
    let Some(&engine) = ENGINE.get() else { return false };
    // SAFETY: as promised.
    let library = Library::find(unsafe { CStr::from_ptr(path) });
    library.is_some_and(|library| {
        SURROUNDINGS.get_or_init(|| Surroundings { library, engine, naive });
        true
    })
}

/// Puts a collective with given outputs into MXNet's queue. 0, or -1 with a message in MXNet's last error.
///
/// `inputs` and `outputs` are `count` handles each; in place they are the same.
///
/// # Safety
/// The name is a C string, and the handles are those of arrays in the CPU's memory, which the outputs fit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ronde_mxnet_push(
    kind: c_int,
    name: *const c_char,
    set: u32,
    grouped: bool,
    op: c_int,
    prescale: f64,
    postscale: f64,
    root: i64,
    priority: c_int,
    inputs: *const Handle,
    outputs: *const Handle,
    count: usize,
) -> c_int {
    let Some(surroundings) = SURROUNDINGS.get() else { return -1 };
    let refuse = |text: &CStr| {
        // SAFETY: MXNet copies the text.
        unsafe { (surroundings.library.set_last_error)(text.as_ptr()) };
        -1
    };
    let kind = usize::try_from(kind).ok().and_then(|kind| Kind::ALL.get(kind).copied());
    let Some(kind @ (Kind::Allreduce | Kind::Broadcast | Kind::Reducescatter)) = kind else {
        return refuse(c"HorovodArgumentError: no collective with given outputs has this number");
    };
    let Some(op) = u8::try_from(op).ok().and_then(ReduceOp::from_code) else {
        return refuse(c"HorovodArgumentError: no reduction has this number");
    };
    // SAFETY: as promised; this holds for the three.
    let (name, inputs, outputs) = unsafe {
        (
            CStr::from_ptr(name).to_string_lossy().into_owned(),
            std::slice::from_raw_parts(inputs, count),
            std::slice::from_raw_parts(outputs, count),
        )
    };
    let wanted = Wanted { kind, name, set, grouped, op, prescale, postscale, root, priority };
    // SAFETY: as promised.
    match unsafe { Operation::new(surroundings, wanted, inputs, outputs) } {
        Some(operation) => operation.push(),
        None => refuse(c"HorovodArgumentError: an array has no shape yet, or its type is not supported"),
    }
}

/// Waits until all operations have ended, or so many seconds have passed, and returns how many are left.
#[unsafe(no_mangle)]
pub extern "C" fn ronde_mxnet_drain(seconds: f64) -> usize {
    pending::drain(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}
