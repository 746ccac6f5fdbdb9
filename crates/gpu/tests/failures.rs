//! What happens when a call of the driver fails on one rank, when a rank is lost, and when one has joined: nobody waits for ever, all
//! ranks hear of it, and nothing is left behind. The GPUs are simulated.

#[path = "../../engine/tests/integration/ranks/mod.rs"]
mod ranks;
mod simulated;

use std::sync::Barrier;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use ranks::{on_ranks_with, settings, submit};
use ronde_collective::types::DType;
use ronde_cuda::{Scratch, Stream};
use ronde_engine::{Device, Engine, Error, Handle, Kind, Settings, Submission, Tensor};
use ronde_settings::GpuPath;
use ronde_simulated_cuda::Simulation;
use simulated::Rank;

/// More than any of this takes, however busy the machine is.
const LIMIT: Duration = Duration::from_secs(120);

const OUT_OF_MEMORY: u32 = 2;
const LAUNCH_FAILED: u32 = 719;

/// Runs `check` on so many ranks that share a GPU, or go through the host. If they do not come back, nothing else in this process
/// will, so it ends.
fn on_gpu(ranks: usize, path: GpuPath, check: impl Fn(&Rank<'_>) + Sync) {
    let (done, ended) = channel::<()>();
    let watch = std::thread::spawn(move || {
        if ended.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
            eprintln!("{ranks} ranks ({path:?}) wait for each other for ever");
            std::process::abort();
        }
    });
    let settings = Settings { gpu_path: path, ..settings() };
    on_ranks_with(&[ranks], &settings, &[], |engine: &Engine| check(&Rank::on(engine, 0, &settings)));
    drop(done);
    watch.join().expect("no panic");
}

