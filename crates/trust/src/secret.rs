//! The job secret: how it is made, kept, written down and read back.
//!
//! It lives in memory that is wiped when dropped, and on paper only as 64 hexadecimal digits in a file that
//! the owner alone can read. It never formats itself into a log.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use zeroize::{Zeroize, Zeroizing};

use crate::Error;

const BYTES: usize = 32;
const DIGITS: usize = 2 * BYTES;

/// The 256-bit secret that all processes of one job share.
#[derive(Clone)]
pub struct Secret(Zeroizing<[u8; BYTES]>);

impl Secret {
    /// A fresh secret from the system's randomness.
    pub fn random() -> Result<Secret, Error> {
        let mut bytes = Zeroizing::new([0; BYTES]);
        getrandom::fill(&mut *bytes).map_err(|error| Error::NoRandomness(error.to_string()))?;
        Ok(Secret(bytes))
    }

    /// Reads 64 hexadecimal digits, of either case.
    pub fn from_hex(text: &str) -> Result<Secret, Error> {
        parse(text.as_bytes()).map_err(|found| Error::Format { found })
    }

    /// The secret as 64 lowercase hexadecimal digits, wiped when dropped.
    pub fn to_hex(&self) -> Zeroizing<String> {
        // Reserved up front: growing would leave pieces of the secret in freed memory.
        let mut text = Zeroizing::new(String::with_capacity(DIGITS));
        for byte in self.0.iter() {
            for nibble in [byte >> 4, byte & 0xf] {
                text.push(char::from(b"0123456789abcdef"[usize::from(nibble)]));
            }
        }
        text
    }

    /// Reads the secret from a file of 64 hexadecimal digits; a trailing newline is allowed.
    pub fn read_file(path: impl AsRef<Path>) -> Result<Secret, Error> {
        let path = path.as_ref();
        let unreadable = |source| Error::Unreadable { path: path.into(), source };
        // A little more than a secret and a line ending, so that longer files are noticed but never swallowed
        // whole.
        let mut buffer = Zeroizing::new([0; DIGITS + 16]);
        let mut length = 0;
        let mut file = File::open(path).map_err(unreadable)?;
        while length < buffer.len() {
            match file.read(&mut buffer[length..]) {
                Ok(0) => break,
                Ok(read) => length += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(unreadable(error)),
            }
        }
        let text = &buffer[..length];
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        parse(text).map_err(|found| Error::NotASecret { path: path.into(), found })
    }

    pub(crate) fn bytes(&self) -> &[u8; BYTES] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The error describes what is wrong without quoting the text: a mistyped secret is still nearly the secret.
fn parse(text: &[u8]) -> Result<Secret, String> {
    if text.len() != DIGITS {
        return Err(if text.len() > DIGITS {
            format!("more than {DIGITS} characters")
        } else {
            format!("{} characters", text.len())
        });
    }
    let mut secret = Secret(Zeroizing::new([0; BYTES]));
    for (byte, pair) in secret.0.iter_mut().zip(text.chunks_exact(2)) {
        let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else {
            byte.zeroize();
            return Err("a character that is no hexadecimal digit".to_owned());
        };
        *byte = high << 4 | low;
    }
    Ok(secret)
}

fn digit(character: u8) -> Option<u8> {
    // `to_digit(16)` is below 16, so the narrowing cannot lose anything.
    char::from(character).to_digit(16).map(|value| value as u8)
}
