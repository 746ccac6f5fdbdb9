//! Memory of the heap that plays device memory and pinned host memory, registered ranges, copies and fills.
//!
//! Freed memory is filled with [`FREED`] and given back to the heap only when much more has been freed after it.
//! So work that still uses it finds bytes that stand out, or an error of the device, and does not bring down the
//! process.

use std::alloc::Layout;
use std::collections::VecDeque;
use std::ffi::{c_uchar, c_uint};
use std::sync::Mutex;

use crate::context;
use crate::device::MEMORY;
use crate::handles::{Handle, lock};
use crate::physical;
use crate::pointer::{In, Out};
use crate::ranges::{self, Kind, Range};
use crate::status::{
    ALREADY_REGISTERED, ILLEGAL_ADDRESS, INVALID_VALUE, NOT_REGISTERED, OUT_OF_MEMORY, Result, demand,
};
use crate::stream;

/// What fresh memory is filled with.
const FRESH: u8 = 0xCD;
/// What freed memory is filled with.
const FREED: u8 = 0xDD;
/// What every allocation is aligned to.
const ALIGNMENT: usize = 512;
/// Freed bytes that are kept from the heap.
const KEPT: usize = 64 << 20;

/// Freed memory, oldest first, and how much it is.
static KEEP: Mutex<(VecDeque<(usize, Layout)>, usize)> = Mutex::new((VecDeque::new(), 0));

fn layout(bytes: usize) -> Result<Layout> {
    demand(bytes > 0)?;
    Layout::from_size_align(bytes, ALIGNMENT).map_err(|_| INVALID_VALUE)
}

/// Takes memory from the heap. `describe` says what it is.
fn obtain(bytes: usize, describe: impl FnOnce(usize) -> Range) -> Result<u64> {
    let layout = layout(bytes)?;
    // SAFETY: the size is not zero.
    let start = unsafe { std::alloc::alloc(layout) };
    if start.is_null() {
        return Err(OUT_OF_MEMORY);
    }
    // SAFETY: so many bytes were just allocated there.
    unsafe { start.write_bytes(FRESH, bytes) };
    ranges::all().add(start.addr(), describe(bytes));
    Ok(start as u64)
}

/// Gives memory back, if it is of this kind. A range that a stream is going to free is freed by that only.
fn give_back(start: usize, kind: Kind, by_stream: bool) -> Result {
    let mut ranges = ranges::all();
    demand(ranges.get(start, kind).is_some_and(|range| range.ending == by_stream))?;
    let range = ranges.remove(start, kind).ok_or(INVALID_VALUE)?;
    let layout = layout(range.len)?;
    // SAFETY: the range was allocated by `obtain` with this length, and nobody else frees it, since it is not in
    // the list any more. The list is still held, so nobody takes it for valid meanwhile.
    unsafe { (start as *mut u8).write_bytes(FREED, range.len) };
    drop(ranges);
    let mut keep = lock(&KEEP);
    keep.0.push_back((start, layout));
    keep.1 += range.len;
    while keep.1 > KEPT && keep.0.len() > 1 {
        let Some((start, layout)) = keep.0.pop_front() else { break };
        keep.1 -= layout.size();
        // SAFETY: allocated by `obtain` with this layout.
        unsafe { std::alloc::dealloc(start as *mut u8, layout) };
    }
    Ok(())
}

/// Takes memory of the current device.
fn obtain_device(bytes: usize) -> Result<u64> {
    let device = context::current()?;
    let used = ranges::all().used(device) + physical::used(device);
    if bytes > MEMORY - used.min(MEMORY) {
        return Err(OUT_OF_MEMORY);
    }
    obtain(bytes, |len| Range::device(len, device))
}

/// `cuMemGetInfo`
pub(crate) fn info(free: Out<usize>, total: Out<usize>) -> Result {
    let device = context::current()?;
    let used = ranges::all().used(device) + physical::used(device);
    free.put(MEMORY - used.min(MEMORY))?;
    total.put(MEMORY)
}

/// `cuMemAlloc`
pub(crate) fn allocate(address: Out<u64>, bytes: usize) -> Result {
    context::current()?;
    address.put_with(|| obtain_device(bytes))
}

/// `cuMemFree`
pub(crate) fn free(address: u64) -> Result {
    context::current_or_failed()?;
    give_back(address as usize, Kind::Device, false)
}

/// `cuMemAllocAsync`: the address is known at once.
pub(crate) fn allocate_in_stream(address: Out<u64>, bytes: usize, stream: Handle) -> Result {
    let stream = stream::resolve(stream)?;
    stream::same_device(&stream, context::current()?)?;
    address.put_with(|| obtain_device(bytes))
}

