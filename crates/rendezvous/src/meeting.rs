//! How the ranks of a job find each other, whoever started them.
//!
//! Our launcher says where the rendezvous is. Under other launchers rank 0 serves it in its own process, and the others have
//! to find it: the host is known from the environment (`foreign`), port and secret come from a file that rank 0 makes
//! (`job_file.rs`), or from the user. What the others find may be stale or not there yet, so they try until somebody
//! answers who knows the secret.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use ronde_trust::Secret;

use crate::client::{self, LOOK_UP};
use crate::foreign::{self, Address, Description, Foreign, Surroundings, fingerprint, name};
use crate::hosting::{self, Known};
use crate::job_file::{self, JobFile};
use crate::spec::{start_timeout, variable};
use crate::{Error, JobSpec, Server};

/// Goes without a secret that others cannot guess, where there is no way to share one.
const INSECURE: &str = "RONDE_INSECURE";
const HOME: &str = "HOME";

/// After how long a rank says what it waits for.
const SILENT: Duration = Duration::from_secs(5);

/// What a rank needs to join its job, and what has to stay in place until it has. Dropped without
/// [`joined`](Meeting::joined), the meeting came to nothing.
pub struct Meeting {
    spec: JobSpec,
    /// There until everybody has joined.
    file: Option<JobFile>,
    by_ranks: bool,
    took_place: bool,
}

impl Meeting {
    /// How to join.
    pub fn spec(&self) -> &JobSpec {
        &self.spec
    }

    /// Everybody has joined.
    pub fn joined(mut self) {
        self.took_place = true;
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        // First of all: nobody should find the way to what is about to end.
        self.file = None;
        if self.by_ranks && !self.took_place {
            hosting::forget();
        }
    }
}

/// Finds the job that the environment describes, waiting for rank 0 where that serves it; `None`: a job of one.
///
/// `interrupted` is asked about every 100 ms while waiting. `tell` gets what the user should know meanwhile.
pub fn meet(
    var: &dyn Fn(&str) -> Option<String>,
    interrupted: &dyn Fn() -> bool,
    tell: &dyn Fn(&str),
) -> Result<Option<Meeting>, Error> {
    let around = Surroundings { var, host: client::host_name(), setter: &setter };
    match foreign::describe(&around)? {
        Description::Alone => Ok(None),
        Description::Launched => {
            let spec = JobSpec::from_environment(var)?;
            Ok(spec.map(|spec| Meeting { spec, file: None, by_ranks: false, took_place: false }))
        }
        Description::Foreign(job) => gather(&job, var, interrupted, tell).map(Some),
    }
}

/// Where port and secret come from.
enum Source {
    /// The port of the description, and this secret.
    Known(Secret),
    /// The file of this name.
    File(PathBuf),
}

fn gather(
    job: &Foreign,
    var: &dyn Fn(&str) -> Option<String>,
    interrupted: &dyn Fn() -> bool,
    tell: &dyn Fn(&str),
) -> Result<Meeting, Error> {
    let start_timeout = start_timeout(var)?;
    let spec = |server, secret| JobSpec { server, secret, place: job.place, start_timeout };
    let meeting = |spec, file| Meeting { spec, file, by_ranks: true, took_place: false };
    if let Some((server, secret)) = hosting::recall(&job.key) {
        return Ok(meeting(spec(server, secret), None));
    }
    let source = source(job, var, tell)?;
    if job.place.rank == 0 {
        let (server, secret, serving, file) = serve(job, source)?;
        hosting::remember(Known::new(&job.key, server.clone(), secret.clone(), serving));
        return Ok(meeting(spec(server, secret), file));
    }
    let started = Instant::now();
    let mut told = false;
    loop {
        let reason = match look(job, &source) {
            Ok((server, secret)) => {
                hosting::remember(Known::new(&job.key, server.clone(), secret.clone(), None));
                let mut spec = spec(server, secret);
                spec.start_timeout = start_timeout.saturating_sub(started.elapsed()).max(LOOK_UP);
                return Ok(meeting(spec, None));
            }
            Err(Absence::Final(error)) => return Err(error),
            Err(Absence::Yet(reason)) => reason,
        };
        let waited = started.elapsed();
        if waited >= start_timeout {
            return Err(Error::NobodyServes { launcher: job.launcher.title(), waited, reason });
        }
        if waited >= SILENT && !std::mem::replace(&mut told, true) {
            tell(&format!("{}: waiting for rank 0 to serve the job: {reason}", job.launcher.title()));
        }
        if interrupted() {
            return Err(Error::Interrupted);
        }
        thread::sleep(LOOK_UP);
    }
}

