//! The way to one host and what it is like, check by check.
//!
//! `ssh` itself is the judge of whether a host can be logged in to; where it fails, its words say at which check.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use super::patient::Patient;
use super::question::Surroundings;
use super::report::{Check, HostReport, Trouble};
use super::{Doctor, News};
use crate::driver::{Gate, Program, SENDING, by_ssh, local};
use crate::environment::{self, Place};
use crate::ssh::{Refusal, RefusalKind, Target};
use crate::{Error, ssh};

/// How long a port may take to answer before the check is left to `ssh`.
const PORT_PATIENCE: Duration = Duration::from_secs(2);

/// A file in the current folder, there for as long as this is, by which hosts that share the folder know it.
pub(super) struct Marker {
    path: PathBuf,
    name: String,
}

impl Marker {
    /// Leaves a file, unless the folder cannot be written to.
    pub(super) fn leave() -> Option<Marker> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).ok()?;
        let name = format!(".ronde-doctor-{:016x}", u64::from_ne_bytes(random));
        let path = std::env::current_dir().ok()?.join(&name);
        File::create_new(&path).ok()?;
        Some(Marker { path, name })
    }

    /// Where it is.
    pub(super) fn path(&self) -> PathBuf {
        self.path.clone()
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        // If somebody else removed it, all the better.
        let _ = fs::remove_file(&self.path);
    }
}

/// What all visits have in common.
pub(super) struct Visit<'a> {
    request: &'a Doctor,
    program: Option<Program>,
    gate: Arc<Gate>,
    marker: Option<&'a Marker>,
}

/// The hosts as they are before anything is known; `here` says which are this machine.
pub(super) fn expected(request: &Doctor, here: &[bool]) -> Vec<HostReport> {
    let expected = |(host, &here): (&crate::Host, &bool)| {
        let first = if here { Check::Skipped } else { Check::Pending };
        HostReport {
            name: host.name.clone(),
            slots: host.slots,
            this_machine: here,
            resolves: first,
            port_open: first,
            host_key: first,
            login: first,
            ..HostReport::default()
        }
    };
    request.hosts.iter().zip(here).map(expected).collect()
}

impl<'a> Visit<'a> {
    pub(super) fn prepare(
        request: &'a Doctor,
        hosts: &[HostReport],
        marker: Option<&'a Marker>,
    ) -> Result<Visit<'a>, Error> {
        let remote = hosts.iter().any(|host| !host.this_machine);
        let program = remote.then(Program::own).transpose()?;
        Ok(Visit { request, program, gate: Gate::new(), marker })
    }

    /// Visits one host, and tells of every step.
    pub(super) fn host(&self, number: usize, mut host: HostReport, news: &Sender<News>) {
        // Nobody listens only if the doctor has given up.
        let tell = |host: &HostReport| drop(news.send(News::Host(number, Box::new(host.clone()))));
        match self.reach(&mut host, &tell).and_then(|patient| {
            self.examine(&mut host, &patient, &tell)?;
            Ok(patient)
        }) {
            Ok(patient) => drop(news.send(News::Ready(number, patient))),
            Err(error) => {
                blame(&mut host, &error);
                tell(&host);
            }
        }
    }

    fn reach(&self, host: &mut HostReport, tell: &impl Fn(&HostReport)) -> Result<Patient, Error> {
        let connection = match &self.program {
            Some(program) if !host.this_machine => {
                self.look(host, tell);
                let sent = AtomicBool::new(false);
                let note = |doing: &'static str| sent.store(doing == SENDING, Ordering::Relaxed);
                let connection = by_ssh(&self.request.ssh, &host.name, program, &self.gate, note)?;
                host.program_sent = sent.into_inner();
                connection
            }
            _ => local()?,
        };
        if !host.this_machine {
            host.host_key = Check::Good;
            host.login = Check::Good;
            tell(host);
        }
        let patient = Patient::admit(connection, &host.name)?;
        host.agent = Check::Good;
        tell(host);
        Ok(patient)
    }

    /// What can be seen of a host from outside. Nothing is blamed here: `ssh` knows more ways than we do.
    fn look(&self, host: &mut HostReport, tell: &impl Fn(&HostReport)) {
        let target = Target::ask(&self.request.ssh, &host.name);
        host.user = Some(target.user.clone());
        host.port = Some(target.port);
        if target.proxied {
            host.resolves = Check::Skipped;
            host.port_open = Check::Skipped;
            return tell(host);
        }
        let Ok(addresses) = (target.name.as_str(), target.port).to_socket_addrs() else { return };
        let addresses: Vec<SocketAddr> = addresses.collect();
        host.address = addresses.first().map(SocketAddr::ip);
        host.resolves = Check::Good;
        tell(host);
        if addresses.iter().any(|address| TcpStream::connect_timeout(address, PORT_PATIENCE).is_ok()) {
            host.port_open = Check::Good;
            tell(host);
        }
    }

    fn examine(
        &self,
        host: &mut HostReport,
        patient: &Patient,
        tell: &impl Fn(&HostReport),
    ) -> Result<(), Error> {
        host.clock_ahead = Some(patient.clock_ahead()?);
        tell(host);
        let environment = match host.this_machine {
            true => Vec::new(),
            false => environment::forwarded(std::env::vars_os(), Place::Host),
        };
        let folder = std::env::current_dir().unwrap_or_default().into_os_string().into_encoded_bytes();
        let marker = self.marker.map(|marker| marker.name.clone());
        host.findings = Some(patient.findings(Surroundings { environment, folder, marker })?);
        tell(host);
        Ok(())
    }
}

