//! The functions of CUDA's driver, looked up by name in the library that is there.
//!
//! The declarations follow `cuda.h`. All of them exist since CUDA 11.7, which is older than what PyTorch 2.0 asks for.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// The driver's library, by the name it calls itself. The one that a framework has loaded is this one.
const LIBRARY: &str = "libcuda.so.1";
/// Names another one.
const CHOSEN: &str = "RONDE_CUDA_LIBRARY";

pub(crate) type Raw = *mut c_void;
pub(crate) type Address = u64;

/// Where memory lies (`CUmemLocation`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    pub(crate) kind: c_int,
    pub(crate) id: c_int,
}

/// What memory to make (`CUmemAllocationProp`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Properties {
    pub(crate) kind: c_int,
    pub(crate) handle_types: c_int,
    pub(crate) location: Location,
    pub(crate) windows: Raw,
    pub(crate) flags: [u8; 8],
}

/// What pool to make (`CUmemPoolProps`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolProperties {
    pub(crate) kind: c_int,
    pub(crate) handle_types: c_int,
    pub(crate) location: Location,
    pub(crate) windows: Raw,
    pub(crate) most: usize,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 54],
}

/// Who may use a mapping (`CUmemAccessDesc`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) location: Location,
    pub(crate) flags: c_int,
}

