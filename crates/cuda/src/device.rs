//! One GPU: its primary context, which frameworks use as well, and what is kept with it.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::driver::{Driver, Error, Location, PoolProperties, Raw, Result, cuda, driver};
use crate::kernel::Kernel;
use crate::memory::{ON_DEVICE, PINNED};

const MULTIPROCESSORS: c_int = 16;
const VIRTUAL_MEMORY: c_int = 102;
const MEMORY_AS_DESCRIPTORS: c_int = 103;
const MEMORY_POOLS: c_int = 115;

/// What a pool keeps although nobody uses it (`CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`), and how many bytes that may be here: results
/// of a size that was not foreseen are mostly smaller.
const RELEASE_THRESHOLD: c_int = 4;
static KEPT: u64 = 64 << 20;

/// Threads in this mode break no capture of others.
const RELAXED: c_uint = 2;

/// Where the driver's compiler writes what it has to say, and how much room there is.
const JIT_LOG: c_int = 5;
const JIT_LOG_BYTES: c_int = 6;

/// See the module's text.
pub struct Device {
    pub(crate) driver: &'static Driver,
    ordinal: i32,
    pub(crate) handle: c_int,
    context: Raw,
    uuid: [u8; 16],
    name: String,
    multiprocessors: usize,
    memory: usize,
    shares_memory: bool,
    has_pools: bool,
    /// Where memory that is allocated in the order of streams comes from, once there was some.
    pool: Mutex<Option<usize>>,
    /// Events that nobody uses at the moment: making one takes longer than recording it.
    events: Mutex<Vec<usize>>,
    /// How many points of streams have been recorded. Held while one is, so that numbers grow along each stream.
    recorded: Mutex<u64>,
    /// Kernels that were compiled: the function, and the module it is in.
    functions: Mutex<HashMap<Kernel, (usize, usize)>>,
}