/// Enters into the report why a host could not be examined.
fn blame(host: &mut HostReport, error: &Error) {
    let trouble = match error {
        Error::Ssh(refusal) => refused(host, refusal),
        other => {
            host.agent = Check::Bad;
            Trouble { check: "agent", what: other.to_string(), fix: other.hint() }
        }
    };
    host.trouble = Some(trouble);
    for check in
        [&mut host.resolves, &mut host.port_open, &mut host.host_key, &mut host.login, &mut host.agent]
    {
        // What comes after the one that failed was not checked.
        if *check == Check::Pending {
            *check = Check::Skipped;
        }
    }
}

/// Which check a refusal belongs to. Those before it must have gone well, or do not apply.
fn refused(host: &mut HostReport, refusal: &Refusal) -> Trouble {
    use RefusalKind::*;
    let (check, number) = match refusal.kind {
        NameNotFound | NoNameServer => ("name", 0),
        ConnectionRefused | TimedOut | Silent | NoRoute | Proxy => ("port", 1),
        UnknownHostKey | ChangedHostKey => ("host_key", 2),
        _ => ("login", 3),
    };
    let checks = [&mut host.resolves, &mut host.port_open, &mut host.host_key, &mut host.login];
    for (at, slot) in checks.into_iter().enumerate() {
        match at.cmp(&number) {
            std::cmp::Ordering::Less if *slot == Check::Pending => *slot = Check::Good,
            std::cmp::Ordering::Equal => *slot = Check::Bad,
            _ => {}
        }
    }
    let what = match (number, refusal.details.first()) {
        // The fingerprint is what has to be compared.
        (2, Some(fingerprint)) => format!("{}: {fingerprint}", refusal.message),
        _ => refusal.message.clone(),
    };
    Trouble { check, what, fix: ssh::one_line(refusal) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> HostReport {
        HostReport { name: "gpu2".to_owned(), ..HostReport::default() }
    }

    fn refusal(kind: RefusalKind) -> Error {
        Error::Ssh(Box::new(Refusal {
            kind,
            message: "gpu2 is not there".to_owned(),
            details: vec!["ED25519  SHA256:abc".to_owned()],
            fix: vec!["look:".to_owned(), "  ls".to_owned()],
            command: Some("ls".to_owned()),
        }))
    }

    #[test]
    fn a_refusal_is_entered_where_it_belongs() {
        use Check::{Bad, Good, Skipped};
        for (kind, checks) in [
            (RefusalKind::NameNotFound, [Bad, Skipped, Skipped, Skipped, Skipped]),
            (RefusalKind::ConnectionRefused, [Good, Bad, Skipped, Skipped, Skipped]),
            (RefusalKind::UnknownHostKey, [Good, Good, Bad, Skipped, Skipped]),
            (RefusalKind::KeyRefused, [Good, Good, Good, Bad, Skipped]),
        ] {
            let mut host = host();
            blame(&mut host, &refusal(kind));
            let found = [host.resolves, host.port_open, host.host_key, host.login, host.agent];
            assert_eq!(found, checks, "{kind:?}");
            let trouble = host.trouble.expect("trouble");
            assert_eq!(trouble.fix.as_deref(), Some("ls"));
            let with_key = kind == RefusalKind::UnknownHostKey;
            assert_eq!(trouble.what.ends_with("SHA256:abc"), with_key, "{}", trouble.what);
        }
    }

    #[test]
    fn what_fails_after_the_login_is_not_blamed_on_it() {
        let mut host = HostReport { login: Check::Good, ..host() };
        blame(&mut host, &Error::AgentLost { host: "gpu2".to_owned(), why: "it is gone".to_owned() });
        assert_eq!((host.login, host.agent), (Check::Good, Check::Bad));
        assert!(host.trouble.is_some_and(|trouble| trouble.what.contains("it is gone")));
    }

    #[test]
    fn a_marker_is_there_as_long_as_it_is_held() {
        let marker = Marker::leave().expect("a folder that can be written to");
        assert!(marker.path.exists());
        let path = marker.path.clone();
        drop(marker);
        assert!(!path.exists());
    }
}
