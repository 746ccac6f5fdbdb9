//! Work in order, and points in it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::Device;
use crate::driver::{CAPTURE_IMPLICIT, Error, NOT_READY, Raw, Result, cuda};

/// A stream of this process's own, which waits for no other unless it is told to, and goes before those of frameworks.
pub struct Stream {
    device: Arc<Device>,
    raw: Raw,
}

// SAFETY: streams may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new one.
    pub fn new(device: &Arc<Device>) -> Result<Stream> {
        const NON_BLOCKING: u32 = 1;
        let _entered = device.enter()?;
        let (mut least, mut greatest, mut raw) = (0, 0, std::ptr::null_mut());
        // SAFETY: two numbers and a handle are written.
        unsafe {
            cuda!(device.driver, stream_priorities(&raw mut least, &raw mut greatest))?;
            cuda!(device.driver, stream_create(&raw mut raw, NON_BLOCKING, greatest))?;
        }
        Ok(Stream { device: device.clone(), raw })
    }

    /// Whose it is.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// What libraries that are given streams know it by.
    pub fn handle(&self) -> u64 {
        self.raw as u64
    }

    pub(crate) fn raw(&self) -> Raw {
        self.raw
    }

    /// The point after everything given to it so far.
    pub fn record(&self) -> Result<Arc<Mark>> {
        Mark::record(&self.device, self.handle())
    }

    /// What follows waits for a point in another stream.
    pub fn wait(&self, mark: &Mark) -> Result<()> {
        mark.order(self.handle())
    }

    /// What follows waits until the word at an address has come to `value`, counted on modulo 2^32. Whoever gives this to a
    /// stream knows that the work which writes it has been given to a stream already.
    ///
    /// # Safety
    /// The address is that of a word which the device can read, and stays so.
    pub unsafe fn wait_for(&self, address: u64, value: u32) -> Result<()> {
        let _entered = self.device.enter()?;
        const AT_LEAST: u32 = 0;
        // SAFETY: as the caller promises.
        unsafe { cuda!(self.device.driver, stream_wait_value(self.raw, address, value, AT_LEAST)) }
    }

    /// Writes a word after everything given so far, and after the effects of that.
    ///
    /// # Safety
    /// The address is that of a word which the device can write, and stays so.
    pub unsafe fn write(&self, address: u64, value: u32) -> Result<()> {
        let _entered = self.device.enter()?;
        // SAFETY: as the caller promises.
        unsafe { cuda!(self.device.driver, stream_write_value(self.raw, address, value, 0)) }
    }

    /// Copies inside the device.
    ///
    /// # Safety
    /// Both ranges are valid device memory until the stream has come past this.
    pub unsafe fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        let _entered = self.device.enter()?;
        // SAFETY: as the caller promises.
        unsafe { cuda!(self.device.driver, copy(to, from, bytes, self.raw)) }
    }

    /// Copies from the device to the host.
    ///
    /// # Safety
    /// Both ranges are valid until the stream has come past this.
    pub unsafe fn copy_out(&self, from: u64, to: *mut u8, bytes: usize) -> Result<()> {
        let _entered = self.device.enter()?;
        // SAFETY: as the caller promises.
        unsafe { cuda!(self.device.driver, copy_out(to.cast(), from, bytes, self.raw)) }
    }

    /// Copies from the host to the device.
    ///
    /// # Safety
    /// Both ranges are valid until the stream has come past this.
    pub unsafe fn copy_in(&self, from: *const u8, to: u64, bytes: usize) -> Result<()> {
        let _entered = self.device.enter()?;
        // SAFETY: as the caller promises.
        unsafe { cuda!(self.device.driver, copy_in(to, from.cast(), bytes, self.raw)) }
    }

    /// Returns once everything given to it is done.
    pub fn synchronize(&self) -> Result<()> {
        let _entered = self.device.enter()?;
        // SAFETY: the stream is this value's.
        unsafe { cuda!(self.device.driver, stream_synchronize(self.raw)) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // What it has not done yet is still done; a failure leaves it to the end of the context.
        if let Ok(_entered) = self.device.enter() {
            // SAFETY: the stream is this value's.
            let _ = unsafe { (self.device.driver.stream_destroy)(self.raw) };
        }
    }
}

