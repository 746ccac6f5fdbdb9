//! TensorFlow's C interface, looked up in the library that the process has loaded.
//!
//! Nothing is linked and no header is included, so one build of this library serves every version that has these functions:
//! 2.13, which brought asynchronous kernels, and later. The declarations follow `tensorflow/c/{kernels,ops,tf_tensor,
//! tf_status}.h`; those of [`Variables`] follow `kernels_experimental.h`, and went away with 2.19.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

/// The library that has the functions, by the name it calls itself.
const LIBRARY: &CStr = c"libtensorflow_framework.so.2";

macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident;)*) => { $(
        $(#[$doc])*
        #[repr(C)]
        pub(crate) struct $name { _nobody_looks_inside: [u8; 0] }
    )* };
}

opaque! {
    RawStatus;
    RawTensor;
    RawContext;
    RawConstruction;
    /// A `std::function<void()>`; see `done.rs`.
    RawDone;
    KernelBuilder;
    OpBuilder;
    ShapeContext;
    ShapeHandle;
}

/// Bytes that TensorFlow allocated.
#[repr(C)]
pub(crate) struct RawBuffer {
    pub(crate) data: *const c_void,
    pub(crate) length: usize,
    _free: Option<unsafe extern "C" fn(*mut c_void, usize)>,
}

pub(crate) type Create = unsafe extern "C" fn(*mut RawConstruction) -> *mut c_void;
pub(crate) type Compute = unsafe extern "C" fn(*mut c_void, *mut RawContext);
pub(crate) type ComputeAsync = unsafe extern "C" fn(*mut c_void, *mut RawContext, *mut RawDone);
pub(crate) type Delete = unsafe extern "C" fn(*mut c_void);
pub(crate) type Deallocate = unsafe extern "C" fn(data: *mut c_void, len: usize, argument: *mut c_void);
pub(crate) type InferShapes = unsafe extern "C" fn(*mut ShapeContext, *mut RawStatus);
/// Copies the first tensor into the second; both are given away.
pub(crate) type CopyTensor = unsafe extern "C" fn(*mut RawContext, *mut RawTensor, *mut RawTensor);

