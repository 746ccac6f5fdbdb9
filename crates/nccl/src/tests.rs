//! Communicators over a pretended NCCL: a few functions in this process that answer what a test wants, write down how
//! they were called, and notice when two threads are inside at once or a freed communicator is used.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use ronde_collective::types::{DType, ReduceOp};

use crate::functions::{Code, Config, Functions, Handle, IN_PROGRESS, REMOTE_ERROR, SUCCESS, SYSTEM_ERROR};
use crate::{Communicator, Error, Library, Op, UniqueId, Who};

/// What the functions of one test share. Its address travels in the unique id and is the communicator's handle.
#[derive(Default)]
struct Pretended {
    /// Answers to calls, by name; others succeed.
    answers: Mutex<BTreeMap<&'static str, Code>>,
    /// Answers to "how far are you?", one a time; then success.
    progress: Mutex<VecDeque<Code>>,
    /// Something was started and is not done yet.
    pending: AtomicBool,
    /// After those, still in progress for ever.
    endless: AtomicBool,
    calls: Mutex<Vec<String>>,
    inside: AtomicBool,
    freed: AtomicBool,
    /// Where `ncclAllReduce` says that it has begun, and waits for leave to return.
    gate: Mutex<Option<(mpsc::Sender<()>, mpsc::Receiver<()>)>>,
}

thread_local! {
    /// Groups are told without a communicator: they belong to the thread's last one.
    static CURRENT: Cell<*const Pretended> = const { Cell::new(std::ptr::null()) };
}

impl Pretended {
    fn id(self: &Arc<Self>) -> UniqueId {
        let mut bytes = [0; UniqueId::LEN];
        bytes[..8].copy_from_slice(&(Arc::as_ptr(self) as u64).to_ne_bytes());
        UniqueId::from_bytes(bytes)
    }

    fn answer(&self, name: &'static str, code: Code) {
        self.answers.lock().expect("answers").insert(name, code);
    }

    fn will_say(&self, codes: &[Code]) {
        self.progress.lock().expect("progress").extend(codes);
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().expect("calls"))
    }

    fn called(&self, name: &'static str, text: String) -> Code {
        assert!(!self.inside.swap(true, Ordering::SeqCst), "{name} while another call is inside");
        assert!(!self.freed.load(Ordering::SeqCst), "{name} after the communicator was freed");
        self.calls.lock().expect("calls").push(text);
        let code = self.answers.lock().expect("answers").get(name).copied().unwrap_or(SUCCESS);
        assert!(
            name == "abort" || !self.pending.load(Ordering::SeqCst),
            "{name} while something is in progress"
        );
        self.pending.store(code == IN_PROGRESS, Ordering::SeqCst);
        self.inside.store(false, Ordering::SeqCst);
        code
    }

    fn waits_at_the_gate(&self) {
        if let Some((begun, leave)) = self.gate.lock().expect("gate").take() {
            self.inside.store(true, Ordering::SeqCst);
            begun.send(()).expect("the test listens");
            leave.recv().expect("the test gives leave");
            self.inside.store(false, Ordering::SeqCst);
        }
    }
}

fn of<'a>(handle: Handle) -> &'a Pretended {
    CURRENT.set(handle.cast_const().cast());
    // SAFETY: handles are addresses of what a running test holds.
    unsafe { &*handle.cast_const().cast::<Pretended>() }
}

extern "C" fn get_version(version: *mut c_int) -> Code {
    // SAFETY: a place for one number.
    unsafe { *version = 22803 };
    SUCCESS
}

extern "C" fn old_version(version: *mut c_int) -> Code {
    // SAFETY: a place for one number.
    unsafe { *version = 21304 };
    SUCCESS
}

extern "C" fn get_unique_id(_: *mut UniqueId) -> Code {
    SYSTEM_ERROR
}

extern "C" fn init(comm: *mut Handle, size: c_int, id: UniqueId, rank: c_int, _: *mut Config) -> Code {
    let mut address = [0; 8];
    address.copy_from_slice(&id.bytes()[..8]);
    let handle = u64::from_ne_bytes(address) as Handle;
    let code = of(handle).called("init", format!("init {rank} of {size}"));
    // SAFETY: a place for one handle.
    unsafe { *comm = handle };
    code
}

extern "C" fn async_error(comm: Handle, state: *mut Code) -> Code {
    let pretended = of(comm);
    assert!(!pretended.freed.load(Ordering::SeqCst), "asked after the communicator was freed");
    let endless = pretended.endless.load(Ordering::SeqCst);
    let answer = pretended.progress.lock().expect("progress").pop_front();
    let answer = answer.unwrap_or(if endless { IN_PROGRESS } else { SUCCESS });
    pretended.pending.store(answer == IN_PROGRESS, Ordering::SeqCst);
    // SAFETY: a place for one code.
    unsafe { *state = answer };
    SUCCESS
}