/// `cuMemFreeAsync`
pub(crate) fn free_in_stream(address: u64, stream: Handle) -> Result {
    let stream = stream::resolve(stream)?;
    let start = address as usize;
    let mut ranges = ranges::all();
    let range = ranges.get(start, Kind::Device).filter(|range| !range.ending).ok_or(INVALID_VALUE)?;
    range.ending = true;
    stream.always(move || {
        // Nobody else frees a range that is ending, so this can not fail.
        let freed = give_back(start, Kind::Device, true);
        debug_assert_eq!(freed, Ok(()));
    });
    Ok(())
}

/// `cuMemAllocHost`
pub(crate) fn allocate_pinned(address: Out<u64>, bytes: usize) -> Result {
    context::current()?;
    address.put_with(|| obtain(bytes, |len| Range::host(len, Kind::Pinned)))
}

/// `cuMemFreeHost`
pub(crate) fn free_pinned(address: u64) -> Result {
    context::current_or_failed()?;
    give_back(address as usize, Kind::Pinned, false)
}

/// `cuMemHostRegister`
pub(crate) fn register(address: u64, bytes: usize, flags: c_uint) -> Result {
    context::current()?;
    demand(address != 0 && bytes > 0 && flags <= 15)?;
    let start = address as usize;
    let mut ranges = ranges::all();
    if ranges.overlap(start, bytes) {
        return Err(ALREADY_REGISTERED);
    }
    ranges.add(start, Range::host(bytes, Kind::Registered));
    Ok(())
}

/// `cuMemHostUnregister`
pub(crate) fn unregister(address: u64) -> Result {
    context::current_or_failed()?;
    ranges::all().remove(address as usize, Kind::Registered).map(drop).ok_or(NOT_REGISTERED)
}

/// `cuMemHostGetDevicePointer`: the same address.
pub(crate) fn device_pointer(device: Out<u64>, address: u64, flags: c_uint) -> Result {
    context::current()?;
    demand(flags == 0 && ranges::all().is_pinned(address as usize, 1))?;
    device.put(address)
}

/// `cuMemcpyHtoDAsync`. Pageable memory is read before this returns.
pub(crate) fn copy_in(to: u64, from: In<u8>, bytes: usize, stream: Handle) -> Result {
    let stream = stream::resolve(stream)?;
    if bytes == 0 {
        return Ok(());
    }
    demand(!from.is_null())?;
    let (to, from) = (to as usize, from.address());
    check(to, bytes)?;
    if ranges::all().is_pinned(from.addr(), bytes) {
        let from = from.addr();
        stream.effect(move || copy(to, from, bytes));
    } else {
        // SAFETY: the caller vouches for so many bytes until the function returns.
        let staged = unsafe { std::slice::from_raw_parts(from, bytes) }.to_vec();
        stream.effect(move || {
            touch(&[(to, bytes)], || {
                // SAFETY: `touch` has checked the destination.
                unsafe { std::ptr::copy(staged.as_ptr(), to as *mut u8, bytes) }
            })
        });
    }
    Ok(())
}

/// `cuMemcpyDtoHAsync`. Blocks until pageable memory is written.
pub(crate) fn copy_out(to: u64, from: u64, bytes: usize, stream: Handle) -> Result {
    let stream = stream::resolve(stream)?;
    if bytes == 0 {
        return Ok(());
    }
    demand(to != 0)?;
    let (to, from) = (to as usize, from as usize);
    check(from, bytes)?;
    if ranges::all().is_pinned(to, bytes) {
        stream.effect(move || copy(to, from, bytes));
        return Ok(());
    }
    stream.effect(move || {
        touch(&[(from, bytes)], || {
            // SAFETY: `touch` has checked the source; the caller, who waits, vouches for the destination.
            unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) }
        })
    });
    stream.drain()
}

/// `cuMemcpyDtoDAsync`
pub(crate) fn copy_within(to: u64, from: u64, bytes: usize, stream: Handle) -> Result {
    let stream = stream::resolve(stream)?;
    let (to, from) = (to as usize, from as usize);
    check(to, bytes)?;
    check(from, bytes)?;
    stream.effect(move || copy(to, from, bytes));
    Ok(())
}

/// `cuMemsetD8Async`
pub(crate) fn set(to: u64, byte: c_uchar, bytes: usize, stream: Handle) -> Result {
    let stream = stream::resolve(stream)?;
    let to = to as usize;
    check(to, bytes)?;
    stream.effect(move || {
        touch(&[(to, bytes)], || {
            // SAFETY: `touch` has checked the destination.
            unsafe { (to as *mut u8).write_bytes(byte, bytes) }
        })
    });
    Ok(())
}

/// That the driver can copy from or to an address, as far as that is known when it is asked to.
fn check(start: usize, bytes: usize) -> Result {
    demand(ranges::all().reachable(None, start, bytes))
}

/// Copies between two places that the driver knows, when their turn in the stream has come.
fn copy(to: usize, from: usize, bytes: usize) -> Result {
    touch(&[(to, bytes), (from, bytes)], || {
        // SAFETY: `touch` has checked both.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) }
    })
}

