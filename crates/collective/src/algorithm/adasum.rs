//! The Adasum combination: gradients are added as far as they are orthogonal and averaged as far as they agree.
//!
//! Two vectors a and b become (1 - a·b / 2|a|²)·a + (1 - a·b / 2|b|²)·b; many become one by a binary tree over neighbouring
//! ranks (an odd one out waits a level), so any number of ranks works. The vectors are transposed first, so that each rank
//! holds one slice of all of them: then every level needs only a sum of three numbers a pair, and every rank computes all
//! pairs on its slice.
//!
//! Steps: all-to-all, one small allreduce a level (log2 n), allgather. Bytes through each link: those of the all-to-all
//! and the allgather, together about 2·S·(n-1)/n. Scratch: S a rank.

use super::{allgather, alltoall, split};
use crate::error::{Error, Result};
use crate::group::{Group, Reduction};
use crate::kernel::{combine, dots, scale};
use crate::types::{DType, ReduceOp};

pub(super) fn allreduce(
    group: &mut Group,
    source: *const u8,
    output: &mut [u8],
    how: &Reduction,
) -> Result<()> {
    if !how.dtype.is_float() {
        return Err(Error::Unsupported { op: how.op, dtype: how.dtype });
    }
    let element = how.dtype.size();
    let elements = output.len() / element;
    let ranks = group.size();
    // SAFETY: the source is as long as the output, and is it or does not overlap it.
    unsafe { scale(how.dtype, output.as_mut_ptr(), source, elements, how.prescale) };

    let slices = split(elements, ranks, 64 / element);
    let lengths: Vec<usize> = slices.iter().map(|(_, count)| count * element).collect();
    let mine = lengths[group.me];
    let mut vectors = vec![0u8; mine * ranks];
    alltoall(group, output, &lengths, &mut vectors, &vec![mine; ranks])?;

    let mut alive: Vec<usize> = (0..ranks).collect();
    while alive.len() > 1 {
        let pairs: Vec<(usize, usize)> = alive.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        let mut products: Vec<f64> = Vec::with_capacity(3 * pairs.len());
        for &(a, b) in &pairs {
            // SAFETY: both vectors hold this rank's slice.
            products.extend(unsafe {
                dots(
                    how.dtype,
                    vectors.as_ptr().add(a * mine),
                    vectors.as_ptr().add(b * mine),
                    mine / element,
                )
            });
        }
        sum(group, &mut products)?;
        for (&(a, b), product) in pairs.iter().zip(products.chunks_exact(3)) {
            let (first, second) = factors(product[0], product[1], product[2]);
            // SAFETY: as above; the result replaces the first vector.
            unsafe {
                let (a, b) = (vectors.as_mut_ptr().add(a * mine), vectors.as_ptr().add(b * mine));
                combine(how.dtype, a, a, b, mine / element, first, second);
            }
        }
        alive = alive.into_iter().step_by(2).collect();
    }
    // SAFETY: the first vector holds the result of this slice, scaled in place.
    unsafe { scale(how.dtype, vectors.as_mut_ptr(), vectors.as_ptr(), mine / element, how.postscale) };
    let start = slices[group.me].0 * element;
    output[start..start + mine].copy_from_slice(&vectors[..mine]);
    allgather(group, &lengths, output)
}

/// Weights of two vectors by their product and squared lengths; one of length zero has no say.
fn factors(product: f64, first: f64, second: f64) -> (f64, f64) {
    let weight = |length: f64| {
        if length > 0.0 { 1.0 - product / (2.0 * length) } else { 1.0 }
    };
    (weight(first), weight(second))
}

fn sum(group: &mut Group, values: &mut [f64]) -> Result<()> {
    let len = size_of_val(values);
    // SAFETY: the same memory as bytes, while `values` is not touched otherwise.
    let bytes = unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast::<u8>(), len) };
    super::allreduce(group, bytes.as_ptr(), bytes, &Reduction::new(DType::F64, ReduceOp::Sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orthogonal_vectors_are_added_and_equal_ones_averaged() {
        assert_eq!(factors(0.0, 4.0, 9.0), (1.0, 1.0));
        assert_eq!(factors(4.0, 4.0, 4.0), (0.5, 0.5));
        assert_eq!(factors(0.0, 0.0, 9.0), (1.0, 1.0));
    }
}
