//! Every type, fold, number of sources, length, alignment and level.

use ronde_collective::kernel::{Fold, FoldPlan, Level, PreScale, Stage, fold};
use ronde_collective::types::DType;

use super::guarded::Guarded;
use super::reference::{Expected, elements};

const FOLDS: [Fold; 4] = [Fold::Sum, Fold::Min, Fold::Max, Fold::Product];
const SOURCES: [usize; 5] = [1, 2, 3, 5, 8];
const COUNTS: [usize; 7] = [0, 1, 7, 31, 64, 1000, 4097];
const LONGEST: usize = 4097;

/// Source buffers, each at an alignment of its own.
fn place(srcs: &[Vec<u8>], bytes: usize, shift: usize) -> Vec<Guarded> {
    let shifted = srcs.iter().enumerate();
    shifted.map(|(k, src)| Guarded::holding(&src[..bytes], (shift * (k + 1)) % 64)).collect()
}

fn addresses(buffers: &[Guarded]) -> Vec<*const u8> {
    buffers.iter().map(Guarded::as_ptr).collect()
}

/// Random sources, the same for each type and number.
fn sources(dtype: DType, number: usize) -> Vec<Vec<u8>> {
    (0..number).map(|k| elements(dtype, LONGEST, 1 + k as u64)).collect()
}

/// Folds into fresh buffers and checks both results against the expected bytes.
fn check(plan: &FoldPlan, stage: Stage, srcs: &[Vec<u8>], expected: &[u8], shift: usize, what: &str) {
    let size = plan.dtype().size();
    for count in COUNTS {
        let bytes = count * size;
        let buffers = place(srcs, bytes, shift);
        let mut dst = Guarded::empty(bytes, shift);
        let mut also = Guarded::empty(bytes, (shift * 3) % 64);
        let also_ptr = (shift != 0).then(|| also.as_mut_ptr());
        // SAFETY: all buffers hold `count` elements and are apart.
        unsafe { fold(plan, stage, dst.as_mut_ptr(), also_ptr, &addresses(&buffers), count) };
        let case = || format!("{what}, {} sources, {count} elements, +{shift}", srcs.len());
        assert!(dst.bytes() == &expected[..bytes], "{}", case());
        if also_ptr.is_some() {
            assert!(also.bytes() == &expected[..bytes], "second place: {}", case());
        }
    }
}

#[test]
fn every_plain_fold_gives_the_bits_of_the_reference_at_every_level() {
    let stage = Stage { prescale: PreScale::None, finish: false, stream: false };
    for dtype in DType::ALL {
        for kind in FOLDS {
            for number in SOURCES {
                let srcs = sources(dtype, number);
                let expected = Expected::plain(dtype, kind).of(&srcs);
                for level in Level::available() {
                    let plan = FoldPlan::at(level, dtype, kind, 1.0, 1.0, None).unwrap();
                    for shift in [0, 1, 8, 13] {
                        let what = format!("{level:?} {kind} of {dtype}");
                        check(&plan, stage, &srcs, &expected, shift, &what);
                    }
                }
            }
        }
    }
}

#[test]
fn factors_and_divisors_apply_to_the_sources_and_steps_they_are_meant_for() {
    let (prescale, postscale) = (0.3, 1.7);
    for dtype in DType::ALL.into_iter().filter(|&dtype| dtype != DType::Bool) {
        for kind in FOLDS {
            for number in SOURCES {
                let srcs = sources(dtype, number);
                for (apply, finish) in [
                    (PreScale::All, true),
                    (PreScale::OnlyLast, false),
                    (PreScale::OnlyLast, true),
                    (PreScale::None, true),
                ] {
                    let divide = (kind == Fold::Sum && number != 2).then_some(number as u64 + 1);
                    let expected = Expected {
                        early: if apply == PreScale::All { prescale } else { 1.0 },
                        last: if apply == PreScale::None { 1.0 } else { prescale },
                        divide: divide.filter(|_| finish),
                        postscale: if finish { postscale } else { 1.0 },
                        ..Expected::plain(dtype, kind)
                    };
                    let expected_bytes = expected.of(&srcs);
                    let stage = Stage { prescale: apply, finish, stream: false };
                    for level in Level::available() {
                        let plan = FoldPlan::at(level, dtype, kind, prescale, postscale, divide);
                        let what = format!("{level:?} {expected:?}");
                        check(&plan.unwrap(), stage, &srcs, &expected_bytes, 5, &what);
                    }
                }
            }
        }
    }
}

#[test]
fn an_unfinished_unscaled_step_of_an_average_is_a_plain_sum() {
    let stage = Stage { prescale: PreScale::None, finish: false, stream: false };
    for dtype in DType::ALL.into_iter().filter(|&dtype| dtype != DType::Bool) {
        let srcs = sources(dtype, 3);
        let expected = Expected::plain(dtype, Fold::Sum).of(&srcs);
        let plan = FoldPlan::new(dtype, Fold::Sum, 0.5, 2.0, Some(3)).unwrap();
        check(&plan, stage, &srcs, &expected, 0, "step of an average");
    }
}

