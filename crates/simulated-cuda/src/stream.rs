//! Streams: a queue of work and a thread that does it in order.
//!
//! A thread lives until its stream is destroyed and all that was given to it before is done, as work in a
//! destroyed stream of CUDA is.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::context::{self, Device};
use crate::control;
use crate::handles::{Handle, Table, lock};
use crate::pointer::Out;
use crate::status::{INVALID_HANDLE, NOT_READY, OUT_OF_MEMORY, Result, demand};

/// A stream of one device.
pub(crate) struct Stream {
    pub(crate) device: &'static Device,
    queue: Mutex<Queue>,
    /// The queue or its counts have changed.
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    work: VecDeque<Work>,
    given: u64,
    done: u64,
    destroyed: bool,
}

/// One thing that a stream does.
enum Work {
    /// Not done once the device is in an error; its own error becomes the device's.
    Effect(Box<dyn FnOnce() -> Result + Send>),
    /// Done in any case, so that nobody waits for ever and nothing is lost.
    Always(Box<dyn FnOnce() + Send>),
}

static STREAMS: Table<Stream> = Table::new(0x5);

/// A handle of the default stream, besides null.
const LEGACY: Handle = 1;

impl Stream {
    /// Starts a stream's thread.
    fn start(device: &'static Device) -> Result<Arc<Stream>> {
        let stream = Arc::new(Stream { device, queue: Mutex::default(), changed: Condvar::new() });
        let own = Arc::clone(&stream);
        let name = format!("simulated-gpu-{}", device.index);
        std::thread::Builder::new().name(name).spawn(move || own.serve()).map_err(|_| OUT_OF_MEMORY)?;
        Ok(stream)
    }

    /// What the thread does.
    fn serve(&self) {
        while let Some(work) = self.next() {
            match work {
                Work::Always(act) => act(),
                Work::Effect(act) => {
                    if let Err(code) = self.device.check().and_then(|()| act()) {
                        self.device.fail(code);
                    }
                }
            }
            lock(&self.queue).done += 1;
            self.changed.notify_all();
        }
    }

    /// Waits for work. None once the stream is destroyed and empty.
    fn next(&self) -> Option<Work> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.work.is_empty() {
                if queue.destroyed {
                    return None;
                }
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            drop(queue);
            control::pass();
            queue = lock(&self.queue);
            if let Some(work) = queue.work.pop_front() {
                return Some(work);
            }
        }
    }

    fn give(&self, work: Work) {
        let mut queue = lock(&self.queue);
        queue.work.push_back(work);
        queue.given += 1;
        self.changed.notify_all();
    }

    /// Has something done after all that was given before. An error ends the device.
    pub(crate) fn effect(&self, act: impl FnOnce() -> Result + Send + 'static) {
        self.give(Work::Effect(Box::new(act)));
    }

    /// Has something done that must be done even if the device is in an error by then.
    pub(crate) fn always(&self, act: impl FnOnce() + Send + 'static) {
        self.give(Work::Always(Box::new(act)));
    }

    /// Waits until all that was given so far is done.
    pub(crate) fn drain(&self) -> Result {
        let queue = lock(&self.queue);
        let goal = queue.given;
        drop(
            self.changed.wait_while(queue, |queue| queue.done < goal).unwrap_or_else(PoisonError::into_inner),
        );
        self.device.check()
    }

    /// Lets the thread end once it has nothing to do.
    fn end(&self) {
        lock(&self.queue).destroyed = true;
        self.changed.notify_all();
    }
}

/// The stream that a handle of a caller stands for. A context must be current, as most functions want it.
pub(crate) fn resolve(handle: Handle) -> Result<Arc<Stream>> {
    context::current()?;
    resolve_anywhere(handle)
}

/// The same for functions that CUDA does not describe as wanting a context. Only the default stream is one of the
/// current context.
pub(crate) fn resolve_anywhere(handle: Handle) -> Result<Arc<Stream>> {
    if handle != 0 && handle != LEGACY {
        let stream = STREAMS.get(handle)?;
        return stream.device.check().map(|()| stream);
    }
    let device = context::current()?;
    if let Some(stream) = device.default.get() {
        return Ok(Arc::clone(stream));
    }
    let fresh = Stream::start(device)?;
    let stream = device.default.get_or_init(|| Arc::clone(&fresh));
    if !Arc::ptr_eq(stream, &fresh) {
        fresh.end();
    }
    Ok(Arc::clone(stream))
}

