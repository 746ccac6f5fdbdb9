//! A mark that says "ring my bell": how a rank that goes to sleep is woken, and one that is awake costs nobody a
//! system call.
//!
//! The sleeper sets its mark and then looks once more; the other side publishes what it has and then looks at the
//! mark. With a sequentially consistent fence between the two steps on both sides, at least one of them sees the
//! other. Whoever finds the mark set takes it away and rings, so that of many writers only one rings; the sleeper sets
//! it anew before it sleeps again. Checked with loom below.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// See the module's text. Zeroed memory is a mark that is not set.
#[repr(C)]
pub(super) struct Mark {
    word: AtomicU32,
}

impl Mark {
    /// Asks for a ring. Whoever asks must look afterwards, before it sleeps.
    pub(super) fn set(&self) {
        self.word.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Asks for no ring any more.
    pub(super) fn clear(&self) {
        self.word.store(0, Ordering::Relaxed);
    }

    /// Whether the caller must ring. To be asked after publishing.
    pub(super) fn take(&self) -> bool {
        fence(Ordering::SeqCst);
        self.word.load(Ordering::Relaxed) != 0 && self.word.swap(0, Ordering::Relaxed) != 0
    }
}

#[cfg(test)]
impl Mark {
    pub(super) fn unset() -> Mark {
        Mark { word: AtomicU32::new(0) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_taken_once() {
        let mark = Mark::unset();
        assert!(!mark.take());
        mark.set();
        assert!(mark.take());
        assert!(!mark.take());
        mark.set();
        mark.clear();
        assert!(!mark.take());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    /// An event descriptor: a count that a sleeper waits for and consumes.
    struct Bell(Mutex<u32>, Condvar);

    impl Bell {
        fn ring(&self) {
            *self.0.lock().expect("model lock") += 1;
            self.1.notify_all();
        }

        fn sleep(&self) {
            let mut count = self.0.lock().expect("model lock");
            while *count == 0 {
                count = self.1.wait(count).expect("model lock");
            }
            *count = 0;
        }
    }

    struct Place {
        mark: Mark,
        bell: Bell,
        published: [AtomicU32; 2],
    }

    /// One reader that sleeps until every writer's word has come; a lost wake-up is a deadlock, which loom reports.
    fn all_arrive(writers: usize) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let place = Arc::new(Place {
                mark: Mark::unset(),
                bell: Bell(Mutex::new(0), Condvar::new()),
                published: [AtomicU32::new(0), AtomicU32::new(0)],
            });
            let threads: Vec<_> = (0..writers)
                .map(|writer| {
                    let place = place.clone();
                    thread::spawn(move || {
                        place.published[writer].store(1, Ordering::Release);
                        if place.mark.take() {
                            place.bell.ring();
                        }
                    })
                })
                .collect();
            let come = || place.published[..writers].iter().all(|word| word.load(Ordering::Acquire) == 1);
            loop {
                place.mark.set();
                if come() {
                    break;
                }
                place.bell.sleep();
            }
            for thread in threads {
                thread.join().expect("no panic");
            }
        });
    }

    #[test]
    fn loom_a_frame_is_seen_or_its_writer_rings() {
        all_arrive(1);
    }

    #[test]
    fn loom_a_ring_of_one_writer_does_not_hide_the_frame_of_another() {
        all_arrive(2);
    }
}
