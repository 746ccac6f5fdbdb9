//! One host under examination: the connection with its agent, as questions and answers.
//!
//! It gets the agent just as a job does, so what works here works there. The agent is told to end when this is dropped.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::examine::clock;
use super::question::{Answer, Findings, Journey, Question, Service, Surroundings};
use crate::Error;
use crate::driver::{Arrival, Connection, Line, greet};
use crate::heard::Heard;
use crate::probe::{Attempt, Interface, Target};
use crate::wire::{FromAgent, Outbox, ToAgent, Welcome};

/// How long an answer may take that is not said otherwise.
const PATIENCE: Duration = Duration::from_secs(10);
/// Looking for Python may take its time on a busy disk.
const LONG_PATIENCE: Duration = Duration::from_secs(45);
/// How long an agent may take to say goodbye.
const PARTING: Duration = Duration::from_secs(3);
/// How often the clock is asked; the quickest answer counts.
const CLOCK_ROUNDS: usize = 5;

/// A host whose agent answers.
pub(super) struct Patient {
    name: String,
    outbox: Outbox<ToAgent>,
    /// Held for as long as an answer is waited for: answers say not what they answer.
    answers: Mutex<Receiver<Result<FromAgent, String>>>,
}

impl Patient {
    /// Takes over a fresh connection.
    pub(super) fn admit(connection: Connection, name: &str) -> Result<Patient, Error> {
        let heard = Arc::new(Heard::now());
        let (Arrival { incoming, outbox, .. }, line) = greet(connection, name, &heard)?;
        let (sender, answers) = channel();
        let (mut incoming, mut line): (_, Line) = (incoming, line);
        let read = move || {
            loop {
                let message =
                    incoming.receive::<FromAgent>().map_err(|error| line.why_it_ended(&error.to_string()));
                let ended = message.is_err();
                if matches!(message, Ok(FromAgent::Beat)) {
                    continue;
                }
                if sender.send(message).is_err() || ended {
                    return;
                }
            }
        };
        thread::Builder::new()
            .name("ronde-patient".to_owned())
            .spawn(read)
            .map_err(Error::system("start a thread"))?;
        Ok(Patient { name: name.to_owned(), outbox, answers: Mutex::new(answers) })
    }

    /// Makes it ready to be reached; says where that may be possible.
    pub(super) fn welcome(&self, welcome: Welcome) -> Result<(Vec<Interface>, u16), Error> {
        self.converse(ToAgent::Welcome(welcome), PATIENCE, |message| match message {
            FromAgent::Reachable { interfaces, port, .. } => Some((interfaces, port)),
            _ => None,
        })
    }

    /// How far its clock is ahead of ours, in seconds.
    pub(super) fn clock_ahead(&self) -> Result<f64, Error> {
        let mut best: Option<(Duration, f64)> = None;
        for _ in 0..CLOCK_ROUNDS {
            let (asked, before) = (Instant::now(), clock());
            let Answer::Clock(there) = self.ask(Question::Clock, PATIENCE)? else {
                return Err(self.lost("it does not know the time"));
            };
            let took = asked.elapsed();
            // It looked at its clock somewhere in between, most likely in the middle.
            let ahead = (there - before) as f64 / 1e9 - took.as_secs_f64() / 2.0;
            if best.is_none_or(|(shortest, _)| took < shortest) {
                best = Some((took, ahead));
            }
        }
        Ok(best.map_or(0.0, |(_, ahead)| ahead))
    }

    /// What it is like.
    pub(super) fn findings(&self, surroundings: Surroundings) -> Result<Findings, Error> {
        match self.ask(Question::Findings(surroundings), LONG_PATIENCE)? {
            Answer::Findings(findings) => Ok(*findings),
            _ => Err(self.lost("it does not know itself")),
        }
    }

    /// Lets it try to reach others.
    pub(super) fn reach(&self, targets: Vec<Target>) -> Result<Vec<Attempt>, Error> {
        self.converse(ToAgent::Reach(targets), LONG_PATIENCE, |message| match message {
            FromAgent::Attempts(attempts) => Some(attempts),
            _ => None,
        })
    }

    /// Lets it answer those who measure; gives the port.
    pub(super) fn serve(&self, service: Service) -> Result<u16, Error> {
        match self.ask(Question::Serve(service), PATIENCE)? {
            Answer::Serving(port) => Ok(port),
            Answer::Failed(why) => Err(self.lost(&why)),
            _ => Err(self.lost("it cannot be measured")),
        }
    }

    /// Lets it measure; bits a second there and back, if that can be said.
    pub(super) fn measure(&self, journey: Journey) -> Option<(f64, f64)> {
        let limit = PATIENCE + 2 * journey.time;
        match self.ask(Question::Measure(journey), limit) {
            Ok(Answer::Measured(bandwidth)) => Some((bandwidth.there, bandwidth.back)),
            _ => None,
        }
    }

    fn ask(&self, question: Question, limit: Duration) -> Result<Answer, Error> {
        self.converse(ToAgent::Examine(question), limit, |message| match message {
            FromAgent::Examination(answer) => Some(answer),
            _ => None,
        })
    }

    /// Says something and waits for the answer, which `pick` knows.
    fn converse<T>(
        &self,
        message: ToAgent,
        limit: Duration,
        pick: impl Fn(FromAgent) -> Option<T>,
    ) -> Result<T, Error> {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        self.outbox.send(message);
        let deadline = Instant::now() + limit;
        loop {
            match answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Ok(FromAgent::Refused(problem))) => {
                    let text = format!("{}: {}", self.name, problem.text);
                    return Err(Error::Refused { text, hint: problem.hint });
                }
                Ok(Ok(message)) => {
                    if let Some(answer) = pick(message) {
                        return Ok(answer);
                    }
                }
                Ok(Err(why)) => return Err(self.lost(&why)),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(self.lost(&format!("it did not answer within {} s", limit.as_secs())));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.lost("its connection was closed")),
            }
        }
    }

    fn lost(&self, why: &str) -> Error {
        Error::AgentLost { host: self.name.clone(), why: why.to_owned() }
    }
}

impl Drop for Patient {
    fn drop(&mut self) {
        // Its last word, or the end of the connection; whatever comes, the end of this process ends the agent.
        let bye = |message| matches!(message, FromAgent::Bye { .. }).then_some(());
        let _ = self.converse(ToAgent::Conclude, PARTING, bye);
    }
}
