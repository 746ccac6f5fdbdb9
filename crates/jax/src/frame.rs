//! A call as XLA makes it, read safely: operands, results and attributes by name, and the failure that ends it.

use std::ffi::{CString, c_int};
use std::ptr;

use crate::xla::{self, CallFrame, ErrorCode};

/// Why a call cannot be done, or was not.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) code: ErrorCode,
    pub(crate) text: String,
}

impl Refusal {
    pub(crate) fn new(code: ErrorCode, text: impl Into<String>) -> Refusal {
        Refusal { code, text: text.into() }
    }
}

/// An operand or a result in memory.
#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    pub(crate) dtype: c_int,
    pub(crate) data: *mut u8,
    pub(crate) shape: Vec<u64>,
}

/// A call, as long as it lasts.
#[derive(Clone, Copy)]
pub(crate) struct Frame<'a> {
    frame: &'a CallFrame,
}

impl<'a> Frame<'a> {
    /// # Safety
    /// The frame, and all it points to, is as XLA's interface says.
    pub(crate) unsafe fn new(frame: &'a CallFrame) -> Frame<'a> {
        Frame { frame }
    }

    /// Whether this is a question about the handler, which is answered here, instead of a call.
    pub(crate) fn answered(self) -> bool {
        let extension = self.frame.extension_start;
        // SAFETY: an extension begins with its kind.
        if extension.is_null() || unsafe { (*extension).kind } != xla::EXTENSION_METADATA {
            return false;
        }
        // SAFETY: the extension that asks for metadata; the fields set here are its oldest.
        let metadata = unsafe { &mut *(*extension.cast::<xla::MetadataExtension>()).metadata };
        // XLA takes no handler of another version than its own, or of one out of its range. What is used here has been the
        // same in all minor versions, so the answer is the one it wants to hear; of another major version it is refused.
        // Releases that did not yet give their functions with this question were all of one version.
        // SAFETY: null, or XLA's own table of functions.
        let theirs =
            unsafe { self.frame.api.as_ref() }.map_or(xla::OLDEST_MINOR, |api| api.api_version.minor);
        metadata.api_version.major = xla::MAJOR;
        metadata.api_version.minor = theirs;
        metadata.traits = 0;
        true
    }

    /// Refuses a frame that ends before what is read of it here.
    pub(crate) fn check(self) -> Result<(), Refusal> {
        let parts = [
            (self.frame.struct_size, size_of::<CallFrame>()),
            (self.frame.operands.struct_size, size_of::<xla::Values>()),
            (self.frame.results.struct_size, size_of::<xla::Values>()),
            (self.frame.attributes.struct_size, size_of::<xla::Attributes>()),
        ];
        match parts.into_iter().find(|(theirs, ours)| theirs < ours) {
            Some((theirs, ours)) => Err(Refusal::new(
                ErrorCode::FailedPrecondition,
                format!("this XLA is too old for collectives: it gives {theirs} bytes where {ours} are read"),
            )),
            None => Ok(()),
        }
    }

    /// Whether XLA wants the work to be done now.
    pub(crate) fn executes(self) -> bool {
        self.frame.stage == xla::STAGE_EXECUTE
    }

    /// The operands but for tokens, which only order calls.
    pub(crate) fn operands(self) -> Result<Vec<Buffer>, Refusal> {
        // SAFETY: XLA's operands.
        unsafe { buffers(&self.frame.operands) }
    }

    /// The results but for tokens.
    pub(crate) fn results(self) -> Result<Vec<Buffer>, Refusal> {
        // SAFETY: XLA's results.
        unsafe { buffers(&self.frame.results) }
    }

    /// A whole number among the attributes.
    pub(crate) fn integer(self, name: &str) -> Result<i64, Refusal> {
        let scalar = self.attribute(name, xla::ATTRIBUTE_SCALAR)?.cast::<xla::Scalar>();
        // SAFETY: an attribute of the kind asked for; its type says what the value is.
        match unsafe { (*scalar).dtype } {
            // SAFETY: see above.
            xla::dtype::S64 => Ok(unsafe { *(*scalar).value.cast::<i64>() }),
            _ => Err(unexpected(name)),
        }
    }

    /// A real number among the attributes.
    pub(crate) fn real(self, name: &str) -> Result<f64, Refusal> {
        let scalar = self.attribute(name, xla::ATTRIBUTE_SCALAR)?.cast::<xla::Scalar>();
        // SAFETY: an attribute of the kind asked for; its type says what the value is.
        match unsafe { (*scalar).dtype } {
            // SAFETY: see above.
            xla::dtype::F64 => Ok(unsafe { *(*scalar).value.cast::<f64>() }),
            _ => Err(unexpected(name)),
        }
    }

    /// A list of whole numbers among the attributes.
    pub(crate) fn integers(self, name: &str) -> Result<&'a [i64], Refusal> {
        let array = self.attribute(name, xla::ATTRIBUTE_ARRAY)?.cast::<xla::Array>();
        // SAFETY: an attribute of the kind asked for, which lives as long as the call.
        let array = unsafe { &*array };
        if array.size == 0 {
            return Ok(&[]);
        }
        match array.dtype {
            // SAFETY: as many elements of the type as the array says.
            xla::dtype::S64 => Ok(unsafe { std::slice::from_raw_parts(array.data.cast(), array.size) }),
            _ => Err(unexpected(name)),
        }
    }

