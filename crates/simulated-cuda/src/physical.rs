//! Physical memory apart from addresses: made, exported, imported, and mapped where somebody has reserved room.
//!
//! A piece of it is a `memfd`. Its descriptor is what is exported, so any process that gets one can map the
//! same bytes.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use crate::context::Device;
use crate::device;
use crate::device::MEMORY;
use crate::handles::{Handle, Table, lock};
use crate::pointer::{In, Out};
use crate::ranges::{self, Kind, Range};
use crate::status::{INVALID_VALUE, NOT_SUPPORTED, OPERATING_SYSTEM, OUT_OF_MEMORY, Result, demand};

/// `CUmemLocation`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Location {
    kind: c_uint,
    id: c_int,
}

impl Location {
    /// The device that it is on.
    pub(crate) fn device(self) -> Result<usize> {
        demand(self.kind == DEVICE)?;
        device::index(self.id)
    }

    #[cfg(test)]
    pub(crate) fn of_device(id: c_int) -> Location {
        Location { kind: DEVICE, id }
    }
}

/// `CUmemAllocationProp`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Properties {
    kind: c_uint,
    handles: c_uint,
    location: Location,
    windows: *const c_void,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Access {
    location: Location,
    flags: c_uint,
}

struct Physical {
    descriptor: OwnedFd,
    len: usize,
    /// The device on which it is counted; imported memory is counted where it was made.
    home: Option<usize>,
    exportable: bool,
}

