//! From running ranks to the last word.

use std::collections::HashSet;
use std::io::Write;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use super::{Driver, Event, supply};
use crate::course::{self, Cause};
use crate::descendants::kill_all;
use crate::ending::Ending;
use crate::gathering::Gathering;
use crate::last_words;
use crate::output::Tails;
use crate::plan::Talk;
use crate::report::{Failed, HostLost};
use crate::signals::News;
use crate::wire::ToAgent;

/// How often to look who has joined, while not everybody has.
const GATHERING: Duration = Duration::from_millis(200);
/// How often to look whether all hosts are still heard of.
const LOOK: Duration = Duration::from_secs(1);
/// A host that has been silent so long while a rank elsewhere fails is what failed first: ranks notice a cut connection
/// before the driver gives a host up.
const SUSPICIOUS: Duration = Duration::from_secs(4);

/// Why a host is given up that has neither said goodbye nor closed its connection.
const SILENT: &str = "nothing was heard from it";

impl Driver {
    /// Watches until every rank has ended; returns the status to exit with.
    pub(super) fn supervise(mut self) -> u8 {
        let mut gathering = Gathering::default();
        while !self.course.is_over() {
            let event = self.events.recv_timeout(self.patience(&gathering));
            match event {
                Ok(Event::News(News::GuardianGone)) => return self.abandoned(),
                Ok(event) => self.happen(event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.look_for_silence(self.request.lost_after);
            self.handle(course::Event::Tick);
            if !gathering.is_complete() {
                let seen = gathering.look(self.started.elapsed(), &self.server.joined());
                if let Some(line) = seen {
                    self.note(Talk::Sparing, || line);
                }
            }
        }
        self.conclude()
    }

    /// How long nothing may need to be done.
    fn patience(&self, gathering: &Gathering) -> Duration {
        let gathering = (!gathering.is_complete()).then_some(GATHERING);
        let due = self.course.next_tick().map(|due| due.saturating_sub(self.started.elapsed()));
        gathering.into_iter().chain(due).chain([LOOK]).min().unwrap_or(LOOK)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Said { host, message } => {
                if let crate::wire::FromAgent::Ended { ending, .. } = &*message
                    && ending.is_failure()
                {
                    self.look_for_silence(SUSPICIOUS);
                }
                // What is left over belongs to a phase that is past.
                let _ = self.take_in(host, *message);
            }
            Event::Gone { host, why } => {
                if !self.members[host].said_goodbye {
                    self.lose(host, why);
                }
                self.members[host].outbox = None;
            }
            Event::Failed { host, error } => self.lose(host, error.to_string()),
            Event::News(News::Signal(signal)) => self.signalled(signal),
            Event::OutputClosed => self.handle(course::Event::OutputClosed),
            Event::Up { .. } | Event::News(News::GuardianGone) => {}
        }
    }

    /// The user, or whoever runs this for them, wants the job to end.
    fn signalled(&mut self, signal: i32) {
        if self.course.cause().is_none() {
            let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
            self.note(Talk::Sparing, || match signal {
                libc::SIGINT => "interrupted: the ranks were told; Ctrl-C again kills them".to_owned(),
                _ => format!("told to end by {name}: the ranks were told"),
            });
        }
        self.handle(course::Event::Signal(signal));
    }

    /// Gives up hosts that have not been heard of for so long.
    fn look_for_silence(&mut self, limit: Duration) {
        for host in 0..self.members.len() {
            let member = &self.members[host];
            if member.lost || member.said_goodbye || member.outbox.is_none() {
                continue;
            }
            let silence = member.heard.silence();
            if silence > limit {
                self.lose(host, format!("{SILENT} for {} s", silence.as_secs()));
            }
        }
    }

    /// The guardian is gone, so are we, and everything below us; the agents elsewhere follow.
    fn abandoned(self) -> u8 {
        kill_all(&HashSet::new(), |_, _| {});
        // Most often there is none.
        let _ = std::fs::remove_dir_all(&self.mps_folder);
        last_words("error: the launcher was killed; all ranks were stopped\n");
        // Without waiting for threads: one may be stuck on an output nobody reads.
        std::process::exit(1);
    }

    /// All ranks have ended: has the hosts clean up, shows the rest of their output, and says how it went.
    fn conclude(mut self) -> u8 {
        let loss = self.server.loss();
        self.tell_all(|| ToAgent::Conclude);
        let waited_for =
            |driver: &Driver| driver.members.iter().any(|m| !m.lost && !m.said_goodbye && m.outbox.is_some());
        while waited_for(&self) {
            match self.events.recv_timeout(LOOK) {
                Ok(Event::News(News::GuardianGone)) => return self.abandoned(),
                Ok(event) => self.happen(event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.look_for_silence(self.request.lost_after);
        }
        let gone = self.started.elapsed();
        // Connections that have said all, and their carriers.
        kill_all(&HashSet::new(), |_, _| {});
        let left: Vec<(String, i32)> = self
            .members
            .iter()
            .flat_map(|member| member.left.iter().map(|pid| (member.name.clone(), *pid)))
            .collect();
        // Nothing of ours can be orphaned any more, so whatever kills the guardian may take us along, even while the
        // user's pager holds up our last output.
        let parent = rustix::process::Signal::KILL;
        let _ = rustix::process::set_parent_process_death_signal(Some(parent));
        if matches!(self.events.try_recv(), Ok(Event::News(News::GuardianGone))) {
            return self.abandoned();
        }
        let (ranks, task) = (self.np(), self.request.task.clone());
        let tails: Tails = self.output.finish();
        match self.course.cause() {
            None => 0,
            Some(Cause::Signal(signal)) => Ending::Killed(*signal).status(),
            Some(Cause::OutputClosed) => Ending::Killed(libc::SIGPIPE).status(),
            Some(Cause::HostLost { host, why, at, others }) => {
                let lost: Vec<&str> =
                    self.members.iter().filter(|m| m.lost).map(|m| m.name.as_str()).collect();
                let text = HostLost {
                    host: &self.members[*host].name,
                    ranks: self.members[*host].ranks.clone(),
                    why,
                    hosts: &self.plan.hosts(),
                    lost: &lost,
                    others: *others,
                    stopped_after: gone.saturating_sub(*at),
                    silent_for: why.starts_with(SILENT).then_some(self.request.lost_after),
                    port: self.request.ssh.port,
                    left: &left,
                }
                .text();
                supply::tell_failure(task.as_ref(), None, &text);
                let _ = std::io::stderr().write_all(text.as_bytes());
                1
            }
            Some(Cause::Failure(failure)) => {
                let loss = loss.filter(|loss| loss.rank == Some(failure.rank));
                let last_lines: Vec<String> =
                    tails.get(failure.rank).into_iter().flatten().cloned().collect();
                let text = Failed {
                    failure,
                    host: &self.plan.seats[failure.rank].host,
                    hosts: &self.plan.hosts(),
                    ranks,
                    lost_because: loss.as_ref().map(|loss| loss.reason.as_str()),
                    out_of_memory: self.out_of_memory.contains(&failure.rank),
                    last_lines: &last_lines,
                    stopped_after: gone.saturating_sub(failure.at),
                    left: &left,
                    output_folder: self.request.output_folder.as_deref(),
                }
                .text();
                supply::tell_failure(task.as_ref(), Some(failure.rank), &text);
                let _ = std::io::stderr().write_all(text.as_bytes());
                failure.status
            }
        }
    }
}
