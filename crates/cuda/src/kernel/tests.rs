//! What can be said of kernels without a GPU: the form of their texts, and how batches are cut.

use super::*;

fn fold(dtype: DType, sources: usize, scaled: bool) -> Kernel {
    Kernel::Fold { dtype, to: dtype, fold: Fold::Sum, sources, scaled }
}

#[test]
fn a_module_has_one_entry_with_the_name_of_its_kernel() {
    for kernel in Kernel::every(&[1, 2, MOST_SOURCES]) {
        let source = kernel.source();
        assert_eq!(source.matches(".entry").count(), 1);
        assert!(source.contains(&format!(".visible .entry {}(", kernel.entry())), "{source}");
    }
}

#[test]
fn names_say_what_a_kernel_does() {
    assert_eq!(fold(DType::BF16, 4, false).entry(), "ronde_fold_bfloat16_sum_4");
    assert_eq!(fold(DType::I64, 16, true).entry(), "ronde_fold_int64_sum_16_scaled");
    let wider = Kernel::Fold { dtype: DType::F16, to: DType::F64, fold: Fold::Max, sources: 2, scaled: true };
    assert_eq!(wider.entry(), "ronde_fold_float16_max_2_scaled_to_float64");
    let convert = Kernel::Convert { from: DType::F32, to: DType::F16 };
    assert_eq!(convert.entry(), "ronde_convert_float32_float16");
}

#[test]
fn no_two_kernels_have_one_name() {
    let mut names: Vec<String> = Kernel::every(&[1, 2, 3]).iter().map(Kernel::entry).collect();
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn arithmetic_rounds_to_nearest_at_every_step_and_keeps_subnormals() {
    for kernel in Kernel::every(&[2]) {
        let source = kernel.source();
        for line in source.lines().map(str::trim) {
            assert!(
                !line.starts_with("fma") && !line.contains(".ftz") && !line.contains(".approx"),
                "{line}"
            );
            let rounds = ["add.f", "mul.f", "div.f", "rcp.f", "sub.f", "mad.f"];
            assert!(!rounds.iter().any(|op| line.starts_with(op)), "no rounding said: {line}");
        }
    }
}

#[test]
fn a_thread_loads_all_its_vectors_before_it_stores_one() {
    let source = fold(DType::F32, 4, false).source();
    let first_store = source.find("st.global.v4").expect("there is a vector store");
    let (before, after) = source.split_at(first_store);
    assert_eq!(before.matches("ld.global.v4").count(), 8);
    assert_eq!(after.matches("ld.global.v4").count(), 0);
}

#[test]
fn small_spans_stay_whole_and_empty_ones_vanish() {
    let spans = [Piece { a: 1, b: 2, n: 7 }, Piece { a: 5, b: 6, n: 0 }, Piece { a: 100, b: 200, n: 4096 }];
    assert_eq!(Kernel::Move.divide(&spans, 132), [spans[0], spans[2]]);
}

#[test]
fn pieces_cover_their_span_once_and_in_order() {
    for kernel in [
        Kernel::Move,
        Kernel::Fill,
        Kernel::Convert { from: DType::F64, to: DType::F16 },
        fold(DType::F32, 2, false),
        fold(DType::U8, 2, true),
        Kernel::Fold { dtype: DType::BF16, to: DType::F64, fold: Fold::Sum, sources: 3, scaled: true },
    ] {
        let (a_stride, b_stride) = kernel.strides();
        let span = Piece { a: 1 << 20, b: 1 << 40, n: 1_000_003 };
        let mut done = 0;
        for piece in kernel.divide(&[span], 4) {
            assert_eq!(
                (piece.a, piece.b),
                (span.a + done * a_stride, span.b + done * b_stride),
                "{kernel:?}"
            );
            assert!(piece.n > 0 && piece.n * a_stride.max(b_stride) <= MOST_BYTES);
            assert!(piece.n.is_multiple_of(16) || done + piece.n == span.n);
            done += piece.n;
        }
        assert_eq!(done, span.n);
    }
}

#[test]
fn a_large_batch_gives_every_multiprocessor_several_pieces() {
    let span = |at: u64| Piece { a: at << 30, b: at << 40, n: 25_600_000 / 161 };
    let spans: Vec<Piece> = (0..161).map(span).collect();
    let pieces = fold(DType::F32, 2, false).divide(&spans, 132);
    assert!((132 * 16..132 * 64).contains(&pieces.len()), "{}", pieces.len());
}

#[test]
#[should_panic(expected = "int32 and float32 are not both floats")]
fn only_floats_are_converted() {
    Kernel::Convert { from: DType::I32, to: DType::F32 }.source();
}

#[test]
#[should_panic(expected = "bfloat16 is not a wider float than float16")]
fn results_are_stored_in_no_narrower_type() {
    Kernel::Fold { dtype: DType::F16, to: DType::BF16, fold: Fold::Sum, sources: 1, scaled: false }.source();
}

#[test]
#[should_panic(expected = "1 to 16 sources, not 17")]
fn a_fold_has_no_more_sources_than_it_says() {
    fold(DType::F32, 17, false).source();
}
