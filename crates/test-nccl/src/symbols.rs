//! NCCL's functions, by their names.
//!
//! What they take is turned into values here, and what goes wrong into numbers. Groups are a thread's own: calls between
//! the start and the end of one are kept and started together.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::{Arc, Mutex};

use crate::answer::{self, Code, Failure, IN_PROGRESS, INVALID_ARGUMENT, SUCCESS, SYSTEM_ERROR};
use crate::call::{Collective, Kind, Request, element};
use crate::communicator::{Communicator, lock};
use crate::joined::Asked;

/// The version this library says it is: one that has everything the callers ask for.
const VERSION: c_int = 22_800;

/// Communicators by handle. Handles are numbers that are never used again, so that a freed one is found out.
static COMMUNICATORS: Mutex<(usize, BTreeMap<usize, Arc<Communicator>>)> = Mutex::new((0, BTreeMap::new()));

/// What there is to say about the last failure that no communicator knows of.
static LAST: Mutex<String> = Mutex::new(String::new());

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId([u8; 128]);

/// The beginning of `ncclConfig_t`, which all versions of it have.
#[repr(C)]
pub struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

/// The calls of a group that this thread has started.
#[derive(Default)]
struct Group {
    depth: usize,
    calls: Vec<(Arc<Communicator>, Asked)>,
    failed: Option<Code>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
    /// What `ncclGetLastError` has given out.
    static SAID: RefCell<CString> = RefCell::default();
}

fn find(handle: *mut c_void) -> Result<Arc<Communicator>, Failure> {
    let found = lock(&COMMUNICATORS).1.get(&(handle as usize)).cloned();
    found.ok_or_else(|| Failure::misuse("a communicator that does not exist, or was freed"))
}

/// Takes a communicator away from later calls.
fn take(handle: *mut c_void) -> Result<Arc<Communicator>, Failure> {
    let found = lock(&COMMUNICATORS).1.remove(&(handle as usize));
    found.ok_or_else(|| Failure::misuse("a communicator that does not exist, or was freed"))
}

/// Keeps the text of a failure, with the communicator where there is one.
fn answer(of: Option<&Communicator>, result: Result<Code, Failure>) -> Code {
    result.unwrap_or_else(|failure| {
        match of {
            Some(communicator) => communicator.remember(&failure),
            None => *lock(&LAST) = failure.text,
        }
        failure.code
    })
}

/// Adds a call to the thread's group, or starts it if there is none.
fn ask(
    handle: *mut c_void,
    stream: *mut c_void,
    make: impl FnOnce(&Communicator) -> Result<Request, Failure>,
) -> Code {
    let communicator = match find(handle) {
        Ok(communicator) => communicator,
        Err(failure) => return answer(None, Err(failure)),
    };
    let asked = communicator
        .admit()
        .and_then(|trouble| Ok(Asked { request: make(&communicator)?, stream: stream as u64, trouble }));
    GROUP.with_borrow_mut(|group| {
        let code = answer(
            Some(&communicator),
            asked.and_then(|asked| {
                if group.depth > 0 {
                    group.calls.push((communicator.clone(), asked));
                    return Ok(SUCCESS);
                }
                // SAFETY: whoever calls NCCL vouches for stream and memory.
                unsafe { communicator.launch(&[asked]) }?;
                Ok(IN_PROGRESS)
            }),
        );
        if group.depth > 0 && code != SUCCESS {
            group.failed.get_or_insert(code);
        }
        code
    })
}

fn collective(
    kind: Kind,
    communicator: &Communicator,
    [src, dst]: [u64; 2],
    count: usize,
    dtype: c_int,
    op: Option<c_int>,
    root: c_int,
) -> Result<Request, Failure> {
    let reduction = match op {
        None => None,
        Some(number) => {
            let found = communicator.reduction(number);
            Some(found.ok_or_else(|| invalid(format!("no reduction has the number {number}")))?)
        }
    };
    let root = rank(root, communicator)?;
    let what = Collective { kind, count, dtype: known(dtype)?, reduction, root };
    Ok(Request::Collective { what, src, dst })
}

fn known(dtype: c_int) -> Result<ronde_collective::types::DType, Failure> {
    element(dtype).ok_or_else(|| invalid(format!("elements of type {dtype} are not known here")))
}

fn rank(rank: c_int, communicator: &Communicator) -> Result<usize, Failure> {
    let found = usize::try_from(rank).ok().filter(|&rank| rank < communicator.size());
    found.ok_or_else(|| invalid(format!("there is no rank {rank} among {}", communicator.size())))
}

fn invalid(text: String) -> Failure {
    Failure::new(INVALID_ARGUMENT, text)
}