#[test]
fn streamed_results_are_the_same_and_touch_nothing_else() {
    for dtype in DType::ALL {
        let srcs = sources(dtype, 2);
        let expected = Expected::plain(dtype, Fold::Sum).of(&srcs);
        let stage = Stage { stream: true, ..Stage::COMPLETE };
        for level in Level::available() {
            let plan = FoldPlan::at(level, dtype, Fold::Sum, 1.0, 1.0, None).unwrap();
            for shift in [0, 1, 2, 4, 8, 16, 24, 32, 48, 63] {
                let what = format!("{level:?} streamed {dtype}");
                check(&plan, stage, &srcs, &expected, shift, &what);
            }
        }
        if dtype != DType::Bool {
            let expected = Expected { divide: Some(3), ..Expected::plain(dtype, Fold::Sum) };
            let expected = expected.of(&srcs);
            for level in Level::available() {
                let plan = FoldPlan::at(level, dtype, Fold::Sum, 1.0, 1.0, Some(3)).unwrap();
                check(&plan, stage, &srcs, &expected, 8, &format!("{level:?} average {dtype}"));
            }
        }
    }
}

#[test]
fn the_result_may_replace_any_of_the_sources() {
    for dtype in DType::ALL {
        let srcs = sources(dtype, 3);
        let expected = Expected::plain(dtype, Fold::Sum).of(&srcs);
        for level in Level::available() {
            let plan = FoldPlan::at(level, dtype, Fold::Sum, 1.0, 1.0, None).unwrap();
            for (replaced, shift, stream) in [(0, 0, false), (1, 3, false), (2, 8, true)] {
                let stage = Stage { stream, ..Stage::COMPLETE };
                let mut buffers = place(&srcs, srcs[0].len(), shift);
                let dst = buffers[replaced].as_mut_ptr();
                let mut addresses = addresses(&buffers);
                addresses[replaced] = dst;
                // SAFETY: all buffers hold LONGEST elements; the result is exactly one of them.
                unsafe { fold(&plan, stage, dst, None, &addresses, LONGEST) };
                assert!(buffers[replaced].bytes() == expected, "{level:?} {dtype} over {replaced}");
                for (k, src) in srcs.iter().enumerate().filter(|&(k, _)| k != replaced) {
                    assert!(buffers[k].bytes() == src, "source {k} changed");
                }
            }
        }
    }
}

#[test]
fn folding_in_steps_gives_the_bits_of_one_fold_where_the_plan_says_so() {
    let mut exact = Vec::new();
    for dtype in DType::ALL.into_iter().filter(|&dtype| dtype != DType::Bool) {
        let srcs = sources(dtype, 3);
        let expected =
            Expected { early: 0.3, last: 0.3, divide: Some(3), ..Expected::plain(dtype, Fold::Sum) };
        let plan = FoldPlan::new(dtype, Fold::Sum, 0.3, 1.0, Some(3)).unwrap();
        if !plan.exact_in_steps() {
            continue;
        }
        exact.push(dtype);
        let buffers = place(&srcs, srcs[0].len(), 0);
        let mut partial = Guarded::empty(srcs[0].len(), 0);
        let to = partial.as_mut_ptr();
        let steps: [(&[*const u8], PreScale, bool); 2] = [
            (&[buffers[0].as_ptr(), buffers[1].as_ptr()], PreScale::All, false),
            (&[to, buffers[2].as_ptr()], PreScale::OnlyLast, true),
        ];
        for (addresses, prescale, finish) in steps {
            let stage = Stage { prescale, finish, stream: false };
            // SAFETY: all buffers hold LONGEST elements; the result is exactly one of them.
            unsafe { fold(&plan, stage, to, None, addresses, LONGEST) };
        }
        assert!(partial.bytes() == expected.of(&srcs), "{dtype}");
    }
    assert_eq!(exact, [DType::F32, DType::F64]);
    assert!(FoldPlan::new(DType::I32, Fold::Sum, 1.0, 1.0, None).unwrap().exact_in_steps());
    assert!(!FoldPlan::new(DType::BF16, Fold::Sum, 1.0, 1.0, None).unwrap().exact_in_steps());
}

#[test]
fn without_sources_nothing_is_written() {
    let mut dst = Guarded::holding(&[1, 2, 3, 4], 0);
    let plan = FoldPlan::new(DType::U8, Fold::Sum, 1.0, 1.0, None).unwrap();
    // SAFETY: the buffer holds four elements.
    unsafe { fold(&plan, Stage::COMPLETE, dst.as_mut_ptr(), None, &[], 4) };
    assert_eq!(dst.bytes(), [1, 2, 3, 4]);
}
