//! The handler, called as XLA calls it, over an engine that is pretended: what crosses on both sides is checked without
//! either. With the real ones it is tested by `tests/jax`.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use ronde_bridge::table::{Done, RawCall, RawReply, RawRows, Table, VERSION, slice};
use ronde_bridge::{Kind, Place};

use crate::ronde_jax_collective;
use crate::xla::{self, dtype};

/// What the pretended XLA makes of a failure.
struct Told {
    code: c_int,
    message: String,
}

unsafe extern "C" fn error_create(arguments: *mut xla::ErrorCreateArgs) -> *mut xla::Error {
    // SAFETY: the handler's own arguments.
    let (code, message) = unsafe { ((*arguments).code as c_int, CStr::from_ptr((*arguments).message)) };
    let told = Told { code, message: message.to_string_lossy().into_owned() };
    Box::into_raw(Box::new(told)).cast()
}

/// Two ranks, of which the other one always gives the same as this, except for allgather: there it has two rows.
unsafe extern "C" fn run(call: *const RawCall, done: Done, context: *mut c_void) {
    // SAFETY: the handler's own call; so are the slices.
    let call = unsafe { &*call };
    // SAFETY: see above.
    let tensors = unsafe { slice(call.tensors, call.tensors_len) };
    // SAFETY: see above.
    let name = unsafe { slice(call.name, call.name_len) };
    let mut reply = RawReply {
        cause: 0,
        text: ptr::null(),
        text_len: 0,
        rows: ptr::null(),
        rows_len: 0,
        received: ptr::null(),
        received_len: 0,
        last_joined: -1,
    };
    let mut rows: Vec<RawRows> = Vec::new();
    let cause = b"the cause";
    match call.kind {
        _ if name == b"failing" => {
            (reply.cause, reply.text, reply.text_len) = (call.root as u8, cause.as_ptr(), cause.len());
        }
        kind if kind == Kind::Allgather as u8 => {
            rows.push(given(&[1_i64, 2]));
            rows.push(given(&[1.0_f32, 2.0, 3.0]));
            (reply.rows, reply.rows_len) = (rows.as_ptr(), rows.len());
        }
        kind if kind == Kind::Reducescatter as u8 => {
            // SAFETY: the handler promises room for a share.
            unsafe { tensors[0].target.cast::<f32>().write(20.0) };
        }
        _ => {
            for tensor in tensors {
                // SAFETY: the handler's own call.
                let len = unsafe { slice(tensor.shape, tensor.dimensions) }.iter().product::<u64>();
                for place in 0..len as usize {
                    // SAFETY: the handler promises that both are as long as the shape says.
                    unsafe {
                        let value = *tensor.source.cast::<f32>().add(place);
                        tensor.target.cast::<f32>().add(place).write(2.0 * value);
                    }
                }
            }
        }
    }
    // SAFETY: the handler's own function, told once.
    unsafe { done(context, &raw const reply) };
}

fn given<T: Copy>(values: &[T]) -> RawRows {
    let owner = Box::new(values.to_vec());
    let (data, len) = (owner.as_ptr().cast_mut().cast(), size_of_val(owner.as_slice()));
    RawRows { data, len, shape: ptr::null(), dimensions: 0, owner: Box::into_raw(owner).cast() }
}

unsafe extern "C" fn submit(_: *const RawCall, _: Done, _: *mut c_void) {}

unsafe extern "C" fn fault(_: *const RawCall, _: *const u8, _: usize) {}

unsafe extern "C" fn place(_: *mut Place) -> bool {
    true
}

extern "C" fn set_size(_: u32) -> i32 {
    2
}

/// This rank is the second.
extern "C" fn set_rank(_: u32) -> i32 {
    1
}

/// Leaks: the memory is a test's, and of no type that this could know.
unsafe extern "C" fn release(_: *mut c_void) {}

static TABLE: Table = Table {
    version: VERSION,
    submit,
    run,
    fault,
    place,
    set_size,
    set_included: set_size,
    set_rank,
    release,
};

