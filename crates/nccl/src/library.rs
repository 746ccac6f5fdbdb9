//! A copy of NCCL that was found, opened and is new enough.
//!
//! It stays for the life of the process: communicators and their threads run its code.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_int, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::cause;
use crate::error::{Error, Who};
use crate::functions::{self, Code, Functions, Handle, SUCCESS, UniqueId};
use crate::search;

/// The first version with non-blocking communicators.
pub(crate) const OLDEST: Version = Version(21400);

/// A version of NCCL, by NCCL's own number for it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Version(pub i32);

/// Writes it as people do: 2.28.3.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Up to 2.8 the number had one digit less for the minor version.
        let major = if self.0 < 10_000 { 1000 } else { 10_000 };
        write!(f, "{}.{}.{}", self.0 / major, self.0 % major / 100, self.0 % 100)
    }
}

/// See the module's text.
pub struct Library {
    pub(crate) functions: Functions,
    version: Version,
    path: String,
}

/// Libraries that were opened, by the path that was asked for.
static OPENED: Mutex<BTreeMap<Option<String>, &'static Library>> = Mutex::new(BTreeMap::new());

impl Library {
    /// Opens the file that is named, or else the copy that this process should use (see `search`). Later calls give
    /// the same library; a failure is tried anew, since the framework may have been loaded meanwhile.
    pub fn open(explicit: Option<&str>) -> Result<&'static Library, Error> {
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        let key = explicit.map(str::to_owned);
        if let Some(library) = opened.get(&key) {
            return Ok(library);
        }
        let library = match explicit {
            Some(path) => load(Path::new(path), 0).map_err(|error| error.named(path))?,
            None => search()?,
        };
        let library: &'static Library = Box::leak(Box::new(library));
        opened.insert(key, library);
        Ok(library)
    }

    /// A library of functions that are there already, for tests.
    ///
    /// # Safety
    /// What `lookup` finds under a name of NCCL has that function's type, behaves like it, and stays for good. It
    /// answers null for names it does not know.
    pub unsafe fn with(lookup: impl Fn(&CStr) -> *mut c_void) -> Result<&'static Library, Error> {
        // SAFETY: as the caller promises.
        let library = unsafe { Library::take("given functions", &lookup) }
            .map_err(|error| error.named("given functions"))?;
        Ok(Box::leak(Box::new(library)))
    }

    /// # Safety
    /// As for [`Library::with`].
    unsafe fn take(path: &str, lookup: &dyn Fn(&CStr) -> *mut c_void) -> Result<Library, Unusable> {
        // SAFETY: as the caller promises.
        let Some(version) = unsafe { functions::version(lookup) }.map(Version) else {
            return Err(Unusable::Other("it has no ncclGetVersion".into()));
        };
        if version < OLDEST {
            return Err(Unusable::TooOld(Error::TooOld { path: path.into(), found: version }));
        }
        // SAFETY: as the caller promises.
        let functions = unsafe { Functions::find(lookup) }
            .map_err(|missing| Unusable::Other(format!("it has no {}", missing.to_string_lossy())))?;
        Ok(Library { functions, version, path: path.into() })
    }

    /// Its version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The file it came from.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Makes the id of a new communicator, on one of its ranks; the others get its bytes.
    pub fn unique_id(&self, who: &Who) -> Result<UniqueId, Error> {
        let mut id = UniqueId::from_bytes([0; UniqueId::LEN]);
        // SAFETY: it writes one id.
        match unsafe { (self.functions.get_unique_id)(&raw mut id) } {
            SUCCESS => Ok(id),
            code => Err(self.failure("ncclGetUniqueId", who, code, std::ptr::null_mut())),
        }
    }

    /// What a code means for a call. The communicator, for its last error, may be null.
    pub(crate) fn failure(&self, what: &str, who: &Who, code: Code, communicator: Handle) -> Error {
        let text = |text: *const std::ffi::c_char| {
            if text.is_null() {
                String::new()
            } else {
                // SAFETY: NCCL returns C strings that live until the next error of this thread, or for good.
                unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
            }
        };
        // SAFETY: any code may be asked about.
        let name = text(unsafe { (self.functions.error_string)(code) });
        // SAFETY: the communicator is null or has not been destroyed.
        let last = self.functions.last_error.map(|last| text(unsafe { last(communicator) }));
        Error::Failed { code, message: cause::explain(what, who, code, &name, &last.unwrap_or_default()) }
    }
}

