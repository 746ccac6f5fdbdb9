//! `ronde cluster status`: what is up, what is not, and what to do about it.
//!
//! Asked from outside in: machines by ssh, their containers, whether each reads what the master has just written into the
//! shared folder, whether JupyterLab answers, and whether two ranks on two machines find each other. `report.rs` has
//! what all of it adds up to.

mod report;

use std::io::Write;
use std::iter;
use std::net::{TcpStream, ToSocketAddrs};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::args::StatusArgs;
use crate::cause::machine::Place;
use crate::error::Error;
use crate::folder::Folder;
use crate::inventory::{Cluster, Machine, SHARE, Way};
use crate::process::stop_with_us;
use crate::remote::{Asking, UNREACHED, on_machine};
use crate::verbs::option_for;
use report::{Finding, Jupyter, Report, Smoke};

/// How many seconds a machine may take for one question, such as for a file of a share that hangs.
const PATIENCE: &str = "60";
/// How many a job may take that only says hello, and how many its container is asked for it.
const JOB_PATIENCE: &str = "60";
const JOB_LIMIT: &str = "75";
/// How many everything on a machine may take, ssh included.
const LIMIT: &str = "180";
/// How many machines are asked at a time: an ssh server, such as that of a master on the way to workers, refuses some
/// if ten or more log in at once.
const AT_ONCE: usize = 8;
/// What `timeout` ends with.
const TOO_LONG: i32 = 124;

/// What is looked at on a machine, for a shell there: `docker`, container, file in the share, and what the file has to say.
const LOOK: &str = r#"docker=$1 container=$2 file=$3 word=$4
state=$($docker inspect --format '{{.State.Status}}' "$container" 2>/dev/null)
case $? in 0) ;; 124 | 137) state=hanging ;; *) state=absent ;; esac
echo "container $state"
[ "$state" = running ] || exit 0
[ "$($docker exec --user ronde "$container" cat "$file" 2>/dev/null)" = "$word" ] && echo "share yes"
exit 0"#;

/// Two ranks that add up what they bring.
const HELLO: &str = "import ronde; ronde.init(); total = bytes(ronde.allreduce(b'\\x01', op=ronde.Sum)); \
                     raise SystemExit(total != bytes([ronde.size()]))";

/// Asks JupyterLab who it is, without proof of who asks.
const KNOCK: &str = "import ssl, sys, urllib.request as r; c = ssl.create_default_context(); c.check_hostname = False; \
                     c.verify_mode = ssl.CERT_NONE; r.urlopen(sys.argv[1], context=c, timeout=20)";