/// An attribute, and what it points to.
enum Value {
    Integer(i64),
    Real(f64),
    Integers(Vec<i64>),
    Text(&'static str),
}

/// Calls the handler on arrays of `float32`, and returns how it ended.
fn call(attributes: &[(&str, Value)], operand: &[f32], result: &mut [f32]) -> Result<(), Told> {
    call_sized(size_of::<xla::CallFrame>(), attributes, operand, result)
}

/// Calls the handler with a frame that says to have another size.
fn call_sized(
    struct_size: usize,
    attributes: &[(&str, Value)],
    operand: &[f32],
    result: &mut [f32],
) -> Result<(), Told> {
    let base = |data: *mut c_void, dims: &[i64]| xla::Buffer {
        struct_size: size_of::<xla::Buffer>(),
        extension_start: ptr::null_mut(),
        dtype: dtype::F32,
        data,
        rank: 1,
        dims: dims.as_ptr(),
    };
    let (operand_dims, result_dims) = ([operand.len() as i64], [result.len() as i64]);
    let mut buffers = [
        base(operand.as_ptr().cast_mut().cast(), &operand_dims),
        base(result.as_mut_ptr().cast(), &result_dims),
    ];
    let mut tokens = [base(ptr::null_mut(), &[]), base(ptr::null_mut(), &[])];
    for token in &mut tokens {
        (token.dtype, token.rank) = (dtype::TOKEN, 0);
    }
    let [operand, result] = buffers.each_mut().map(|buffer| ptr::from_mut(buffer).cast::<c_void>());
    let [before, after] = tokens.each_mut().map(|token| ptr::from_mut(token).cast::<c_void>());
    let (operands, results, kinds) = ([before, operand], [after, result], [xla::VALUE_BUFFER; 2]);
    let values = |values: &[*mut c_void]| xla::Values {
        struct_size: size_of::<xla::Values>(),
        extension_start: ptr::null_mut(),
        size: 2,
        kinds: kinds.as_ptr(),
        values: values.as_ptr(),
    };

    let names: Vec<xla::ByteSpan> = attributes.iter().map(|(name, _)| span(name)).collect();
    let names: Vec<*const xla::ByteSpan> = names.iter().map(ptr::from_ref).collect();
    let boxed: Vec<(c_int, Box<dyn std::any::Any>, *const c_void)> =
        attributes.iter().map(|(_, value)| lay_out(value)).collect();
    let attribute_kinds: Vec<c_int> = boxed.iter().map(|(kind, ..)| *kind).collect();
    let pointers: Vec<*const c_void> = boxed.iter().map(|(.., pointer)| *pointer).collect();

    let api = api();
    let frame = xla::CallFrame {
        struct_size,
        extension_start: ptr::null_mut(),
        api: &raw const api,
        context: ptr::null_mut(),
        stage: xla::STAGE_EXECUTE,
        operands: values(&operands),
        results: values(&results),
        attributes: xla::Attributes {
            struct_size: size_of::<xla::Attributes>(),
            extension_start: ptr::null_mut(),
            size: attributes.len() as i64,
            kinds: attribute_kinds.as_ptr(),
            names: names.as_ptr(),
            values: pointers.as_ptr(),
        },
    };
    // SAFETY: the table is static, and the frame as XLA would make it.
    let error = unsafe {
        assert!(crate::ronde_attach(&raw const TABLE));
        ronde_jax_collective(&raw const frame)
    };
    // SAFETY: made by `error_create`.
    if error.is_null() { Ok(()) } else { Err(*unsafe { Box::from_raw(error.cast::<Told>()) }) }
}

fn api() -> xla::Api {
    let version = |minor| xla::ApiVersion {
        struct_size: size_of::<xla::ApiVersion>(),
        extension_start: ptr::null_mut(),
        major: xla::MAJOR,
        minor,
    };
    xla::Api {
        struct_size: size_of::<xla::Api>(),
        extension_start: ptr::null_mut(),
        api_version: version(7),
        internal: ptr::null(),
        error_create,
    }
}

fn span(text: &str) -> xla::ByteSpan {
    xla::ByteSpan { start: text.as_ptr().cast::<c_char>(), len: text.len() }
}

/// An attribute as XLA has it: its kind, what has to stay alive, and where it is.
fn lay_out(value: &Value) -> (c_int, Box<dyn std::any::Any>, *const c_void) {
    fn scalar<T: 'static>(dtype: c_int, value: T) -> (c_int, Box<dyn std::any::Any>, *const c_void) {
        let value = Box::new(value);
        let scalar = Box::new((xla::Scalar { dtype, value: ptr::from_ref(&*value).cast() }, value));
        let pointer = ptr::from_ref(&scalar.0).cast();
        (xla::ATTRIBUTE_SCALAR, scalar, pointer)
    }
    match value {
        Value::Integer(value) => scalar(dtype::S64, *value),
        Value::Real(value) => scalar(dtype::F64, *value),
        Value::Integers(values) => {
            let array = xla::Array { dtype: dtype::S64, size: values.len(), data: values.as_ptr().cast() };
            let array = Box::new(array);
            let pointer = ptr::from_ref(&*array).cast();
            (xla::ATTRIBUTE_ARRAY, array, pointer)
        }
        Value::Text(text) => {
            let text = Box::new(span(text));
            let pointer = ptr::from_ref(&*text).cast();
            (xla::ATTRIBUTE_STRING, text, pointer)
        }
    }
}

fn terms(kind: Kind, name: &'static str, root: i64, rows: &[i64]) -> Vec<(&'static str, Value)> {
    vec![
        ("grouped", Value::Integer(0)),
        ("kind", Value::Integer(kind as i64)),
        ("name", Value::Text(name)),
        ("op", Value::Integer(1)),
        ("postscale", Value::Real(1.0)),
        ("prescale", Value::Real(1.0)),
        ("process_set", Value::Integer(0)),
        ("root", Value::Integer(root)),
        ("rows", Value::Integers(rows.to_vec())),
    ]
}

#[test]
fn a_call_reaches_the_engine_and_its_result_xla() {
    let mut result = [0.0; 3];
    assert!(call(&terms(Kind::Allreduce, "sum", 0, &[]), &[1.0, 2.0, 3.0], &mut result).is_ok());
    assert_eq!(result, [2.0, 4.0, 6.0]);
}

