//! `ronde cluster ssh`: a shell or a command on a machine.

use std::os::unix::process::CommandExt;

use crate::args::SshArgs;
use crate::error::Error;
use crate::folder::Folder;
use crate::inventory::Way;
use crate::remote::{Asking, on_machine};

/// Returns only if ssh cannot be started.
pub(crate) fn ssh(args: &SshArgs) -> Result<(), Error> {
    let folder = Folder::find(args.folder.folder.as_deref())?;
    let cluster = folder.cluster()?;
    let machine = match &args.name {
        None => cluster.master(),
        Some(name) => cluster.machine(name).ok_or_else(|| Error::NoMachine {
            name: name.clone(),
            known: cluster.machines.iter().map(|machine| machine.name.clone()).collect(),
        })?,
    };
    let mut words = args.command.clone();
    if machine.way == Way::Here {
        // The machine is this one; what is meant is its container.
        let shell = if words.is_empty() { vec!["bash".to_owned()] } else { words };
        let terminal = if args.command.is_empty() { "-it" } else { "-i" };
        words =
            ["docker", "exec", terminal, "--user", "ronde", &machine.container].map(str::to_owned).to_vec();
        words.extend(shell);
    }
    let source = on_machine(machine, folder.path(), Asking::May, &words).exec();
    Err(Error::System { doing: "start ssh", source })
}
