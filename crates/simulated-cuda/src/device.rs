//! The devices and what the driver says of them.

use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::pointer::Out;
use crate::status::{INVALID_DEVICE, INVALID_VALUE, NO_DEVICE, Result, demand};

/// Devices a simulation begins with.
pub(crate) const DEFAULT_COUNT: usize = 4;
/// Most devices there can be: sets of them are the bits of a word.
pub(crate) const MOST: usize = 64;
/// Memory each of them claims to have.
pub(crate) const MEMORY: usize = 16 << 30;

static COUNT: AtomicUsize = AtomicUsize::new(DEFAULT_COUNT);
static INITIALISED: AtomicBool = AtomicBool::new(false);

pub(crate) fn set_count(count: usize) {
    assert!(count <= MOST, "there can be at most {MOST} simulated devices, not {count}");
    COUNT.store(count, Ordering::Relaxed);
}

/// Whether a function may be called: all but a few want `cuInit` first.
pub(crate) fn ready_for(name: &str) -> bool {
    matches!(name, "cuInit" | "cuDriverGetVersion" | "cuGetErrorName" | "cuGetErrorString")
        || INITIALISED.load(Ordering::Relaxed)
}

/// The index of a device that exists.
pub(crate) fn index(device: c_int) -> Result<usize> {
    let index = usize::try_from(device).map_err(|_| INVALID_DEVICE)?;
    if index < COUNT.load(Ordering::Relaxed) { Ok(index) } else { Err(INVALID_DEVICE) }
}

/// `cuInit`
pub(crate) fn init(flags: c_uint) -> Result {
    demand(flags == 0)?;
    if COUNT.load(Ordering::Relaxed) == 0 {
        return Err(NO_DEVICE);
    }
    INITIALISED.store(true, Ordering::Relaxed);
    Ok(())
}

/// `cuDriverGetVersion`
pub(crate) fn version(version: Out<c_int>) -> Result {
    version.put(13_000)
}

/// `cuDeviceGetCount`
pub(crate) fn get_count(count: Out<c_int>) -> Result {
    count.put(COUNT.load(Ordering::Relaxed) as c_int)
}

/// `cuDeviceGet`
pub(crate) fn get(device: Out<c_int>, ordinal: c_int) -> Result {
    index(ordinal)?;
    device.put(ordinal)
}

/// `cuDeviceTotalMem`: little, so that whoever shares memory out by it makes small shares.
pub(crate) fn total_memory(bytes: Out<usize>, device: c_int) -> Result {
    index(device)?;
    bytes.put(1 << 30)
}

/// `cuDeviceGetName`
pub(crate) fn name(name: Out<u8>, len: c_int, device: c_int) -> Result {
    let mut text = format!("Simulated GPU {}", index(device)?).into_bytes();
    let room = usize::try_from(len).ok().filter(|room| *room > 0).ok_or(INVALID_VALUE)?;
    text.truncate(room - 1);
    text.push(0);
    name.put_all(&text)
}

/// `cuDeviceGetUuid`: the same in every process, as those of one machine's GPUs are.
pub(crate) fn uuid(uuid: Out<[u8; 16]>, device: c_int) -> Result {
    let mut bytes = *b"ronde-simulated\0";
    bytes[15] = index(device)? as u8;
    uuid.put(bytes)
}

/// `cuDeviceGetAttribute`: those of a large GPU of compute capability 9.0, as far as somebody may ask for them;
/// 0 for others.
pub(crate) fn attribute(value: Out<c_int>, attribute: c_uint, device: c_int) -> Result {
    let device = index(device)?;
    value.put(match attribute {
        // Outside of the numbers that CUDA has names for.
        0 | 256.. => return Err(INVALID_VALUE),
        // Threads in a block, and in its first dimension.
        1 | 2 => 1024,
        // Blocks in the first dimension of a grid.
        5 => c_int::MAX,
        // Threads in a warp.
        10 => 32,
        // Multiprocessors.
        16 => 132,
        // Host memory can be mapped.
        19 => 1,
        // PCI bus.
        33 => device as c_int + 1,
        // Engines that copy.
        40 => 3,
        // One address space for host and devices.
        41 => 1,
        // Compute capability.
        75 => 9,
        76 => 0,
        // Streams have priorities.
        78 => 1,
        // Registered memory has the same address on the device.
        91 => 1,
        // Streams can wait for words and write them, in the first and the second form of these functions.
        92 | 122 => 1,
        // They can wait for NOR as well.
        94 | 123 => 1,
        // Host memory can be registered.
        99 => 1,
        // Virtual memory, and descriptors of its physical memory.
        102 | 103 => 1,
        // Memory pools, which `cuMemAllocAsync` takes from.
        115 => 1,
        _ => 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Simulation;

    #[test]
    fn devices_have_names_and_uuids_of_their_own() {
        let _simulation = Simulation::begin();
        let mut uuids = [[0; 16]; DEFAULT_COUNT];
        for (device, place) in uuids.iter_mut().enumerate() {
            assert_eq!(uuid(Out::to(place), device as c_int), Ok(()));
        }
        for (at, uuid) in uuids.iter().enumerate() {
            assert!(!uuids[..at].contains(uuid));
        }
        let mut text = [9_u8; 17];
        assert_eq!(name(Out::to(&mut text[0]), 17, 3), Ok(()));
        assert_eq!(&text, b"Simulated GPU 3\0\x09");
        assert_eq!(name(Out::to(&mut text[0]), 17, DEFAULT_COUNT as c_int), Err(INVALID_DEVICE));
        assert_eq!(name(Out::to(&mut text[0]), 10, 0), Ok(()));
        assert_eq!(&text[..10], b"Simulated\0");
    }
}