extern "C" fn finalize(comm: Handle) -> Code {
    of(comm).called("finalize", "finalize".into())
}

extern "C" fn destroy(comm: Handle) -> Code {
    let code = of(comm).called("destroy", "destroy".into());
    assert!(!of(comm).freed.swap(true, Ordering::SeqCst), "freed twice");
    code
}

extern "C" fn abort(comm: Handle) -> Code {
    let code = of(comm).called("abort", "abort".into());
    assert!(!of(comm).freed.swap(true, Ordering::SeqCst), "freed twice");
    code
}

extern "C" fn error_string(_: Code) -> *const c_char {
    c"some trouble".as_ptr()
}

extern "C" fn last_error(_: Handle) -> *const c_char {
    c"Duplicate GPU detected".as_ptr()
}

extern "C" fn all_reduce(
    src: *const c_void,
    dst: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    comm: Handle,
    stream: *mut c_void,
) -> Code {
    of(comm).waits_at_the_gate();
    let (src, dst, stream) = (src as u64, dst as u64, stream as u64);
    of(comm).called("all_reduce", format!("all_reduce {src}>{dst} x{count} type {dtype} op {op} on {stream}"))
}

extern "C" fn send(
    src: *const c_void,
    count: usize,
    _: c_int,
    peer: c_int,
    comm: Handle,
    _: *mut c_void,
) -> Code {
    of(comm).called("send", format!("send {} x{count} to {peer}", src as u64))
}

extern "C" fn recv(
    dst: *mut c_void,
    count: usize,
    _: c_int,
    peer: c_int,
    comm: Handle,
    _: *mut c_void,
) -> Code {
    of(comm).called("recv", format!("recv {} x{count} from {peer}", dst as u64))
}

extern "C" fn group_start() -> Code {
    of(CURRENT.get().cast_mut().cast()).called("group_start", "start".into())
}

extern "C" fn group_end() -> Code {
    of(CURRENT.get().cast_mut().cast()).called("group_end", "end".into())
}

extern "C" fn create_pre_mul_sum(
    op: *mut c_int,
    scalar: *mut c_void,
    _: c_int,
    _: c_int,
    comm: Handle,
) -> Code {
    // SAFETY: a place for one number, and a factor of the type that the tests use.
    let factor = unsafe {
        *op = 77;
        *scalar.cast::<f32>()
    };
    of(comm).called("create_op", format!("create {factor}"))
}

extern "C" fn destroy_op(op: c_int, comm: Handle) -> Code {
    of(comm).called("destroy_op", format!("destroy {op}"))
}

extern "C" fn unused() -> Code {
    unreachable!("no test calls this function");
}

fn lookup(name: &CStr) -> *mut c_void {
    match name.to_str().expect("names of NCCL") {
        "ncclGetVersion" => get_version as *mut c_void,
        "ncclGetUniqueId" => get_unique_id as *mut c_void,
        "ncclCommInitRankConfig" => init as *mut c_void,
        "ncclCommGetAsyncError" => async_error as *mut c_void,
        "ncclCommFinalize" => finalize as *mut c_void,
        "ncclCommDestroy" => destroy as *mut c_void,
        "ncclCommAbort" => abort as *mut c_void,
        "ncclGetErrorString" => error_string as *mut c_void,
        "ncclGetLastError" => last_error as *mut c_void,
        "ncclAllReduce" => all_reduce as *mut c_void,
        "ncclSend" => send as *mut c_void,
        "ncclRecv" => recv as *mut c_void,
        "ncclGroupStart" => group_start as *mut c_void,
        "ncclGroupEnd" => group_end as *mut c_void,
        "ncclRedOpCreatePreMulSum" => create_pre_mul_sum as *mut c_void,
        "ncclRedOpDestroy" => destroy_op as *mut c_void,
        "ncclBroadcast" | "ncclReduce" | "ncclAllGather" | "ncclReduceScatter" => unused as *mut c_void,
        _ => std::ptr::null_mut(),
    }
}

/// What a caller makes of errors: its own, or NCCL's.
#[derive(Debug, PartialEq)]
struct Wrong(String);

impl From<Error> for Wrong {
    fn from(error: Error) -> Wrong {
        Wrong(error.to_string())
    }
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

fn go_on() -> Result<(), Wrong> {
    Ok(())
}

fn who() -> Who {
    Who { rank: 5, host: "node1".into(), gpu: "GPU 2".into() }
}

fn library() -> &'static Library {
    // SAFETY: the functions above have the types of NCCL's; those that no test calls are never called.
    unsafe { Library::with(lookup) }.expect("all functions are there")
}

