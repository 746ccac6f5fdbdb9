//! One machine of a job that is started over ssh, the classic way, among machines that have nothing but a key in common.
//!
//! For programs such as `mpirun`, which start a job's processes themselves. The launcher runs this once on every machine,
//! as a rank of a job that rank 0 leads (`course.rs`): so everything is known here to be gone when rank 0 has ended or
//! is lost, and the ssh servers with it. Rank 0 waits until all others answer, then becomes the user's command; the
//! others become the ssh server of their image. Neither needs root, nor finds a key in an image: keys come in a folder
//! that all machines of the job share. `files.rs` has what ssh and sshd are told.

mod error;
mod files;

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

pub use error::OverSshError;

use crate::Host;
use crate::environment::places;

/// Where servers listen, which any user may.
const PORT: u16 = 2222;
/// How long one try to reach a server may take, and the pause until the next.
const TRY: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(200);
/// The key that opens all machines of the job, and the one that they show. The public halves end in `.pub`.
const KEY: &str = "ssh-key";
const HOST_KEY: &str = "ssh-host-key";
/// Where servers are, besides where the path leads. In Ronde's own images another program stands before the server.
const SERVERS: [&str; 4] = ["/usr/lib/ronde/sshd", "/usr/sbin/sshd", "/usr/local/sbin/sshd", "/sbin/sshd"];

/// What is asked of a machine.
#[derive(Clone, Debug)]
pub struct OverSsh {
    /// The folder with the keys.
    pub keys: PathBuf,
    /// A folder of this machine's own, for what ssh must find; it is made if need be.
    pub folder: PathBuf,
    /// All machines, with rank 0's first, and how many processes each may run.
    pub hosts: Vec<Host>,
    /// What is put behind a machine's name to reach it.
    pub domain: String,
    /// How long servers are waited for.
    pub patience: Duration,
    /// What rank 0 runs.
    pub command: Vec<OsString>,
}

