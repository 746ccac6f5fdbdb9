//! The kernels against a plainly written reference, at every level this CPU has.
//!
//! All levels are compared with the same expected bytes, so agreeing with the reference is also
//! agreeing with each other.

mod adasum;
mod average;
mod copy;
mod fold;
mod guarded;
mod identity;
mod level;
mod reference;
mod rounding;
