//! Spreads keys over tables in next to no time, where nobody gains by making them collide: handles, and the names that this
//! rank's own script gives its operations.
//!
//! The standard library's hasher withstands chosen keys, at a cost that shows when operations come by the thousand.

use std::hash::{BuildHasherDefault, Hasher};

/// For tables of this crate and of those that keep something for each handle.
pub type QuickState = BuildHasherDefault<QuickHasher>;

/// See the module's text.
#[derive(Default)]
pub struct QuickHasher(u64);

/// The golden ratio, as is customary: neighbouring numbers end up far apart.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for QuickHasher {
    fn finish(&self) -> u64 {
        // Tables take a key's place from the low bits, which multiplying leaves to the low bits of the key.
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.write_u64(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            // The one byte that is always free tells zeros at the end from none.
            last[7] = rest.len() as u8;
            self.write_u64(u64::from_le_bytes(last));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(23) ^ value).wrapping_mul(SPREAD);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    /// How many of 1,024 keys share the low bits, and so a place in a table of as many places, with another.
    fn crowded<K: std::hash::Hash>(keys: impl Iterator<Item = K>) -> usize {
        let state = QuickState::default();
        1024 - keys.take(1024).map(|key| state.hash_one(key) % 1024).collect::<HashSet<_>>().len()
    }

    #[test]
    fn names_and_handles_spread_as_chance_would_spread_them() {
        // Chance leaves 377 of 1,024 places empty.
        assert!(crowded(0u64..) < 450);
        assert!(crowded((0..).map(|number| format!("allreduce.tensor.{number}"))) < 450);
        assert!(crowded((0..).map(|number| format!("allreduce.layer.{number}.weight"))) < 450);
    }

    #[test]
    fn keys_that_differ_by_their_end_differ() {
        let state = QuickState::default();
        let names = ["", "a", "a\0", "\0a", "abcdefgh", "abcdefgh\0", "abcdefgi", "babcdefgh"];
        let hashes: HashSet<u64> = names.iter().map(|name| state.hash_one(name)).collect();
        assert_eq!(hashes.len(), names.len());
    }
}
