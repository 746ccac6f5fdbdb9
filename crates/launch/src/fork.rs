//! The one place where a process becomes two.

use std::io;

use rustix::process::Pid;

/// Which of the two this is.
pub(crate) enum Forked {
    /// The process that was there before, and its new child.
    Parent(Pid),
    /// The new one.
    Child,
}

/// Forks. Refuses where a second thread exists, which could hold locks that the child would then
/// wait for in vain.
pub(crate) fn fork() -> io::Result<Forked> {
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        return Err(io::Error::other(format!("{threads} threads are running")));
    }
    // SAFETY: this is the only thread, as was just checked, so the child finds every lock free
    // and may go on like any process.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        _ => match Pid::from_raw(pid) {
            Some(pid) => Ok(Forked::Parent(pid)),
            None => Err(io::Error::other("fork gave no process id")),
        },
    }
}
