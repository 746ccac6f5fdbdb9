//! Modules: PTX text, of which only the names of its entries are read.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_uint};
use std::sync::Arc;

use crate::context::{self, Device};
use crate::handles::{Handle, Table};
use crate::kernel::Kernel;
use crate::pointer::{In, Out};
use crate::status::{INVALID_PTX, NOT_FOUND, Result, demand};

struct Module {
    device: &'static Device,
    entries: BTreeSet<String>,
}

/// An entry of a module that is loaded on a device.
pub(crate) struct Function {
    pub(crate) device: &'static Device,
    pub(crate) kernel: Kernel,
    module: Handle,
}

static MODULES: Table<Module> = Table::new(0xD);
static FUNCTIONS: Table<Function> = Table::new(0xF);

/// `CU_JIT_ERROR_LOG_BUFFER` and `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`
const LOG: c_uint = 5;
const LOG_SIZE: c_uint = 6;
/// What the compiler says to a text that is none.
const COMPLAINT: &[u8] = b"simulated: the text has no .version, no .target or no .entry\0";

/// How many modules are alive.
pub(crate) fn count() -> usize {
    MODULES.count()
}

/// What a live handle of a function stands for.
pub(crate) fn get(function: Handle) -> Result<Arc<Function>> {
    FUNCTIONS.get(function)
}

/// `cuModuleLoadDataEx`
pub(crate) fn load(
    module: Out<Handle>,
    image: In<c_char>,
    count: c_uint,
    options: In<c_uint>,
    values: In<Handle>,
) -> Result {
    let device = context::current()?;
    let text = text(&image)?;
    let entries: BTreeSet<String> = text.split(".entry").skip(1).map(leading_word).collect();
    let whole = text.contains(".version") && text.contains(".target") && !entries.is_empty();
    if !whole {
        complain(count, &options, &values)?;
        return Err(INVALID_PTX);
    }
    module.put_with(|| Ok(MODULES.add(Arc::new(Module { device, entries }))))
}

/// The text at an address, up to its zero byte.
fn text(at: &In<c_char>) -> Result<String> {
    demand(!at.is_null())?;
    // SAFETY: the functions that take text demand that it ends with a zero byte.
    Ok(unsafe { CStr::from_ptr(at.address()) }.to_string_lossy().into_owned())
}

fn leading_word(text: &str) -> String {
    text.trim_start().chars().take_while(|char| char.is_ascii_alphanumeric() || *char == '_').collect()
}

/// Writes what the compiler says to where the options want it.
fn complain(count: c_uint, options: &In<c_uint>, values: &In<Handle>) -> Result {
    let option = |wanted| {
        for at in 0..count as usize {
            if options.get(at)? == wanted {
                return values.get(at).map(Some);
            }
        }
        Ok(None)
    };
    let (Some(log), Some(size)) = (option(LOG)?, option(LOG_SIZE)?) else { return Ok(()) };
    if log != 0 && size > 0 {
        let len = size.min(COMPLAINT.len()) - 1;
        // SAFETY: the caller vouches for `size` bytes there.
        unsafe {
            std::ptr::copy_nonoverlapping(COMPLAINT.as_ptr(), log as *mut u8, len);
            (log as *mut u8).add(len).write(0);
        }
    }
    Ok(())
}

/// `cuModuleUnload`: its functions end with it.
pub(crate) fn unload(module: Handle) -> Result {
    context::current_or_failed()?;
    MODULES.take(module)?;
    FUNCTIONS.retain(|function| function.module != module);
    Ok(())
}

/// Ends all modules of a device.
pub(crate) fn unload_all(device: &Device) {
    MODULES.retain(|module| module.device.index != device.index);
    FUNCTIONS.retain(|function| function.device.index != device.index);
}

/// `cuModuleGetFunction`: an entry that is in the text and that is one of our kernels.
pub(crate) fn function(function: Out<Handle>, module: Handle, name: In<c_char>) -> Result {
    context::current()?;
    let (name, found) = (text(&name)?, MODULES.get(module)?);
    let kernel = Kernel::named(&name).filter(|_| found.entries.contains(&name)).ok_or(NOT_FOUND)?;
    function.put_with(|| Ok(FUNCTIONS.add(Arc::new(Function { device: found.device, kernel, module }))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::INVALID_HANDLE;
    use crate::testing::{Desk, loaded};

    fn find(module: Handle, name: &CStr) -> Result<Handle> {
        let mut handle = 0;
        function(Out::to(&mut handle), module, In::from(name.as_ptr())).map(|()| handle)
    }

    #[test]
    fn functions_are_those_whose_entries_the_text_has_and_end_with_it() {
        let _desk = Desk::new();
        let module = loaded("ronde_move");
        let found = find(module, c"ronde_move").expect("an entry");
        assert_eq!(get(found).expect("a function").kernel, Kernel::Move);
        assert_eq!(find(module, c"ronde_fill"), Err(NOT_FOUND), "not in the text");
        assert_eq!(unload(module), Ok(()));
        assert_eq!(get(found).err(), Some(INVALID_HANDLE));
        assert_eq!(find(module, c"ronde_move"), Err(INVALID_HANDLE));
        let module = loaded("my_kernel");
        assert_eq!(find(module, c"my_kernel"), Err(NOT_FOUND), "none of ours");
        assert_eq!((unload(module), unload(module)), (Ok(()), Err(INVALID_HANDLE)));
    }

    #[test]
    fn modules_end_with_the_context_they_are_loaded_in() {
        let desk = Desk::new();
        let (kept, mut gone) = (loaded("ronde_move"), 0);
        desk.on(1, || gone = loaded("ronde_move"));
        assert_eq!(find(gone, c"ronde_move"), Err(INVALID_HANDLE));
        assert!(find(kept, c"ronde_move").is_ok());
        assert_eq!(unload(kept), Ok(()));
    }

    #[test]
    fn what_is_no_text_of_a_module_is_refused_with_words() {
        let _desk = Desk::new();
        let mut log = [b'x'; 20];
        let (options, values) = ([LOG, LOG_SIZE], [log.as_mut_ptr() as usize, log.len()]);
        let image = In::from(c"hello".as_ptr());
        let answer = load(Out::to(&mut 0), image, 2, In::from(options.as_ptr()), In::from(values.as_ptr()));
        assert_eq!(answer, Err(INVALID_PTX));
        assert_eq!(&log, b"simulated: the text\0");
    }
}
