//! The flags of the verbs that look after hosts: `doctor` and `setup-ssh`.

use std::ops::RangeInclusive;

use clap::Args;

use super::{HostArgs, SshArgs, value};

/// Look at everything that a job on these hosts depends on.
///
/// For every host: does its name stand for an address, does something listen at the port, is its key
/// known, is ours accepted without a question, does Ronde's agent start, which Python and which
/// frameworks are there and are they the same everywhere, are there as many GPUs as slots, how far is
/// its clock off, does it see the current folder, are its limits high enough, and in a container: is
/// there enough shared memory. Between any two: do they reach each other, by which address, how
/// quickly, and how much passes. Hosts are looked at all at the same time; nothing is changed on them.
///
/// Every problem comes with the line that fixes it. Exit status: 0 if a job can start, even if there
/// are warnings; 1 if not.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ronde doctor -H gpu1:4,gpu2:4 -p 12345\n  \
    ronde doctor --hostfile hosts --json | jq '.problems[].fix'")]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) hosts: HostArgs,

    /// Print the findings as JSON, for other programs; docs/doctor.md says what is in it.
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) ssh: SshArgs,

    /// The network interfaces that may be used, by name; without it, all.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub(crate) network_interfaces: Vec<String>,

    /// Listen at ports of this range only, for hosts behind a firewall.
    #[arg(long, value_name = "LOW-HIGH", value_parser = value::port_range)]
    pub(crate) port_range: Option<RangeInclusive<u16>>,
}

/// Set up logins without a password on these hosts.
///
/// Every host is tried as `ronde run` would. Where its key is not known here, the fingerprint is shown
/// and the key recorded in known_hosts after asking; one that has changed is never replaced. Where our
/// key is not accepted, it is installed (a new one is made if there is none), for which ssh asks for
/// the password. Questions are asked on a terminal only. May be run as often as one likes: what is
/// there already is left alone. Exit status: 0 if all hosts are ready, else 1.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ronde setup-ssh -H gpu1,gpu2 -p 12345")]
pub(crate) struct SetupSshArgs {
    #[command(flatten)]
    pub(crate) hosts: HostArgs,

    /// Log in as this user, on hosts that are not written as user@host.
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,

    /// Record the keys of hosts that were never seen before without asking.
    #[arg(short, long)]
    pub(crate) yes: bool,

    #[command(flatten)]
    pub(crate) ssh: SshArgs,
}
