//! Tensors on a device, with a simulated one: a stream that does its work later and in order, and events in it.
//!
//! The device here is a thread. What it stands for: the engine must neither read a tensor before its readiness event nor take
//! an operation for finished before the consumer's stream could know, and ranks agree on the order while the device
//! still computes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::ranks::{Floats, complete, on_ranks, refused, submit, sum};
use ronde_collective::types::{DType, ReduceOp};
use ronde_collective::{Group, Part, Reduction};
use ronde_engine::device::{Event, Executor, Place, Started, Worker};
use ronde_engine::negotiation::Batch;
use ronde_engine::{Device, Error, Kind, Submission, Tensor};

/// More than any of this takes, however busy the machine is.
const LIMIT: Duration = Duration::from_secs(120);

#[derive(Default)]
struct Mark {
    reached: Mutex<bool>,
    changed: Condvar,
}

impl Mark {
    fn reach(&self) {
        *self.reached.lock().expect("no panic") = true;
        self.changed.notify_all();
    }
}

impl Event for Mark {
    fn reached(&self) -> bool {
        *self.reached.lock().expect("no panic")
    }

    fn wait(&self) -> Result<(), String> {
        let mut reached = self.reached.lock().expect("no panic");
        while !*reached {
            reached = self.changed.wait(reached).expect("no panic");
        }
        Ok(())
    }

    fn order(&self, _stream: u64) -> Result<(), String> {
        self.wait()
    }
}

type Task = Box<dyn FnOnce() + Send>;

/// Work in order, later.
struct Stream {
    tasks: Option<Sender<Task>>,
    thread: Option<JoinHandle<()>>,
}

impl Stream {
    fn new() -> Stream {
        let (tasks, queue) = channel::<Task>();
        let thread = std::thread::spawn(move || queue.into_iter().for_each(|task| task()));
        Stream { tasks: Some(tasks), thread: Some(thread) }
    }

    fn launch(&self, task: impl FnOnce() + Send + 'static) {
        self.tasks.as_ref().expect("open").send(Box::new(task)).expect("running");
    }

    /// A point after everything launched so far.
    fn record(&self) -> Arc<Mark> {
        let mark = Arc::new(Mark::default());
        let reached = mark.clone();
        self.launch(move || reached.reach());
        mark
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.tasks = None;
        self.thread.take().expect("once").join().expect("no panic");
    }
}

/// Reduces through the host and copies the result back in the device's stream.
#[derive(Clone)]
struct Staging {
    stream: Arc<Stream>,
}

impl Executor for Staging {
    fn open(&self, _group: &mut Group) -> Result<Box<dyn Worker>, Error> {
        Ok(Box::new(self.clone()))
    }
}

