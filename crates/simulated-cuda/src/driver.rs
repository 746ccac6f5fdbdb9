//! All functions of the driver: CUDA's names and signatures, and the function of ours that does what each does.

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};

use crate::handles::Handle;
use crate::physical::{Access, Properties};
use crate::pointer::{In, Out};
use crate::pool::Properties as PoolProperties;
use crate::status::{Code, Result, SUCCESS};
use crate::{
    capture, context, control, device, event, launch, memory, module, physical, pool, status, stream, word,
};

/// The address of a function of the driver, or null if there is none of that name: what `dlsym` gives for
/// `libcuda.so.1`.
pub fn lookup(name: &CStr) -> *mut c_void {
    name.to_str().map_or(std::ptr::null_mut(), find)
}

fn answer(name: &'static str, call: impl FnOnce() -> Result) -> Code {
    control::enter(name).unwrap_or_else(|| call().err().unwrap_or(SUCCESS))
}

macro_rules! functions {
    ($($name:ident($($argument:ident: $kind:ty),*) => $does:path;)*) => {
        /// The names of all functions.
        pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),*];

        fn find(name: &str) -> *mut c_void {
            match name {
                $(stringify!($name) => entries::$name as *mut c_void,)*
                _ => std::ptr::null_mut(),
            }
        }

        /// The functions as they are called from outside. They are unsafe since pointers must be null or valid
        /// for what CUDA says of them.
        #[allow(non_snake_case)]
        pub(crate) mod entries {
            use super::*;

            $(pub(crate) unsafe extern "C" fn $name($($argument: $kind),*) -> Code {
                answer(stringify!($name), || $does($($argument),*))
            })*
        }
    };
}

type Address = c_ulonglong;

