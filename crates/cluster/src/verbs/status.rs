//! `ronde cluster status`: what is up, what is not, and what to do about it.
//!
//! Asked from outside in: machines by ssh, their containers, whether each reads what the master has just written into the
//! shared folder, whether JupyterLab answers, and whether two ranks on two machines find each other. `report.rs` has
//! what all of it adds up to.

mod report;

use std::io::Write;
use std::net::{TcpStream, ToSocketAddrs};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::args::StatusArgs;
use crate::error::Error;
use crate::folder::Folder;
use crate::inventory::{Cluster, Machine, SSH_PORT, Way};
use crate::remote::{Asking, in_container, on_machine};
use crate::verbs::option_for;
use report::{Finding, Jupyter, Report, Smoke};

/// How long one machine is asked, and how long a job may take that only says hello.
const PATIENCE: &str = "60";

/// What is looked at on a machine, for a shell there: `docker`, container, file in the share, and what the file has to say.
const LOOK: &str = r#"docker=$1 container=$2 file=$3 word=$4
state=$($docker inspect --format '{{.State.Status}}' "$container" 2>/dev/null) || state=absent
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
    let report = look(&cluster, &folder, !args.no_smoke);
    let text = match args.json {
        true => format!("{:#}\n", report.json()),
        false => report.text(),
    };
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(if report.problems().is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn look(cluster: &Cluster, folder: &Folder, with_smoke: bool) -> Report {
    let master = cluster.master();
    let word = word();
    let file = format!("/mnt/share/.status-{word}");
    let in_master = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        output(&mut in_container(master, folder.path(), Asking::MayNot, &[], &words))
    };
    let written = in_master(&["sh", "-c", "echo \"$1\" >\"$2\"", "sh", &word, &file]);
    let findings: Vec<Finding> = thread::scope(|scope| {
        let ask = |machine: &Machine| finding(machine, folder, &file, &word);
        let asked: Vec<_> =
            cluster.machines.iter().map(|machine| scope.spawn(move || ask(machine))).collect();
        asked.into_iter().filter_map(|asked| asked.join().ok()).collect()
    });
    let knock = format!("https://127.0.0.1:{}/api", cluster.jupyter_port);
    let answers = written.is_ok() && in_master(&["python", "-c", KNOCK, &knock]).is_ok();
    let jupyter = Jupyter { address: cluster.jupyter(), answers, is_reached: is_reached(cluster) };
    let smoke = match with_smoke && written.is_ok() {
        true => {
            let (hosts, words) = pair(cluster);
            let result = in_master(&words.iter().map(String::as_str).collect::<Vec<_>>());
            Some(Smoke { hosts, problem: result.err().map(|said| reason(&said)) })
        }
        false => None,
    };
    if written.is_ok() {
        let _ = in_master(&["rm", "-f", &file]);
    }
    Report { name: cluster.name.clone(), option: option_for(folder), findings, jupyter, smoke }
}

/// The job of two ranks: on the master and the first worker, or both on the master if it is alone.
fn pair(cluster: &Cluster) -> (String, Vec<String>) {
    let hosts = match cluster.machines.get(1) {
        Some(worker) => format!("{}:1,{}:1", cluster.master().name, worker.name),
        None => format!("{}:2", cluster.master().name),
    };
    let head = ["timeout", PATIENCE, "ronde", "run", "-np", "2", "-H", &hosts, "-p", SSH_PORT];
    let words = head.iter().chain(&["python", "-c", HELLO]).map(|word| (*word).to_owned()).collect();
    (hosts, words)
}

/// What a job gives as the reason of its failure: the launcher's last word, or whatever came last.
fn reason(said: &str) -> String {
    let told = said.lines().rev().find_map(|line| line.strip_prefix("error: "));
    told.or(said.lines().last()).unwrap_or_default().to_owned()
}

fn finding(machine: &Machine, folder: &Folder, file: &str, word: &str) -> Finding {
    let docker = if machine.way == Way::Here { "docker" } else { "sudo -n docker" };
    let words = ["sh", "-c", LOOK, "sh", docker, &machine.container, file, word].map(str::to_owned);
    let result = output(&mut on_machine(machine, folder.path(), Asking::MayNot, &words));
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

/// Runs it and returns what it printed, or what went wrong.
fn output(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = [output.stderr, output.stdout].map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned());
    let said = said.into_iter().find(|said| !said.is_empty());
    Err(said.unwrap_or_else(|| output.status.to_string()))
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
}