    /// A text among the attributes.
    pub(crate) fn text(self, name: &str) -> Result<&'a str, Refusal> {
        let span = self.attribute(name, xla::ATTRIBUTE_STRING)?.cast::<xla::ByteSpan>();
        // SAFETY: an attribute of the kind asked for, which lives as long as the call.
        let bytes = unsafe { bytes_of(&*span) };
        std::str::from_utf8(bytes).map_err(|_| unexpected(name))
    }

    /// Makes XLA's failure of a refusal.
    pub(crate) fn failure(self, refusal: &Refusal) -> *mut xla::Error {
        let message = CString::new(refusal.text.replace('\0', " ")).unwrap_or_default();
        let mut arguments = xla::ErrorCreateArgs {
            struct_size: size_of::<xla::ErrorCreateArgs>(),
            extension_start: ptr::null_mut(),
            message: message.as_ptr(),
            code: refusal.code,
        };
        // SAFETY: XLA's own function, which copies the message.
        unsafe { ((*self.frame.api).error_create)(&raw mut arguments) }
    }

    fn attribute(self, name: &str, kind: c_int) -> Result<*const u8, Refusal> {
        let attributes = &self.frame.attributes;
        for place in 0..usize::try_from(attributes.size).unwrap_or(0) {
            // SAFETY: each of the three lists is as long as the attributes' size says.
            let (found, of_kind, value) = unsafe {
                (
                    bytes_of(&**attributes.names.add(place)),
                    *attributes.kinds.add(place),
                    *attributes.values.add(place),
                )
            };
            if found == name.as_bytes() {
                return if of_kind == kind { Ok(value.cast()) } else { Err(unexpected(name)) };
            }
        }
        Err(unexpected(name))
    }
}

fn unexpected(name: &str) -> Refusal {
    Refusal::new(
        ErrorCode::Internal,
        format!("the attribute {name:?} of a collective is not there, or not as expected"),
    )
}

/// # Safety
/// The span is XLA's, and lives as long as the result.
unsafe fn bytes_of<'a>(span: &xla::ByteSpan) -> &'a [u8] {
    if span.len == 0 {
        return &[];
    }
    // SAFETY: as promised.
    unsafe { std::slice::from_raw_parts(span.start.cast(), span.len) }
}

/// # Safety
/// The values are XLA's.
unsafe fn buffers(values: &xla::Values) -> Result<Vec<Buffer>, Refusal> {
    let mut found = Vec::new();
    for place in 0..usize::try_from(values.size).unwrap_or(0) {
        // SAFETY: both lists are as long as the size says.
        let (kind, value) = unsafe { (*values.kinds.add(place), *values.values.add(place)) };
        if kind != xla::VALUE_BUFFER {
            return Err(Refusal::new(
                ErrorCode::Internal,
                "a collective takes and returns nothing but arrays",
            ));
        }
        // SAFETY: the kind says that it is a buffer.
        let buffer = unsafe { &*value.cast::<xla::Buffer>() };
        if buffer.dtype == xla::dtype::TOKEN {
            continue;
        }
        let shape = (0..usize::try_from(buffer.rank).unwrap_or(0))
            // SAFETY: a buffer has as many extents as its rank says; they are not negative.
            .map(|dimension| unsafe { *buffer.dims.add(dimension) }.unsigned_abs())
            .collect();
        found.push(Buffer { dtype: buffer.dtype, data: buffer.data.cast(), shape });
    }
    Ok(found)
}
