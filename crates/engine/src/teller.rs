//! Tells those who do not wait how their operations ended.
//!
//! What is told may take long (a framework allocates its result, or goes on with what depends on it) and may submit the next
//! operation, so it happens on a thread of its own, with no lock of the engine held. The thread begins with the first
//! operation of that kind.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::error::Error;
use crate::operation::Finished;

/// Called once with how an operation ended.
pub(crate) type Then = Box<dyn FnOnce(Result<Finished, Error>) + Send>;

type News = (Then, Result<Finished, Error>);

/// See the module's text.
#[derive(Default)]
pub(crate) struct Teller {
    running: Mutex<Option<(Sender<News>, JoinHandle<()>)>>,
}

impl Teller {
    /// Starts the thread, if it does not run.
    pub(crate) fn start(&self) -> Result<(), Error> {
        let mut running = self.running();
        if running.is_none() {
            let (sender, news) = channel::<News>();
            let thread = std::thread::Builder::new()
                .name("ronde-done".into())
                .spawn(move || news.into_iter().for_each(|(then, outcome)| then(outcome)))
                .map_err(|error| Error::Invalid(format!("starting a thread: {error}")))?;
            *running = Some((sender, thread));
        }
        Ok(())
    }

    /// Has somebody told. After [`stop`](Teller::stop) that is done right here.
    pub(crate) fn tell(&self, then: Then, outcome: Result<Finished, Error>) {
        let news = (then, outcome);
        let left = match &*self.running() {
            Some((sender, _)) => sender.send(news).err().map(|unsent| unsent.0),
            None => Some(news),
        };
        if let Some((then, outcome)) = left {
            then(outcome);
        }
    }

    /// Returns when everybody has been told; called by whom it tells, it does not wait.
    pub(crate) fn stop(&self) {
        let running = self.running().take();
        let Some((sender, thread)) = running else { return };
        drop(sender);
        if thread.thread().id() != std::thread::current().id() {
            // A thread that panicked has said so on standard error.
            let _ = thread.join();
        }
    }

    fn running(&self) -> MutexGuard<'_, Option<(Sender<News>, JoinHandle<()>)>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn everybody_is_told_in_order_on_another_thread_and_stopping_waits_for_that() {
        let teller = Teller::default();
        teller.start().expect("a thread");
        let (told, heard) = mpsc::channel();
        for number in 0..3 {
            let told = told.clone();
            teller.tell(
                Box::new(move |_| told.send((number, std::thread::current().id())).expect("an open end")),
                Ok(Finished::default()),
            );
        }
        teller.stop();
        let heard: Vec<_> = heard.try_iter().collect();
        assert_eq!(heard.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(heard.iter().all(|(_, thread)| *thread != std::thread::current().id()));
    }

    #[test]
    fn whoever_is_told_may_tell_stop_and_start_again() {
        let teller = Arc::new(Teller::default());
        teller.start().expect("a thread");
        let (told, heard) = mpsc::channel();
        let again = teller.clone();
        teller.tell(
            Box::new(move |_| {
                again.stop();
                again.tell(Box::new(move |_| told.send(()).expect("an open end")), Ok(Finished::default()));
            }),
            Ok(Finished::default()),
        );
        heard.recv().expect("word from the second");
    }
}
