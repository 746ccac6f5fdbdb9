//! `ronde kube`: hands over to `ronde-kube`, which lies beside this program.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::args::KubeArgs;
use crate::status::Status;

const PROGRAM: &str = "ronde-kube";

/// Returns only if there is nobody to hand over to.
pub(crate) fn kube(args: KubeArgs) -> Status {
    let beside =
        std::env::current_exe().map(|own| own.with_file_name(PROGRAM)).unwrap_or_else(|_| PROGRAM.into());
    let error = Command::new(&beside).args(args.words).exec();
    let text = format!(
        "error: cannot run {}: {error}\nhint: it comes with Ronde, beside the program ronde: pip install ronde\n",
        beside.display()
    );
    let _ = std::io::stderr().write_all(text.as_bytes());
    Status::Failure
}
