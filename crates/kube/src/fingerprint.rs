//! A number for bytes: short to compute, and the same on every machine and in every build.

/// FNV-1a of these bytes.
pub(crate) fn fingerprint(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325_u64;
    bytes.into_iter().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::fingerprint;

    #[test]
    fn it_is_the_one_that_others_compute() {
        assert_eq!(fingerprint(*b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fingerprint(*b"a"), 0xaf63_dc4c_8601_ec8c);
    }
}
