//! Data whose sum over all ranks is known exactly, again and again.
//!
//! Rank r holds i % 7 + r at index i, a period that no chunk size is a multiple of, so that a piece
//! that lands in the wrong place is noticed. An allreduce in place leaves the sum on every rank; the
//! next one multiplies it by the number of ranks, and so on. As long as f32 represents the result
//! exactly, checking it after a batch of calls checks every call of the batch.

use crate::Error;

const PERIOD: usize = 7;
/// More calls than this in one batch gain nothing.
const LONGEST_BATCH: u32 = 100;

/// How many calls in a row have an exact result.
pub(crate) fn exact_calls(ranks: usize) -> u32 {
    // Multiplying by a power of two only moves the exponent; otherwise all digits must fit in 24 bits.
    let bound = if ranks.is_power_of_two() { 2f64.powi(120) } else { 2f64.powi(24) };
    let mut largest = summed(PERIOD - 1, ranks);
    let mut calls = 1;
    while calls < LONGEST_BATCH && largest * (ranks as f64) < bound {
        largest *= ranks as f64;
        calls += 1;
    }
    calls
}

/// Fills a tensor with what a rank contributes.
pub(crate) fn fill(tensor: &mut [f32], rank: usize) {
    let pattern: [f32; PERIOD] = std::array::from_fn(|index| (index + rank) as f32);
    for piece in tensor.chunks_mut(PERIOD) {
        piece.copy_from_slice(&pattern[..piece.len()]);
    }
}

/// Makes sure that every element is what so many calls over so many ranks make of it.
pub(crate) fn check(tensor: &[f32], ranks: usize, calls: u32) -> Result<(), Error> {
    let scale = (ranks as f64).powi(calls as i32 - 1);
    let pattern: [f32; PERIOD] = std::array::from_fn(|index| (summed(index, ranks) * scale) as f32);
    for (number, piece) in tensor.chunks(PERIOD).enumerate() {
        if *piece != pattern[..piece.len()] {
            let within = (0..piece.len()).find(|&index| piece[index] != pattern[index]).unwrap_or(0);
            return Err(Error::WrongResult {
                index: number * PERIOD + within,
                count: tensor.len(),
                found: piece[within],
                expected: pattern[within],
                calls,
            });
        }
    }
    Ok(())
}

/// What the ranks' contributions at an index add up to.
fn summed(index: usize, ranks: usize) -> f64 {
    (ranks * (index % PERIOD) + ranks * (ranks - 1) / 2) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums the ranks' tensors in place, as an allreduce does.
    fn sum_in_place(tensors: &mut [Vec<f32>]) {
        let sums: Vec<f32> =
            (0..tensors[0].len()).map(|index| tensors.iter().map(|tensor| tensor[index]).sum()).collect();
        tensors.fill(sums);
    }

    #[test]
    fn repeated_sums_stay_exact_for_as_long_as_promised() {
        for ranks in [1, 2, 3, 4, 5, 6, 8, 16] {
            let mut tensors = vec![vec![0.0; 23]; ranks];
            for (rank, tensor) in tensors.iter_mut().enumerate() {
                fill(tensor, rank);
            }
            for calls in 1..=exact_calls(ranks) {
                sum_in_place(&mut tensors);
                check(&tensors[0], ranks, calls).expect("an exact sum");
            }
        }
    }

    #[test]
    fn one_wrong_element_is_found_and_named() {
        let mut tensors = vec![vec![0.0; 23]; 2];
        fill(&mut tensors[0], 0);
        fill(&mut tensors[1], 1);
        sum_in_place(&mut tensors);
        tensors[0][20] += 1.0;
        let error = check(&tensors[0], 2, 1).expect_err("element 20 is wrong");
        assert!(matches!(error, Error::WrongResult { index: 20, .. }));
    }

    #[test]
    fn a_sum_that_misses_one_call_is_wrong() {
        let mut tensors = vec![vec![0.0; 8]; 2];
        fill(&mut tensors[0], 0);
        fill(&mut tensors[1], 1);
        sum_in_place(&mut tensors);
        assert!(check(&tensors[0], 2, 2).is_err());
    }
}