/// The same decision on every rank, since it depends only on what all of them have in common.
fn source(job: &Foreign, var: &dyn Fn(&str) -> Option<String>, tell: &dyn Fn(&str)) -> Result<Source, Error> {
    if let Some(path) = var(variable::SECRET_FILE) {
        return Secret::read_file(path).map(Source::Known).map_err(Error::Secret);
    }
    let insecure = var(INSECURE).is_some_and(|text| matches!(text.trim(), "1" | "true" | "yes" | "on"));
    if insecure && !job.address.local {
        if job.place.rank == 0 {
            tell(&format!(
                "{INSECURE} is set: whoever can reach port {} of {} can take part in this job",
                job.address.port, job.address.host
            ));
        }
        return guessable(&job.key).map(Source::Known);
    }
    match job_file::folder(var(HOME).as_deref(), job.address.local) {
        Some(folder) => Ok(Source::File(folder.join(&job.key))),
        None => Err(Error::Launcher {
            launcher: job.launcher.title(),
            problem: format!(
                "the ranks have no way to share a secret, since {HOME} is no folder of this user's: name a file that all \
                 hosts have with {}, or set {INSECURE}=1 if you trust everybody on the network",
                variable::SECRET_FILE
            ),
        }),
    }
}

/// A secret that all ranks can make, and everybody else too.
fn guessable(key: &str) -> Result<Secret, Error> {
    let digits: String =
        (0..4).map(|n| format!("{:016x}", fingerprint(format!("{n} {key}").as_bytes()))).collect();
    Secret::from_hex(&digits).map_err(Error::Secret)
}

type Served = (String, Secret, Option<Server>, Option<JobFile>);

/// Rank 0: serves, and says where.
fn serve(job: &Foreign, source: Source) -> Result<Served, Error> {
    let Address { host, port, fixed, local, named } = &job.address;
    let (secret, path) = match source {
        Source::Known(secret) => (secret, None),
        Source::File(path) => (Secret::random().map_err(Error::Secret)?, Some(path)),
    };
    if *named && path.is_none() {
        // The address was given in full, and the secret too: perhaps `ronde rendezvous` serves there.
        let server = address(host, *port);
        if client::attempt(&server, &secret).is_ok() {
            return Ok((server, secret, None, None));
        }
    }
    let found: Vec<IpAddr> = (host.as_str(), *port)
        .to_socket_addrs()
        .map(|addresses| addresses.map(|address| address.ip()).collect())
        .unwrap_or_default();
    let everywhere = if found.iter().any(IpAddr::is_ipv4) || found.is_empty() {
        IpAddr::from(Ipv4Addr::UNSPECIFIED)
    } else {
        IpAddr::from(Ipv6Addr::UNSPECIFIED)
    };
    let listen = match local {
        true => found.iter().copied().find(IpAddr::is_loopback).unwrap_or(Ipv4Addr::LOCALHOST.into()),
        false => everywhere,
    };
    let any_port = !*fixed && path.is_some();
    // A port that could be foreseen helps with firewalls, but inside a host there is none in the way.
    let first = if any_port && *local { 0 } else { *port };
    let size = job.place.size;
    let server = match Server::start(SocketAddr::new(listen, first), secret.clone(), size) {
        Err(Error::Listen { source, .. }) if any_port && source.kind() == std::io::ErrorKind::AddrInUse => {
            Server::start(SocketAddr::new(listen, 0), secret.clone(), size)
        }
        other => other,
    };
    let server = server.map_err(|error| Error::Launcher {
        launcher: job.launcher.title(),
        problem: format!(
            "rank 0 cannot serve the job: {error}; choose a port with {}",
            name::RENDEZVOUS_PORT
        ),
    })?;
    let port = server.addr().port();
    let file = path.map(|path| JobFile::create(&path, &secret, port)).transpose()?;
    let own = if *local { listen } else { own_address(&found, listen.is_ipv6()) };
    Ok((SocketAddr::new(own, port).to_string(), secret, Some(server), file))
}