/// Room for addresses: how much was asked for, and the mapping that holds it.
struct Reservation {
    len: usize,
    base: usize,
    whole: usize,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`, `CU_MEM_ALLOCATION_TYPE_PINNED` and `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`
const DEVICE: c_uint = 1;
const PINNED: c_uint = 1;
const DESCRIPTOR: c_uint = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
const READ_WRITE: c_uint = 3;
/// What sizes, offsets and addresses are multiples of.
const GRANULARITY: usize = 2 << 20;

static PHYSICAL: Table<Physical> = Table::new(0xA);
static RESERVED: Mutex<BTreeMap<usize, Reservation>> = Mutex::new(BTreeMap::new());

/// How many handles of physical memory there are.
pub(crate) fn count() -> usize {
    PHYSICAL.count()
}

/// How many reservations there are.
pub(crate) fn reservations() -> usize {
    lock(&RESERVED).len()
}

/// Bytes of physical memory that were made on a device.
pub(crate) fn used(device: &Device) -> usize {
    PHYSICAL.sum(|physical| if physical.home == Some(device.index) { physical.len } else { 0 })
}

fn is_whole(bytes: usize) -> bool {
    bytes.is_multiple_of(GRANULARITY)
}

/// The device that properties name, if they are such as can be served.
fn home(of: &In<Properties>) -> Result<usize> {
    let of = of.get(0)?;
    demand(of.kind == PINNED)?;
    if of.handles & !DESCRIPTOR != 0 {
        return Err(NOT_SUPPORTED);
    }
    of.location.device()
}

/// `cuMemGetAllocationGranularity`
pub(crate) fn granularity(bytes: Out<usize>, of: In<Properties>, option: c_uint) -> Result {
    home(&of)?;
    demand(option <= 1)?;
    bytes.put(GRANULARITY)
}

/// `cuMemCreate`
pub(crate) fn create(handle: Out<Handle>, bytes: usize, of: In<Properties>, flags: c_ulonglong) -> Result {
    let home = home(&of)?;
    demand(bytes > 0 && is_whole(bytes) && flags == 0)?;
    if bytes > MEMORY {
        return Err(OUT_OF_MEMORY);
    }
    handle.put_with(|| {
        let descriptor = rustix::fs::memfd_create("simulated-cuda", MemfdFlags::CLOEXEC);
        let descriptor = descriptor.map_err(|_| OUT_OF_MEMORY)?;
        rustix::fs::ftruncate(&descriptor, bytes as u64).map_err(|_| OUT_OF_MEMORY)?;
        let exportable = of.get(0)?.handles == DESCRIPTOR;
        Ok(PHYSICAL.add(Arc::new(Physical { descriptor, len: bytes, home: Some(home), exportable })))
    })
}

/// `cuMemRelease`: what is mapped stays so.
pub(crate) fn release(handle: Handle) -> Result {
    PHYSICAL.take(handle).map(drop)
}

/// `cuMemExportToShareableHandle`: a descriptor, which the caller closes.
pub(crate) fn export(to: Out<c_int>, handle: Handle, kind: c_uint, flags: c_ulonglong) -> Result {
    let physical = PHYSICAL.get(handle)?;
    demand(kind == DESCRIPTOR && flags == 0 && physical.exportable)?;
    to.put_with(|| Ok(physical.descriptor.try_clone().map_err(|_| OPERATING_SYSTEM)?.into_raw_fd()))
}

/// `cuMemImportFromShareableHandle`: the descriptor stays the caller's.
pub(crate) fn import(handle: Out<Handle>, from: Handle, kind: c_uint) -> Result {
    demand(kind == DESCRIPTOR)?;
    let descriptor = c_int::try_from(from).map_err(|_| INVALID_VALUE)?;
    demand(descriptor >= 0)?;
    // SAFETY: not -1. The caller vouches for an open descriptor; one that is not fails to be duplicated.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let descriptor = descriptor.try_clone_to_owned().map_err(|_| INVALID_VALUE)?;
    let len = rustix::fs::fstat(&descriptor).map_err(|_| INVALID_VALUE)?.st_size;
    let len = usize::try_from(len).map_err(|_| INVALID_VALUE)?;
    demand(len > 0 && is_whole(len))?;
    handle.put_with(|| Ok(PHYSICAL.add(Arc::new(Physical { descriptor, len, home: None, exportable: true }))))
}

/// `cuMemAddressReserve`. CUDA need not follow a wish, so none is followed.
pub(crate) fn reserve(
    address: Out<u64>,
    bytes: usize,
    alignment: usize,
    _wish: u64,
    flags: c_ulonglong,
) -> Result {
    demand(bytes > 0 && is_whole(bytes) && flags == 0)?;
    demand(alignment == 0 || alignment.is_power_of_two())?;
    let alignment = alignment.max(GRANULARITY);
    let whole = bytes.checked_add(alignment).ok_or(OUT_OF_MEMORY)?;
    address.put_with(|| {
        let base = vacate(None, whole)?;
        let start = base.next_multiple_of(alignment);
        lock(&RESERVED).insert(start, Reservation { len: bytes, base, whole });
        Ok(start as u64)
    })
}

/// Maps nothing at an address, or at a free place, so that nobody else gets it.
fn vacate(at: Option<usize>, bytes: usize) -> Result<usize> {
    let place = if at.is_some() { MapFlags::FIXED } else { MapFlags::empty() };
    let start = std::ptr::without_provenance_mut(at.unwrap_or(0));
    // SAFETY: a free place aliases nothing; an address that is given lies in a reservation, over a mapping that
    // its owner has given up.
    unsafe {
        rustix::mm::mmap_anonymous(
            start,
            bytes,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE | place,
        )
    }
    .map(<*mut c_void>::addr)
    .map_err(|_| OUT_OF_MEMORY)
}

/// `cuMemAddressFree`
pub(crate) fn unreserve(address: u64, bytes: usize) -> Result {
    let start = address as usize;
    let mut reserved = lock(&RESERVED);
    let reservation =
        reserved.get(&start).filter(|reservation| reservation.len == bytes).ok_or(INVALID_VALUE)?;
    demand(!ranges::all().overlap(start, bytes))?;
    // SAFETY: the mapping is the reservation's, and nothing is mapped into it any more.
    unsafe { rustix::mm::munmap(std::ptr::without_provenance_mut(reservation.base), reservation.whole) }
        .map_err(|_| OPERATING_SYSTEM)?;
    reserved.remove(&start);
    Ok(())
}

/// `cuMemMap`
pub(crate) fn map(address: u64, bytes: usize, offset: usize, handle: Handle, flags: c_ulonglong) -> Result {
    let physical = PHYSICAL.get(handle)?;
    let start = address as usize;
    demand(bytes > 0 && [bytes, offset, start].into_iter().all(is_whole) && flags == 0)?;
    demand(offset.checked_add(bytes).is_some_and(|end| end <= physical.len))?;
    let reserved = lock(&RESERVED);
    let (at, room) = reserved.range(..=start).next_back().ok_or(INVALID_VALUE)?;
    demand(bytes <= room.len && start - at <= room.len - bytes)?;
    let mut ranges = ranges::all();
    demand(!ranges.overlap(start, bytes))?;
    let place = std::ptr::without_provenance_mut(start);
    let how = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: the addresses are reserved, and the check above says that nothing is mapped there.
    unsafe { rustix::mm::mmap(place, bytes, ProtFlags::empty(), how, &physical.descriptor, offset as u64) }
        .map_err(|_| OUT_OF_MEMORY)?;
    ranges.add(start, Range::mapped(bytes));
    Ok(())
}

/// `cuMemUnmap`: one or more whole mappings.
pub(crate) fn unmap(address: u64, bytes: usize) -> Result {
    let start = address as usize;
    let mut ranges = ranges::all();
    let mappings = ranges.mapped(start, bytes).ok_or(INVALID_VALUE)?;
    vacate(Some(start), bytes)?;
    for mapping in mappings {
        ranges.remove(mapping, Kind::Mapped);
    }
    Ok(())
}

/// `cuMemSetAccess`: none or all; read-only memory is not simulated.
pub(crate) fn set_access(address: u64, bytes: usize, access: In<Access>, count: usize) -> Result {
    let start = address as usize;
    demand(count > 0)?;
    let mut ranges = ranges::all();
    let mappings = ranges.mapped(start, bytes).ok_or(INVALID_VALUE)?;
    for at in 0..count {
        let access = access.get(at)?;
        demand(access.location.kind == DEVICE)?;
        let device = 1_u64 << device::index(access.location.id)?;
        if access.flags != 0 && access.flags != READ_WRITE {
            return Err(NOT_SUPPORTED);
        }
        for mapping in &mappings {
            let range = ranges.get(*mapping, Kind::Mapped).ok_or(INVALID_VALUE)?;
            range.devices = if access.flags == 0 { range.devices & !device } else { range.devices | device };
        }
    }
    for mapping in mappings {
        let range = *ranges.get(mapping, Kind::Mapped).ok_or(INVALID_VALUE)?;
        let open = MprotectFlags::READ | MprotectFlags::WRITE;
        let allowed = if range.devices == 0 { MprotectFlags::empty() } else { open };
        // SAFETY: the addresses are a mapping of the driver's, whose users are the devices named in it.
        unsafe { rustix::mm::mprotect(std::ptr::without_provenance_mut(mapping), range.len, allowed) }
            .map_err(|_| OPERATING_SYSTEM)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{ILLEGAL_ADDRESS, INVALID_HANDLE};
    use crate::testing::Desk;
    use crate::{memory, stream};
    use std::os::fd::{AsRawFd, FromRawFd};
    use std::process::Command;

    const SIZE: usize = 2 * GRANULARITY;

    fn properties(handles: c_uint) -> Properties {
        let location = Location { kind: DEVICE, id: 0 };
        Properties { kind: PINNED, handles, location, windows: std::ptr::null(), flags: [0; 8] }
    }

    fn made() -> Handle {
        let mut handle = 0;
        assert_eq!(create(Out::to(&mut handle), SIZE, In::from(&properties(DESCRIPTOR)), 0), Ok(()));
        handle
    }

    fn exported(handle: Handle) -> OwnedFd {
        let mut descriptor = -1;
        assert_eq!(export(Out::to(&mut descriptor), handle, DESCRIPTOR, 0), Ok(()));
        // SAFETY: the function gave a descriptor that is the caller's.
        unsafe { OwnedFd::from_raw_fd(descriptor) }
    }

    fn imported(descriptor: &OwnedFd) -> Handle {
        let mut handle = 0;
        assert_eq!(import(Out::to(&mut handle), descriptor.as_raw_fd() as usize, DESCRIPTOR), Ok(()));
        handle
    }

    fn allow(address: u64, device: c_int) -> Result {
        let access = Access { location: Location { kind: DEVICE, id: device }, flags: READ_WRITE };
        set_access(address, SIZE, In::from(&access), 1)
    }

    /// Maps a piece at addresses of its own, for device 0.
    fn mapped(handle: Handle) -> u64 {
        let mut address = 0;
        assert_eq!(reserve(Out::to(&mut address), SIZE, 0, 0, 0), Ok(()));
        assert_eq!(map(address, SIZE, 0, handle, 0), Ok(()));
        assert_eq!(allow(address, 0), Ok(()));
        address
    }

    fn unmapped(address: u64) {
        assert_eq!((unmap(address, SIZE), unreserve(address, SIZE)), (Ok(()), Ok(())));
    }

    fn peek(address: u64) -> u8 {
        // SAFETY: tests ask for mapped memory that no stream is using.
        unsafe { (address as *const u8).read_volatile() }
    }

    #[test]
    fn what_is_exported_and_imported_are_the_same_bytes() {
        let _desk = Desk::new();
        let original = made();
        let descriptor = exported(original);
        let second = imported(&descriptor);
        let [one, other] = [mapped(original), mapped(second)];
        assert_eq!((release(original), release(second)), (Ok(()), Ok(())));
        assert_eq!(
            (release(original), map(one, SIZE, 0, second, 0)),
            (Err(INVALID_HANDLE), Err(INVALID_HANDLE))
        );
        assert_eq!(memory::set(one, 0x5A, SIZE, 0), Ok(()));
        assert_eq!(stream::synchronize(0), Ok(()));
        assert_eq!(peek(other + SIZE as u64 - 1), 0x5A);
        unmapped(one);
        assert_eq!(peek(other), 0x5A, "memory lives as long as it is mapped anywhere");
        unmapped(other);
    }

    #[test]
    fn another_process_maps_what_this_one_made() {
        const CHILD: &str = "RONDE_SIMULATED_CUDA_DESCRIPTOR";
        let _desk = Desk::new();
        if let Ok(path) = std::env::var(CHILD) {
            let file =
                std::fs::File::options().read(true).write(true).open(path).expect("the parent's memory");
            let handle = imported(&file.into());
            let address = mapped(handle);
            assert_eq!(peek(address), 1);
            assert_eq!(memory::set(address, 2, SIZE, 0), Ok(()));
            assert_eq!(stream::synchronize(0), Ok(()));
            unmapped(address);
            assert_eq!(release(handle), Ok(()));
            return;
        }
        let handle = made();
        let address = mapped(handle);
        assert_eq!((memory::set(address, 1, SIZE, 0), stream::synchronize(0)), (Ok(()), Ok(())));
        let descriptor = exported(handle);
        let path = format!("/proc/{}/fd/{}", std::process::id(), descriptor.as_raw_fd());
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "physical::tests::another_process_maps_what_this_one_made"])
            .env(CHILD, path)
            .output()
            .expect("a second process");
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
        assert_eq!(peek(address), 2);
        unmapped(address);
        assert_eq!(release(handle), Ok(()));
    }

    #[test]
    fn memory_is_of_the_devices_that_were_given_access() {
        let desk = Desk::new();
        let handle = made();
        let mut address = 0;
        assert_eq!(reserve(Out::to(&mut address), SIZE, 0, 0, 0), Ok(()));
        assert_eq!(map(address, SIZE, 0, handle, 0), Ok(()));
        assert_eq!(memory::set(address, 1, 1, 0), Err(INVALID_VALUE), "mapped, but nobody's");
        assert_eq!(allow(address, 1), Ok(()));
        let reachable = || {
            let device = crate::context::current().expect("a context");
            ranges::all().reachable(Some(device), address as usize, SIZE)
        };
        assert!(!reachable());
        desk.on(1, || assert!(reachable()));
        assert_eq!(release(handle), Ok(()));
        unmapped(address);
    }

    #[test]
    fn sizes_places_and_kinds_that_do_not_fit_are_refused() {
        let _desk = Desk::new();
        let wanted = properties(0);
        let mut handle = 0;
        assert_eq!(create(Out::to(&mut handle), 4096, In::from(&wanted), 0), Err(INVALID_VALUE));
        assert_eq!(create(Out::to(&mut handle), SIZE, In::from(&properties(8)), 0), Err(NOT_SUPPORTED));
        assert_eq!(create(Out::to(&mut handle), SIZE, In::from(&wanted), 0), Ok(()));
        assert_eq!(export(Out::to(&mut 0), handle, DESCRIPTOR, 0), Err(INVALID_VALUE), "was not asked for");
        assert_eq!(import(Out::to(&mut 0), 1 << 20, DESCRIPTOR), Err(INVALID_VALUE));
        let address = mapped(handle);
        assert_eq!(map(address, SIZE, 0, handle, 0), Err(INVALID_VALUE), "already mapped");
        assert_eq!(unreserve(address, SIZE), Err(INVALID_VALUE), "still mapped");
        assert_eq!(unmap(address, GRANULARITY), Err(INVALID_VALUE), "a part");
        assert_eq!(unmap(address, SIZE), Ok(()));
        assert_eq!(map(address + SIZE as u64, SIZE, 0, handle, 0), Err(INVALID_VALUE), "beyond the room");
        assert_eq!(memory::set(address, 1, 1, 0), Err(INVALID_VALUE));
        assert_eq!((unreserve(address, SIZE), release(handle)), (Ok(()), Ok(())));
    }

    #[test]
    fn memory_that_is_unmapped_under_a_stream_is_an_error_of_the_device() {
        let desk = Desk::new();
        let handle = made();
        let address = mapped(handle);
        desk.simulation.pause();
        assert_eq!(memory::set(address, 1, SIZE, 0), Ok(()));
        unmapped(address);
        desk.simulation.resume();
        assert_eq!(stream::synchronize(0), Err(ILLEGAL_ADDRESS));
        assert_eq!(release(handle), Ok(()));
    }
}
