//! Averages, factors and minima by example, and the operations that are refused.

use ronde_collective::kernel::{Fold, FoldPlan, KernelError, Level, Stage, fold, scale_at};
use ronde_collective::types::DType;

/// Folds single elements at every level and expects the same bytes of all.
fn fold_one<const N: usize>(plan: impl Fn(Level) -> FoldPlan, sources: &[[u8; N]]) -> [u8; N] {
    let addresses: Vec<*const u8> = sources.iter().map(|source| source.as_ptr()).collect();
    let results = Level::available().into_iter().map(|level| {
        let mut result = [0; N];
        // SAFETY: every buffer holds one element.
        unsafe { fold(&plan(level), Stage::COMPLETE, result.as_mut_ptr(), None, &addresses, 1) };
        result
    });
    results
        .reduce(|first, next| {
            assert_eq!(first, next);
            first
        })
        .unwrap()
}

fn average<const N: usize>(dtype: DType, sources: &[[u8; N]]) -> [u8; N] {
    let divide = Some(sources.len() as u64);
    fold_one(|level| FoldPlan::at(level, dtype, Fold::Sum, 1.0, 1.0, divide).unwrap(), sources)
}

#[test]
fn integer_averages_truncate_toward_zero() {
    assert_eq!(average(DType::I32, &[(-3i32).to_le_bytes(), (-4i32).to_le_bytes()]), (-3i32).to_le_bytes());
    assert_eq!(average(DType::I8, &[(-3i8).to_le_bytes(), (-4i8).to_le_bytes()]), (-3i8).to_le_bytes());
    assert_eq!(average(DType::I64, &[7i64.to_le_bytes(), 0i64.to_le_bytes()]), 3i64.to_le_bytes());
}

#[test]
fn integer_averages_do_not_overflow() {
    assert_eq!(average(DType::U8, &[[200], [200]]), [200]);
    assert_eq!(average(DType::U16, &[u16::MAX.to_le_bytes(); 5]), u16::MAX.to_le_bytes());
    assert_eq!(average(DType::I32, &[i32::MIN.to_le_bytes(); 3]), i32::MIN.to_le_bytes());
    assert_eq!(average(DType::I64, &[i64::MAX.to_le_bytes(); 3]), i64::MAX.to_le_bytes());
    assert_eq!(average(DType::I64, &[i64::MIN.to_le_bytes(); 49]), i64::MIN.to_le_bytes());
}

#[test]
fn forty_nine_equal_contributions_average_to_themselves() {
    // Multiplying by a rounded 1/49 would give 0 for integers and miss the last bit of floats.
    assert_eq!(average(DType::I32, &[1i32.to_le_bytes(); 49]), 1i32.to_le_bytes());
    assert_eq!(average(DType::I64, &[49i64.to_le_bytes(); 49]), 49i64.to_le_bytes());
    assert_eq!(average(DType::F32, &[1f32.to_le_bytes(); 49]), 1f32.to_le_bytes());
    assert_eq!(average(DType::F64, &[3f64.to_le_bytes(); 49]), 3f64.to_le_bytes());
}

#[test]
fn plain_integer_sums_wrap() {
    let sum = |level| FoldPlan::at(level, DType::U8, Fold::Sum, 1.0, 1.0, None).unwrap();
    assert_eq!(fold_one(sum, &[[200], [100]]), [44]);
}

#[test]
fn integer_factors_truncate_and_saturate() {
    let halved = |level| FoldPlan::at(level, DType::I16, Fold::Sum, 0.5, 1.0, None).unwrap();
    let sources = [(-3i16).to_le_bytes(), (-3i16).to_le_bytes()];
    assert_eq!(fold_one(halved, &sources), (-2i16).to_le_bytes());
    let tripled = |level| FoldPlan::at(level, DType::U8, Fold::Sum, 1.0, 3.0, None).unwrap();
    assert_eq!(fold_one(tripled, &[[100], [1]]), [255]);
}

#[test]
fn the_negative_zero_is_the_smaller_one_in_either_order() {
    let zeros = [0f32.to_le_bytes(), (-0f32).to_le_bytes()];
    let swapped = [zeros[1], zeros[0]];
    for sources in [zeros, swapped] {
        let min = |level| FoldPlan::at(level, DType::F32, Fold::Min, 1.0, 1.0, None).unwrap();
        let max = |level| FoldPlan::at(level, DType::F32, Fold::Max, 1.0, 1.0, None).unwrap();
        assert_eq!(fold_one(min, &sources), (-0f32).to_le_bytes());
        assert_eq!(fold_one(max, &sources), 0f32.to_le_bytes());
    }
}

#[test]
fn a_nan_in_any_source_reaches_the_result_in_canonical_form() {
    let odd_nan = 0xffc1_2345u32.to_le_bytes();
    let canonical = 0x7fc0_0000u32.to_le_bytes();
    for fold in [Fold::Sum, Fold::Min, Fold::Max, Fold::Product] {
        for place in 0..3 {
            let mut sources = [1f32.to_le_bytes(); 3];
            sources[place] = odd_nan;
            let plan = |level| FoldPlan::at(level, DType::F32, fold, 1.0, 1.0, None).unwrap();
            assert_eq!(fold_one(plan, &sources), canonical, "{fold} with NaN at {place}");
        }
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_the_type_and_the_operation() {
    let (dtype, fold) = (DType::Bool, Fold::Sum);
    for (prescale, postscale, divide) in [(0.5, 1.0, None), (1.0, 2.0, None), (1.0, 1.0, Some(2))] {
        let refused = FoldPlan::new(dtype, fold, prescale, postscale, divide).unwrap_err();
        assert_eq!(refused, KernelError::NotANumber { dtype, fold });
        assert!(refused.to_string().starts_with("sum of bool"), "{refused}");
    }
    let refused = FoldPlan::new(DType::F32, Fold::Max, 1.0, 1.0, Some(2)).unwrap_err();
    assert_eq!(refused, KernelError::NotASum { dtype: DType::F32, fold: Fold::Max });
    for divisor in [0, u64::MAX] {
        let refused = FoldPlan::new(DType::I64, Fold::Sum, 1.0, 1.0, Some(divisor)).unwrap_err();
        assert_eq!(refused, KernelError::Divisor { dtype: DType::I64, fold, divisor });
    }
}

#[test]
fn scaling_a_boolean_keeps_it_unless_the_factor_is_zero() {
    for level in Level::available() {
        let mut flags = [0u8, 1, 7, 0];
        let at = flags.as_mut_ptr();
        // SAFETY: the buffer holds four elements, and source and result are the same.
        unsafe { scale_at(level, DType::Bool, at, at, 4, 0.25) };
        assert_eq!(flags, [0, 1, 1, 0]);
        let at = flags.as_mut_ptr();
        // SAFETY: as above.
        unsafe { scale_at(level, DType::Bool, at, at, 4, 0.0) };
        assert_eq!(flags, [0; 4]);
    }
}
