//! A counter in shared memory on which ranks of one host wait for each other.
//!
//! The owner counts steps up with [`Signal::post`]; others wait until a step is reached. Waiting first
//! spins for a bounded time (the caller's part), then sleeps in the kernel (a non-private futex, since waiters
//! are other processes), so an idle rank costs no core. Everything is in one word:
//!
//! * bit 0, poison: nobody will post again, nobody may sleep here again;
//! * bit 1, sleepers: somebody sleeps or is about to, so the next post must wake;
//! * the other bits count steps and wrap.
//!
//! Because a sleeper hands the kernel the very word it last saw, marks included, anything that happens between that
//! look and falling asleep changes the word and keeps it awake: no wake-up can be lost. Checked with loom below.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering};

const POISON: u32 = 1;
const SLEEPERS: u32 = 2;
const STEP: u32 = 4;

/// What a look at a signal says about a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// The step was reached.
    Reached,
    /// Not yet.
    Pending,
    /// It was not reached and never will be.
    Poisoned,
}

/// See the module's text. Zeroed memory is a valid signal at step 0.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Signal {
    word: AtomicU32,
}

/// How a sleeper is stopped early.
pub(crate) trait Patience {
    /// Called after each wake-up that did not bring the step; an error ends the wait.
    fn still(&self) -> crate::Result<()>;
}

impl Signal {
    /// Counts `steps` further and wakes whoever sleeps. What was written before is visible to those who see it.
    pub(crate) fn post(&self, steps: u32) {
        let before = self.word.fetch_add(steps.wrapping_mul(STEP), Ordering::AcqRel);
        if before & SLEEPERS != 0 {
            self.word.fetch_and(!SLEEPERS, Ordering::AcqRel);
            futex::wake_all(&self.word);
        }
    }

    /// Marks that no further step will come.
    pub(crate) fn poison(&self) {
        self.word.fetch_or(POISON, Ordering::AcqRel);
        futex::wake_all(&self.word);
    }

    /// Whether step `target` was reached. A reached step counts even on a poisoned signal:
    /// what was published may still be read.
    #[inline]
    pub(crate) fn look(&self, target: u32) -> Look {
        Self::judge(self.word.load(Ordering::Acquire), target)
    }

    #[inline]
    fn judge(word: u32, target: u32) -> Look {
        let ahead = (word & !(POISON | SLEEPERS)).wrapping_sub(target.wrapping_mul(STEP)).cast_signed();
        if ahead >= 0 {
            Look::Reached
        } else if word & POISON != 0 {
            Look::Poisoned
        } else {
            Look::Pending
        }
    }

    /// Sleeps until step `target` is reached or the signal is poisoned.
    pub(crate) fn sleep(&self, target: u32, patience: &dyn Patience) -> crate::Result<Look> {
        loop {
            let word = self.word.load(Ordering::Acquire);
            let look = Self::judge(word, target);
            if look != Look::Pending {
                return Ok(look);
            }
            let announced = word | SLEEPERS;
            let unchanged = word == announced
                || self.word.compare_exchange(word, announced, Ordering::AcqRel, Ordering::Acquire).is_ok();
            if unchanged {
                futex::wait(&self.word, announced);
                if self.look(target) == Look::Pending {
                    patience.still()?;
                }
            }
        }
    }
}

#[cfg(not(loom))]
mod futex {
    //! The kernel's futex, shared between processes. A wait also ends by itself now and then, so that
    //! a pending Ctrl-C is answered even if its signal went to another thread.
    use std::sync::atomic::AtomicU32;

    use rustix::thread::futex::{Flags, Timespec, wait as sys_wait, wake as sys_wake};

    const LONGEST: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

    pub(super) fn wait(word: &AtomicU32, seen: u32) {
        // Every outcome (woken, changed before sleeping, signal, time) means the same: look again.
        let _ = sys_wait(word, Flags::empty(), seen, Some(&LONGEST));
    }

    pub(super) fn wake_all(word: &AtomicU32) {
        // Waking fails only for a bad address, which a live reference is not.
        let _ = sys_wake(word, Flags::empty(), u32::MAX >> 1);
    }
}

#[cfg(loom)]
mod futex {
    //! A model of the futex for loom: comparing and falling asleep is one step under a lock.
    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::sync::{Condvar, Mutex};

