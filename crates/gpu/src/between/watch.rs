//! Looks after communicators whose work is on the device: an error there (a link, another rank) would otherwise leave a stream
//! waiting for ever.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use ronde_engine::Error;
use ronde_nccl::Communicator;
use ronde_settings::Level;

/// How often NCCL is asked.
const LOOK: Duration = Duration::from_millis(200);

/// See the module's text. Dropping it ends the thread.
pub(crate) struct Watch {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(crate) fn start<'a>(
        communicators: impl Iterator<Item = &'a Arc<Communicator>>,
    ) -> Result<Watch, Error> {
        let mut watched: Vec<Weak<Communicator>> = communicators.map(Arc::downgrade).collect();
        let (stop, stopped) = channel();
        let look = move || {
            while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                watched.retain(|communicator| {
                    let Some(communicator) = communicator.upgrade() else { return false };
                    // A communicator that failed has been given up, which ends its work on the device; the next operation says why.
                    communicator
                        .health()
                        .inspect_err(|error| ronde_settings::log(Level::Error, error))
                        .is_ok()
                });
            }
        };
        let thread = std::thread::Builder::new()
            .name("ronde-nccl".into())
            .spawn(look)
            .map_err(|error| Error::ShutDown(format!("starting a thread: {error}")))?;
        Ok(Watch { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so on standard error.
            let _ = thread.join();
        }
    }
}
