//! Launches kernels on tables of pieces.
//!
//! A table lies in host memory that the GPU reads by itself, so that a launch is one call. Tables of one batch lie one behind the
//! other; they are used again once the batch's last mark is reached.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Arc;

use crate::driver::{Raw, Result, cuda};
use crate::kernel::{Kernel, Piece, THREADS};
use crate::memory::Pinned;
use crate::stream::{Mark, Stream};

/// Pieces that a table has room for at the least: a small batch needs no more.
const LEAST: usize = 256;

struct Table {
    memory: Pinned,
    /// Pieces written since the table was last used up.
    used: usize,
}

impl Table {
    fn room(&self) -> usize {
        self.memory.len() / size_of::<Piece>() - self.used
    }
}

/// See the module's text.
pub struct Launcher {
    stream: Arc<Stream>,
    /// The one being filled.
    table: Option<Table>,
    /// Full ones of the batch under way.
    filled: Vec<Table>,
    /// Those of batches that may still be running, in order.
    waiting: VecDeque<(Arc<Mark>, Vec<Table>)>,
    spare: Vec<Table>,
}

impl Launcher {
    /// One that launches into a stream.
    pub fn new(stream: &Arc<Stream>) -> Launcher {
        Launcher {
            stream: stream.clone(),
            table: None,
            filled: Vec::new(),
            waiting: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    /// Where it launches.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// Launches a kernel on pieces of any length; `words` are its other parameters, eight bytes each. Does nothing for no pieces.
    ///
    /// # Safety
    /// The pieces and words are what the kernel expects, and the memory they name is valid until the stream has come past it.
    pub unsafe fn launch(&mut self, kernel: &Kernel, pieces: &[Piece], words: &[u64]) -> Result<()> {
        let device = self.stream.device().clone();
        let pieces = kernel.divide(pieces, device.multiprocessors() as u32);
        if pieces.is_empty() {
            return Ok(());
        }
        let _entered = device.enter()?;
        let function = device.function(kernel)?;
        let mut table = self.write(&pieces)?;
        let mut words = words.to_vec();
        let mut parameters: Vec<Raw> = Vec::with_capacity(words.len() + 1);
        parameters.push((&raw mut table).cast());
        parameters.extend(words.iter_mut().map(|word| (word as *mut u64).cast::<c_void>()));
        // SAFETY: as the caller promises; the parameters are copied by the call.
        unsafe {
            cuda!(
                device.driver,
                launch(
                    function,
                    pieces.len() as u32,
                    1,
                    1,
                    THREADS,
                    1,
                    1,
                    0,
                    self.stream.raw(),
                    parameters.as_mut_ptr(),
                    std::ptr::null_mut()
                )
            )
        }
    }

    /// Puts pieces where the GPU reads them; returns the address.
    fn write(&mut self, pieces: &[Piece]) -> Result<u64> {
        if self.table.as_ref().is_none_or(|table| table.room() < pieces.len()) {
            let fresh = self.fresh(pieces.len())?;
            self.filled.extend(self.table.replace(fresh));
        }
        let Some(table) = &mut self.table else { return Ok(0) };
        // SAFETY: there is room, and the GPU reads only what was written before a launch.
        let start = unsafe { table.memory.as_ptr().cast::<Piece>().add(table.used) };
        // SAFETY: as above.
        unsafe { start.copy_from_nonoverlapping(pieces.as_ptr(), pieces.len()) };
        table.used += pieces.len();
        Ok(start as u64)
    }

    fn fresh(&mut self, pieces: usize) -> Result<Table> {
        while self.waiting.front().is_some_and(|(mark, _)| mark.reached().unwrap_or(false)) {
            let done = self.waiting.pop_front().into_iter().flat_map(|(_, tables)| tables);
            self.spare.extend(done.map(|table| Table { used: 0, ..table }));
        }
        if let Some(at) = self.spare.iter().position(|table| table.room() >= pieces) {
            return Ok(self.spare.swap_remove(at));
        }
        let bytes = pieces.max(LEAST).next_power_of_two() * size_of::<Piece>();
        Ok(Table { memory: Pinned::new(self.stream.device(), bytes)?, used: 0 })
    }

    /// Ends a batch: the point after everything launched for it.
    pub fn end(&mut self) -> Result<Arc<Mark>> {
        let mark = self.stream.record()?;
        let mut tables = std::mem::take(&mut self.filled);
        tables.extend(self.table.take());
        if !tables.is_empty() {
            self.waiting.push_back((mark.clone(), tables));
        }
        Ok(mark)
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // Kernels may still read their tables. A failure of the GPU has ended its work as well.
        let _ = self.stream.synchronize();
    }
}
