//! Memory: of the host that the GPU reads, of the device, and of the device that other processes map.
//!
//! What is shared between processes is always memory that was made here with `cuMemCreate`. A framework's own memory may come
//! from pools or grow in place, and cannot be handed on.

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use crate::device::Device;
use crate::driver::{Access, Address, Location, Properties, Raw, Result, cuda};
use crate::stream::Stream;

pub(crate) const ON_DEVICE: i32 = 1;
pub(crate) const PINNED: i32 = 1;
const DESCRIPTOR: i32 = 1;
const READ_AND_WRITE: i32 = 3;

/// Host memory that stays where it is, so that the GPU copies from and to it by itself, and kernels read it.
pub struct Pinned {
    device: Arc<Device>,
    start: Raw,
    len: usize,
}

// SAFETY: plain memory.
unsafe impl Send for Pinned {}
// SAFETY: as above; what is written and when is up to its users.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// So many bytes, with any content.
    pub fn new(device: &Arc<Device>, len: usize) -> Result<Pinned> {
        let _entered = device.enter()?;
        let mut start = std::ptr::null_mut();
        // SAFETY: one address is written.
        unsafe { cuda!(device.driver, alloc_host(&raw mut start, len.max(1))) }?;
        Ok(Pinned { device: device.clone(), start, len })
    }

    /// Where it begins. The GPU knows it by the same address.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.cast()
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Ok(_entered) = self.device.enter() {
            // SAFETY: allocated in `new`.
            let _ = unsafe { (self.device.driver.free_host)(self.start) };
        }
    }
}

/// Device memory of this process.
pub struct Scratch {
    device: Arc<Device>,
    address: Address,
    len: usize,
}

impl Scratch {
    /// So many bytes, with any content.
    pub fn new(device: &Arc<Device>, len: usize) -> Result<Scratch> {
        let _entered = device.enter()?;
        let mut address = 0;
        // SAFETY: one address is written.
        unsafe { cuda!(device.driver, alloc(&raw mut address, len.max(1))) }?;
        Ok(Scratch { device: device.clone(), address, len })
    }

    /// Where it begins.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Ok(_entered) = self.device.enter() {
            // SAFETY: allocated in `new`; the driver waits for what still uses it.
            let _ = unsafe { (self.device.driver.free)(self.address) };
        }
    }
}

/// Device memory that is allocated and freed in the order of streams.
pub struct Pooled {
    /// Whose work it was allocated for.
    stream: Arc<Stream>,
    address: Address,
    len: usize,
}

impl Pooled {
    /// So many bytes, for what is given to this stream from now on.
    pub fn new(stream: &Arc<Stream>, len: usize) -> Result<Pooled> {
        let device = stream.device();
        let _entered = device.enter()?;
        let mut address = 0;
        // SAFETY: one address is written.
        unsafe {
            if device.has_pools() {
                let pool = device.pool()?;
                cuda!(device.driver, alloc_from_pool(&raw mut address, len.max(1), pool, stream.raw()))?;
            } else {
                cuda!(device.driver, alloc(&raw mut address, len.max(1)))?;
            }
        }
        Ok(Pooled { stream: stream.clone(), address, len })
    }

    /// Where it begins.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device's number.
    pub fn ordinal(&self) -> i32 {
        self.stream.device().ordinal()
    }

    /// Frees it behind what was given to a stream, of whomever, until now.
    pub fn release(mut self, stream: u64) {
        self.free_behind(stream as Raw);
    }

    /// Frees it, unless that was done before or fails.
    fn free_behind(&mut self, stream: Raw) {
        let device = self.stream.device().clone();
        if self.address == 0 {
            return;
        }
        if let Ok(_entered) = device.enter() {
            // SAFETY: allocated in `new`, and not freed again. Of memory that is not from a pool the driver itself waits for what
            // still uses it.
            let freed = unsafe {
                if device.has_pools() {
                    (device.driver.free_async)(self.address, stream)
                } else {
                    (device.driver.free)(self.address)
                }
            };
            if freed == 0 {
                self.address = 0;
            }
        }
    }
}

/// Nobody has named a stream that reads it, so only the stream that it was allocated for can still use it. The plain way of freeing
/// would not wait for that: for memory of a pool the driver leaves it to the caller.
impl Drop for Pooled {
    fn drop(&mut self) {
        self.free_behind(self.stream.raw());
    }
}

/// Memory of this process that others share, made known to the GPU.
pub struct Registered {
    device: Arc<Device>,
    start: Raw,
    address: Address,
}

