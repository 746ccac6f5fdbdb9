//! The identity of a fold leaves every value as it is, whichever side it stands on.

use ronde_collective::kernel::{Fold, FoldPlan, Identity, Stage, fold};
use ronde_collective::types::DType;

const FOLDS: [Fold; 4] = [Fold::Sum, Fold::Min, Fold::Max, Fold::Product];

/// Bytes that are ordinary values in every type: no NaN, no negative zero, and booleans as folds write them.
fn values(dtype: DType, elements: usize) -> Vec<u8> {
    let byte = |index: usize| if dtype == DType::Bool { (index % 2) as u8 } else { (index % 61 + 1) as u8 };
    (0..elements * dtype.size()).map(byte).collect()
}

#[test]
fn folding_with_the_identity_changes_nothing() {
    for dtype in DType::ALL {
        for which in FOLDS {
            for elements in [1, 7, 64, 1001] {
                let given = values(dtype, elements);
                let mut neutral = vec![0xAA; given.len()];
                let mut result = vec![0xAA; given.len()];
                let plan = FoldPlan::new(dtype, which, 1.0, 1.0, None).expect("a plain fold");
                for neutral_first in [true, false] {
                    // SAFETY: all buffers are equally long and apart.
                    unsafe {
                        Identity::new(dtype, which).fill(neutral.as_mut_ptr(), neutral.len());
                        let mut sources = [neutral.as_ptr(), given.as_ptr()];
                        if !neutral_first {
                            sources.reverse();
                        }
                        fold(&plan, Stage::COMPLETE, result.as_mut_ptr(), None, &sources, elements);
                    }
                    assert_eq!(result, given, "{which} of {elements} {dtype}");
                }
            }
        }
    }
}

#[test]
fn the_extremes_of_a_type_are_left_alone_too() {
    for (which, extreme) in [(Fold::Min, i32::MAX), (Fold::Max, i32::MIN)] {
        let mut neutral = [0; 4];
        // SAFETY: four bytes are written.
        unsafe { Identity::new(DType::I32, which).fill(neutral.as_mut_ptr(), 4) };
        assert_eq!(i32::from_ne_bytes(neutral), extreme);
    }
    for (which, extreme) in [(Fold::Min, f64::INFINITY), (Fold::Max, f64::NEG_INFINITY)] {
        let mut neutral = [0; 8];
        // SAFETY: eight bytes are written.
        unsafe { Identity::new(DType::F64, which).fill(neutral.as_mut_ptr(), 8) };
        assert_eq!(f64::from_ne_bytes(neutral), extreme);
    }
}

#[test]
fn filling_stops_where_it_should() {
    for len in [0, 2, 62, 64, 66, 200] {
        let mut memory = vec![0xAA; len + 64];
        // SAFETY: the memory holds more than `len` bytes.
        unsafe { Identity::new(DType::U16, Fold::Min).fill(memory.as_mut_ptr(), len) };
        assert!(memory[..len].iter().all(|&byte| byte == 0xFF), "{len} bytes");
        assert!(memory[len..].iter().all(|&byte| byte == 0xAA), "nothing beyond {len} bytes");
    }
}
