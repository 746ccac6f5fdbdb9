//! Asking another program: what it prints, within a time limit.
//!
//! Its exit status is not looked at, because an agent collects the ends of all children of its process; what was printed
//! says enough.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// How long another program may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a program prints, if it can be started and ends in time.
pub(crate) fn said(command: &mut Command) -> Option<String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let mut stdout = child.stdout.take()?;
    let (sender, text) = channel();
    // A thread, because a read cannot be given a time limit; it ends when the program's output does.
    thread::spawn(move || {
        let mut text = String::new();
        let _ = sender.send(stdout.read_to_string(&mut text).is_ok().then_some(text));
    });
    let text = text.recv_timeout(PATIENCE).ok().flatten();
    if text.is_none() {
        let _ = child.kill();
    }
    // Somebody else may have collected it.
    let _ = child.wait();
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_prints_is_heard_and_one_that_is_not_there_says_nothing() {
        assert_eq!(said(Command::new("echo").arg("two GPUs")).as_deref(), Some("two GPUs\n"));
        assert_eq!(said(&mut Command::new("/no/such/program")), None);
    }
}