macro_rules! functions {
    ($($field:ident = $symbol:ident($($argument:ty),*);)*) => {
        /// The driver's functions. They return 0, or the number of an error.
        pub struct Driver {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> c_uint,)*
        }

        impl Driver {
            /// Looks all of them up.
            ///
            /// # Safety
            /// What the names lead to are functions of CUDA's driver, or behave like them, for as long as the process lives.
            unsafe fn look_up(lookup: impl Fn(&CStr) -> Raw) -> std::result::Result<Driver, &'static str> {
                Ok(Driver {
                    $($field: {
                        let name = concat!(stringify!($symbol), "\0");
                        let found = CStr::from_bytes_with_nul(name.as_bytes()).map_or(std::ptr::null_mut(), &lookup);
                        if found.is_null() {
                            return Err(stringify!($symbol));
                        }
                        // SAFETY: declared as the driver's header does.
                        unsafe {
                            std::mem::transmute::<Raw, unsafe extern "C" fn($($argument),*) -> c_uint>(found)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    init = cuInit(c_uint);
    driver_version = cuDriverGetVersion(*mut c_int);
    device_count = cuDeviceGetCount(*mut c_int);
    device_get = cuDeviceGet(*mut c_int, c_int);
    device_name = cuDeviceGetName(*mut c_char, c_int, c_int);
    device_uuid = cuDeviceGetUuid_v2(*mut [u8; 16], c_int);
    device_memory = cuDeviceTotalMem_v2(*mut usize, c_int);
    device_attribute = cuDeviceGetAttribute(*mut c_int, c_int, c_int);
    context_retain = cuDevicePrimaryCtxRetain(*mut Raw, c_int);
    context_release = cuDevicePrimaryCtxRelease_v2(c_int);
    context_push = cuCtxPushCurrent_v2(Raw);
    context_pop = cuCtxPopCurrent_v2(*mut Raw);
    stream_priorities = cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);
    stream_create = cuStreamCreateWithPriority(*mut Raw, c_uint, c_int);
    stream_destroy = cuStreamDestroy_v2(Raw);
    stream_synchronize = cuStreamSynchronize(Raw);
    stream_is_capturing = cuStreamIsCapturing(Raw, *mut c_uint);
    capture_mode = cuThreadExchangeStreamCaptureMode(*mut c_uint);
    stream_wait_event = cuStreamWaitEvent(Raw, Raw, c_uint);
    stream_wait_value = cuStreamWaitValue32_v2(Raw, Address, u32, c_uint);
    stream_write_value = cuStreamWriteValue32_v2(Raw, Address, u32, c_uint);
    event_create = cuEventCreate(*mut Raw, c_uint);
    event_destroy = cuEventDestroy_v2(Raw);
    event_record = cuEventRecord(Raw, Raw);
    event_query = cuEventQuery(Raw);
    event_synchronize = cuEventSynchronize(Raw);
    alloc = cuMemAlloc_v2(*mut Address, usize);
    free = cuMemFree_v2(Address);
    pool_create = cuMemPoolCreate(*mut Raw, *const PoolProperties);
    pool_destroy = cuMemPoolDestroy(Raw);
    pool_set = cuMemPoolSetAttribute(Raw, c_int, *const u64);
    alloc_from_pool = cuMemAllocFromPoolAsync(*mut Address, usize, Raw, Raw);
    free_async = cuMemFreeAsync(Address, Raw);
    alloc_host = cuMemAllocHost_v2(*mut Raw, usize);
    free_host = cuMemFreeHost(Raw);
    register_host = cuMemHostRegister_v2(Raw, usize, c_uint);
    unregister_host = cuMemHostUnregister(Raw);
    host_address = cuMemHostGetDevicePointer_v2(*mut Address, Raw, c_uint);
    copy_in = cuMemcpyHtoDAsync_v2(Address, *const c_void, usize, Raw);
    copy_out = cuMemcpyDtoHAsync_v2(Raw, Address, usize, Raw);
    copy = cuMemcpyDtoDAsync_v2(Address, Address, usize, Raw);
    create = cuMemCreate(*mut u64, usize, *const Properties, u64);
    release = cuMemRelease(u64);
    reserve = cuMemAddressReserve(*mut Address, usize, usize, Address, u64);
    unreserve = cuMemAddressFree(Address, usize);
    map = cuMemMap(Address, usize, usize, u64, u64);
    unmap = cuMemUnmap(Address, usize);
    set_access = cuMemSetAccess(Address, usize, *const Access, usize);
    granularity = cuMemGetAllocationGranularity(*mut usize, *const Properties, c_uint);
    export = cuMemExportToShareableHandle(*mut c_int, u64, c_int, u64);
    import = cuMemImportFromShareableHandle(*mut u64, Raw, c_int);
    module_load = cuModuleLoadDataEx(*mut Raw, *const c_void, c_uint, *mut c_int, *mut Raw);
    module_unload = cuModuleUnload(Raw);
    module_function = cuModuleGetFunction(*mut Raw, Raw, *const c_char);
    launch = cuLaunchKernel(Raw, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Raw, *mut Raw, *mut Raw);
    error_name = cuGetErrorName(c_uint, *mut *const c_char);
    error_text = cuGetErrorString(c_uint, *mut *const c_char);
}

/// What goes wrong with a GPU.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// There is no driver that can be used.
    #[error("CUDA's driver cannot be used: {0}")]
    NoDriver(String),
    /// A call of the driver failed.
    #[error("{call}: {name} ({text}){hint}")]
    Call {
        /// The function.
        call: &'static str,
        /// The number of the error.
        code: u32,
        /// Its name.
        name: String,
        /// What the driver says about it.
        text: String,
        /// What is usually behind it.
        hint: &'static str,
    },
    /// A stream is being captured into a graph, and nothing outside of the graph can be waited for in it or wait for it.
    #[error(
        "the current stream is being captured into a CUDA graph, which cannot hold an operation of several ranks; start and \
         synchronize operations outside of the capture"
    )]
    Capturing,
    /// Our own text was refused by the driver's compiler.
    #[error("the driver does not compile the kernel {entry}: {log}")]
    Kernel {
        /// The kernel.
        entry: String,
        /// What the compiler says.
        log: String,
    },
}

/// Result of anything in this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Whether memory was short.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Error::Call { code: OUT_OF_MEMORY, .. })
    }
}

pub(crate) const NOT_READY: u32 = 600;
/// A stream that waits for all others was asked about while one of those is captured.
pub(crate) const CAPTURE_IMPLICIT: u32 = 906;
const OUT_OF_MEMORY: u32 = 2;

