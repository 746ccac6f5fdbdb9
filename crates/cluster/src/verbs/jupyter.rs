//! `ronde cluster jupyter`: opens JupyterLab, or says where it is; reads its token; makes a tunnel to it.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::args::JupyterArgs;
use crate::cause::machine;
use crate::error::Error;
use crate::folder::Folder;
use crate::inventory::{Cluster, Way};
use crate::remote::{Asking, UNREACHED, in_container, options, target};
use crate::terraform::command::on_path;
use crate::verbs::option_for;

/// Where the master's container keeps the token.
const TOKEN: &str = "/run/ronde/jupyter-token.1000";

pub(crate) fn jupyter(args: &JupyterArgs) -> Result<(), Error> {
    let folder = Folder::find(args.folder.folder.as_deref())?;
    let cluster = folder.cluster()?;
    if args.token {
        return token(&cluster, &folder);
    }
    let hint = format!("its token: ronde cluster jupyter --token{}\n", option_for(&folder));
    match args.tunnel {
        Some(port) => tunnel(&cluster, &folder, port, &hint),
        None => {
            let address = cluster.jupyter();
            say(&format!("{address}\n{hint}"));
            open(&address);
            Ok(())
        }
    }
}

/// Prints the token. It is never part of an address that a program is started with, which others could see.
fn token(cluster: &Cluster, folder: &Folder) -> Result<(), Error> {
    let words = ["cat".to_owned(), TOKEN.to_owned()];
    let mut command = in_container(cluster.master(), folder.path(), Asking::May, &[], &words);
    let output = command.stderr(Stdio::piped()).output();
    let output = output.map_err(|source| Error::System { doing: "reach the master", source })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim();
        let causes = vec![match output.status.code() {
            Some(UNREACHED) => machine::of_ssh(said, folder.kind()?.place()),
            _ => machine::of_text(said, said),
        }];
        let after = format!("ronde cluster status{} says what is down", option_for(folder));
        return Err(Error::Failed { doing: "reading the token on the master", causes, after });
    }
    say(&format!("{}\n", String::from_utf8_lossy(&output.stdout).trim()));
    Ok(())
}

/// Becomes an ssh that carries a port of this machine to the master; returns only if it cannot.
fn tunnel(cluster: &Cluster, folder: &Folder, port: u16, hint: &str) -> Result<(), Error> {
    let master = cluster.master();
    if master.way == Way::Here {
        say(&format!("{}\n{hint}", cluster.jupyter()));
        return Ok(());
    }
    let port = if port == 0 { cluster.jupyter_port } else { port };
    say(&format!("https://localhost:{port}/lab until Ctrl-C\n{hint}"));
    let ends = format!("127.0.0.1:{port}:127.0.0.1:{}", cluster.jupyter_port);
    let source = Command::new("ssh")
        .args(["-N", "-o", "ExitOnForwardFailure=yes", "-L", &ends])
        .args(options(master, folder.path(), Asking::May))
        .arg(target(master))
        .exec();
    Err(Error::System { doing: "start ssh", source })
}

/// Opens a browser if this session has a screen.
fn open(address: &str) {
    let has_screen = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some());
    let Some(program) = on_path("xdg-open".as_ref()).filter(|_| has_screen) else { return };
    // Whether it works shows itself.
    let _ = Command::new(program)
        .arg(address)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

fn say(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}