fn bytes(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// A sum in place of the floats that lie there.
fn sum(name: &str, tensor: Tensor) -> Submission {
    Submission { device: Device::Gpu, ..ranks::sum(name, tensor) }
}

fn floats(rank: &Rank<'_>, memory: &Scratch) -> Tensor {
    let count = (memory.len() / 4) as u64;
    rank.tensor(memory.address(), memory.address(), &[count], DType::F32, 0)
}

fn wait(rank: &Rank<'_>, handle: Handle) -> Result<(), Error> {
    let finished = rank.engine.wait(handle)?.unwrap_or_default();
    for event in finished.events {
        event.order(rank.stream.handle()).map_err(Error::ShutDown)?;
    }
    Ok(())
}

/// How a sum ends.
fn outcome(rank: &Rank<'_>, name: &str, memory: &Scratch) -> Result<(), Error> {
    wait(rank, submit(rank.engine, 0, sum(name, floats(rank, memory)))?)
}

/// Lets one call fail on whichever rank makes it first, before or after a first operation; all ranks have to hear of it.
fn one_call_fails(function: &'static str, path: GpuPath, warm: bool) {
    let simulation = Simulation::begin();
    let barrier = Barrier::new(3);
    on_gpu(3, path, |rank| {
        let me = rank.engine.place().rank;
        let memory = rank.memory(&bytes([me as f32; 100]));
        if warm {
            outcome(rank, "before", &memory).expect("nothing has failed yet");
            rank.stream.synchronize().expect("done");
        }
        let tensor = floats(rank, &memory);
        barrier.wait();
        if me == 0 {
            simulation.fail_next(function, LAUNCH_FAILED);
        }
        barrier.wait();
        // Not more than the host's part: the stream's is up to a GPU that works.
        let first = submit(rank.engine, 0, sum("first", tensor)).and_then(|handle| rank.engine.wait(handle));
        // Nobody is left in the middle of it, though nobody has left the job.
        barrier.wait();
        // Whoever was done with its own part before another failed hears of it when that one leaves.
        let heard = first.and_then(|first| {
            let second = outcome(rank, "second", &memory);
            // The first operation did not fail, so a stream uses the memory until its events are reached.
            for event in first.unwrap_or_default().events {
                event.wait().expect("a GPU that works");
            }
            second
        });
        heard.expect_err(&format!("rank {me} has to hear that {function} failed"));
    });
    assert_eq!(simulation.fault(0), None, "memory was freed while a stream used it ({function})");
}

#[test]
fn a_call_that_fails_on_one_rank_is_heard_of_on_all() {
    for function in [
        "cuStreamCreateWithPriority",
        "cuMemHostRegister_v2",
        "cuMemHostGetDevicePointer_v2",
        "cuMemCreate",
        "cuMemAddressReserve",
        "cuMemExportToShareableHandle",
        "cuMemImportFromShareableHandle",
        "cuMemSetAccess",
    ] {
        one_call_fails(function, GpuPath::Auto, false);
    }
    for function in [
        "cuStreamWaitEvent",
        "cuStreamWaitValue32_v2",
        "cuStreamWriteValue32_v2",
        "cuLaunchKernel",
        "cuEventRecord",
    ] {
        for warm in [false, true] {
            one_call_fails(function, GpuPath::Auto, warm);
        }
    }
    for function in ["cuStreamWaitEvent", "cuLaunchKernel", "cuEventRecord", "cuEventSynchronize"] {
        one_call_fails(function, GpuPath::Host, false);
    }
}

#[test]
fn memory_for_the_result_of_an_operation_that_fails_is_freed_only_after_streams_were_waited_for() {
    let simulation = Simulation::begin();
    on_gpu(1, GpuPath::Host, |rank| {
        let memory = rank.memory(&bytes([1.0; 100]));
        // The engine allocates the result.
        let tensor = rank.tensor(memory.address(), 0, &[100], DType::F32, 0);
        simulation.fail_next("cuEventRecord", LAUNCH_FAILED);
        let gather = Submission::new(Kind::Allgather, "gather", vec![tensor]);
        rank.complete(0, gather).expect_err("no point could be recorded");
        let (waited, freed) = (simulation.last("cuStreamSynchronize"), simulation.last("cuMemFreeAsync"));
        assert!(waited < freed, "freed in call {freed}, but streams were waited for in call {waited}");
    });
}

#[test]
fn memory_that_is_short_on_one_rank_makes_slots_smaller_on_all() {
    let simulation = Simulation::begin();
    let barrier = Barrier::new(2);
    on_gpu(2, GpuPath::Auto, |rank| {
        let me = rank.engine.place().rank;
        let memory = rank.memory(&bytes(vec![me as f32 + 1.0; 1 << 20]));
        if barrier.wait().is_leader() {
            simulation.fail_next("cuMemCreate", OUT_OF_MEMORY);
        }
        barrier.wait();
        outcome(rank, "short", &memory).expect("smaller slots do as well");
        let made = simulation.calls("cuMemCreate");
        assert_eq!(rank.read(memory.address(), memory.len()), bytes(vec![3.0; 1 << 20]));
        barrier.wait();
        outcome(rank, "again", &memory).expect("as before");
        assert_eq!(
            simulation.calls("cuMemCreate"),
            made,
            "what was refused is not asked for with every operation"
        );
        assert_eq!(rank.read(memory.address(), memory.len()), bytes(vec![6.0; 1 << 20]));
    });
}

#[test]
fn the_host_goes_on_while_producers_still_compute() {
    for (ranks, path) in [(1, GpuPath::Auto), (2, GpuPath::Auto), (3, GpuPath::Auto)] {
        let simulation = Simulation::begin();
        let barrier = Barrier::new(ranks);
        on_gpu(ranks, path, |rank| {
            let me = rank.engine.place().rank;
            let memory = rank.memory(&bytes([0.0; 1000]));
            // Slots and kernels are there.
            outcome(rank, "before", &memory).expect("a sum");
            rank.stream.synchronize().expect("done");
            barrier.wait();
            simulation.pause();
            let content = bytes([me as f32 + 1.0; 1000]);
            // SAFETY: both are that long, and live until the stream is done.
            unsafe { rank.stream.copy_in(content.as_ptr(), memory.address(), content.len()) }.expect("given");
            let handle =
                submit(rank.engine, 0, sum("while it computes", floats(rank, &memory))).expect("in flight");
            assert!(!rank.engine.poll(handle), "nothing was computed yet");
            let finished = rank.engine.wait(handle).expect("given to streams").unwrap_or_default();
            assert!(finished.events.iter().all(|event| !event.reached()), "nothing was computed yet");
            for event in &finished.events {
                event.order(rank.stream.handle()).expect("ordered");
            }
            barrier.wait();
            simulation.resume();
            let total = (ranks * (ranks + 1) / 2) as f32;
            assert_eq!(rank.read(memory.address(), memory.len()), bytes([total; 1000]));
        });
    }
}

#[test]
fn what_a_rank_asked_for_before_it_joined_counts_beside_what_it_has_no_part_in() {
    const TENSORS: usize = 20;
    for path in [GpuPath::Auto, GpuPath::Host] {
        let _simulation = Simulation::begin();
        let barrier = Barrier::new(2);
        on_gpu(2, path, |rank| {
            let me = rank.engine.place().rank;
            let make =
                |value: f32| (0..TENSORS).map(|_| rank.memory(&bytes([value; 33]))).collect::<Vec<_>>();
            let (common, alone) = (make(me as f32 + 1.0), make(10.0));
            let give = |what: &str, index: usize, memory: &Scratch| {
                submit(rank.engine, 0, sum(&format!("{what} {index}"), floats(rank, memory)))
                    .expect("in flight")
            };
            let join = || {
                submit(rank.engine, 0, Submission::new(Kind::Join, "join", Vec::new())).expect("in flight")
            };
            let mut handles = Vec::new();
            if me == 0 {
                handles
                    .extend(common.iter().enumerate().map(|(index, memory)| give("common", index, memory)));
                handles.push(join());
                barrier.wait();
            } else {
                barrier.wait();
                for (index, (common, alone)) in common.iter().zip(&alone).enumerate() {
                    handles.push(give("alone", index, alone));
                    handles.push(give("common", index, common));
                }
                handles.push(join());
            }
            for handle in handles {
                wait(rank, handle).expect("a sum");
            }
            for memory in &common {
                assert_eq!(rank.read(memory.address(), memory.len()), bytes([3.0; 33]), "on rank {me}");
            }
            for memory in &alone {
                assert_eq!(rank.read(memory.address(), memory.len()), bytes([10.0; 33]), "on rank {me}");
            }
        });
    }
}

#[test]
fn a_rank_that_has_joined_changes_nothing_in_any_of_several_tensors() {
    // Large enough to be reduced where they lie.
    const COUNT: usize = 2 << 20;
    for path in [GpuPath::Auto, GpuPath::Nccl, GpuPath::Host] {
        let _simulation = Simulation::begin();
        on_gpu(2, path, |rank| {
            let mut handles = Vec::new();
            let tensors: Vec<Scratch> =
                [1.0, 2.0, 3.0].into_iter().map(|value| rank.memory(&bytes(vec![value; COUNT]))).collect();
            if rank.engine.place().rank == 1 {
                let parts = tensors.iter().map(|memory| floats(rank, memory)).collect();
                let group = Submission::new(Kind::Allreduce, "group", parts);
                let group = Submission { device: Device::Gpu, grouped: true, ..group };
                handles.push(submit(rank.engine, 0, group).expect("in flight"));
            }
            let join = Submission::new(Kind::Join, "join", Vec::new());
            handles.push(submit(rank.engine, 0, join).expect("in flight"));
            for handle in handles {
                wait(rank, handle).expect("done");
            }
            for (memory, value) in tensors.iter().zip([1.0, 2.0, 3.0]) {
                let found = rank.read(memory.address(), memory.len());
                assert!(found == bytes(vec![value; COUNT]), "{value} came out as {:?}", &found[..8]);
            }
        });
    }
}

#[test]
fn a_lost_rank_is_heard_of_and_leaves_no_stream_waiting() {
    let simulation = Simulation::begin();
    let barrier = Barrier::new(4);
    on_gpu(4, GpuPath::Auto, |rank| {
        let me = rank.engine.place().rank;
        let memory = rank.memory(&bytes([1.0; 1000]));
        outcome(rank, "before", &memory).expect("a sum");
        rank.stream.synchronize().expect("done");
        let next = floats(rank, &memory);
        barrier.wait();
        simulation.pause();
        outcome(rank, "under way", &memory).expect("given to streams");
        barrier.wait();
        if me == 3 {
            rank.engine.fail("it raised an error of its own");
            barrier.wait();
        } else {
            let handle = submit(rank.engine, 0, sum("after", next));
            let error = handle.and_then(|handle| rank.engine.wait(handle)).expect_err("a lost rank");
            assert!(error.to_string().contains("rank 3"), "{error}");
            barrier.wait();
        }
        simulation.resume();
        rank.stream.synchronize().expect("nothing waits for the lost rank");
    });
}

#[test]
fn nothing_is_left_when_engines_have_ended() {
    for (ranks, path) in [(1, GpuPath::Auto), (3, GpuPath::Auto), (2, GpuPath::Host)] {
        let simulation = Simulation::begin();
        let before = simulation.live();
        on_gpu(ranks, path, |rank| {
            let me = rank.engine.place().rank;
            let memory = rank.memory(&bytes(vec![me as f32; 300_000]));
            outcome(rank, "sum", &memory).expect("a sum");
            // The result is in memory of the engine's, and nobody ever looks at it.
            let shape = [1 + me as u64, 3];
            let tensor = rank.tensor(memory.address(), 0, &shape, DType::F32, 0);
            let gather = Submission::new(Kind::Allgather, "gather", vec![tensor]);
            drop(rank.complete(0, gather).expect("gathered"));
            rank.stream.synchronize().expect("done with this rank's memory");
        });
        // Streams that have been given up still do what they were given.
        let begin = Instant::now();
        while simulation.live() != before && begin.elapsed() < LIMIT {
            std::thread::yield_now();
        }
        assert_eq!(simulation.live(), before, "{ranks} ranks, {path:?}");
    }
}

#[test]
fn operations_go_on_while_a_graph_is_captured_and_leave_it_alone() {
    for path in [GpuPath::Auto, GpuPath::Host] {
        let simulation = Simulation::begin();
        let barrier = Barrier::new(2);
        on_gpu(2, path, |rank| {
            let captured = Stream::new(&rank.card).expect("a stream");
            let memory = rank.memory(&bytes([1.0; 5000]));
            let captures = rank.engine.place().rank == 0;
            if captures {
                simulation.capture(captured.handle());
            }
            barrier.wait();
            // The first one makes room, compiles kernels and makes events.
            outcome(rank, "beside a capture", &memory).expect("a sum");
            assert_eq!(rank.read(memory.address(), memory.len()), bytes([2.0; 5000]));
            barrier.wait();
            if captures {
                let refused = rank.gpu.record(captured.handle()).map(drop).expect_err("no point in a graph");
                assert!(matches!(&refused, Error::Invalid(_)), "{refused:?}");
                assert!(refused.to_string().contains("captured into a CUDA graph"), "{refused}");
                let done = rank.gpu.record(rank.stream.handle()).expect("a point");
                let refused = done.order(captured.handle()).expect_err("nothing to wait for in a graph");
                assert!(refused.contains("captured into a CUDA graph"), "{refused}");
                assert_eq!(simulation.end_capture(), None, "the capture is as it was");
            }
        });
    }
}
