//! Whether this runs in a container, and what made it, as far as it shows.

use std::path::Path;

/// What made this container: `docker`, `podman` or `kubernetes`; `None` outside of one.
pub(crate) fn kind() -> Option<&'static str> {
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        Some("kubernetes")
    } else if Path::new("/.dockerenv").exists() {
        Some("docker")
    } else if Path::new("/run/.containerenv").exists() {
        Some("podman")
    } else {
        None
    }
}
