//! `ronde rendezvous`: serves a job whose ranks something else starts.

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use ronde_rendezvous::{Error, Server, variable};
use ronde_trust::Secret;

use crate::args::RendezvousArgs;
use crate::status::Status;

pub(crate) fn rendezvous(args: &RendezvousArgs) -> Status {
    match serve(args) {
        Ok(()) => Status::Success,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error}");
            if let Error::Secret(_) = error {
                let hint = "make one: (umask 077; od -An -v -tx1 -N32 /dev/urandom | tr -d ' \\n' > FILE)";
                let _ = writeln!(std::io::stderr(), "hint: {hint}");
            }
            Status::Failure
        }
    }
}

fn serve(args: &RendezvousArgs) -> Result<(), Error> {
    let secret = Secret::read_file(&args.secret_file).map_err(Error::Secret)?;
    let server = Server::start(args.listen, secret, args.size as usize)?;
    let address = reachable(server.addr());
    let mut stdout = std::io::stdout();
    // Whoever closed our output early does not want the line.
    let _ = writeln!(stdout, "{}={address}", variable::RENDEZVOUS).and_then(|()| stdout.flush());
    loop {
        match server.wait_over(Duration::from_secs(3600)) {
            Some(Ok(())) => return Ok(()),
            Some(Err(loss)) => return Err(Error::Lost(loss)),
            None => {}
        }
    }
}

/// An address that ranks elsewhere can use: "every interface" is none, so the host's name stands in.
fn reachable(address: SocketAddr) -> String {
    if address.ip().is_unspecified() {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        format!("{name}:{}", address.port())
    } else {
        address.to_string()
    }
}
