//! The job's secret, by which its pods know each other: 256 random bits, made once and never read back.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use super::{Job, names};

/// The key, and so the name of the file.
pub(crate) const KEY: &str = "secret";

/// The secret with these digits.
pub(crate) fn secret(job: &Job, digits: &str) -> Secret {
    Secret {
        metadata: job.metadata(names::secret(&job.name, &job.root.uid)),
        data: Some([(KEY.to_owned(), ByteString(digits.as_bytes().to_vec()))].into()),
        immutable: Some(true),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}
