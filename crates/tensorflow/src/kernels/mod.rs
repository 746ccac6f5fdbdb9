//! Kernels: what TensorFlow makes for every node, and runs.
//!
//! One create function serves all operations; the node says which it is. Collectives are asynchronous kernels, so that many
//! can be in flight whatever the number of TensorFlow's threads: with kernels that wait, ranks that run their nodes in
//! different orders would wait for each other for good.

mod collective;
mod number;
mod parts;
mod variables;

use std::ffi::{CStr, c_void};

use self::collective::Collective;
use self::number::Answer;
use crate::api::{Api, RawConstruction, RawContext, RawDone, api};
use crate::context::{Construction, Context};
use crate::definitions::{Definition, Work};
use crate::status::{Code, Refusal, Status};

/// Where nodes may be placed. On a GPU, too, tensors are taken from, and results put into, the host's memory, and TensorFlow orders
/// the copies: its C interface does not give out the stream that a kernel would have to work on.
const DEVICES: [&CStr; 2] = [c"CPU", c"GPU"];

enum Kernel {
    Collective(Collective),
    Number(Answer),
}

impl Kernel {
    fn new(construction: &Construction) -> Result<Kernel, Refusal> {
        let node = construction.node()?;
        let definition = Definition::find(&node.op).ok_or_else(|| {
            Refusal::new(Code::Unimplemented, format!("Ronde has no operation {}", node.op))
        })?;
        Ok(match definition.work {
            Work::Collective { kind, grouped, access } => {
                let collective = Collective::new(definition, kind, grouped, access, &node, construction);
                Kernel::Collective(collective.map_err(|refusal| refusal.of(definition.text()))?)
            }
            Work::Number(number) => Kernel::Number(Answer::new(definition, number, construction)?),
        })
    }
}

/// Makes the kernels of an operation known to TensorFlow.
pub(crate) fn register(api: &'static Api, definition: &Definition) -> Result<(), Refusal> {
    DEVICES
        .iter()
        .filter(|device| definition.runs_on(device))
        .try_for_each(|device| register_on(api, definition, device))
}

fn register_on(api: &'static Api, definition: &Definition, device: &CStr) -> Result<(), Refusal> {
    let (functions, name) = (&api.functions, definition.name.as_ptr());
    let status = Status::new(api);
    // SAFETY: the names end with a zero and are copied; the functions are what the kernel of the operation wants; registering
    // takes the builder over, whatever comes of it.
    unsafe {
        let builder = match definition.work {
            Work::Collective { .. } => {
                (functions.new_async_kernel)(name, device.as_ptr(), create, compute_async, delete)
            }
            Work::Number(_) => (functions.new_kernel)(name, device.as_ptr(), create, compute, delete),
        };
        for argument in definition.arguments() {
            (functions.in_host_memory)(builder, argument.as_ptr());
        }
        (functions.register_kernel)(name, builder, status.as_ptr());
    }
    status.check()
}

unsafe extern "C" fn create(construction: *mut RawConstruction) -> *mut c_void {
    let Some(api) = api() else { return std::ptr::null_mut() };
    // SAFETY: TensorFlow calls this function with it.
    let construction = unsafe { Construction::new(api, construction) };
    match Kernel::new(&construction) {
        Ok(kernel) => Box::into_raw(Box::new(kernel)).cast(),
        Err(refusal) => {
            construction.fail(&refusal);
            std::ptr::null_mut()
        }
    }
}

unsafe extern "C" fn delete(kernel: *mut c_void) {
    if !kernel.is_null() {
        // SAFETY: made by `create`, deleted once.
        drop(unsafe { Box::from_raw(kernel.cast::<Kernel>()) });
    }
}

unsafe extern "C" fn compute(kernel: *mut c_void, context: *mut RawContext) {
    let Some(api) = api() else { return };
    // SAFETY: made by `create`; TensorFlow deletes no kernel that runs.
    let kernel = unsafe { &*kernel.cast::<Kernel>() };
    // SAFETY: TensorFlow calls this function with it.
    let context = unsafe { Context::new(api, context) };
    if let Kernel::Number(answer) = kernel {
        answer.compute(context);
    }
}

unsafe extern "C" fn compute_async(kernel: *mut c_void, context: *mut RawContext, done: *mut RawDone) {
    let Some(api) = api() else { return };
    // SAFETY: as in `compute`.
    let kernel = unsafe { &*kernel.cast::<Kernel>() };
    // SAFETY: as in `compute`.
    let context = unsafe { Context::new(api, context) };
    if let Kernel::Collective(collective) = kernel {
        // SAFETY: what TensorFlow gave this function, which has not returned.
        unsafe { collective.compute(context, done) };
    }
}
