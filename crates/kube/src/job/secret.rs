//! The job's secret, by which its pods know each other: 256 random bits, made once and never read back; and the keys of
//! a job over ssh (`ssh.rs`).

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use super::{Job, names};

/// The key, and so the name of the file.
pub(crate) const KEY: &str = "secret";

/// The secret with these digits, and these files besides.
pub(crate) fn secret(job: &Job, digits: &str, keys: Vec<(String, String)>) -> Secret {
    let all = keys.into_iter().chain([(KEY.to_owned(), digits.to_owned())]);
    Secret {
        metadata: job.metadata(names::secret(&job.name, &job.root.uid)),
        data: Some(all.map(|(name, text)| (name, ByteString(text.into_bytes()))).collect()),
        immutable: Some(true),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::examples;

    #[test]
    fn the_digits_and_the_keys_of_ssh_are_files_of_one_secret_that_stays_as_it_is() {
        let key = ("id_ed25519".to_owned(), "private".to_owned());
        let secret = secret(&examples::job("mnist", 6), "0f0f", vec![key]);
        let data = secret.data.expect("files");
        let files: Vec<_> = data.iter().map(|(name, bytes)| (name.as_str(), bytes.0.as_slice())).collect();
        assert_eq!(files, [("id_ed25519", &b"private"[..]), (KEY, b"0f0f")]);
        assert_eq!(secret.immutable, Some(true));
    }
}