impl Worker for Staging {
    fn run(&mut self, group: &mut Group, batch: &Batch, items: &[Place<'_>]) -> Result<Started, Error> {
        for tensor in items.iter().flatten().map(|item| item.tensor) {
            let ready = tensor.ready.as_ref().expect("device tensors have a readiness event");
            ready.wait().map_err(Error::Invalid)?;
            let mut staged = vec![0u8; tensor.bytes()];
            // SAFETY: the producer is done, and the consumer waits for the event recorded below.
            unsafe { std::ptr::copy_nonoverlapping(tensor.source, staged.as_mut_ptr(), staged.len()) };
            let part = Part { source: staged.as_ptr(), target: staged.as_mut_ptr(), len: staged.len() };
            let how = Reduction::new(batch.dtype, batch.op);
            // SAFETY: the staged bytes are this call's own.
            unsafe { group.allreduce_parts(&[part], &how) }?;
            let target = tensor.target as usize;
            self.stream.launch(move || {
                // SAFETY: as above.
                unsafe { std::ptr::copy_nonoverlapping(staged.as_ptr(), target as *mut u8, staged.len()) };
            });
        }
        Ok(Started::at(self.stream.record()))
    }
}

#[test]
fn producers_and_consumers_on_a_device_are_ordered_by_events() {
    on_ranks(&[2], |engine| {
        let stream = Arc::new(Stream::new());
        engine.set_executor(Arc::new(Staging { stream: stream.clone() }));
        for round in 0..50 {
            let mut memory = vec![-1.0f32; 512];
            let (start, at) = (Arc::new(Mark::default()), memory.as_mut_ptr() as usize);
            // The producer does not even begin before the operation is in flight.
            let gate = start.clone();
            stream.launch(move || {
                gate.wait().expect("reached");
                // SAFETY: the memory outlives the stream's work in this round.
                unsafe { std::slice::from_raw_parts_mut(at as *mut f32, 512) }.fill(round as f32);
            });
            let tensor = Tensor {
                source: at as *const u8,
                target: at as *mut u8,
                shape: vec![512],
                dtype: DType::F32,
                stored: None,
                ready: Some(stream.record()),
                capacity: 0,
            };
            let what = Submission {
                device: Device::Gpu,
                op: ReduceOp::Sum,
                ..Submission::new(Kind::Allreduce, "on the device", vec![tensor])
            };
            let handle = submit(engine, 0, what).expect("submitted");
            assert!(!engine.poll(handle), "nothing was computed yet");
            start.reach();
            let finished = engine.wait(handle).expect("reduced").expect("known");
            assert_eq!(finished.events.len(), 1);
            // The consumer's stream waits for the event, not the host; this test's consumer is the host.
            finished.events[0].wait().expect("reached");
            assert!(memory.iter().all(|&value| value == 2.0 * round as f32), "round {round}: {}", memory[0]);
        }
    });
}

#[test]
fn host_tensors_with_a_readiness_event_are_not_read_before_it() {
    on_ranks(&[2], |engine| {
        let stream = Stream::new();
        let mut data = Floats(vec![0.0; 64]);
        let at = data.0.as_mut_ptr() as usize;
        let gate = Arc::new(Mark::default());
        let opened = gate.clone();
        stream.launch(move || {
            opened.wait().expect("reached");
            // SAFETY: the memory outlives the operation, which begins after this.
            unsafe { std::slice::from_raw_parts_mut(at as *mut f32, 64) }.fill(3.0);
        });
        let tensor = Tensor { ready: Some(stream.record()), ..data.tensor() };
        let handle = submit(engine, 0, sum("late", tensor)).expect("submitted");
        gate.reach();
        engine.wait(handle).expect("reduced");
        assert_eq!(data.0, vec![6.0; 64]);
    });
}

#[test]
fn a_tensor_on_a_device_here_and_in_host_memory_there_is_a_mismatch() {
    on_ranks(&[2], |engine| {
        let device = if engine.place().rank == 0 { Device::Host } else { Device::Gpu };
        let mut data = Floats(vec![1.0; 4]);
        let text = refused(engine, 0, Submission { device, ..sum("where", data.tensor()) });
        assert!(text.contains("CPU") && text.contains("GPU"), "{text}");
        // Without an executor, all ranks hear that nothing can run it.
        let text = refused(engine, 0, Submission { device: Device::Gpu, ..sum("nobody", data.tensor()) });
        assert!(text.contains("device"), "{text}");
        complete(engine, 0, sum("fine", data.tensor())).expect("the job goes on");
    });
}

#[test]
fn a_group_that_fails_in_part_is_not_over_while_the_device_still_works_on_the_rest() {
    on_ranks(&[2], |engine| {
        let stream = Arc::new(Stream::new());
        engine.set_executor(Arc::new(Staging { stream: stream.clone() }));
        let gate = Arc::new(Mark::default());
        let closed = gate.clone();
        stream.launch(move || closed.wait().expect("reached"));
        let ready = Arc::new(Mark::default());
        ready.reach();
        let (mut numbers, mut truths) = (Floats(vec![2.0; 64]), [1u8; 64]);
        let tensor = |tensor: Tensor| Tensor { ready: Some(ready.clone()), ..tensor };
        let average = Submission {
            grouped: true,
            op: ReduceOp::Average,
            device: Device::Gpu,
            ..Submission::new(
                Kind::Allreduce,
                "in part",
                vec![
                    tensor(numbers.tensor()),
                    // Truth values have no average, which shows only when their batch is run.
                    tensor(Tensor {
                        source: truths.as_ptr(),
                        target: truths.as_mut_ptr(),
                        dtype: DType::Bool,
                        ..numbers.tensor()
                    }),
                ],
            )
        };
        let handle = submit(engine, 0, average).expect("submitted");
        complete(engine, 0, Submission::new(Kind::Barrier, "behind", Vec::new()))
            .expect("both ranks are here");
        assert!(!engine.poll(handle), "the device has not begun");
        assert!(engine.finished(handle).is_none(), "nothing can be said before the device is done");
        numbers.0.fill(0.0);
        let text = std::thread::scope(|scope| {
            scope.spawn(|| gate.reach());
            engine.wait(handle).expect_err("a failure").to_string()
        });
        assert!(text.contains("bool"), "{text}");
        assert_eq!(numbers.0, vec![2.0; 64], "written before the failure was told");
    });
}

/// A device that is done with an operation only when a caller waits for it. It hands out the events of what it starts.
#[derive(Clone)]
struct Lazy(Arc<Mutex<Sender<Arc<Pending>>>>);

#[derive(Default)]
struct Pending(AtomicBool);

impl Event for Pending {
    fn reached(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    fn wait(&self) -> Result<(), String> {
        self.0.store(true, Ordering::SeqCst);
        Ok(())
    }

    fn order(&self, _stream: u64) -> Result<(), String> {
        Ok(())
    }
}

impl Executor for Lazy {
    fn open(&self, _group: &mut Group) -> Result<Box<dyn Worker>, Error> {
        Ok(Box::new(self.clone()))
    }
}

impl Worker for Lazy {
    fn run(&mut self, _group: &mut Group, _batch: &Batch, _items: &[Place<'_>]) -> Result<Started, Error> {
        let event = Arc::new(Pending::default());
        self.0.lock().expect("no panic").send(event.clone()).expect("a receiver");
        Ok(Started::at(event))
    }
}

#[test]
fn an_operation_that_a_lost_rank_spoils_is_not_over_while_the_device_still_uses_its_tensors() {
    let (present, left) = channel::<()>();
    let (present, left) = (Mutex::new(Some(present)), Mutex::new(left));
    on_ranks(&[2], |engine| {
        let (start, started) = channel();
        engine.set_executor(Arc::new(Lazy(Arc::new(Mutex::new(start)))));
        let mut numbers = Floats(vec![1.0; 4]);
        let spoilt = Submission { device: Device::Gpu, ..sum("spoilt", numbers.tensor()) };
        let handle = submit(engine, 0, spoilt).expect("submitted");
        let event = started.recv_timeout(LIMIT).expect("a started operation");
        complete(engine, 0, Submission::new(Kind::Barrier, "behind", Vec::new()))
            .expect("both ranks are here");
        if engine.place().rank == 1 {
            engine.fail("it raised an error of its own");
            // Leaves no earlier than rank 0, which would otherwise fail because of that.
            let left = left.lock().expect("no panic").recv_timeout(LIMIT);
            assert_eq!(left, Err(RecvTimeoutError::Disconnected));
            return;
        }
        let _present = present.lock().expect("no panic").take();
        refused(engine, 0, sum("after", Floats(vec![1.0; 4]).tensor()));
        assert!(
            engine.finished(handle).is_none(),
            "the caller may free the memory once it is told of the failure"
        );
        let text = engine.wait(handle).expect_err("a lost rank").to_string();
        assert!(text.contains("rank 1"), "{text}");
        assert!(event.reached(), "the caller may free the memory once it is told of the failure");
    });
}