pub(crate) fn status(args: &StatusArgs) -> Result<ExitCode, Error> {
    let folder = Folder::find(args.folder.folder.as_deref())?;
    let cluster = folder.cluster()?;
    let report = look(&cluster, &folder, folder.kind()?.place(), !args.no_smoke);
    let text = match args.json {
        true => format!("{:#}\n", report.json()),
        false => report.text(),
    };
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(if report.problems().is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn look(cluster: &Cluster, folder: &Folder, place: Place, with_smoke: bool) -> Report {
    let master = cluster.master();
    let word = word();
    let file = format!("{SHARE}/.status-{word}");
    let in_master_for = |seconds: &str, words: &[&str]| {
        let docker = docker(master, seconds);
        let head = docker.iter().copied().chain(["exec", "--user", "ronde", &master.container]);
        let words: Vec<String> = head.chain(words.iter().copied()).map(str::to_owned).collect();
        output(&on_machine(master, folder.path(), Asking::MayNot, &words))
    };
    let in_master = |words: &[&str]| in_master_for(PATIENCE, words);
    let written = in_master(&["sh", "-c", "echo \"$1\" >\"$2\"", "sh", &word, &file]);
    let findings = each(&cluster.machines, AT_ONCE, |machine| finding(machine, folder, &file, &word));
    let knock = format!("https://127.0.0.1:{}/api", cluster.jupyter_port);
    let answers = in_master(&["python", "-c", KNOCK, &knock]).is_ok();
    let jupyter = Jupyter { address: cluster.jupyter(), answers, is_reached: is_reached(cluster) };
    let smoke = match with_smoke && written.is_ok() {
        true => {
            let (hosts, words) = pair(cluster);
            let result = in_master_for(JOB_LIMIT, &words.iter().map(String::as_str).collect::<Vec<_>>());
            Some(Smoke { hosts, problem: result.err().map(|said| reason(&said)) })
        }
        false => None,
    };
    // Where there is no room for what it says, the file itself is there.
    let _ = in_master(&["rm", "-f", &file]);
    Report {
        name: cluster.name.clone(),
        place,
        ssh_port: cluster.ssh_port,
        option: option_for(folder),
        findings,
        unwritten: written.err(),
        jupyter,
        smoke,
    }
}

/// The job of two ranks: on the master and the first worker, or both on the master if it is alone.
fn pair(cluster: &Cluster) -> (String, Vec<String>) {
    let hosts = match cluster.machines.get(1) {
        Some(worker) => format!("{}:1,{}:1", cluster.master().name, worker.name),
        None => format!("{}:2", cluster.master().name),
    };
    let port = cluster.ssh_port.to_string();
    let head = ["timeout", JOB_PATIENCE, "ronde", "run", "-np", "2", "-H", &hosts, "-p", &port];
    let words = head.iter().chain(&["python", "-c", HELLO]).map(|word| (*word).to_owned()).collect();
    (hosts, words)
}

/// What a job gives as the reason of its failure: the launcher's last word, or whatever came last.
fn reason(said: &str) -> String {
    let told = said.lines().rev().find_map(|line| line.strip_prefix("error: "));
    told.or(said.lines().last()).unwrap_or_default().to_owned()
}

fn finding(machine: &Machine, folder: &Folder, file: &str, word: &str) -> Finding {
    let docker = docker(machine, PATIENCE).join(" ");
    let words = ["sh", "-c", LOOK, "sh", &docker, &machine.container, file, word].map(str::to_owned);
    let result = output(&on_machine(machine, folder.path(), Asking::MayNot, &words));
    let said = result.as_ref().map_or("", String::as_str);
    let line =
        |name: &str| said.lines().find_map(|line| line.strip_prefix(name).map(|rest| rest.trim().to_owned()));
    Finding {
        name: machine.name.clone(),
        address: machine.private_address.clone(),
        is_here: machine.way == Way::Here,
        container: line("container "),
        container_name: machine.container.clone(),
        shares: line("share ").is_some(),
        problem: result.err(),
    }
}

/// Docker on a machine, for so many seconds at most. Who is not root cannot end what `sudo` has started, so the limit is
/// behind it.
fn docker<'a>(machine: &Machine, seconds: &'a str) -> Vec<&'a str> {
    let sudo: &[&str] = if machine.way == Way::Here { &[] } else { &["sudo", "-n"] };
    sudo.iter().copied().chain(["timeout", "-k", "5", seconds, "docker"]).collect()
}

/// Does something with each, with so many at a time; returns what came of it, in the same order.
fn each<T: Sync, R: Send>(things: &[T], at_once: usize, act: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let work = || {
        let take = || {
            let at = next.fetch_add(1, Ordering::Relaxed);
            things.get(at).map(|thing| (at, act(thing)))
        };
        iter::from_fn(take).collect::<Vec<(usize, R)>>()
    };
    let mut done: Vec<(usize, R)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..at_once.min(things.len())).map(|_| scope.spawn(work)).collect();
        workers.into_iter().filter_map(|worker| worker.join().ok()).flatten().collect()
    });
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Runs it and returns what it printed, or what went wrong. A connection that did not come about is tried once more.
fn output(command: &Command) -> Result<String, String> {
    let run = || bounded(command, LIMIT).output().map_err(|error| error.to_string());
    let mut output = run()?;
    if output.status.code() == Some(UNREACHED) {
        output = run()?;
    }
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = [output.stderr, output.stdout].map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned());
    let said = said.into_iter().find(|said| !said.is_empty());
    let silent = || match output.status.code() {
        Some(TOO_LONG) => "it took too long".to_owned(),
        _ => output.status.to_string(),
    };
    Err(said.unwrap_or_else(silent))
}