    loom::lazy_static! {
        static ref BED: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
    }

    pub(super) fn wait(word: &AtomicU32, seen: u32) {
        let held = BED.0.lock().expect("model lock");
        if word.load(Ordering::Acquire) == seen {
            drop(BED.1.wait(held).expect("model lock"));
        }
    }

    pub(super) fn wake_all(_word: &AtomicU32) {
        let _held = BED.0.lock().expect("model lock");
        BED.1.notify_all();
    }
}

#[cfg(test)]
impl Signal {
    pub(crate) fn at(step: u32) -> Signal {
        Signal { word: AtomicU32::new(step.wrapping_mul(STEP)) }
    }
}

#[cfg(test)]
struct Endless;
#[cfg(test)]
impl Patience for Endless {
    fn still(&self) -> crate::Result<()> {
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn steps_are_reached_in_order_and_wrap_around() {
        let signal = Signal::at(u32::MAX / STEP - 1);
        let next = u32::MAX / STEP;
        assert_eq!(signal.look(next), Look::Pending);
        signal.post(1);
        assert_eq!(signal.look(next), Look::Reached);
        assert_eq!(signal.look(next.wrapping_add(1)), Look::Pending);
        signal.post(1);
        assert_eq!(signal.look(next.wrapping_add(1)), Look::Reached);
    }

    #[test]
    fn poison_ends_waiting_but_keeps_what_was_reached() {
        let signal = Signal::at(3);
        signal.poison();
        assert_eq!(signal.look(3), Look::Reached);
        assert_eq!(signal.look(4), Look::Poisoned);
        signal.post(1);
        assert_eq!(signal.look(4), Look::Reached);
        assert_eq!(signal.look(5), Look::Poisoned);
    }

    #[test]
    fn a_sleeper_in_another_thread_is_woken() {
        let signal = Signal::at(0);
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| signal.sleep(2, &Endless));
            signal.post(1);
            signal.post(1);
            assert_eq!(sleeper.join().expect("no panic").expect("no interrupt"), Look::Reached);
        });
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// All interleavings with up to three preemptions: a lost wake-up needs two.
    fn model(scenario: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(scenario);
    }

    #[test]
    fn loom_no_wake_up_is_lost_between_post_and_sleep() {
        model(|| {
            let signal = Arc::new(Signal::at(0));
            let poster = {
                let signal = signal.clone();
                thread::spawn(move || signal.post(1))
            };
            assert_eq!(signal.sleep(1, &Endless).expect("no interrupt"), Look::Reached);
            poster.join().expect("no panic");
        });
    }

    #[test]
    fn loom_two_sleepers_are_both_woken() {
        model(|| {
            let signal = Arc::new(Signal::at(0));
            let other = {
                let signal = signal.clone();
                thread::spawn(move || signal.sleep(1, &Endless).expect("no interrupt"))
            };
            signal.post(1);
            assert_eq!(other.join().expect("no panic"), Look::Reached);
            assert_eq!(signal.sleep(1, &Endless).expect("no interrupt"), Look::Reached);
        });
    }

    #[test]
    fn loom_poison_reaches_a_sleeper_and_survives_a_post() {
        model(|| {
            let signal = Arc::new(Signal::at(0));
            let watcher = {
                let signal = signal.clone();
                thread::spawn(move || signal.poison())
            };
            let poster = {
                let signal = signal.clone();
                thread::spawn(move || signal.post(1))
            };
            assert_eq!(signal.sleep(2, &Endless).expect("no interrupt"), Look::Poisoned);
            watcher.join().expect("no panic");
            poster.join().expect("no panic");
        });
    }

    #[test]
    fn loom_what_was_written_before_a_post_is_seen_after_it() {
        model(|| {
            let shared = Arc::new((Signal::at(0), loom::cell::UnsafeCell::new(0u32)));
            let writer = {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.1.with_mut(|cell| {
                        // SAFETY: the reader looks only after the post below; loom checks exactly that.
                        unsafe { *cell = 7 }
                    });
                    shared.0.post(1);
                })
            };
            assert_eq!(shared.0.sleep(1, &Endless).expect("no interrupt"), Look::Reached);
            // SAFETY: the step was reached, so the writer is done with the cell.
            assert_eq!(shared.1.with(|cell| unsafe { *cell }), 7);
            writer.join().expect("no panic");
        });
    }
}