// SAFETY: contexts may be used from any thread that makes them current.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// How many GPUs this process sees.
    pub fn count() -> Result<usize> {
        let driver = driver()?;
        let mut count = 0;
        // SAFETY: one number is written.
        unsafe { cuda!(driver, device_count(&raw mut count)) }?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The GPU with this number among the visible ones, as frameworks count them.
    pub fn open(ordinal: i32) -> Result<Arc<Device>> {
        let driver = driver()?;
        let (mut handle, mut uuid, mut name, mut context) =
            (0, [0; 16], [0 as c_char; 256], std::ptr::null_mut());
        // SAFETY: what is written to is as large as the driver is told. The context is the one that frameworks use.
        unsafe {
            cuda!(driver, device_get(&raw mut handle, ordinal))?;
            cuda!(driver, device_uuid(&raw mut uuid, handle))?;
            cuda!(driver, device_name(name.as_mut_ptr(), name.len() as c_int - 1, handle))?;
            cuda!(driver, context_retain(&raw mut context, handle))?;
        }
        let mut device = Device {
            driver,
            ordinal,
            handle,
            context,
            uuid,
            // SAFETY: the last byte is still zero.
            name: unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned(),
            multiprocessors: 1,
            memory: 0,
            shares_memory: false,
            has_pools: false,
            pool: Mutex::default(),
            events: Mutex::default(),
            recorded: Mutex::default(),
            functions: Mutex::default(),
        };
        device.multiprocessors = device.attribute(MULTIPROCESSORS)?.max(1);
        // SAFETY: one number is written.
        unsafe { cuda!(driver, device_memory(&raw mut device.memory, handle)) }?;
        device.shares_memory =
            device.attribute(VIRTUAL_MEMORY)? != 0 && device.attribute(MEMORY_AS_DESCRIPTORS)? != 0;
        device.has_pools = device.attribute(MEMORY_POOLS)? != 0;
        Ok(Arc::new(device))
    }

    fn attribute(&self, which: c_int) -> Result<usize> {
        let mut value = 0;
        // SAFETY: one number is written.
        unsafe { cuda!(self.driver, device_attribute(&raw mut value, which, self.handle)) }?;
        Ok(usize::try_from(value).unwrap_or(0))
    }

    /// Its number among the visible ones.
    pub fn ordinal(&self) -> i32 {
        self.ordinal
    }

    /// What no other GPU, and no other part of a divided one, is called.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// What people call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many thread blocks it runs side by side, at the least.
    pub fn multiprocessors(&self) -> usize {
        self.multiprocessors
    }

    /// How many bytes of memory it has.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Whether its memory can be handed to other processes as a descriptor.
    pub fn shares_memory(&self) -> bool {
        self.shares_memory
    }

    /// Whether memory can be allocated in the order of a stream.
    pub(crate) fn has_pools(&self) -> bool {
        self.has_pools
    }

    /// The pool of this process, which frameworks do not use. The context is current.
    ///
    /// The device's own pool gives all that is free in it back to the system whenever somebody waits for the device, and
    /// asking for it again takes longer than most operations do. What that one keeps is for frameworks to say, so this is another.
    pub(crate) fn pool(&self) -> Result<Raw> {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = *pool {
            return Ok(pool as Raw);
        }
        let properties = PoolProperties {
            kind: PINNED,
            handle_types: 0,
            location: Location { kind: ON_DEVICE, id: self.handle },
            windows: std::ptr::null_mut(),
            most: 0,
            usage: 0,
            reserved: [0; 54],
        };
        let mut made = std::ptr::null_mut();
        // SAFETY: the properties are read, and one handle is written.
        unsafe { cuda!(self.driver, pool_create(&raw mut made, &raw const properties)) }?;
        *pool = Some(made as usize);
        // SAFETY: the pool was just made, and a number is read.
        unsafe { cuda!(self.driver, pool_set(made, RELEASE_THRESHOLD, &raw const KEPT)) }?;
        Ok(made)
    }

    /// Makes its context the current one of this thread, as long as what is returned lives. While somebody captures a graph, what
    /// this thread does meanwhile does not count: it is given to streams of our own, and by default any allocation or
    /// question, in whatever thread, would break the capture.
    pub fn enter(&self) -> Result<Entered<'_>> {
        let visit = self.visit()?;
        let mut mode = RELAXED;
        // SAFETY: one number is read and written.
        unsafe { cuda!(self.driver, capture_mode(&raw mut mode)) }?;
        Ok(Entered { visit, mode })
    }

    /// The same for what no capture minds, recording events and waiting for them, which every tensor needs.
    pub(crate) fn visit(&self) -> Result<Visit<'_>> {
        // SAFETY: the context is retained by this value.
        unsafe { cuda!(self.driver, context_push(self.context)) }?;
        Ok(Visit { device: self })
    }

    /// Whether its context is the current one of this thread.
    pub fn is_current(&self) -> bool {
        let mut current = std::ptr::null_mut();
        // SAFETY: one handle is written, and what was taken off is put back.
        unsafe {
            (self.driver.context_pop)(&raw mut current) == 0
                && (self.driver.context_push)(current) == 0
                && current == self.context
        }
    }

    pub(crate) fn recorded(&self) -> MutexGuard<'_, u64> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn events(&self) -> MutexGuard<'_, Vec<usize>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An event to record. The context is current.
    pub(crate) fn take_event(&self) -> Result<Raw> {
        const NO_TIMING: u32 = 2;
        if let Some(event) = self.events().pop() {
            return Ok(event as Raw);
        }
        let mut event = std::ptr::null_mut();
        // SAFETY: one handle is written.
        unsafe { cuda!(self.driver, event_create(&raw mut event, NO_TIMING)) }?;
        Ok(event)
    }

    /// Takes an event back. Streams that wait for it wait for the point they were told, whatever is recorded next.
    pub(crate) fn give_event(&self, event: Raw) {
        self.events().push(event as usize);
    }

    /// The function of a kernel, compiled by the driver when it is first asked for. The context is current.
    pub(crate) fn function(&self, kernel: &Kernel) -> Result<Raw> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&(function, _)) = functions.get(kernel) {
            return Ok(function as Raw);
        }
        let (function, module) = self.compile(kernel)?;
        functions.insert(*kernel, (function as usize, module as usize));
        Ok(function)
    }

    fn compile(&self, kernel: &Kernel) -> Result<(Raw, Raw)> {
        let entry = kernel.entry();
        let text = format!("{}\0", kernel.source());
        let mut log = vec![0u8; 4096];
        let mut options = [JIT_LOG, JIT_LOG_BYTES];
        let mut values: [Raw; 2] = [log.as_mut_ptr().cast(), log.len() as Raw];
        let mut module = std::ptr::null_mut();
        // SAFETY: the text ends with a zero, and options and values are two each.
        let loaded = unsafe {
            cuda!(
                self.driver,
                module_load(
                    &raw mut module,
                    text.as_ptr().cast::<c_void>(),
                    2,
                    options.as_mut_ptr(),
                    values.as_mut_ptr()
                )
            )
        };
        if let Err(error) = loaded {
            let said = CStr::from_bytes_until_nul(&log).map(|log| log.to_string_lossy().into_owned());
            let log = format!("{error}; {}", said.unwrap_or_default());
            return Err(Error::Kernel { entry, log });
        }
        let mut function = std::ptr::null_mut();
        // SAFETY: the name ends with a zero, and the module stays loaded as long as this device is open.
        unsafe {
            let name = format!("{entry}\0");
            cuda!(self.driver, module_function(&raw mut function, module, name.as_ptr().cast()))
        }?;
        Ok((function, module))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let events = std::mem::take(&mut *self.events());
        let pool = self.pool.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let functions = std::mem::take(self.functions.get_mut().unwrap_or_else(PoisonError::into_inner));
        if let Ok(_entered) = self.enter() {
            for event in events {
                // SAFETY: nobody holds it any more. A failure leaves it to the end of the context.
                let _ = unsafe { (self.driver.event_destroy)(event as Raw) };
            }
            if let Some(pool) = pool {
                // SAFETY: made in `pool`; the driver itself waits for what was freed in streams.
                let _ = unsafe { (self.driver.pool_destroy)(pool as Raw) };
            }
            for (_, module) in functions.into_values() {
                // SAFETY: as above: all streams that ran its kernels are gone.
                let _ = unsafe { (self.driver.module_unload)(module as Raw) };
            }
        }
        // SAFETY: retained once, in `open`.
        let _ = unsafe { (self.driver.context_release)(self.handle) };
    }
}

/// A thread's stay in the context of a device.
pub struct Entered<'a> {
    visit: Visit<'a>,
    /// How much the thread minded captures before.
    mode: c_uint,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // SAFETY: one number is read and written.
        let _ = unsafe { (self.visit.device.driver.capture_mode)(&raw mut self.mode) };
    }
}

/// The same with captures minded as before.
pub(crate) struct Visit<'a> {
    device: &'a Device,
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        let mut left = std::ptr::null_mut();
        // SAFETY: one handle is written; the context was pushed by this thread.
        let _ = unsafe { (self.device.driver.context_pop)(&raw mut left) };
    }
}