/// The same command line, for so many seconds at most. It ends with this program.
fn bounded(command: &Command, seconds: &str) -> Command {
    let mut bounded = Command::new("timeout");
    bounded.args(["-k", "5", seconds]).arg(command.get_program()).args(command.get_args());
    bounded.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    bounded.stdin(Stdio::null());
    stop_with_us(&mut bounded);
    bounded
}

/// Whether JupyterLab's port can be reached from here, as a browser would.
fn is_reached(cluster: &Cluster) -> bool {
    let addresses = (cluster.public_address.as_str(), cluster.jupyter_port).to_socket_addrs();
    let reach = |address| TcpStream::connect_timeout(&address, Duration::from_secs(5)).is_ok();
    addresses.is_ok_and(|mut addresses| addresses.any(reach))
}

/// A word that no earlier look has used.
fn word() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}-{}", now.as_nanos(), std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_s_reason_is_the_launcher_s_word() {
        let said = "ready in 0.3 s\n[0] Traceback\nerror: rank 0 failed first: exit status 1\nhint: see all";
        assert_eq!(reason(said), "rank 0 failed first: exit status 1");
        assert_eq!(reason("one\ntwo"), "two");
    }

    #[test]
    fn all_are_asked_in_their_order_and_few_at_a_time() {
        let [now, most] = [0, 0].map(AtomicUsize::new);
        let asked = each(&(0..20).collect::<Vec<u64>>(), 3, |number| {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            thread::yield_now();
            now.fetch_sub(1, Ordering::SeqCst);
            number * 2
        });
        assert_eq!(asked, (0..20).map(|number| number * 2).collect::<Vec<u64>>());
        assert!(most.into_inner() <= 3);
    }

    #[test]
    fn what_hangs_ends_and_what_was_not_reached_is_tried_once_more() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        let hangs = "sleep 600"; // sleep: it hangs
        let status = bounded(&shell(hangs), "0.1").status().expect("it runs");
        assert_eq!(status.code(), Some(TOO_LONG));
        let seen = std::env::temp_dir().join(format!("ronde-tried-{}", std::process::id()));
        let script = format!("[ -e {0} ] && echo reached && exit; touch {0}; exit 255", seen.display());
        assert_eq!(output(&shell(&script)), Ok("reached\n".to_owned()));
        std::fs::remove_file(seen).expect("it was tried");
        assert_eq!(output(&shell("echo why >&2; exit 255")), Err("why".to_owned()));
    }

    #[test]
    fn a_share_that_hangs_is_told_apart_from_a_machine_that_does() {
        let look = |docker: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", LOOK, "sh", docker, "c", "/file", "word"]);
            output(&command)
        };
        let script = std::env::temp_dir().join(format!("ronde-docker-{}", std::process::id()));
        let docker = |inspect: &str, exec: &str| {
            let text = format!("case $1 in inspect) {inspect} ;; exec) {exec} ;; esac");
            std::fs::write(&script, text).expect("written");
            look(&format!("sh {}", script.display()))
        };
        let hangs = "timeout 0.1 sleep 600"; // sleep: it hangs
        assert_eq!(docker("echo running", "echo word"), Ok("container running\nshare yes\n".to_owned()));
        assert_eq!(docker("echo running", hangs), Ok("container running\n".to_owned()));
        assert_eq!(docker(hangs, "echo word"), Ok("container hanging\n".to_owned()));
        assert_eq!(docker("exit 1", "echo word"), Ok("container absent\n".to_owned()));
        std::fs::remove_file(script).expect("removed");
    }
}
