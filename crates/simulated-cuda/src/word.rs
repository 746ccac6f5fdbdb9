//! Words in memory that streams wait for and write: how ranks order their work without the host.

use std::ffi::c_uint;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::context::Device;
use crate::handles::Handle;
use crate::ranges;
use crate::status::{ILLEGAL_ADDRESS, Result, demand};
use crate::stream;

/// When a wait is over.
#[derive(Clone, Copy)]
enum Until {
    /// The word has come to a value, counted in a circle.
    Reached,
    /// The word is that value.
    Equal,
    /// They have a bit in common.
    Common,
    /// There is a bit that neither has.
    Neither,
}

/// `CU_STREAM_WAIT_VALUE_FLUSH`: all writes are seen here anyway.
const FLUSH: c_uint = 1 << 30;
/// How long a stream sleeps between two looks at a word.
const LOOK: Duration = Duration::from_micros(20);

impl Until {
    fn from_flags(flags: c_uint) -> Option<Until> {
        [Until::Reached, Until::Equal, Until::Common, Until::Neither].get((flags & !FLUSH) as usize).copied()
    }

    fn over(self, word: u32, value: u32) -> bool {
        match self {
            Until::Reached => word.wrapping_sub(value).cast_signed() >= 0,
            Until::Equal => word == value,
            Until::Common => word & value != 0,
            Until::Neither => !(word | value) != 0,
        }
    }
}

/// Does something to the word at an address that is the driver's. It stays so meanwhile.
fn touch<T>(device: &Device, address: usize, act: impl FnOnce(&AtomicU32) -> T) -> Result<T> {
    let ranges = ranges::all();
    if !ranges.reachable(Some(device), address, 4) {
        return Err(ILLEGAL_ADDRESS);
    }
    // SAFETY: callers have checked the alignment; the word is memory of the driver or registered with it, which
    // does not end while `ranges` is held; others use it as an atomic too, or after an event.
    Ok(act(unsafe { AtomicU32::from_ptr(address as *mut u32) }))
}

/// `cuStreamWaitValue32`
pub(crate) fn wait(stream: Handle, address: u64, value: u32, flags: c_uint) -> Result {
    let stream = stream::resolve_anywhere(stream)?;
    let (device, address) = (stream.device, address as usize);
    let until = Until::from_flags(flags);
    demand(
        until.is_some() && address.is_multiple_of(4) && ranges::all().reachable(Some(device), address, 4),
    )?;
    let over = move |word: u32| until.is_some_and(|until| until.over(word, value));
    stream.effect(move || {
        while !touch(device, address, |word| over(word.load(Ordering::Acquire)))? {
            device.check()?;
            std::thread::sleep(LOOK); // sleep: between two looks
        }
        Ok(())
    });
    Ok(())
}

/// `cuStreamWriteValue32`
pub(crate) fn write(stream: Handle, address: u64, value: u32, flags: c_uint) -> Result {
    let stream = stream::resolve_anywhere(stream)?;
    let (device, address) = (stream.device, address as usize);
    demand(flags <= 1 && address.is_multiple_of(4) && ranges::all().reachable(Some(device), address, 4))?;
    stream.effect(move || touch(device, address, |word| word.store(value, Ordering::Release)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory;
    use crate::status::{INVALID_VALUE, NOT_READY};
    use crate::testing::Desk;

    #[test]
    fn a_wait_is_over_by_the_rule_it_was_given() {
        assert!(Until::Reached.over(7, 7) && Until::Reached.over(8, 7) && !Until::Reached.over(6, 7));
        assert!(Until::Reached.over(3, u32::MAX) && !Until::Reached.over(u32::MAX, 3));
        assert!(Until::Equal.over(7, 7) && !Until::Equal.over(8, 7));
        assert!(Until::Common.over(6, 2) && !Until::Common.over(5, 2));
        assert!(Until::Neither.over(6, 2) && !Until::Neither.over(!1, 1));
    }

    #[test]
    fn a_host_store_and_another_stream_release_a_wait() {
        let desk = Desk::new();
        let words = Box::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let [first, second] = [0, 4].map(|at| words.as_ptr() as u64 + at);
        assert_eq!(wait(0, first, 1, 0), Err(INVALID_VALUE), "not registered");
        assert_eq!(memory::register(first, 8, 3), Ok(()));
        let streams = [desk.stream(), desk.stream()];
        assert_eq!(wait(streams[0], first, 5, 0), Ok(()));
        assert_eq!(write(streams[0], second, 1, 0), Ok(()));
        assert_eq!(wait(streams[1], second, 1, 1 | FLUSH), Ok(()));
        assert_eq!(wait(streams[1], second + 1, 1, 1), Err(INVALID_VALUE));
        assert_eq!(wait(streams[1], second, 1, 4), Err(INVALID_VALUE));
        words[0].store(4, Ordering::Release);
        assert_eq!(streams.map(stream::query), [Err(NOT_READY); 2]);
        words[0].store(6, Ordering::Release);
        assert_eq!(stream::synchronize(streams[1]), Ok(()));
        assert_eq!(words[1].load(Ordering::Acquire), 1);
        desk.free_streams(&streams);
        assert_eq!(memory::unregister(first), Ok(()));
    }

    #[test]
    fn a_wait_for_memory_that_is_taken_away_ends_in_an_error() {
        let desk = Desk::new();
        let word = Box::new(AtomicU32::new(0));
        let address = word.as_ptr() as u64;
        assert_eq!(memory::register(address, 4, 0), Ok(()));
        let stream = desk.stream();
        assert_eq!(wait(stream, address, 1, 0), Ok(()));
        assert_eq!(memory::unregister(address), Ok(()));
        assert_eq!(stream::synchronize(stream), Err(ILLEGAL_ADDRESS));
        desk.free_streams(&[stream]);
    }
}