/// What usually is behind an error.
fn hint(code: u32) -> &'static str {
    match code {
        OUT_OF_MEMORY => "; other processes may hold memory of this GPU: see nvidia-smi",
        // Not or no longer initialised, and a context that is gone with the process.
        3 | 4 | 201 | 709 => "; the process is ending, or a forked child uses the GPU of its parent",
        100 => "; no GPU is visible: see CUDA_VISIBLE_DEVICES and nvidia-smi",
        700 | 716..=719 => {
            "; a kernel that ran before on this GPU failed, and nothing works on it until the process ends"
        }
        _ => "",
    }
}

impl Driver {
    /// Says what a call returned.
    pub(crate) fn check(&self, call: &'static str, code: c_uint) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let word = |get: unsafe extern "C" fn(c_uint, *mut *const c_char) -> c_uint| {
            let mut text: *const c_char = std::ptr::null();
            // SAFETY: the driver writes one pointer, to text that it keeps.
            let found = unsafe { get(code, &raw mut text) } == 0 && !text.is_null();
            // SAFETY: as above.
            found.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        Err(Error::Call {
            call,
            code,
            name: word(self.error_name).unwrap_or_else(|| format!("error {code}")),
            text: word(self.error_text).unwrap_or_else(|| "unknown to this driver".into()),
            hint: hint(code),
        })
    }
}

/// Calls a function of the driver: `cuda!(driver, copy(a, b, n, stream))`.
macro_rules! cuda {
    ($driver:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        let driver: &$crate::driver::Driver = $driver;
        let code = (driver.$function)($($argument),*);
        driver.check(stringify!($function), code)
    }};
}
pub(crate) use cuda;

static DRIVER: OnceLock<std::result::Result<Driver, String>> = OnceLock::new();

/// The driver, opened and initialised by the first who asks.
pub(crate) fn driver() -> Result<&'static Driver> {
    DRIVER.get_or_init(|| start(open()?)).as_ref().map_err(|error| Error::NoDriver(error.clone()))
}

/// Takes other functions than those of the system's library, for tests. Does nothing once the driver was used.
///
/// # Safety
/// What the names lead to behaves like the functions of CUDA's driver, for as long as the process lives.
pub unsafe fn install(lookup: impl Fn(&CStr) -> *mut c_void) {
    // SAFETY: as the caller promises.
    let found = unsafe { Driver::look_up(lookup) };
    let _ = DRIVER.set(found.map_err(|missing| format!("{missing} is missing")).and_then(start));
}

/// The version of CUDA that the driver is for, as in 13000 for 13.0.
pub fn version() -> Result<i32> {
    let driver = driver()?;
    let mut version = 0;
    // SAFETY: one number is written.
    unsafe { cuda!(driver, driver_version(&raw mut version)) }?;
    Ok(version)
}

fn start(driver: Driver) -> std::result::Result<Driver, String> {
    // SAFETY: the driver is initialised with the only flags there are.
    unsafe { cuda!(&driver, init(0)) }.map_err(|error| error.to_string())?;
    Ok(driver)
}

fn open() -> std::result::Result<Driver, String> {
    let name = std::env::var(CHOSEN).unwrap_or_else(|_| LIBRARY.to_owned());
    let path = CString::new(name.clone()).map_err(|_| format!("{CHOSEN} holds a zero byte"))?;
    // SAFETY: opening the driver's library runs nothing but its own start.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if library.is_null() {
        // SAFETY: text about the call before, of this thread.
        let reason = unsafe { libc::dlerror() };
        // SAFETY: as above.
        let reason =
            (!reason.is_null()).then(|| unsafe { CStr::from_ptr(reason) }.to_string_lossy().into_owned());
        return Err(format!(
            "{name} cannot be opened ({}); install NVIDIA's driver, or start the container with --gpus all",
            reason.unwrap_or_else(|| "no reason given".into())
        ));
    }
    // SAFETY: the library is CUDA's driver, and is never closed.
    unsafe { Driver::look_up(|symbol| libc::dlsym(library, symbol.as_ptr())) }.map_err(|missing| {
        format!("{name} has no {missing}: the driver is older than CUDA 11.7; install a newer one")
    })
}
