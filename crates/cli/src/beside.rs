//! Verbs that are programs of their own, which lie beside this one and are handed over to: `ronde kube` is `ronde-kube`,
//! `ronde cluster` is `ronde-cluster`.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::args::BesideArgs;
use crate::status::Status;

/// Returns only if there is nobody to hand over to.
pub(crate) fn hand_over(program: &str, args: BesideArgs) -> Status {
    let beside =
        std::env::current_exe().map(|own| own.with_file_name(program)).unwrap_or_else(|_| program.into());
    let error = Command::new(&beside).args(args.words).exec();
    let text = format!(
        "error: cannot run {}: {error}\nhint: it comes with Ronde, beside the program ronde: pip install ronde\n",
        beside.display()
    );
    let _ = std::io::stderr().write_all(text.as_bytes());
    Status::Failure
}
