//! Our kernels, by the names of their entries.
//!
//! The names are decoded here from what they say, not taken from the code that makes them, so that a change on
//! one side alone is noticed.

use ronde_collective::kernel::Fold;
use ronde_collective::types::DType;

/// What an entry's name asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// `ronde_move`
    Move,
    /// `ronde_fill`
    Fill,
    /// `ronde_convert_{from}_{to}`
    Convert { from: DType, to: DType },
    /// `ronde_fold_{dtype}_{fold}_{sources}`, with `_scaled` behind it or without, and then `_to_{to}` for a wider result
    Fold { dtype: DType, to: DType, fold: Fold, sources: usize, scaled: bool },
}

/// Sources that a fold has at most.
const MOST_SOURCES: usize = 16;

impl Kernel {
    /// The kernel of that name, if it is one of ours.
    pub(crate) fn named(name: &str) -> Option<Kernel> {
        let words: Vec<&str> = name.strip_prefix("ronde_")?.split('_').collect();
        match words[..] {
            ["move"] => Some(Kernel::Move),
            ["fill"] => Some(Kernel::Fill),
            ["convert", from, to] => Some(Kernel::Convert { from: float(from)?, to: float(to)? }),
            ["fold", dtype, fold, sources, ref rest @ ..] => {
                let (scaled, rest) = match rest {
                    ["scaled", rest @ ..] => (true, rest),
                    rest => (false, rest),
                };
                match rest {
                    [] => Kernel::fold(dtype, dtype, fold, sources, scaled),
                    ["to", to] => {
                        let (narrow, wide) = (float(dtype)?, float(to)?);
                        (narrow.size() < wide.size())
                            .then(|| Kernel::fold(dtype, to, fold, sources, scaled))?
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn fold(dtype: &str, to: &str, fold: &str, sources: &str, scaled: bool) -> Option<Kernel> {
        let folds = [Fold::Sum, Fold::Min, Fold::Max, Fold::Product];
        let fold = folds.into_iter().find(|known| known.to_string() == fold)?;
        let count = sources.parse().ok().filter(|count| (1..=MOST_SOURCES).contains(count))?;
        (count.to_string() == sources).then_some(Kernel::Fold {
            dtype: typed(dtype)?,
            to: typed(to)?,
            fold,
            sources: count,
            scaled,
        })
    }

    /// How many parameters it takes, of eight bytes each.
    pub(crate) fn parameters(self) -> usize {
        match self {
            Kernel::Move => 1,
            Kernel::Fill | Kernel::Convert { .. } => 2,
            Kernel::Fold { sources, scaled, .. } => 1 + sources + if scaled { 3 } else { 0 },
        }
    }
}

fn typed(name: &str) -> Option<DType> {
    DType::ALL.into_iter().find(|dtype| dtype.name() == name)
}

fn float(name: &str) -> Option<DType> {
    typed(name).filter(|dtype| dtype.is_float())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_a_kernel_does() {
        assert_eq!(Kernel::named("ronde_move"), Some(Kernel::Move));
        assert_eq!(
            Kernel::named("ronde_convert_float64_bfloat16"),
            Some(Kernel::Convert { from: DType::F64, to: DType::BF16 })
        );
        assert_eq!(
            Kernel::named("ronde_fold_int64_product_16_scaled"),
            Some(Kernel::Fold {
                dtype: DType::I64,
                to: DType::I64,
                fold: Fold::Product,
                sources: 16,
                scaled: true
            })
        );
        assert_eq!(
            Kernel::named("ronde_fold_float16_sum_2_to_float32"),
            Some(Kernel::Fold {
                dtype: DType::F16,
                to: DType::F32,
                fold: Fold::Sum,
                sources: 2,
                scaled: false
            })
        );
        assert_eq!(Kernel::named("ronde_fold_int64_product_16_scaled").map(Kernel::parameters), Some(20));
    }

    #[test]
    fn other_names_are_none_of_ours() {
        for name in [
            "move",
            "ronde_moves",
            "ronde_convert_int32_float32",
            "ronde_fold_float32_sum",
            "ronde_fold_float32_sum_0",
            "ronde_fold_float32_sum_+2",
            "ronde_fold_float32_sum_17",
            "ronde_fold_float32_mean_2",
            "ronde_fold_float32_sum_2_scaled_twice",
            "ronde_fold_float16_sum_2_to_bfloat16",
            "ronde_fold_float16_sum_2_to_float32_scaled",
        ] {
            assert_eq!(Kernel::named(name), None, "{name}");
        }
    }
}
