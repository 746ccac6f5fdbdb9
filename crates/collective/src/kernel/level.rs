//! Which vector instructions the kernels use on this CPU.
//!
//! A [`Level`] can only be had for instructions that the CPU really has, so whoever holds one may
//! call the functions compiled for it. The best level is chosen once per process; the environment
//! variable `RONDE_CPU_LEVEL` (`avx512`, `avx2` or `portable`) lowers it, which is meant for tests
//! and for hunting a suspected miscomputation: results are the same at every level. A value that
//! this CPU can not serve, or that is no level, is ignored.

use std::fmt;
use std::sync::OnceLock;

/// A set of vector instructions that this CPU has.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Level(Instructions);

/// The sets that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Instructions {
    /// What every CPU of the architecture has.
    Portable,
    /// AVX2 with F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, DQ and VL, and everything of `Avx2`.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// The levels this CPU has, the fastest first. The last is always the portable one.
    pub fn available() -> Vec<Level> {
        let mut levels = Vec::with_capacity(3);
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let avx2 = has!("avx2") && has!("f16c");
            if avx2 && has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl") {
                levels.push(Level(Instructions::Avx512));
            }
            if avx2 {
                levels.push(Level(Instructions::Avx2));
            }
        }
        levels.push(Level(Instructions::Portable));
        levels
    }

    /// The level used unless one is named: the fastest, or what `RONDE_CPU_LEVEL` asks for.
    pub fn current() -> Level {
        static CURRENT: OnceLock<Level> = OnceLock::new();
        *CURRENT.get_or_init(|| {
            let levels = Level::available();
            let asked = std::env::var("RONDE_CPU_LEVEL").ok();
            let named = levels.iter().find(|level| asked.as_deref() == Some(level.name()));
            *named.unwrap_or(&levels[0])
        })
    }

    /// The name by which `RONDE_CPU_LEVEL` knows this level.
    pub fn name(self) -> &'static str {
        match self.0 {
            Instructions::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => "avx512",
        }
    }

    /// The instructions that may be used by whoever holds this level.
    pub(super) fn instructions(self) -> Instructions {
        self.0
    }
}

impl fmt::Debug for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name of the level in use: `avx512`, `avx2` or `portable`.
pub fn cpu_level() -> &'static str {
    Level::current().name()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_portable_level_is_always_there_and_last() {
        assert_eq!(Level::available().last().map(|level| level.name()), Some("portable"));
    }

    #[test]
    fn the_level_in_use_is_one_the_cpu_has() {
        assert!(Level::available().contains(&Level::current()));
    }
}
