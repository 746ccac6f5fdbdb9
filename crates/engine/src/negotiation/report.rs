//! What people read when ranks wait for others: what waits, for whom, and what those say about themselves.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ronde_rendezvous::Ranks;

use super::check::quoted;
use super::request::Kind;

/// Tensors that are described, and that are named for each missing rank.
const TENSORS: usize = 6;

/// A name that some ranks wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The tensor's name.
    pub name: Arc<str>,
    /// What is to be done with it.
    pub kind: Kind,
    /// For how long it has waited, as far as the leader knows.
    pub waited: Duration,
    /// Global ranks that have not asked for it and have not joined.
    pub missing: Vec<usize>,
}

/// A rank that is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Its global rank.
    pub rank: usize,
    /// Its host's name.
    pub host: String,
    /// What it says about itself, if it does.
    pub answer: Option<String>,
}

/// What has waited too long, for whom, and what those say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StallReport {
    /// The names, those that have waited longest first.
    pub waits: Vec<Wait>,
    /// The ranks they wait for, ascending.
    pub missing: Vec<Missing>,
}

impl fmt::Display for StallReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for wait in self.waits.iter().take(TENSORS) {
            let mut hosts: Vec<&str> = Vec::new();
            for missing in self.missing.iter().filter(|missing| wait.missing.contains(&missing.rank)) {
                if !hosts.contains(&missing.host.as_str()) {
                    hosts.push(&missing.host);
                }
            }
            let ranks = Ranks::new(wait.missing.iter().copied());
            let (kind, name, seconds) = (wait.kind, quoted(wait.kind, &wait.name), wait.waited.as_secs());
            writeln!(f, "{kind} {name} has waited {seconds} s for {ranks} ({})", hosts.join(", "))?;
        }
        if self.waits.len() > TENSORS {
            writeln!(f, "and {} more have waited", self.waits.len() - TENSORS)?;
        }
        for Missing { rank, answer, .. } in &self.missing {
            writeln!(f, "  rank {rank}: {}", answer.as_deref().unwrap_or("no answer"))?;
        }
        write!(f, "Missing ranks:")?;
        for Missing { rank, .. } in &self.missing {
            let lacking: Vec<&str> = self
                .waits
                .iter()
                .filter(|wait| wait.missing.contains(rank))
                .map(|wait| &*wait.name)
                .collect();
            let more = if lacking.len() > TENSORS { ", ..." } else { "" };
            let named = lacking.iter().take(TENSORS).copied().collect::<Vec<_>>().join(", ");
            write!(f, "\n{rank}: [{named}{more}]")?;
        }
        Ok(())
    }
}
