//! The driver as it is met from outside: functions found by name, called with CUDA's signatures. A process of its
//! own, in which nobody has initialised the driver before.

use std::ffi::{CStr, c_int, c_uint, c_void};

use ronde_simulated_cuda::{Simulation, lookup};

/// Finds a function and gives it its type.
macro_rules! function {
    ($name:literal, fn($($argument:ty),*)) => {{
        let found = lookup($name);
        assert!(!found.is_null(), "{:?}", $name);
        // SAFETY: this is how `cuda.h` declares it.
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> c_uint>(found) }
    }};
}

/// What CUDA calls the functions that Ronde uses.
const NAMES: &str = "cuInit cuDriverGetVersion cuDeviceGetCount cuDeviceGet cuDeviceGetName cuDeviceGetUuid_v2 \
    cuDeviceGetAttribute cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease_v2 cuCtxPushCurrent_v2 \
    cuCtxPopCurrent_v2 cuCtxGetStreamPriorityRange cuStreamCreateWithPriority cuStreamDestroy_v2 \
    cuStreamSynchronize cuStreamQuery cuStreamIsCapturing cuThreadExchangeStreamCaptureMode cuStreamWaitEvent cuStreamWaitValue32_v2 cuStreamWriteValue32_v2 \
    cuEventCreate cuEventDestroy_v2 cuEventRecord cuEventQuery cuEventSynchronize cuMemAlloc_v2 cuMemFree_v2 \
    cuMemAllocAsync cuMemPoolCreate cuMemPoolDestroy cuMemPoolSetAttribute cuMemAllocFromPoolAsync cuMemFreeAsync cuMemAllocHost_v2 cuMemFreeHost cuMemHostRegister_v2 cuMemHostUnregister \
    cuMemHostGetDevicePointer_v2 cuMemcpyHtoDAsync_v2 cuMemcpyDtoHAsync_v2 cuMemcpyDtoDAsync_v2 cuMemsetD8Async \
    cuMemGetInfo_v2 cuMemCreate cuMemRelease cuMemAddressReserve cuMemAddressFree cuMemMap cuMemUnmap \
    cuMemSetAccess cuMemGetAllocationGranularity cuMemExportToShareableHandle cuMemImportFromShareableHandle \
    cuModuleLoadDataEx cuModuleUnload cuModuleGetFunction cuLaunchKernel cuGetErrorName cuGetErrorString";

#[test]
fn all_functions_are_there_and_nothing_works_before_the_driver_is_initialised() {
    for name in NAMES.split_whitespace() {
        let name = std::ffi::CString::new(name).expect("no zero byte");
        assert!(!lookup(&name).is_null(), "{name:?}");
    }

    let simulation = Simulation::begin();
    let init = function!(c"cuInit", fn(c_uint));
    let count = function!(c"cuDeviceGetCount", fn(*mut c_int));
    let error_name = function!(c"cuGetErrorName", fn(c_uint, *mut *const std::ffi::c_char));
    let (mut devices, mut text) = (0, std::ptr::null());
    // SAFETY: what is written to lives, and the text is the driver's.
    unsafe {
        assert_eq!(count(&raw mut devices), 3);
        assert_eq!(error_name(3, &raw mut text), 0);
        assert_eq!(CStr::from_ptr(text), c"CUDA_ERROR_NOT_INITIALIZED");
    }

    simulation.set_devices(0);
    // SAFETY: as above.
    assert_eq!(unsafe { init(0) }, 100, "no device");
    simulation.set_devices(3);
    // SAFETY: as above.
    unsafe {
        assert_eq!(init(7), 1, "there are no flags");
        assert_eq!(init(0), 0);
        assert_eq!(count(&raw mut devices), 0);
    }
    assert_eq!(devices, 3);
    assert_eq!((simulation.calls("cuInit"), simulation.calls("cuDeviceGetCount")), (3, 2));
}
