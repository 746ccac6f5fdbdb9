//! Copies of many lengths and alignments.

use ronde_collective::kernel::{Level, copy, copy_at};
use ronde_collective::types::DType;

use super::guarded::Guarded;
use super::reference::elements;

#[test]
fn copies_of_every_length_and_alignment_are_exact_and_touch_nothing_else() {
    let bytes = elements(DType::U8, 70_000, 7);
    let lengths = (0..300).chain(1000..1400).chain([4095, 4096, 4097, 65_537, 70_000]);
    for len in lengths {
        for (to, from) in [(0, 0), (1, 0), (0, 1), (16, 0), (33, 7), (63, 64), (64, 63)] {
            let src = Guarded::holding(&bytes[..len], from);
            for level in Level::available() {
                for stream in [false, true] {
                    let mut dst = Guarded::empty(len, to);
                    // SAFETY: both buffers hold `len` bytes and are apart.
                    unsafe { copy_at(level, dst.as_mut_ptr(), src.as_ptr(), len, stream) };
                    let case = || format!("{level:?} {len} bytes, {from} to {to}, {stream}");
                    assert!(dst.bytes() == &bytes[..len], "{}", case());
                }
            }
        }
    }
}

#[test]
fn the_level_in_use_copies_too() {
    let bytes = elements(DType::U8, 5000, 9);
    let mut dst = Guarded::empty(5000, 3);
    // SAFETY: both buffers hold 5000 bytes and are apart.
    unsafe { copy(dst.as_mut_ptr(), bytes.as_ptr(), 5000, true) };
    assert!(dst.bytes() == bytes);
}