#[test]
fn a_question_about_the_handler_is_answered_with_the_version_that_asks() {
    let api = api();
    let mut metadata = xla::Metadata {
        struct_size: size_of::<xla::Metadata>(),
        api_version: xla::ApiVersion {
            struct_size: size_of::<xla::ApiVersion>(),
            extension_start: ptr::null_mut(),
            major: 99,
            minor: 99,
        },
        traits: 99,
    };
    let mut extension = xla::MetadataExtension {
        base: xla::ExtensionBase {
            struct_size: size_of::<xla::MetadataExtension>(),
            kind: xla::EXTENSION_METADATA,
            next: ptr::null_mut(),
        },
        metadata: &raw mut metadata,
    };
    for (api, minor) in [(&raw const api, 7), (ptr::null(), xla::OLDEST_MINOR)] {
        // SAFETY: nothing but pointers and numbers, for which zero is a value; what is read is set below.
        let mut frame: xla::CallFrame = unsafe { std::mem::zeroed() };
        frame.api = api;
        frame.extension_start = (&raw mut extension).cast();
        // SAFETY: a question as XLA asks it.
        assert!(unsafe { ronde_jax_collective(&raw const frame) }.is_null());
        // SAFETY: the answer, which nobody writes any more.
        let answer = unsafe { &*extension.metadata };
        assert_eq!(
            (answer.api_version.major, answer.api_version.minor, answer.traits),
            (xla::MAJOR, minor, 0)
        );
    }
}

#[test]
fn a_frame_that_ends_too_early_is_not_read() {
    let terms = terms(Kind::Allreduce, "sum", 0, &[]);
    let told =
        call_sized(size_of::<xla::CallFrame>() - 8, &terms, &[1.0], &mut [0.0]).expect_err("it is too short");
    assert_eq!(told.code, xla::ErrorCode::FailedPrecondition as c_int);
    assert!(told.message.contains("too old"), "{}", told.message);
}

#[test]
fn failures_of_the_engine_have_the_status_that_horovod_gives_them() {
    // The pretended engine takes the cause from the root.
    for (cause, code) in [(1, 9), (2, 3), (3, 9), (4, 10)] {
        let told =
            call(&terms(Kind::Broadcast, "failing", cause, &[]), &[1.0], &mut [0.0]).expect_err("it fails");
        assert_eq!((told.code, told.message.as_str()), (code, "the cause"));
    }
}

#[test]
fn results_of_another_size_than_the_program_was_compiled_for_are_refused() {
    let told =
        call(&terms(Kind::Allreduce, "sum", 0, &[]), &[1.0, 2.0], &mut [0.0; 3]).expect_err("sizes differ");
    assert_eq!(told.code, xla::ErrorCode::InvalidArgument as c_int);
    let told = call(&terms(Kind::Allgather, "all", 0, &[1, 1]), &[1.0], &mut [0.0; 2])
        .expect_err("the other has two");
    assert!(told.message.contains("the ranks have [1, 2] rows"), "{}", told.message);
    let mut result = [0.0; 3];
    assert!(call(&terms(Kind::Allgather, "all", 0, &[1, 2]), &[1.0], &mut result).is_ok());
    assert_eq!(result, [1.0, 2.0, 3.0]);
    let told =
        call(&terms(Kind::Allgather, "all", 0, &[1, 1, 1]), &[1.0], &mut [0.0; 3]).expect_err("two ranks");
    assert!(told.message.contains("compiled for 3 ranks"), "{}", told.message);
}

#[test]
fn a_share_of_another_size_than_the_program_was_compiled_for_is_refused() {
    // Three rows for two ranks: the second has room for one, the first for two.
    let mut share = [0.0];
    assert!(call(&terms(Kind::Reducescatter, "share", 0, &[2, 1]), &[1.0, 2.0, 3.0], &mut share).is_ok());
    assert_eq!(share, [20.0]);
    let mut other = [7.0, 7.0];
    let outcome = call(&terms(Kind::Reducescatter, "share", 0, &[2, 1]), &[1.0, 2.0, 3.0], &mut other);
    assert!(outcome.is_err_and(|told| told.message.contains("another place")));
    assert_eq!(other, [7.0, 7.0]);
}

#[test]
fn calls_that_no_program_makes_are_refused() {
    for broken in ["kind", "op", "process_set"] {
        let mut terms = terms(Kind::Allreduce, "sum", 0, &[]);
        for (name, value) in &mut terms {
            if *name == broken {
                *value = Value::Integer(-1);
            }
        }
        let told = call(&terms, &[1.0], &mut [0.0]).expect_err("a number that means nothing");
        assert_eq!(told.code, xla::ErrorCode::InvalidArgument as c_int, "{broken}");
    }
    let mut terms = terms(Kind::Allreduce, "sum", 0, &[]);
    terms.retain(|(name, _)| *name != "name");
    let told = call(&terms, &[1.0], &mut [0.0]).expect_err("no name");
    assert!(told.message.contains("\"name\""), "{}", told.message);
}