/// Does something to memory if it is still there. It is not locked meanwhile: that a host frees what a stream
/// uses shall show, and freed memory stays readable long enough.
fn touch(places: &[(usize, usize)], act: impl FnOnce()) -> Result {
    let ranges = ranges::all();
    if !places.iter().all(|&(start, bytes)| ranges.reachable(None, start, bytes)) {
        return Err(ILLEGAL_ADDRESS);
    }
    drop(ranges);
    act();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::NOT_READY;
    use crate::testing::Desk;

    fn device_memory(bytes: usize) -> u64 {
        let mut address = 0;
        assert_eq!(allocate(Out::to(&mut address), bytes), Ok(()));
        address
    }

    fn read(address: u64) -> u8 {
        // SAFETY: tests ask for live memory, or for such that was freed just now, that no stream is using.
        unsafe { (address as *const u8).read_volatile() }
    }

    #[test]
    fn pageable_memory_is_read_at_once_and_pinned_memory_in_the_stream() {
        let desk = Desk::new();
        let (to, mut pinned) = (device_memory(8), 0);
        assert_eq!(allocate_pinned(Out::to(&mut pinned), 4), Ok(()));
        desk.simulation.pause();
        let mut pageable = [1_u8; 4];
        assert_eq!(copy_in(to, In::from(&pageable[0]), 4, 0), Ok(()));
        assert_eq!(copy_in(to + 4, In::from(pinned as *const u8), 4, 0), Ok(()));
        pageable.fill(2);
        // SAFETY: four bytes were allocated there, which no stream uses before it is resumed.
        unsafe { (pinned as *mut u8).write_bytes(3, 4) };
        assert_eq!(stream::query(0), Err(NOT_READY));
        desk.simulation.resume();
        let mut result = [0_u8; 8];
        assert_eq!(copy_out(result.as_mut_ptr() as u64, to, 8, 0), Ok(()), "blocks, so needs no wait");
        assert_eq!(result, [1, 1, 1, 1, 3, 3, 3, 3]);
        assert_eq!((free(to), free_pinned(pinned)), (Ok(()), Ok(())));
    }

    #[test]
    fn freed_memory_stands_out_and_is_an_error_to_use() {
        let desk = Desk::new();
        let memory = device_memory(64);
        assert_eq!(read(memory), FRESH);
        desk.simulation.pause();
        assert_eq!(set(memory, 1, 64, 0), Ok(()));
        assert_eq!(free(memory), Ok(()));
        assert_eq!(read(memory), FREED);
        assert_eq!((free(memory), set(memory, 1, 1, 0)), (Err(INVALID_VALUE), Err(INVALID_VALUE)));
        desk.simulation.resume();
        assert_eq!(stream::synchronize(0), Err(ILLEGAL_ADDRESS));
        assert_eq!(read(memory), FREED);
    }

    #[test]
    fn memory_freed_in_a_stream_lives_until_the_stream_gets_there() {
        let desk = Desk::new();
        let mut memory = 0;
        assert_eq!(allocate_in_stream(Out::to(&mut memory), 16, 0), Ok(()));
        desk.simulation.pause();
        assert_eq!(set(memory, 7, 16, 0), Ok(()));
        assert_eq!(free_in_stream(memory, 0), Ok(()));
        assert_eq!((free(memory), free_in_stream(memory, 0)), (Err(INVALID_VALUE), Err(INVALID_VALUE)));
        assert_eq!(desk.simulation.live().allocations, 1);
        desk.simulation.resume();
        assert_eq!(stream::synchronize(0), Ok(()));
        assert_eq!(desk.simulation.live().allocations, 0);
    }

    #[test]
    fn what_is_used_is_counted_and_too_much_refused() {
        let desk = Desk::new();
        let free_now = || {
            let mut free = 0;
            assert_eq!(info(Out::to(&mut free), Out::to(&mut 0)), Ok(()));
            free
        };
        let before = free_now();
        let memory = device_memory(1000);
        assert_eq!(before - free_now(), 1000);
        assert_eq!(allocate(Out::to(&mut 0), MEMORY), Err(OUT_OF_MEMORY));
        assert_eq!(allocate(Out::to(&mut 0), 0), Err(INVALID_VALUE));
        desk.on(1, || assert_eq!(free_now(), MEMORY));
        assert_eq!(free(memory), Ok(()));
    }

    #[test]
    fn memory_is_registered_once() {
        let _desk = Desk::new();
        let memory = [0_u8; 100];
        let start = memory.as_ptr() as u64;
        let mut device = 0;
        assert_eq!(device_pointer(Out::to(&mut device), start, 0), Err(INVALID_VALUE));
        assert_eq!(register(start, 100, 2), Ok(()));
        assert_eq!(register(start + 50, 100, 2), Err(ALREADY_REGISTERED));
        assert_eq!(device_pointer(Out::to(&mut device), start + 99, 0), Ok(()));
        assert_eq!(device, start + 99);
        assert_eq!((unregister(start), unregister(start)), (Ok(()), Err(NOT_REGISTERED)));
    }
}