functions! {
    cuInit(flags: c_uint) => device::init;
    cuDriverGetVersion(version: Out<c_int>) => device::version;
    cuGetErrorName(code: Code, name: Out<*const c_char>) => status::name;
    cuGetErrorString(code: Code, text: Out<*const c_char>) => status::text;

    cuDeviceGetCount(count: Out<c_int>) => device::get_count;
    cuDeviceGet(device: Out<c_int>, ordinal: c_int) => device::get;
    cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) => device::total_memory;
    cuDeviceGetName(name: Out<u8>, len: c_int, device: c_int) => device::name;
    cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: c_int) => device::uuid;
    cuDeviceGetAttribute(value: Out<c_int>, attribute: c_uint, device: c_int) => device::attribute;

    cuDevicePrimaryCtxRetain(context: Out<Handle>, device: c_int) => context::retain;
    cuDevicePrimaryCtxRelease_v2(device: c_int) => context::release;
    cuCtxPushCurrent_v2(context: Handle) => context::push;
    cuCtxPopCurrent_v2(context: Out<Handle>) => context::pop;
    cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) => stream::priorities;

    cuStreamCreateWithPriority(stream: Out<Handle>, flags: c_uint, priority: c_int) => stream::create;
    cuStreamDestroy_v2(stream: Handle) => stream::destroy;
    cuStreamSynchronize(stream: Handle) => stream::synchronize;
    cuStreamQuery(stream: Handle) => stream::query;
    cuStreamIsCapturing(stream: Handle, status: Out<c_uint>) => capture::is_capturing;
    cuThreadExchangeStreamCaptureMode(mode: Out<c_uint>) => capture::exchange_mode;
    cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) => event::wait;
    cuStreamWaitValue32_v2(stream: Handle, address: Address, value: u32, flags: c_uint) => word::wait;
    cuStreamWriteValue32_v2(stream: Handle, address: Address, value: u32, flags: c_uint) => word::write;

    cuEventCreate(event: Out<Handle>, flags: c_uint) => event::create;
    cuEventDestroy_v2(event: Handle) => event::destroy;
    cuEventRecord(event: Handle, stream: Handle) => event::record;
    cuEventQuery(event: Handle) => event::query;
    cuEventSynchronize(event: Handle) => event::synchronize;

    cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) => memory::info;
    cuMemAlloc_v2(address: Out<Address>, bytes: usize) => memory::allocate;
    cuMemFree_v2(address: Address) => memory::free;
    cuMemAllocAsync(address: Out<Address>, bytes: usize, stream: Handle) => memory::allocate_in_stream;
    cuMemPoolCreate(pool: Out<Handle>, of: In<PoolProperties>) => pool::create;
    cuMemPoolDestroy(pool: Handle) => pool::destroy;
    cuMemPoolSetAttribute(pool: Handle, attribute: c_uint, value: In<u64>) => pool::set_attribute;
    cuMemAllocFromPoolAsync(address: Out<Address>, bytes: usize, pool: Handle, stream: Handle) => pool::allocate;
    cuMemFreeAsync(address: Address, stream: Handle) => memory::free_in_stream;
    cuMemAllocHost_v2(address: Out<Address>, bytes: usize) => memory::allocate_pinned;
    cuMemFreeHost(address: Address) => memory::free_pinned;
    cuMemHostRegister_v2(address: Address, bytes: usize, flags: c_uint) => memory::register;
    cuMemHostUnregister(address: Address) => memory::unregister;
    cuMemHostGetDevicePointer_v2(device: Out<Address>, address: Address, flags: c_uint) => memory::device_pointer;
    cuMemcpyHtoDAsync_v2(to: Address, from: In<u8>, bytes: usize, stream: Handle) => memory::copy_in;
    cuMemcpyDtoHAsync_v2(to: Address, from: Address, bytes: usize, stream: Handle) => memory::copy_out;
    cuMemcpyDtoDAsync_v2(to: Address, from: Address, bytes: usize, stream: Handle) => memory::copy_within;
    cuMemsetD8Async(to: Address, byte: c_uchar, bytes: usize, stream: Handle) => memory::set;

    cuMemGetAllocationGranularity(bytes: Out<usize>, of: In<Properties>, option: c_uint) => physical::granularity;
    cuMemCreate(handle: Out<Handle>, bytes: usize, of: In<Properties>, flags: c_ulonglong) => physical::create;
    cuMemRelease(handle: Handle) => physical::release;
    cuMemExportToShareableHandle(to: Out<c_int>, handle: Handle, kind: c_uint, flags: c_ulonglong) => physical::export;
    cuMemImportFromShareableHandle(handle: Out<Handle>, from: Handle, kind: c_uint) => physical::import;
    cuMemAddressReserve(address: Out<Address>, bytes: usize, alignment: usize, wish: Address, flags: c_ulonglong)
        => physical::reserve;
    cuMemAddressFree(address: Address, bytes: usize) => physical::unreserve;
    cuMemMap(address: Address, bytes: usize, offset: usize, handle: Handle, flags: c_ulonglong) => physical::map;
    cuMemUnmap(address: Address, bytes: usize) => physical::unmap;
    cuMemSetAccess(address: Address, bytes: usize, access: In<Access>, count: usize) => physical::set_access;

    cuModuleLoadDataEx(
        module: Out<Handle>, image: In<c_char>, count: c_uint, options: In<c_uint>, values: In<Handle>
    ) => module::load;
    cuModuleUnload(module: Handle) => module::unload;
    cuModuleGetFunction(function: Out<Handle>, module: Handle, name: In<c_char>) => module::function;
    cuLaunchKernel(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint,
        stream: Handle, parameters: In<In<u64>>, extra: In<Handle>
    ) => launch::launch;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_functions_and_others_to_null() {
        for name in NAMES {
            assert!(!find(name).is_null(), "{name}");
        }
        assert_eq!(lookup(c"cuMemAlloc_v2"), entries::cuMemAlloc_v2 as *mut c_void);
        assert!(lookup(c"cuMemAlloc").is_null());
        assert!(lookup(c"").is_null());
    }
}
