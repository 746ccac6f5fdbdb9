//! What the doctor found out, as people's and other programs' eyes get it: `table.rs` draws it, `--json` prints it.
//!
//! The names and meanings of these fields are what `docs/doctor.md` promises to programs that read the JSON.

use std::net::IpAddr;

use serde::Serialize;

use super::question::Findings;

/// Everything.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// The version of this layout; it changes when a field changes its meaning or goes away.
    pub schema: u32,
    /// The version of Ronde that asked.
    pub ronde: String,
    /// Whether a job can start: no problem is an error.
    pub healthy: bool,
    /// The hosts, as they were given.
    pub hosts: Vec<HostReport>,
    /// Every two hosts.
    pub pairs: Vec<Pair>,
    /// What is wrong, errors first.
    pub problems: Vec<Problem>,
}

/// The layout of [`Report`] that this version writes.
pub(super) const SCHEMA: u32 = 1;

/// How one check went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// It is still being made.
    #[default]
    Pending,
    /// All is well.
    Good,
    /// It is not.
    Bad,
    /// It was not made, because an earlier one failed or it does not apply.
    Skipped,
}

/// One host.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HostReport {
    /// As it was given.
    pub name: String,
    /// How many ranks it takes.
    pub slots: usize,
    /// Whether it is the machine that asked, which needs no ssh.
    pub this_machine: bool,
    /// As whom ssh logs in.
    pub user: Option<String>,
    /// The address its name stands for.
    pub address: Option<IpAddr>,
    /// The port of its ssh server.
    pub port: Option<u16>,
    /// Whether the name stands for an address.
    pub resolves: Check,
    /// Whether something listens at the port.
    pub port_open: Check,
    /// Whether its host key is known here.
    pub host_key: Check,
    /// Whether ssh gets in without a question.
    pub login: Check,
    /// Whether Ronde's agent runs there.
    pub agent: Check,
    /// Whether the program had to be sent there first.
    pub program_sent: bool,
    /// How many seconds its clock is ahead of that of the machine that asked.
    pub clock_ahead: Option<f64>,
    /// What it is like.
    pub findings: Option<Findings>,
    /// Why it could not be examined.
    #[serde(skip)]
    pub(super) trouble: Option<Trouble>,
}

impl HostReport {
    /// Whether its examination is over, well or not.
    pub fn is_done(&self) -> bool {
        self.findings.is_some() || self.trouble.is_some()
    }
}

/// Why a host could not be examined, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) check: &'static str,
    pub(super) what: String,
    pub(super) fix: Option<String>,
}

/// Two hosts.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Pair {
    /// One.
    pub from: String,
    /// The other.
    pub to: String,
    /// How the one reaches the other.
    pub forward: Reach,
    /// How the other reaches the one.
    pub backward: Reach,
    /// Bits a second from the one to the other, if it was measured.
    pub bits_forward: Option<f64>,
    /// Bits a second from the other to the one, if it was measured.
    pub bits_backward: Option<f64>,
}

impl Pair {
    /// The faster of the two ways, if there is one: whoever cannot dial is dialled.
    pub(super) fn best(&self) -> Option<&Reach> {
        let ways = [&self.forward, &self.backward].into_iter().filter(|reach| reach.address.is_some());
        ways.min_by(|one, other| one.seconds().total_cmp(&other.seconds()))
    }

    /// The slower direction, in bits a second.
    pub(super) fn bandwidth(&self) -> Option<f64> {
        Some(self.bits_forward?.min(self.bits_backward?))
    }
}

/// How a host reaches another.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Reach {
    /// The address that worked, if any did.
    pub address: Option<IpAddr>,
    /// How many seconds a byte took there and back.
    pub round_trip: Option<f64>,
    /// What kept it from every address, if none worked.
    pub failure: Option<String>,
}

impl Reach {
    fn seconds(&self) -> f64 {
        self.round_trip.unwrap_or(f64::MAX)
    }
}

/// How much a problem matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// A job on these hosts will not start.
    Error,
    /// A job may start, and may then go wrong or be slow.
    Warning,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// How much it matters.
    pub severity: Severity,
    /// Which check found it.
    pub check: &'static str,
    /// The hosts it is about.
    pub hosts: Vec<String>,
    /// What is wrong, in one line.
    pub what: String,
    /// What to do, in one line; a command where one does it.
    pub fix: Option<String>,
}
