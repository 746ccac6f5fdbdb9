//! Memory pools, as far as they show: what is allocated from one is device memory like any other.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use crate::handles::{Handle, Table};
use crate::memory;
use crate::physical::Location;
use crate::pointer::{In, Out};
use crate::status::{NOT_SUPPORTED, Result, demand};
use crate::stream;

/// `CUmemPoolProps`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Properties {
    kind: c_uint,
    handles: c_uint,
    location: Location,
    windows: *const c_void,
    most: usize,
    usage: u16,
    reserved: [u8; 54],
}

struct Pool {
    device: usize,
}

static POOLS: Table<Pool> = Table::new(0x9);

const PINNED: c_uint = 1;
const RELEASE_THRESHOLD: c_uint = 4;

/// How many there are.
pub(crate) fn count() -> usize {
    POOLS.count()
}

/// `cuMemPoolCreate`
pub(crate) fn create(pool: Out<Handle>, of: In<Properties>) -> Result {
    let of = of.get(0)?;
    demand(of.kind == PINNED && of.windows.is_null() && of.reserved == [0; 54])?;
    if of.handles != 0 || of.most != 0 || of.usage != 0 {
        return Err(NOT_SUPPORTED);
    }
    let device = of.location.device()?;
    pool.put_with(|| Ok(POOLS.add(Arc::new(Pool { device }))))
}

/// `cuMemPoolDestroy`
pub(crate) fn destroy(pool: Handle) -> Result {
    POOLS.take(pool).map(drop)
}

/// `cuMemPoolSetAttribute`
pub(crate) fn set_attribute(pool: Handle, attribute: c_uint, value: In<u64>) -> Result {
    POOLS.get(pool)?;
    value.get(0)?;
    if attribute == RELEASE_THRESHOLD { Ok(()) } else { Err(NOT_SUPPORTED) }
}

/// `cuMemAllocFromPoolAsync`
pub(crate) fn allocate(address: Out<u64>, bytes: usize, pool: Handle, stream: Handle) -> Result {
    let pool = POOLS.get(pool)?;
    demand(stream::resolve(stream)?.device.index == pool.device)?;
    memory::allocate_in_stream(address, bytes, stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::free_in_stream;
    use crate::status::INVALID_HANDLE;
    use crate::testing::Desk;

    #[test]
    fn memory_comes_from_pools_of_the_same_device_that_are_there() {
        let desk = Desk::new();
        let location = Location::of_device(0);
        let of = Properties {
            kind: PINNED,
            handles: 0,
            location,
            windows: std::ptr::null(),
            most: 0,
            usage: 0,
            reserved: [0; 54],
        };
        let (mut pool, mut address) = (0, 0);
        assert_eq!(create(Out::to(&mut pool), In::from(&of)), Ok(()));
        assert_eq!(desk.simulation.live().pools, 1);
        assert_eq!(set_attribute(pool, RELEASE_THRESHOLD, In::from(&1)), Ok(()));
        assert_eq!(allocate(Out::to(&mut address), 16, pool, 0), Ok(()));
        assert_eq!(free_in_stream(address, 0), Ok(()));
        assert_eq!(stream::synchronize(0), Ok(()));
        assert_eq!((destroy(pool), destroy(pool)), (Ok(()), Err(INVALID_HANDLE)));
        assert_eq!(allocate(Out::to(&mut address), 16, pool, 0), Err(INVALID_HANDLE));
    }
}