/// How many streams are alive.
pub(crate) fn count() -> usize {
    STREAMS.count()
}

/// `cuCtxGetStreamPriorityRange`
pub(crate) fn priorities(least: Out<c_int>, greatest: Out<c_int>) -> Result {
    context::current()?;
    least.put_if_wanted(0);
    greatest.put_if_wanted(-5);
    Ok(())
}

/// `cuStreamCreateWithPriority`. CUDA takes any priority for the nearest it has; here all are the same.
pub(crate) fn create(stream: Out<Handle>, flags: c_uint, _priority: c_int) -> Result {
    let device = context::current()?;
    demand(flags <= 1)?;
    stream.put_with(|| Ok(STREAMS.add(Stream::start(device)?)))
}

/// `cuStreamDestroy`
pub(crate) fn destroy(stream: Handle) -> Result {
    context::current_or_failed()?;
    STREAMS.take(stream)?.end();
    Ok(())
}

/// `cuStreamSynchronize`
pub(crate) fn synchronize(stream: Handle) -> Result {
    resolve(stream)?.drain()
}

/// `cuStreamQuery`
pub(crate) fn query(stream: Handle) -> Result {
    let stream = resolve(stream)?;
    let queue = lock(&stream.queue);
    if queue.done < queue.given { Err(NOT_READY) } else { Ok(()) }
}

/// That a stream is one of this device's, as some functions want of what they are given together.
pub(crate) fn same_device(stream: &Stream, device: &Device) -> Result {
    if stream.device.index == device.index { Ok(()) } else { Err(INVALID_HANDLE) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::ILLEGAL_ADDRESS;
    use crate::testing::Desk;
    use std::sync::mpsc::channel;

    #[test]
    fn work_is_done_later_and_in_order() {
        let desk = Desk::new();
        let stream = desk.stream();
        desk.simulation.pause();
        let (done, list) = channel();
        for number in 0..100 {
            let done = done.clone();
            resolve(stream).expect("stream").always(move || done.send(number).expect("receiver"));
        }
        drop(done);
        assert_eq!(query(stream), Err(NOT_READY));
        assert!(list.try_recv().is_err());
        desk.simulation.resume();
        assert_eq!(synchronize(stream), Ok(()));
        assert_eq!(query(stream), Ok(()));
        assert!(list.iter().eq(0..100));
        assert_eq!(destroy(stream), Ok(()));
        for call in [destroy, synchronize, query] {
            assert_eq!(call(stream), Err(INVALID_HANDLE));
        }
    }

    #[test]
    fn work_in_a_destroyed_stream_is_done() {
        let desk = Desk::new();
        let stream = desk.stream();
        desk.simulation.pause();
        let (done, told) = channel();
        resolve(stream).expect("stream").always(move || done.send(()).expect("receiver"));
        assert_eq!(destroy(stream), Ok(()));
        assert!(told.try_recv().is_err());
        desk.simulation.resume();
        assert_eq!(told.recv(), Ok(()));
    }

    #[test]
    fn an_error_ends_the_device_but_not_the_others() {
        let desk = Desk::new();
        let stream = resolve(0).expect("default stream");
        stream.effect(|| Err(ILLEGAL_ADDRESS));
        let (run, ran) = channel();
        stream.effect(move || run.send(()).map_err(|_| INVALID_HANDLE));
        assert_eq!(stream.drain(), Err(ILLEGAL_ADDRESS));
        assert!(ran.try_recv().is_err(), "what follows is not done");
        assert_eq!(synchronize(LEGACY), Err(ILLEGAL_ADDRESS));
        assert_eq!(desk.simulation.fault(0), Some(ILLEGAL_ADDRESS));
        desk.on(1, || assert_eq!(synchronize(0), Ok(())));
    }
}
