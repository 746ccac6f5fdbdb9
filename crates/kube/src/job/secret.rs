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
