//! Memory that processes of one host share: a sealed `memfd` and its mapping.
//!
//! It has no name in any file system, is not bound by a container's `/dev/shm`, and is gone with its last process
//! however that ends. One rank creates it and hands the descriptor to the others, who adopt it. What lies where is
//! the business of whoever builds on this: segments of groups ([`crate::host`]) and pipes of control trees
//! ([`crate::control`]).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::error::{Error, Result};

/// Smallest unit in which the kernel places memory.
pub(crate) const PAGE: usize = 4096;

/// See the module's text.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    fd: OwnedFd,
}

// SAFETY: the mapping is plain memory valid for its owner's life; owners put only atomics in it, and bytes whose
// access those order.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Makes `len` bytes of new, zeroed memory.
    pub(crate) fn create(len: usize) -> Result<Mapping> {
        let fd = rustix::fs::memfd_create("ronde", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(Error::errno("making shared memory (memfd_create)"))?;
        rustix::fs::ftruncate(&fd, len as u64).map_err(Error::errno("sizing shared memory"))?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(Error::errno("sealing shared memory"))?;
        Mapping::map(fd, len)
    }

    /// Takes over memory received from a peer, after checking that it can neither shrink nor be of another size.
    pub(crate) fn adopt(fd: OwnedFd, len: usize) -> Result<Mapping> {
        let seals =
            rustix::fs::fcntl_get_seals(&fd).map_err(Error::errno("checking shared memory from a peer"))?;
        let size =
            rustix::fs::fstat(&fd).map_err(Error::errno("checking shared memory from a peer"))?.st_size;
        if !seals.contains(SealFlags::SHRINK) || u64::try_from(size) != Ok(len as u64) {
            return Err(Error::Invalid(format!(
                "shared memory from a peer has {size} bytes where {len} were expected, or is not sealed"
            )));
        }
        Mapping::map(fd, len)
    }

    fn map(fd: OwnedFd, len: usize) -> Result<Mapping> {
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &fd,
                0,
            )
        }
        .map_err(Error::errno("mapping shared memory"))?;
        // SAFETY: the range was just mapped. A forked child must not inherit it: it could only corrupt it.
        unsafe { rustix::mm::madvise(base, len, Advice::LinuxDontFork) }
            .map_err(Error::errno("keeping shared memory out of forked children"))?;
        let base = NonNull::new(base.cast()).expect("mmap does not return null on success");
        Ok(Mapping { base, len, fd })
    }

    /// For handing to the other members.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The address of an offset inside the mapping.
    #[inline]
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < self.len);
        // SAFETY: all callers compute offsets inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing borrowed from it outlives it.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of an own mapping failed: {unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_another_size_or_without_seals_is_refused() {
        let memory = Mapping::create(2 * PAGE).expect("shared memory");
        let copy = || memory.fd().try_clone_to_owned().expect("duplicate");
        assert!(Mapping::adopt(copy(), 2 * PAGE).is_ok());
        assert!(matches!(Mapping::adopt(copy(), 3 * PAGE), Err(Error::Invalid(_))));
        let loose = rustix::fs::memfd_create("loose", MemfdFlags::ALLOW_SEALING).expect("memfd");
        rustix::fs::ftruncate(&loose, 2 * PAGE as u64).expect("size");
        assert!(matches!(Mapping::adopt(loose, 2 * PAGE), Err(Error::Invalid(_))));
    }

    #[test]
    fn what_one_mapping_writes_the_other_reads() {
        let memory = Mapping::create(PAGE).expect("shared memory");
        let other =
            Mapping::adopt(memory.fd().try_clone_to_owned().expect("duplicate"), PAGE).expect("adopt");
        // SAFETY: both addresses are inside live mappings of the same page, used by this thread alone.
        let seen = unsafe {
            memory.at(PAGE - 1).write_volatile(7);
            other.at(PAGE - 1).read_volatile()
        };
        assert_eq!(seen, 7);
    }
}