fn join(nccl: &Arc<Pretended>) -> Communicator {
    Communicator::new(library(), &nccl.id(), 1, 2, who(), &go_on).expect("a communicator")
}

fn reduce(communicator: &Communicator) -> Result<(), Wrong> {
    // SAFETY: the pretended functions touch neither stream nor memory.
    unsafe { communicator.on(9, &go_on) }.all_reduce(16, 32, 4, DType::F32, ReduceOp::Sum)
}

#[test]
fn a_library_says_what_it_is_and_what_it_lacks() {
    assert_eq!(library().version().to_string(), "2.28.3");
    // SAFETY: as in `library`.
    let old = unsafe {
        Library::with(
            |name| if name == c"ncclGetVersion" { old_version as *mut c_void } else { lookup(name) },
        )
    };
    assert!(matches!(old, Err(Error::TooOld { .. })));
    // SAFETY: as in `library`.
    let less = unsafe {
        Library::with(|name| if name == c"ncclSend" { std::ptr::null_mut() } else { lookup(name) })
    };
    assert!(less.err().expect("an error").to_string().contains("no ncclSend"));
    // SAFETY: as in `library`.
    let silent = unsafe {
        Functions::find(&|name| if name == c"ncclGetLastError" { std::ptr::null_mut() } else { lookup(name) })
    };
    assert!(silent.is_ok_and(|functions| functions.last_error.is_none()), "not every NCCL has it");
    let error = library().unique_id(&who()).expect_err("the pretended one fails");
    assert!(error.to_string().starts_with("ncclGetUniqueId failed on rank 5 on node1 (GPU 2)"), "{error}");
}

#[test]
fn in_progress_is_waited_for_and_a_communicator_ends_in_order() {
    let nccl = Arc::new(Pretended::default());
    nccl.answer("init", IN_PROGRESS);
    nccl.will_say(&[IN_PROGRESS; 200]);
    let communicator = join(&nccl);
    assert_eq!((communicator.rank(), communicator.size()), (1, 2));
    nccl.answer("all_reduce", IN_PROGRESS);
    nccl.will_say(&[IN_PROGRESS, IN_PROGRESS, SUCCESS]);
    reduce(&communicator).expect("started");
    communicator.health().expect("healthy");
    nccl.answer("finalize", IN_PROGRESS);
    nccl.will_say(&[IN_PROGRESS]);
    drop(communicator);
    let expected = ["init 1 of 2", "all_reduce 16>32 x4 type 7 op 0 on 9", "finalize", "destroy"];
    assert_eq!(nccl.calls(), expected);
}

#[test]
fn groups_are_started_whole_or_not_at_all() {
    let nccl = Arc::new(Pretended::default());
    let communicator = join(&nccl);
    nccl.calls();
    // SAFETY: the pretended functions touch neither stream nor memory.
    let launch = unsafe { communicator.on(9, &go_on) };
    nccl.answer("group_end", IN_PROGRESS);
    launch
        .group(|group| {
            group.send(1, 10, DType::U8, 0)?;
            group.recv(2, 20, DType::U8, 0)
        })
        .expect("started");
    assert_eq!(nccl.calls(), ["start", "send 1 x10 to 0", "recv 2 x20 from 0", "end"]);
    let refused = launch.group(|group| {
        group.send(1, 10, DType::U8, 0)?;
        group.send(1, 10, DType::Bool, 0)
    });
    assert_eq!(refused, Err(Wrong("NCCL has no type for bool".into())));
    launch.group(|_| Ok(())).expect("nothing to start");
    assert_eq!(nccl.calls(), [""; 0]);
    nccl.answer("recv", SYSTEM_ERROR);
    let failed = launch.group(|group| {
        group.recv(2, 20, DType::U8, 0)?;
        group.send(1, 10, DType::U8, 0)
    });
    assert!(failed.is_err_and(|error| error.0.starts_with("ncclRecv failed")));
    assert_eq!(nccl.calls(), ["start", "recv 2 x20 from 0", "end", "abort"]);
}

#[test]
fn a_factor_is_made_for_one_call() {
    let nccl = Arc::new(Pretended::default());
    let communicator = join(&nccl);
    nccl.calls();
    // SAFETY: the pretended functions touch neither stream nor memory.
    let launch = unsafe { communicator.on(9, &go_on) };
    launch.all_reduce(16, 32, 4, DType::F32, Op::ScaledSum(0.5)).expect("started");
    let expected = ["create 0.5", "all_reduce 16>32 x4 type 7 op 77 on 9", "destroy 77"];
    assert_eq!(nccl.calls(), expected);
}