// SAFETY: plain memory, of which only addresses are kept.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl Registered {
    /// Makes whole pages known.
    ///
    /// # Safety
    /// The pages stay mapped until this is dropped.
    pub unsafe fn new(device: &Arc<Device>, start: *mut u8, len: usize) -> Result<Registered> {
        // For all contexts, and with an address for the device.
        const PORTABLE_AND_MAPPED: u32 = 1 | 2;
        let _entered = device.enter()?;
        let mut address = 0;
        // SAFETY: as the caller promises; one address is written.
        unsafe {
            cuda!(device.driver, register_host(start.cast(), len, PORTABLE_AND_MAPPED))?;
            let found = cuda!(device.driver, host_address(&raw mut address, start.cast(), 0));
            if let Err(error) = found {
                let _ = (device.driver.unregister_host)(start.cast());
                return Err(error);
            }
        }
        Ok(Registered { device: device.clone(), start: start.cast(), address })
    }

    /// Where it begins, for the device.
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Ok(_entered) = self.device.enter() {
            // SAFETY: registered in `new`.
            let _ = unsafe { (self.device.driver.unregister_host)(self.start) };
        }
    }
}

/// A range of addresses with device memory behind it.
struct Mapped {
    device: Arc<Device>,
    handle: u64,
    address: Address,
    len: usize,
}

impl Mapped {
    /// Takes over the memory, also if mapping it fails. The context is current.
    fn new(device: &Arc<Device>, handle: u64, len: usize) -> Result<Mapped> {
        let driver = device.driver;
        let mut address = 0;
        let location = Location { kind: ON_DEVICE, id: device.handle };
        let access = Access { location, flags: READ_AND_WRITE };
        // SAFETY: a fresh range of addresses of which nothing else is mapped; every step is undone if a later one fails.
        unsafe {
            if let Err(error) = cuda!(driver, reserve(&raw mut address, len, 0, 0, 0)) {
                let _ = (driver.release)(handle);
                return Err(error);
            }
            if let Err(error) = cuda!(driver, map(address, len, 0, handle, 0)) {
                let _ = (driver.unreserve)(address, len);
                let _ = (driver.release)(handle);
                return Err(error);
            }
        }
        let mapped = Mapped { device: device.clone(), handle, address, len };
        // SAFETY: as above.
        unsafe { cuda!(driver, set_access(address, len, &raw const access, 1)) }?;
        Ok(mapped)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if let Ok(_entered) = self.device.enter() {
            let driver = self.device.driver;
            // SAFETY: reserved and mapped in `new`; who drops it knows that no stream uses it.
            unsafe {
                let _ = (driver.unmap)(self.address, self.len);
                let _ = (driver.unreserve)(self.address, self.len);
                let _ = (driver.release)(self.handle);
            }
        }
    }
}

/// Device memory of this process that others may map. No stream may use it any more when it is dropped.
pub struct Shared {
    mapped: Mapped,
    descriptor: OwnedFd,
}

impl Shared {
    /// At least so many bytes, with any content.
    pub fn new(device: &Arc<Device>, len: usize) -> Result<Shared> {
        let driver = device.driver;
        let _entered = device.enter()?;
        let properties = Properties {
            kind: PINNED,
            handle_types: DESCRIPTOR,
            location: Location { kind: ON_DEVICE, id: device.handle },
            windows: std::ptr::null_mut(),
            flags: [0; 8],
        };
        let (mut unit, mut handle, mut descriptor) = (0, 0, -1);
        // SAFETY: numbers are written, and the properties are read.
        unsafe { cuda!(driver, granularity(&raw mut unit, &raw const properties, 0)) }?;
        let len = len.max(1).next_multiple_of(unit.max(1));
        // SAFETY: as above.
        unsafe { cuda!(driver, create(&raw mut handle, len, &raw const properties, 0)) }?;
        let mapped = Mapped::new(device, handle, len)?;
        // SAFETY: the memory was made for this kind of handle, of which one is written.
        unsafe { cuda!(driver, export(&raw mut descriptor, handle, DESCRIPTOR, 0)) }?;
        // SAFETY: the descriptor is fresh, and nobody else's.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok(Shared { mapped, descriptor })
    }

    /// Where it begins.
    pub fn address(&self) -> u64 {
        self.mapped.address
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.mapped.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.mapped.len == 0
    }

    /// What another process maps it by.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Device memory of another process on the same device. No stream may use it any more when it is dropped.
pub struct Imported {
    mapped: Mapped,
}

impl Imported {
    /// Maps what another process has shared, of that length.
    pub fn new(device: &Arc<Device>, descriptor: &OwnedFd, len: usize) -> Result<Imported> {
        let _entered = device.enter()?;
        let mut handle = 0;
        // SAFETY: one handle is written; the driver takes the descriptor in the place of a pointer, and does not keep it.
        unsafe {
            let descriptor = descriptor.as_raw_fd() as isize as *mut c_void;
            cuda!(device.driver, import(&raw mut handle, descriptor, DESCRIPTOR))
        }?;
        Ok(Imported { mapped: Mapped::new(device, handle, len)? })
    }

    /// Where it begins, here.
    pub fn address(&self) -> u64 {
        self.mapped.address
    }
}
