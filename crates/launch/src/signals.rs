//! Signals as something to poll for.
//!
//! Every signal gets a pipe of its own that its handler writes to. Handlers, unlike blocked
//! signals, are not inherited by the programs that ranks run. A signal that was ignored when we started stays
//! so: that is how `nohup` keeps a job running when its terminal goes away.

use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::Error;

/// The signals a process listens to.
pub struct Signals(Vec<(i32, OwnedFd)>);

impl Signals {
    /// Starts listening; the signals lose their usual effect. Those that whoever started us wants ignored are
    /// left alone, except for the news of a child's end, without which nothing works.
    pub fn listen(signals: &[i32]) -> Result<Signals, Error> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let wanted = signals.iter().filter(|&&s| s == libc::SIGCHLD || !is_ignored(&status, s));
        let listen = |&signal: &i32| {
            let (read, write) =
                pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(Error::system("make a pipe"))?;
            signal_hook::low_level::pipe::register(signal, write)
                .map_err(Error::system("listen to signals"))?;
            Ok((signal, read))
        };
        wanted.map(listen).collect::<Result<_, Error>>().map(Signals)
    }

    /// What to poll on.
    pub fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.0.iter().map(|(_, pipe)| PollFd::new(pipe, PollFlags::IN))
    }

    /// The signals that came since the last call, each once.
    pub fn take(&self) -> Vec<i32> {
        let came = |pipe: &OwnedFd| matches!(rustix::io::read(pipe, &mut [0; 64]), Ok(1..));
        let signals = self.0.iter().filter(|(_, pipe)| came(pipe));
        signals.map(|(signal, _)| *signal).collect()
    }
}

/// Whether a process ignores a signal, by its `/proc` status.
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// What [`watch`] tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// A signal came, directly or through the guardian.
    Signal(i32),
    /// The guardian is gone, however it went.
    GuardianGone,
}

/// Listens to signals and to the guardian, who passes on the ones it got, on a thread of its own. Ends when `tell` says
/// that nobody listens.
pub(crate) fn watch(
    signals: &[i32],
    guardian: OwnedFd,
    mut tell: impl FnMut(News) -> bool + Send + 'static,
) -> Result<(), Error> {
    let signals = Signals::listen(signals)?;
    let listen = move || {
        loop {
            let mut waits = vec![PollFd::new(&guardian, PollFlags::IN)];
            waits.extend(signals.poll_fds());
            // Interrupted or not, everything is looked at again.
            let _ = poll(&mut waits, None);
            let from_guardian = !waits[0].revents().is_empty();
            let mut news: Vec<News> = signals.take().into_iter().map(News::Signal).collect();
            if from_guardian {
                let mut bytes = [0; 64];
                match rustix::io::read(&guardian, &mut bytes) {
                    Ok(0) => {
                        tell(News::GuardianGone);
                        return;
                    }
                    Ok(length) => {
                        news.extend(bytes[..length].iter().map(|&signal| News::Signal(signal.into())))
                    }
                    Err(_) => {}
                }
            }
            if !news.into_iter().all(&mut tell) {
                return;
            }
        }
    };
    thread::Builder::new()
        .name("ronde-signals".to_owned())
        .spawn(listen)
        .map(drop)
        .map_err(Error::system("start a thread"))
}

#[cfg(test)]
mod tests {
    use super::is_ignored;

    #[test]
    fn ignored_signals_are_read_from_the_mask() {
        let status = "Name:\tronde\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        for (signal, ignored) in [(libc::SIGHUP, true), (libc::SIGPIPE, true), (libc::SIGINT, false)] {
            assert_eq!(is_ignored(status, signal), ignored, "signal {signal}");
        }
        assert!(!is_ignored("", libc::SIGHUP));
    }
}