#[test]
fn the_first_failure_is_kept_and_frees_the_communicator_once() {
    let nccl = Arc::new(Pretended::default());
    let communicator = join(&nccl);
    nccl.answer("all_reduce", SYSTEM_ERROR);
    let first = reduce(&communicator).expect_err("it fails");
    assert!(
        first.0.contains("ncclAllReduce failed on rank 5") && first.0.contains("RONDE_GPU_PATH"),
        "{first}"
    );
    assert_eq!(reduce(&communicator), Err(Wrong(first.0.clone())));
    communicator.abort("too late to be the reason");
    assert_eq!(communicator.health().expect_err("given up").to_string(), first.0);
    drop(communicator);
    let expected = ["init 1 of 2", "all_reduce 16>32 x4 type 7 op 0 on 9", "abort"];
    assert_eq!(nccl.calls(), expected);
}

#[test]
fn a_failure_that_shows_later_is_found() {
    let nccl = Arc::new(Pretended::default());
    let communicator = join(&nccl);
    nccl.will_say(&[REMOTE_ERROR]);
    let error = communicator.health().expect_err("a failure");
    assert!(matches!(error, Error::Failed { code: REMOTE_ERROR, .. }), "{error}");
    assert_eq!(nccl.calls(), ["init 1 of 2", "abort"]);
}

#[test]
fn who_stops_waiting_gets_its_own_reason_back() {
    let nccl = Arc::new(Pretended::default());
    nccl.answer("init", IN_PROGRESS);
    nccl.endless.store(true, Ordering::SeqCst);
    let looks = Cell::new(0);
    let lost = || {
        looks.set(looks.get() + 1);
        if looks.get() < 100 { Ok(()) } else { Err(Wrong("rank 3 was lost".into())) }
    };
    let error = Communicator::new(library(), &nccl.id(), 1, 2, who(), &lost).err();
    assert_eq!(error, Some(Wrong("rank 3 was lost".into())));
    assert_eq!(nccl.calls(), ["init 1 of 2", "abort"]);
}

#[test]
fn threads_start_one_thing_after_the_other() {
    let nccl = Arc::new(Pretended::default());
    let communicator = join(&nccl);
    nccl.answer("all_reduce", IN_PROGRESS);
    nccl.will_say(&[IN_PROGRESS; 500]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..5).for_each(|_| reduce(&communicator).expect("started")));
        }
    });
    assert_eq!(nccl.calls().len(), 1 + 4 * 5);
}

#[test]
fn giving_up_from_another_thread_ends_a_wait_with_the_reason() {
    let nccl = Arc::new(Pretended::default());
    let communicator = join(&nccl);
    nccl.answer("all_reduce", IN_PROGRESS);
    nccl.endless.store(true, Ordering::SeqCst);
    let error = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| reduce(&communicator));
        scope.spawn(|| communicator.abort("rank 0 was lost"));
        communicator.abort("rank 0 was lost");
        waiting.join().expect("no panic")
    });
    let reason = "the NCCL communicator of rank 5 on node1 (GPU 2) was given up: rank 0 was lost";
    assert_eq!(error, Err(Wrong(reason.into())));
    drop(communicator);
    assert_eq!(nccl.calls().iter().filter(|call| *call == "abort").count(), 1);
}

#[test]
fn giving_up_waits_for_a_call_that_is_inside() {
    let nccl = Arc::new(Pretended::default());
    let communicator = join(&nccl);
    let ((begun, has_begun), (leave, may_leave)) = (mpsc::channel(), mpsc::channel());
    *nccl.gate.lock().expect("gate") = Some((begun, may_leave));
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| reduce(&communicator));
        has_begun.recv().expect("it begins");
        let gives_up = scope.spawn(|| communicator.abort("enough"));
        while reduce(&communicator) != Err(Wrong(expected_reason("enough"))) {}
        leave.send(()).expect("it waits");
        gives_up.join().expect("no panic");
        assert_eq!(inside.join().expect("no panic"), Ok(()), "it had been started");
    });
    assert!(nccl.freed.load(Ordering::SeqCst));
}

fn expected_reason(reason: &str) -> String {
    Error::Aborted { who: who(), reason: reason.into() }.to_string()
}

#[test]
fn an_end_that_the_others_do_not_share_is_not_waited_for_for_ever() {
    let nccl = Arc::new(Pretended::default());
    let mut communicator = join(&nccl);
    communicator.patience = Duration::from_millis(20);
    nccl.answer("finalize", IN_PROGRESS);
    nccl.endless.store(true, Ordering::SeqCst);
    drop(communicator);
    assert_eq!(nccl.calls(), ["init 1 of 2", "finalize", "abort"]);
}