/// The address of this host that others reach: the one the job's address stands for, unless that is a loopback address
/// (as a host's own name often is) or another machine's; then the one from which this host reaches the world.
fn own_address(found: &[IpAddr], ipv6: bool) -> IpAddr {
    let is_ours = |address: &&IpAddr| !address.is_loopback() && UdpSocket::bind((**address, 0)).is_ok();
    if let Some(address) = found.iter().filter(|address| address.is_ipv6() == ipv6).find(is_ours) {
        return *address;
    }
    let (any, world, loopback): (IpAddr, IpAddr, IpAddr) = if ipv6 {
        (
            Ipv6Addr::UNSPECIFIED.into(),
            Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
            Ipv6Addr::LOCALHOST.into(),
        )
    } else {
        (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into(), Ipv4Addr::LOCALHOST.into())
    };
    // Connecting such a socket sends nothing; it only chooses the way.
    let outward = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((world, 9))?;
        socket.local_addr()
    });
    outward.map_or(loopback, |address| address.ip())
}

/// Why rank 0 was not found.
enum Absence {
    Final(Error),
    Yet(String),
}

/// Another rank: whether somebody serves by now.
fn look(job: &Foreign, source: &Source) -> Result<(String, Secret), Absence> {
    let (secret, port, from_file) = match source {
        Source::Known(secret) => (secret.clone(), job.address.port, false),
        Source::File(path) => match job_file::read(path).map_err(Absence::Final)? {
            Some((secret, port)) => (secret, port, true),
            None => return Err(Absence::Yet(missing_file(job, path))),
        },
    };
    let server = address(&job.address.host, port);
    match client::attempt(&server, &secret) {
        Ok(_) => Ok((server, secret)),
        // The file may be one that an earlier job left.
        Err(client::Attempt::Final(error)) if from_file => Err(Absence::Yet(error.to_string())),
        Err(client::Attempt::Final(error)) => Err(Absence::Final(error)),
        Err(client::Attempt::Again(reason)) => {
            Err(Absence::Yet(format!("{server} cannot be reached: {reason}")))
        }
    }
}

fn missing_file(job: &Foreign, path: &std::path::Path) -> String {
    let path = path.display();
    if job.address.local {
        format!("rank 0 has not called init() yet (it will make {path})")
    } else {
        format!(
            "rank 0 has not called init() yet, or its home folder is another one than this host's (it makes {path}); \
             without a shared home name a file that all hosts have with {}, or set {INSECURE}=1",
            variable::SECRET_FILE
        )
    }
}

fn address(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The process that set a variable: the nearest ancestor that does not have it, or else the parent.
fn setter(name: &'static str) -> u32 {
    let parent = std::os::unix::process::parent_id();
    let mut pid = parent;
    // Ranks may be started through a few shells; nobody has a hundred of them.
    for _ in 0..100 {
        let Ok(environment) = std::fs::read(format!("/proc/{pid}/environ")) else { break };
        let sets =
            |entry: &[u8]| entry.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b"="));
        if !environment.split(|byte| *byte == 0).any(sets) {
            return pid;
        }
        match parent_of(pid) {
            Some(above) => pid = above,
            None => break,
        }
    }
    parent
}

fn parent_of(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}
