//! `ronde doctor`: everything a job on many hosts depends on, looked at before there is a job.
//!
//! Every host has a thread (`visit.rs`) that goes the way a job goes: the name, the port, the login, the agent. The agent
//! then examines its host (`examine.rs`) and answers (`question.rs`, `patient.rs`). After that hosts try to reach each
//! other, and measure how much passes (`meter.rs`), nobody twice at a time (`rounds.rs`). What was found out is a
//! [`Report`]: `judge.rs` says what is wrong with it, `table.rs` shows it.

mod examine;
mod judge;
mod meter;
mod patient;
mod question;
mod report;
mod rounds;
mod table;
mod visit;
mod ways;

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use ronde_trust::Secret;

use crate::descendants::{adopt_orphans, kill_all};
use crate::ending::Ending;
use crate::guardian::{self, Lifeline};
use crate::machine::Machine;
use crate::plan::Ssh;
use crate::signals::{self, watch};
use crate::{Error, Host};

pub(crate) use examine::examine;
use patient::Patient;
pub(crate) use question::{Answer, Question};
pub use question::{Container, Findings, Folder, Gpu, Python};
pub use report::{Check, HostReport, Pair, Problem, Reach, Report, Severity};
pub use table::{problems, table};
use visit::{Marker, Visit};

/// What the user asked for.
#[derive(Clone, Debug)]
pub struct Doctor {
    /// The hosts.
    pub hosts: Vec<Host>,
    /// How to reach them.
    pub ssh: Ssh,
    /// The network interfaces that may be used; all if none is named.
    pub interfaces: Vec<String>,
    /// The ports that may be listened at; any if not given.
    pub ports: Option<RangeInclusive<u16>>,
}

/// Something that a thread found out.
enum News {
    /// How far the examination of a host is.
    Host(usize, Box<HostReport>),
    /// It is over; the host can be asked more.
    Ready(usize, Patient),
    /// How it is between two hosts.
    Pair(Pair),
}

/// Lets `consult` examine hosts, in a child process that is guarded as a job is: whatever ends it, no connection and no
/// file is left behind. Returns the status to exit with, which is that of `consult` unless a signal came.
///
/// Must be called while the process has a single thread, since it forks.
pub fn doctor(request: &Doctor, consult: impl FnOnce(Examination<'_>) -> u8) -> Result<u8, Error> {
    // The guardian holds it, so that it goes even if the child is killed.
    let marker = Marker::leave();
    guardian::guard("doctor", Lifeline::None, |guardian| {
        let signals = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
        let path = marker.as_ref().map(Marker::path);
        match adopt_orphans().and_then(|()| watch(&signals, guardian, move |news| end(news, path.as_deref())))
        {
            Ok(()) => consult(Examination { request, marker: marker.as_ref() }),
            Err(error) => crate::fail(&error),
        }
    })
}

/// Ends this process: the guardian then ends what is left below it, or has itself ended and left that to us.
fn end(news: signals::News, marker: Option<&Path>) -> bool {
    match news {
        signals::News::Signal(signal) => std::process::exit(Ending::Killed(signal).status().into()),
        signals::News::GuardianGone => {
            if let Some(marker) = marker {
                // If it is gone already, all the better.
                let _ = std::fs::remove_file(marker);
            }
            kill_all(&HashSet::new(), |_, _| {});
            std::process::exit(1)
        }
    }
}

/// An examination that is about to be made.
pub struct Examination<'a> {
    request: &'a Doctor,
    marker: Option<&'a Marker>,
}

impl Examination<'_> {
    /// Examines all hosts. `watch` sees the report whenever there is something new in it.
    pub fn run(self, watch: impl FnMut(&Report)) -> Result<Report, Error> {
        examine_all(self.request, self.marker, watch)
    }
}

fn examine_all(
    request: &Doctor,
    marker: Option<&Marker>,
    mut watch: impl FnMut(&Report),
) -> Result<Report, Error> {
    let mut report = Report {
        schema: report::SCHEMA,
        ronde: env!("CARGO_PKG_VERSION").to_owned(),
        hosts: visit::expected(request, &Machine::here().among(&request.hosts)),
        ..Report::default()
    };
    watch(&report);
    let secret = Secret::random()?;
    let mut patients: Vec<Option<Patient>> = request.hosts.iter().map(|_| None).collect();
    let visit = Visit::prepare(request, &report.hosts, marker)?;
    thread::scope(|scope| {
        let (sender, news) = channel();
        for (number, host) in report.hosts.iter().cloned().enumerate() {
            let (visit, sender) = (&visit, sender.clone());
            scope.spawn(move || visit.host(number, host, &sender));
        }
        drop(sender);
        listen(&news, &mut report, &mut patients, &mut watch);
    });
    thread::scope(|scope| {
        let (sender, news) = channel();
        let (patients, secret) = (&patients, &secret);
        scope.spawn(move || ways::explore(request, patients, secret, &sender));
        listen(&news, &mut report, &mut [], &mut watch);
    });
    // All say goodbye at the same time.
    thread::scope(|scope| {
        for patient in patients {
            scope.spawn(move || drop(patient));
        }
    });
    table::conclude(&mut report);
    Ok(report)
}

/// Takes in what the threads find out, until all have ended.
fn listen(
    news: &Receiver<News>,
    report: &mut Report,
    patients: &mut [Option<Patient>],
    watch: &mut impl FnMut(&Report),
) {
    for one in news {
        match one {
            News::Host(number, host) => report.hosts[number] = *host,
            News::Ready(number, patient) => patients[number] = Some(patient),
            News::Pair(pair) => report.pairs.push(pair),
        }
        watch(report);
    }
}