macro_rules! functions {
    ($($(#[$about:meta])* $name:ident($($argument:ident: $kind:ty),*) -> $result:ty $body:block)*) => {
        $(
            $(#[$about])*
            ///
            /// # Safety
            /// As NCCL's documentation says.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case)]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> $result $body
        )*

        /// The address of one of NCCL's functions, or null: what `dlsym` gives for this library.
        pub fn lookup(name: &CStr) -> *mut c_void {
            match name.to_bytes() {
                $(bytes if bytes == stringify!($name).as_bytes() => $name as *mut c_void,)*
                _ => std::ptr::null_mut(),
            }
        }
    };
}

functions! {
    /// The version of NCCL that this is like.
    ncclGetVersion(version: *mut c_int) -> Code {
        // SAFETY: a place for one number.
        unsafe { *version = VERSION };
        SUCCESS
    }

    /// The name of an answer.
    ncclGetErrorString(code: Code) -> *const c_char {
        answer::name(code).as_ptr()
    }

    /// What there is to say about the last failure; valid until the next call in this thread.
    ncclGetLastError(comm: *mut c_void) -> *const c_char {
        let found = lock(&COMMUNICATORS).1.get(&(comm as usize)).cloned();
        let text = found.map_or_else(|| lock(&LAST).clone(), |communicator| communicator.last());
        SAID.with_borrow_mut(|said| {
            *said = CString::new(text).unwrap_or_default();
            said.as_ptr()
        })
    }

    /// Makes an id.
    ncclGetUniqueId(id: *mut UniqueId) -> Code {
        let mut bytes = [0; 128];
        bytes[..16].copy_from_slice(b"ronde-test-nccl/");
        if getrandom::fill(&mut bytes[16..32]).is_err() {
            return SYSTEM_ERROR;
        }
        // SAFETY: a place for one id.
        unsafe { *id = UniqueId(bytes) };
        SUCCESS
    }

    /// Begins to make a communicator.
    ncclCommInitRankConfig(comm: *mut *mut c_void, size: c_int, id: UniqueId, rank: c_int, config: *mut Config) -> Code {
        // SAFETY: null, or a configuration.
        let blocking = unsafe { config.as_ref() }.is_none_or(|config| config.blocking != 0);
        let mut name = [0; 32];
        name.copy_from_slice(&id.0[..32]);
        let begun = match (usize::try_from(rank), usize::try_from(size)) {
            _ if blocking => Err(invalid("this library has non-blocking communicators only".into())),
            (Ok(rank), Ok(size)) => Communicator::begin(&name, rank, size),
            _ => Err(invalid(format!("rank {rank} of {size}"))),
        };
        answer(None, begun.map(|communicator| {
            let mut all = lock(&COMMUNICATORS);
            all.0 += 1;
            let handle = all.0;
            all.1.insert(handle, communicator);
            // SAFETY: a place for one handle.
            unsafe { *comm = handle as *mut c_void };
            IN_PROGRESS
        }))
    }

    /// Begins the end of a communicator.
    ncclCommFinalize(comm: *mut c_void) -> Code {
        match find(comm) {
            Ok(communicator) => answer(Some(&communicator), communicator.finalize().map(|()| IN_PROGRESS)),
            Err(failure) => answer(None, Err(failure)),
        }
    }

    /// Frees a communicator.
    ncclCommDestroy(comm: *mut c_void) -> Code {
        answer(None, take(comm).map(|communicator| {
            communicator.free(false);
            SUCCESS
        }))
    }

    /// Gives a communicator up.
    ncclCommAbort(comm: *mut c_void) -> Code {
        answer(None, take(comm).map(|communicator| {
            communicator.free(true);
            SUCCESS
        }))
    }

    /// Says how far a communicator is.
    ncclCommGetAsyncError(comm: *mut c_void, state: *mut Code) -> Code {
        answer(None, find(comm).map(|communicator| {
            // SAFETY: a place for one answer.
            unsafe { *state = communicator.state() };
            SUCCESS
        }))
    }

    /// Everybody gets the reduction of everybody's elements.
    ncclAllReduce(
        src: *const c_void, dst: *mut c_void, count: usize, dtype: c_int, op: c_int, comm: *mut c_void, stream: *mut c_void
    ) -> Code {
        ask(comm, stream, |of| collective(Kind::AllReduce, of, [src as u64, dst as u64], count, dtype, Some(op), 0))
    }

    /// Rank r gets the r-th part of the reduction.
    ncclReduceScatter(
        src: *const c_void, dst: *mut c_void, count: usize, dtype: c_int, op: c_int, comm: *mut c_void, stream: *mut c_void
    ) -> Code {
        ask(comm, stream, |of| collective(Kind::ReduceScatter, of, [src as u64, dst as u64], count, dtype, Some(op), 0))
    }

    /// The root gets the reduction.
    ncclReduce(
        src: *const c_void, dst: *mut c_void, count: usize, dtype: c_int, op: c_int, root: c_int, comm: *mut c_void,
        stream: *mut c_void
    ) -> Code {
        ask(comm, stream, |of| collective(Kind::Reduce, of, [src as u64, dst as u64], count, dtype, Some(op), root))
    }

    /// Everybody gets the root's elements.
    ncclBroadcast(
        src: *const c_void, dst: *mut c_void, count: usize, dtype: c_int, root: c_int, comm: *mut c_void, stream: *mut c_void
    ) -> Code {
        ask(comm, stream, |of| collective(Kind::Broadcast, of, [src as u64, dst as u64], count, dtype, None, root))
    }

    /// Everybody gets everybody's elements.
    ncclAllGather(
        src: *const c_void, dst: *mut c_void, count: usize, dtype: c_int, comm: *mut c_void, stream: *mut c_void
    ) -> Code {
        ask(comm, stream, |of| collective(Kind::AllGather, of, [src as u64, dst as u64], count, dtype, None, 0))
    }

    /// Elements for one rank.
    ncclSend(
        src: *const c_void, count: usize, dtype: c_int, peer: c_int, comm: *mut c_void, stream: *mut c_void
    ) -> Code {
        ask(comm, stream, |of| {
            Ok(Request::Send { src: src as u64, bytes: count * known(dtype)?.size(), peer: rank(peer, of)? })
        })
    }

    /// Elements from one rank.
    ncclRecv(dst: *mut c_void, count: usize, dtype: c_int, peer: c_int, comm: *mut c_void, stream: *mut c_void) -> Code {
        ask(comm, stream, |of| {
            Ok(Request::Recv { dst: dst as u64, bytes: count * known(dtype)?.size(), peer: rank(peer, of)? })
        })
    }

    /// Starts a group of this thread.
    ncclGroupStart() -> Code {
        GROUP.with_borrow_mut(|group| group.depth += 1);
        SUCCESS
    }

    /// Ends a group, which starts its calls.
    ncclGroupEnd() -> Code {
        let ended = GROUP.with_borrow_mut(|group| match group.depth {
            0 => Err(Failure::misuse("ncclGroupEnd without ncclGroupStart")),
            1 => Ok(Some(std::mem::take(group))),
            _ => {
                group.depth -= 1;
                Ok(None)
            }
        });
        match ended {
            Ok(Some(Group { failed: Some(code), .. })) => code,
            Ok(Some(Group { calls, .. })) => launch_all(calls),
            Ok(None) => SUCCESS,
            Err(failure) => answer(None, Err(failure)),
        }
    }

    /// Makes a sum with a factor.
    ncclRedOpCreatePreMulSum(
        op: *mut c_int, scalar: *mut c_void, dtype: c_int, residence: c_int, comm: *mut c_void
    ) -> Code {
        const ON_HOST: c_int = 1;
        answer(None, find(comm).and_then(|communicator| {
            use ronde_collective::types::DType;
            // SAFETY: on the host, as is checked, and of the type that is named.
            let factor = unsafe {
                match known(dtype)? {
                    _ if residence != ON_HOST => return Err(invalid("factors must be in host memory".into())),
                    DType::F32 => f64::from(*scalar.cast::<f32>()),
                    DType::F64 => *scalar.cast::<f64>(),
                    other => return Err(invalid(format!("factors of {other} are not known here"))),
                }
            };
            // SAFETY: a place for one number.
            unsafe { *op = communicator.add_scaled(factor) };
            Ok(SUCCESS)
        }))
    }

    /// Frees a sum with a factor.
    ncclRedOpDestroy(op: c_int, comm: *mut c_void) -> Code {
        answer(None, find(comm).and_then(|communicator| {
            if communicator.remove_scaled(op) { Ok(SUCCESS) } else { Err(invalid(format!("no reduction has the number {op}"))) }
        }))
    }
}

/// Starts the calls of a group, communicator by communicator in the order in which they came up.
fn launch_all(calls: Vec<(Arc<Communicator>, Asked)>) -> Code {
    let mut groups: Vec<(Arc<Communicator>, Vec<Asked>)> = Vec::new();
    for (communicator, asked) in calls {
        match groups.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &communicator)) {
            Some((_, group)) => group.push(asked),
            None => groups.push((communicator, vec![asked])),
        }
    }
    let mut code = SUCCESS;
    for (communicator, group) in groups {
        // SAFETY: whoever calls NCCL vouches for streams and memory.
        let launched = unsafe { communicator.launch(&group) };
        code = answer(Some(&communicator), launched.map(|()| IN_PROGRESS));
        if code != IN_PROGRESS {
            break;
        }
    }
    code
}