/// Becomes the user's command or an ssh server; returns only to say why it could not.
pub fn over_ssh(request: &OverSsh) -> OverSshError {
    let rank = std::env::var("HOROVOD_RANK").ok().and_then(|rank| rank.parse::<usize>().ok());
    let become_it = || {
        let prepared = prepare(request)?;
        match rank {
            Some(0) => lead(request, prepared),
            Some(_) => serve(request, prepared),
            None => Err(OverSshError::NotARank),
        }
    };
    match become_it() {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

/// The environment of whatever runs here, once the files are there.
struct Prepared {
    variables: Vec<(OsString, OsString)>,
}

/// Writes what ssh and sshd must find, readable by nobody else, as both insist.
fn prepare(request: &OverSsh) -> Result<Prepared, OverSshError> {
    let folder = &request.folder;
    let failed = |doing, path: &Path| {
        let path = path.to_owned();
        move |source| OverSshError::File { doing, path, source }
    };
    let programs = folder.join("bin");
    DirBuilder::new().recursive(true).mode(0o700).create(&programs).map_err(failed("make", &programs))?;
    let key = |name: &str| {
        let path = request.keys.join(name);
        fs::read_to_string(&path).map_err(failed("read", &path))
    };
    let ssh =
        find("ssh", &[]).ok_or(OverSshError::NoProgram { program: "ssh", package: "openssh-client" })?;
    let texts = files::Texts { folder, domain: &request.domain, hosts: &request.hosts, port: PORT };
    let mut written = vec![
        ("key", key(KEY)?, 0o600),
        ("host-key", key(HOST_KEY)?, 0o600),
        ("authorized-keys", key(&format!("{KEY}.pub"))?, 0o600),
        ("known-hosts", files::known_hosts(&key(&format!("{HOST_KEY}.pub"))?), 0o600),
        ("config", texts.client(), 0o600),
        ("hostfile", texts.hostfile(), 0o644),
        ("bin/ssh", files::program(&ssh, folder), 0o755),
    ];
    let variables = variables(folder, std::env::vars_os());
    written.push(("server-config", texts.server(&variables), 0o600));
    for (name, text, mode) in written {
        let mut options = OpenOptions::new();
        let path = folder.join(name);
        let file = options.write(true).create(true).truncate(true).mode(mode).open(&path);
        file.and_then(|mut file| {
            // The mode counts only for files that were not there.
            file.set_permissions(fs::Permissions::from_mode(mode))?;
            file.write_all(text.as_bytes())
        })
        .map_err(failed("write", &path))?;
    }
    Ok(Prepared { variables })
}

/// Waits for everybody, then becomes the user's command.
fn lead(request: &OverSsh, prepared: Prepared) -> Result<Infallible, OverSshError> {
    let Some((program, arguments)) = request.command.split_first() else {
        return Err(OverSshError::NoCommand);
    };
    let until = Instant::now() + request.patience;
    for host in request.hosts.iter().skip(1) {
        await_server(&host.name, &format!("{}.{}", host.name, request.domain), until)?;
    }
    let source = Command::new(program).args(arguments).env_clear().envs(prepared.variables).exec();
    Err(OverSshError::NotRun { program: program.to_string_lossy().into_owned(), source })
}

/// Becomes the ssh server.
fn serve(request: &OverSsh, prepared: Prepared) -> Result<Infallible, OverSshError> {
    let uid = rustix::process::getuid().as_raw();
    let known = fs::read_to_string("/etc/passwd").unwrap_or_default();
    if !files::has_user(&known, uid) {
        return Err(OverSshError::NoUser { uid });
    }
    if uid == 0 {
        // Where root's servers keep the part of themselves that has no rights.
        let _ = fs::create_dir_all("/run/sshd");
    }
    let server = find("sshd", &SERVERS)
        .ok_or(OverSshError::NoProgram { program: "sshd", package: "openssh-server" })?;
    let folder = &request.folder;
    let source = Command::new(&server)
        .args(["-D", "-e", "-f"])
        .arg(folder.join("server-config"))
        // Also said here: a server that stands before the real one may add keys of its own, and the first one counts.
        .arg("-h")
        .arg(folder.join("host-key"))
        .env_clear()
        .envs(prepared.variables)
        .exec();
    Err(OverSshError::NotRun { program: server.display().to_string(), source })
}

/// The environment without what places a process in the launcher's own job, and with what mpirun and ssh look for.
fn variables(folder: &Path, here: impl Iterator<Item = (OsString, OsString)>) -> Vec<(OsString, OsString)> {
    let own: [(&str, PathBuf); 3] = [
        ("RONDE_HOSTFILE", folder.join("hostfile")),
        ("OMPI_MCA_orte_default_hostfile", folder.join("hostfile")),
        ("OMPI_MCA_plm_rsh_agent", folder.join("bin/ssh")),
    ];
    // One rank a machine was given all its processors; how many processes will share them is not known here.
    let cores = std::thread::available_parallelism().map_or(1, usize::from).to_string();
    let is_kept = |name: &OsStr, value: &OsStr| {
        let is_own = own.iter().any(|(own, _)| *own == name);
        let is_made = name == "OMP_NUM_THREADS" && *value == *cores;
        !is_own && !is_made && !places(name)
    };
    let mut path = folder.join("bin").into_os_string();
    let mut variables = Vec::new();
    for (name, value) in here {
        if name == "PATH" {
            path.push(":");
            path.push(&value);
        } else if is_kept(&name, &value) {
            variables.push((name, value));
        }
    }
    variables.push(("PATH".into(), path));
    variables.extend(own.map(|(name, value)| (name.into(), value.into_os_string())));
    variables
}

/// Waits until a server says who it is.
fn await_server(name: &str, address: &str, until: Instant) -> Result<(), OverSshError> {
    loop {
        let source = match greeting(address) {
            Ok(()) => return Ok(()),
            Err(source) => source,
        };
        if Instant::now() >= until {
            return Err(OverSshError::NoServer {
                host: name.to_owned(),
                address: address.to_owned(),
                source,
            });
        }
        std::thread::sleep(PAUSE);
    }
}

/// Servers say `SSH-2.0-…` first.
fn greeting(address: &str) -> io::Result<()> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "its name has no address");
    for address in (address, PORT).to_socket_addrs()? {
        let said = TcpStream::connect_timeout(&address, TRY).and_then(|mut stream| {
            stream.set_read_timeout(Some(TRY))?;
            let mut start = [0; 4];
            stream.read_exact(&mut start)?;
            // It would complain of a caller who does not say who it is.
            stream.write_all(b"SSH-2.0-ronde\r\n")?;
            Ok(start == *b"SSH-")
        });
        match said {
            Ok(true) => return Ok(()),
            Ok(false) => last = io::Error::other("something else answers there"),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A program, at one of these places or where the path leads; not our own of that name.
fn find(name: &str, places: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join(name));
    places.iter().map(PathBuf::from).chain(on_path).find(|path| path.is_file())
}
