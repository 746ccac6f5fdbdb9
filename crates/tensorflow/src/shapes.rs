//! What TensorFlow may know of the outputs' shapes before an operation runs.

use std::ffi::c_int;

use crate::api::{Api, RawStatus, ShapeContext, ShapeHandle, api};
use crate::status;

/// An extent that is not known.
const UNKNOWN: usize = usize::MAX;

/// Shapes of one operation.
struct Shapes {
    api: &'static Api,
    context: *mut ShapeContext,
    /// TensorFlow's functions write here, and do nothing sensible after a failure.
    status: *mut RawStatus,
}

/// A shape, deleted with this value.
struct Shape {
    api: &'static Api,
    raw: *mut ShapeHandle,
}

impl Drop for Shape {
    fn drop(&mut self) {
        // SAFETY: this value's own, deleted once.
        unsafe { (self.api.functions.delete_shape)(self.raw) };
    }
}

impl Shapes {
    fn empty(&self) -> Shape {
        // SAFETY: makes an object that belongs to the value; so do the others here.
        Shape { api: self.api, raw: unsafe { (self.api.functions.new_shape)() } }
    }

    fn scalar(&self) -> Shape {
        // SAFETY: the context is valid while TensorFlow asks for shapes; this holds for all calls in this block.
        Shape { api: self.api, raw: unsafe { (self.api.functions.scalar_shape)(self.context) } }
    }

    fn vector(&self, extent: usize) -> Shape {
        // SAFETY: see above.
        Shape { api: self.api, raw: unsafe { (self.api.functions.vector_shape)(self.context, extent) } }
    }

    fn inputs(&self) -> c_int {
        // SAFETY: see above.
        unsafe { (self.api.functions.shape_inputs)(self.context) as c_int }
    }

    fn is_ok(&self) -> bool {
        // SAFETY: see above.
        unsafe { status::check(self.api, self.status) }.is_ok()
    }

    fn input(&self, index: c_int) -> Option<Shape> {
        let shape = self.empty();
        // SAFETY: see above.
        unsafe { (self.api.functions.shape_input)(self.context, index, shape.raw, self.status) };
        self.is_ok().then_some(shape)
    }

    fn set_output(&self, index: c_int, shape: &Shape) -> Option<()> {
        // SAFETY: see above.
        unsafe { (self.api.functions.shape_output)(self.context, index, shape.raw, self.status) };
        self.is_ok().then_some(())
    }

    /// The shape with another first extent, which nobody knows yet. One without dimensions is refused.
    fn with_other_rows(&self, shape: &Shape) -> Option<Shape> {
        let (checked, row, joined) = (self.empty(), self.empty(), self.empty());
        let functions = &self.api.functions;
        // SAFETY: see above.
        unsafe { (functions.with_rank_at_least)(self.context, shape.raw, 1, checked.raw, self.status) };
        self.is_ok().then_some(())?;
        // SAFETY: see above.
        unsafe { (functions.subshape)(self.context, checked.raw, 1, i64::MAX, row.raw, self.status) };
        self.is_ok().then_some(())?;
        let rows = self.vector(UNKNOWN);
        // SAFETY: see above.
        unsafe { (functions.concatenate)(self.context, rows.raw, row.raw, joined.raw, self.status) };
        self.is_ok().then_some(joined)
    }
}

/// # Safety
/// TensorFlow asks, with what it gave.
unsafe fn infer(
    context: *mut ShapeContext,
    status: *mut RawStatus,
    work: impl FnOnce(&Shapes) -> Option<()>,
) {
    if let Some(api) = api() {
        // A failure is in the status already.
        let _ = work(&Shapes { api, context, status });
    }
}

/// Every output is like its input.
pub(crate) unsafe extern "C" fn same(context: *mut ShapeContext, status: *mut RawStatus) {
    let work = |shapes: &Shapes| {
        (0..shapes.inputs()).try_for_each(|index| shapes.set_output(index, &shapes.input(index)?))
    };
    // SAFETY: called by TensorFlow; so are the others.
    unsafe { infer(context, status, work) };
}

/// Every output is like its input, but for the number of rows.
pub(crate) unsafe extern "C" fn other_rows(context: *mut ShapeContext, status: *mut RawStatus) {
    let work = |shapes: &Shapes| {
        (0..shapes.inputs())
            .try_for_each(|index| shapes.set_output(index, &shapes.with_other_rows(&shapes.input(index)?)?))
    };
    // SAFETY: see above.
    unsafe { infer(context, status, work) };
}

/// The first output has other rows than the first input, the second has one number a member.
pub(crate) unsafe extern "C" fn exchanged(context: *mut ShapeContext, status: *mut RawStatus) {
    let work = |shapes: &Shapes| {
        shapes.set_output(0, &shapes.with_other_rows(&shapes.input(0)?)?)?;
        let (splits, vector) = (shapes.input(1)?, shapes.empty());
        // SAFETY: see above.
        unsafe { (shapes.api.functions.with_rank)(context, splits.raw, 1, vector.raw, status) };
        shapes.is_ok().then_some(())?;
        shapes.set_output(1, &shapes.vector(UNKNOWN))
    };
    // SAFETY: see above.
    unsafe { infer(context, status, work) };
}

/// The one output is a number.
pub(crate) unsafe extern "C" fn number(context: *mut ShapeContext, status: *mut RawStatus) {
    // SAFETY: see above.
    unsafe { infer(context, status, |shapes| shapes.set_output(0, &shapes.scalar())) };
}

/// There is no output.
pub(crate) unsafe extern "C" fn nothing(_: *mut ShapeContext, _: *mut RawStatus) {}