/// Why a file is not the NCCL that is looked for.
enum Unusable {
    /// It is NCCL, but of no use: the search ends here, since a second copy would not get along with it.
    TooOld(Error),
    /// It is not there, or something else.
    Other(String),
}

impl Unusable {
    /// The error about a file that was asked for by name.
    fn named(self, path: &str) -> Error {
        match self {
            Unusable::TooOld(error) => error,
            Unusable::Other(reason) => Error::Named { path: path.into(), reason },
        }
    }
}

/// Tries one place after the other.
fn search() -> Result<Library, Error> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let beside = search::beside_loaded(&maps);
    let loaded =
        (Path::new(search::FILE), libc::RTLD_NOLOAD, format!("{} loaded by this process", search::FILE));
    let beside = beside.iter().map(|path| (path.as_path(), 0, path.display().to_string()));
    let system = (Path::new(search::FILE), 0, format!("{} of the system", search::FILE));
    let mut tried = Vec::new();
    for (path, flags, place) in std::iter::once(loaded).chain(beside).chain([system]) {
        match load(path, flags) {
            Ok(library) => return Ok(library),
            Err(Unusable::TooOld(error)) => return Err(error),
            Err(Unusable::Other(reason)) => tried.push(format!("{place}: {reason}")),
        }
    }
    Err(Error::NotFound { tried })
}

/// Opens one file and looks for the functions in it.
fn load(path: &Path, flags: c_int) -> Result<Library, Unusable> {
    let name = CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Unusable::Other("its name has a zero byte".into()))?;
    // SAFETY: a C string; what runs on loading NCCL is its own affair, as for any framework that loads it.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | flags) };
    if library.is_null() {
        let nothing_loaded = flags & libc::RTLD_NOLOAD != 0;
        return Err(Unusable::Other(if nothing_loaded { "none".into() } else { loader_says() }));
    }
    // SAFETY: the handle is open, and stays so: it is never closed once its functions are in use.
    let lookup = |name: &CStr| unsafe { libc::dlsym(library, name.as_ptr()) };
    let file = file_of(lookup(c"ncclGetVersion")).unwrap_or_else(|| path.display().to_string());
    // SAFETY: a library of NCCL's name with NCCL's symbols is taken to be NCCL.
    let found = unsafe { Library::take(&file, &lookup) };
    if found.is_err() {
        // SAFETY: nothing of it is in use here.
        unsafe { libc::dlclose(library) };
    }
    found
}

/// The loader's words for the failure of this thread's last call.
fn loader_says() -> String {
    // SAFETY: returns null or a C string that lives until the next call of the loader in this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "it cannot be loaded".into();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The file an address of code comes from.
fn file_of(address: *mut c_void) -> Option<String> {
    // SAFETY: all zero is a value of this plain struct.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked about; the answer is written to `info`.
    if address.is_null() || unsafe { libc::dladdr(address, &raw mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a C string of the loader, for as long as the library is loaded.
    Some(unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_people_write_them() {
        assert_eq!(Version(22803).to_string(), "2.28.3");
        assert_eq!(Version(21400).to_string(), "2.14.0");
        assert_eq!(Version(2804).to_string(), "2.8.4");
        assert!(Version(2804) < OLDEST && Version(22803) > OLDEST);
    }

    #[test]
    fn a_named_file_is_not_replaced_by_another() {
        let error = Library::open(Some("/nowhere/libnccl.so.2")).err().expect("an error");
        assert!(matches!(&error, Error::Named { path, .. } if path == "/nowhere/libnccl.so.2"), "{error}");
        assert!(error.to_string().contains("RONDE_NCCL_LIBRARY"), "{error}");
    }

    #[test]
    fn a_library_that_is_not_nccl_is_refused() {
        let error = Library::open(Some("libc.so.6")).err().expect("an error");
        assert!(error.to_string().contains("no ncclGetVersion"), "{error}");
    }
}
