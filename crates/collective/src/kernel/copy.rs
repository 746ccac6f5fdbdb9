//! Copying memory at the speed of the machine, with the choice to pass the caches.
//!
//! The C library copies blocks beyond a few kilobytes by `rep movsb`, which on some CPUs falls from
//! 50 GB/s to 3 when source and destination differ by a little modulo a page. Buffers of frameworks
//! do as they like there, so larger copies run in an own loop of vector registers. Such a loop can
//! also store past the caches, which the library does only for huge copies: worth it where the
//! reader is somebody else, later.

use super::level::{Instructions, Level};

/// Below this the library's copy is as good and never takes the slow path.
const SMALL: usize = 1024;

/// Copies `len` bytes. With `stream` the stores pass the caches where the CPU can, and are visible
/// to everybody before any later store.
///
/// # Safety
/// `src` and `dst` must be valid for `len` bytes and must not overlap.
#[inline]
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize, stream: bool) {
    // SAFETY: passed on to the caller.
    unsafe {
        // Said here as well, so that the many short copies of a batch of small tensors do not ask for the level.
        if len < SMALL {
            dst.copy_from_nonoverlapping(src, len);
        } else {
            copy_at(Level::current(), dst, src, len, stream);
        }
    }
}

/// [`copy`] with the instructions of a given level. The portable level uses the library's copy and
/// does not stream.
///
/// # Safety
/// As for [`copy`].
pub unsafe fn copy_at(level: Level, dst: *mut u8, src: *const u8, len: usize, stream: bool) {
    let instructions = match len < SMALL {
        true => Instructions::Portable,
        false => level.instructions(),
    };
    // SAFETY: the caller vouches for the addresses, and the level for the instructions.
    unsafe {
        match (instructions, stream) {
            (Instructions::Portable, _) => dst.copy_from_nonoverlapping(src, len),
            #[cfg(target_arch = "x86_64")]
            (Instructions::Avx2, false) => registers::avx2::<false>(dst, src, len),
            #[cfg(target_arch = "x86_64")]
            (Instructions::Avx2, true) => registers::avx2::<true>(dst, src, len),
            #[cfg(target_arch = "x86_64")]
            (Instructions::Avx512, false) => registers::avx512::<false>(dst, src, len),
            #[cfg(target_arch = "x86_64")]
            (Instructions::Avx512, true) => registers::avx512::<true>(dst, src, len),
        }
    }
}

/// The loops over vector registers.
#[cfg(target_arch = "x86_64")]
mod registers {
    use std::arch::x86_64::*;

    use super::super::fold::fence;

    /// Bytes moved in one turn.
    const TURN: usize = 256;
    /// How far ahead of the loads of a stream a line is asked for. Without streaming the CPU's own
    /// prefetcher does better alone.
    const AHEAD: usize = 1024;

    /// One loop for a register of 64 or 32 bytes. The destination is aligned by one unaligned line
    /// at the start, and what is left at the end is covered by registers that may overlap what is
    /// written already: copying a byte twice is harmless.
    macro_rules! copy_loop {
        ($name:ident, $features:literal, $register:ty, $load:ident, $store:ident, $stream:ident) => {
            #[target_feature(enable = $features)]
            pub(super) unsafe fn $name<const STREAM: bool>(dst: *mut u8, src: *const u8, len: usize) {
                const WIDTH: usize = size_of::<$register>();
                const COUNT: usize = TURN / WIDTH;
                // SAFETY: the caller vouches for `len` bytes, at least SMALL, in both; every offset
                // stays within. A prefetch may name any address.
                unsafe {
                    for at in (0..64).step_by(WIDTH) {
                        $store(dst.add(at).cast(), $load(src.add(at).cast()));
                    }
                    let mut at = 64 - dst.addr() % 64;
                    while at + TURN <= len {
                        let mut held = [$load(src.add(at).cast()); COUNT];
                        for (i, register) in held.iter_mut().enumerate().skip(1) {
                            *register = $load(src.add(at + i * WIDTH).cast());
                        }
                        for (i, register) in held.into_iter().enumerate() {
                            let to = dst.add(at + i * WIDTH).cast();
                            if STREAM {
                                $stream(to, register);
                            } else {
                                $store(to, register);
                            }
                        }
                        if STREAM {
                            for line in (at + AHEAD..at + AHEAD + TURN).step_by(64) {
                                _mm_prefetch::<_MM_HINT_NTA>(src.wrapping_add(line).cast());
                            }
                        }
                        at += TURN;
                    }
                    for at in (len - TURN..len).step_by(WIDTH) {
                        $store(dst.add(at).cast(), $load(src.add(at).cast()));
                    }
                }
                if STREAM {
                    fence();
                }
            }
        };
    }
    copy_loop!(avx512, "avx512f", __m512i, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_stream_si512);
    copy_loop!(avx2, "avx2", __m256i, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_stream_si256);
}