macro_rules! functions {
    ($(#[$doc:meta])* struct $name:ident { $($field:ident = $symbol:ident($($argument:ty),*) $(-> $result:ty)?;)* }) => {
        $(#[$doc])*
        pub(crate) struct $name {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $name {
            /// Looks all of them up; the name of one that is missing otherwise.
            ///
            /// # Safety
            /// The library is TensorFlow's, and stays loaded.
            unsafe fn look_up(library: *mut c_void) -> Result<$name, &'static str> {
                Ok($name {
                    $($field: {
                        // SAFETY: an open library and the name of a symbol.
                        let found = unsafe { libc::dlsym(library, concat!(stringify!($symbol), "\0").as_ptr().cast()) };
                        if found.is_null() {
                            return Err(stringify!($symbol));
                        }
                        // SAFETY: a function of TensorFlow's stable C interface, declared as its header does.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(found)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    /// What every version has.
    struct Functions {
        new_status = TF_NewStatus() -> *mut RawStatus;
        delete_status = TF_DeleteStatus(*mut RawStatus);
        set_status = TF_SetStatus(*mut RawStatus, c_int, *const c_char);
        get_code = TF_GetCode(*const RawStatus) -> c_int;
        message = TF_Message(*const RawStatus) -> *const c_char;

        new_tensor = TF_NewTensor(c_int, *const i64, c_int, *mut c_void, usize, Deallocate, *mut c_void) -> *mut RawTensor;
        delete_tensor = TF_DeleteTensor(*mut RawTensor);
        tensor_type = TF_TensorType(*const RawTensor) -> c_int;
        num_dims = TF_NumDims(*const RawTensor) -> c_int;
        dim = TF_Dim(*const RawTensor, c_int) -> i64;
        tensor_byte_size = TF_TensorByteSize(*const RawTensor) -> usize;
        tensor_data = TF_TensorData(*const RawTensor) -> *mut c_void;

        new_op = TF_NewOpDefinitionBuilder(*const c_char) -> *mut OpBuilder;
        add_attribute = TF_OpDefinitionBuilderAddAttr(*mut OpBuilder, *const c_char);
        add_input = TF_OpDefinitionBuilderAddInput(*mut OpBuilder, *const c_char);
        add_output = TF_OpDefinitionBuilderAddOutput(*mut OpBuilder, *const c_char);
        set_stateful = TF_OpDefinitionBuilderSetIsStateful(*mut OpBuilder, bool);
        set_shapes = TF_OpDefinitionBuilderSetShapeInferenceFunction(*mut OpBuilder, InferShapes);
        register_op = TF_RegisterOpDefinition(*mut OpBuilder, *mut RawStatus);

        shape_inputs = TF_ShapeInferenceContextNumInputs(*mut ShapeContext) -> i64;
        new_shape = TF_NewShapeHandle() -> *mut ShapeHandle;
        delete_shape = TF_DeleteShapeHandle(*mut ShapeHandle);
        shape_input = TF_ShapeInferenceContextGetInput(*mut ShapeContext, c_int, *mut ShapeHandle, *mut RawStatus);
        shape_output = TF_ShapeInferenceContextSetOutput(*mut ShapeContext, c_int, *mut ShapeHandle, *mut RawStatus);
        scalar_shape = TF_ShapeInferenceContextScalar(*mut ShapeContext) -> *mut ShapeHandle;
        vector_shape = TF_ShapeInferenceContextVectorFromSize(*mut ShapeContext, usize) -> *mut ShapeHandle;
        with_rank_at_least = TF_ShapeInferenceContextWithRankAtLeast(
            *mut ShapeContext, *mut ShapeHandle, i64, *mut ShapeHandle, *mut RawStatus);
        with_rank = TF_ShapeInferenceContextWithRank(
            *mut ShapeContext, *mut ShapeHandle, i64, *mut ShapeHandle, *mut RawStatus);
        subshape = TF_ShapeInferenceContextSubshape(
            *mut ShapeContext, *mut ShapeHandle, i64, i64, *mut ShapeHandle, *mut RawStatus);
        concatenate = TF_ShapeInferenceContextConcatenateShapes(
            *mut ShapeContext, *mut ShapeHandle, *mut ShapeHandle, *mut ShapeHandle, *mut RawStatus);

        new_kernel = TF_NewKernelBuilder(*const c_char, *const c_char, Create, Compute, Delete) -> *mut KernelBuilder;
        new_async_kernel = TF_NewAsyncKernelBuilder(
            *const c_char, *const c_char, Create, ComputeAsync, Delete) -> *mut KernelBuilder;
        in_host_memory = TF_KernelBuilder_HostMemory(*mut KernelBuilder, *const c_char);
        register_kernel = TF_RegisterKernelBuilder(*const c_char, *mut KernelBuilder, *mut RawStatus);
        construction_failure = TF_OpKernelConstruction_Failure(*mut RawConstruction, *mut RawStatus);
        node_of = TF_OpKernelConstruction_GetNodeDef(*mut RawConstruction, *mut RawStatus) -> *mut RawBuffer;
        delete_buffer = TF_DeleteBuffer(*mut RawBuffer);
        attribute_size = TF_OpKernelConstruction_GetAttrSize(
            *mut RawConstruction, *const c_char, *mut i32, *mut i32, *mut RawStatus);
        attribute_int = TF_OpKernelConstruction_GetAttrInt64(
            *mut RawConstruction, *const c_char, *mut i64, *mut RawStatus);
        attribute_float = TF_OpKernelConstruction_GetAttrFloat(
            *mut RawConstruction, *const c_char, *mut f32, *mut RawStatus);
        attribute_bool = TF_OpKernelConstruction_GetAttrBool(
            *mut RawConstruction, *const c_char, *mut u8, *mut RawStatus);
        attribute_string = TF_OpKernelConstruction_GetAttrString(
            *mut RawConstruction, *const c_char, *mut c_char, usize, *mut RawStatus);

        context_failure = TF_OpKernelContext_Failure(*mut RawContext, *mut RawStatus);
        num_inputs = TF_NumInputs(*mut RawContext) -> c_int;
        get_input = TF_GetInput(*mut RawContext, c_int, *mut *mut RawTensor, *mut RawStatus);
        set_output = TF_SetOutput(*mut RawContext, c_int, *const RawTensor, *mut RawStatus);
        allocate_output = TF_AllocateOutput(
            *mut RawContext, c_int, c_int, *const i64, c_int, usize, *mut RawStatus) -> *mut RawTensor;
        forward_or_allocate = TF_ForwardInputOrAllocateOutput(
            *mut RawContext, *const c_int, c_int, c_int, *const i64, c_int, *mut c_int, *mut RawStatus) -> *mut RawTensor;
        run_done = TF_RunAsyncOpKernelDoneCallback(*mut RawDone);
    }
}

functions! {
    /// What reaches variables; not in all versions.
    struct Variables {
        tensor_of = TF_GetInputTensorFromVariable(
            *mut RawContext, c_int, bool, bool, bool, CopyTensor, *mut *mut RawTensor, *mut RawStatus);
        forward_reference = TF_OpKernelContext_ForwardRefInputToRefOutput(*mut RawContext, i32, i32);
    }
}

/// A method whose name in the library tells the type of the callback that asynchronous kernels get: `CallOp::ComputeAsync
/// (OpKernelContext*, std::function<void()>)`, with the `std::function` of libstdc++.
const TAKES_STD_FUNCTION: &CStr =
    c"_ZN10tensorflow6CallOp12ComputeAsyncEPNS_15OpKernelContextESt8functionIFvvEE";

/// The functions that were found.
pub(crate) struct Api {
    pub(crate) functions: Functions,
    pub(crate) variables: Option<Variables>,
    /// Whether the callback of asynchronous kernels has the type that `done.rs` knows.
    pub(crate) callbacks_are_known: bool,
}

static API: OnceLock<Api> = OnceLock::new();

/// Finds TensorFlow in this process, where it is loaded already. Up to 2.18 it loads its library with local scope, so the
/// symbols are asked of that library and not of the process.
pub(crate) fn look_up() -> Result<&'static Api, String> {
    // SAFETY: with RTLD_NOLOAD nothing is loaded, so nothing of the library runs.
    let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    if library.is_null() {
        return Err("TensorFlow is not loaded: import tensorflow first".to_owned());
    }
    // SAFETY: TensorFlow's library; the handle is never closed, so it stays.
    let functions = unsafe { Functions::look_up(library) }.map_err(|missing| {
        format!("this TensorFlow has no {missing}; Ronde needs TensorFlow 2.13 or newer")
    })?;
    // SAFETY: as above.
    let variables = unsafe { Variables::look_up(library) }.ok();
    // SAFETY: an open library and the name of a symbol.
    let callbacks_are_known = !unsafe { libc::dlsym(library, TAKES_STD_FUNCTION.as_ptr()) }.is_null();
    Ok(API.get_or_init(|| Api { functions, variables, callbacks_are_known }))
}

/// What [`look_up`] found. Asked only by what TensorFlow calls, and it calls nothing before it was found.
pub(crate) fn api() -> Option<&'static Api> {
    API.get()
}