/// A point in a stream.
pub struct Mark {
    device: Arc<Device>,
    event: Raw,
    stream: u64,
    /// How many points were recorded before, in all streams.
    number: u64,
    /// The stream that was last told to wait for it: of a batch, every tensor asks for the same.
    waiting: AtomicU64,
}

/// Refuses a stream that is being captured into a graph: a point in it, or a wait there, would become part of the graph or break
/// the capture. The default stream, which most trainings are in, cannot be captured and is not asked. The context is current.
fn refuse_captured(device: &Device, stream: u64) -> Result<()> {
    const NOT_CAPTURED: u32 = 0;
    const DEFAULT: u64 = 0;
    if stream == DEFAULT {
        return Ok(());
    }
    let mut status = NOT_CAPTURED;
    // SAFETY: the stream is one of the device's, as whoever names it knows; one number is written.
    let code = unsafe { (device.driver.stream_is_capturing)(stream as Raw, &raw mut status) };
    if code == CAPTURE_IMPLICIT {
        return Err(Error::Capturing);
    }
    device.driver.check("stream_is_capturing", code)?;
    if status == NOT_CAPTURED { Ok(()) } else { Err(Error::Capturing) }
}

/// No stream: handles are addresses, or small numbers.
const NOBODY: u64 = u64::MAX;

// SAFETY: events may be used from any thread.
unsafe impl Send for Mark {}
// SAFETY: as above.
unsafe impl Sync for Mark {}

impl Mark {
    /// The point after everything that was given so far to a stream, of whomever; 0 is the device's default stream.
    pub fn record(device: &Arc<Device>, stream: u64) -> Result<Arc<Mark>> {
        let _entered = device.visit()?;
        refuse_captured(device, stream)?;
        let event = device.take_event()?;
        let mut recorded = device.recorded();
        let number = *recorded;
        let waiting = AtomicU64::new(NOBODY);
        let mark = Arc::new(Mark { device: device.clone(), event, stream, number, waiting });
        // SAFETY: the stream is one of the device's, as whoever names it knows.
        unsafe { cuda!(device.driver, event_record(mark.event, stream as Raw)) }?;
        *recorded += 1;
        Ok(mark)
    }

    /// The stream that it is a point of, and a number that grows along that stream; none for the stream that every thread has
    /// for itself, all of which go by one handle.
    pub fn place(&self) -> Option<(u64, u64)> {
        const PER_THREAD: u64 = 2;
        (self.stream != PER_THREAD).then_some((self.stream, self.number))
    }

    /// Has a stream, of whomever, wait for it.
    pub fn order(&self, stream: u64) -> Result<()> {
        if self.waiting.load(Ordering::Acquire) == stream {
            return Ok(());
        }
        let _entered = self.device.visit()?;
        refuse_captured(&self.device, stream)?;
        // SAFETY: as above.
        unsafe { cuda!(self.device.driver, stream_wait_event(stream as Raw, self.event, 0)) }?;
        self.waiting.store(stream, Ordering::Release);
        Ok(())
    }

    /// Whether everything before it is done.
    pub fn reached(&self) -> Result<bool> {
        let _entered = self.device.enter()?;
        // SAFETY: the event is this value's.
        let code = unsafe { (self.device.driver.event_query)(self.event) };
        // Asked often, and no error to put into words.
        if code == NOT_READY {
            return Ok(false);
        }
        self.device.driver.check("event_query", code).map(|()| true)
    }

    /// Returns once everything before it is done.
    pub fn wait(&self) -> Result<()> {
        let _entered = self.device.enter()?;
        // SAFETY: the event is this value's.
        unsafe { cuda!(self.device.driver, event_synchronize(self.event)) }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.device.give_event(self.event);
    }
}
