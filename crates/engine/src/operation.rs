//! One submitted operation: what the caller asked for, and how far it has come.
//!
//! A grouped operation is one [`Operation`] of several tensors, each negotiated under a name of its own; it is finished when
//! all of them are.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ronde_collective::types::{DType, ReduceOp};

use crate::buffer::Buffer;
use crate::device::{DeviceMemory, Event};
use crate::error::Error;
use crate::flag::Flag;
use crate::negotiation::{Device, GroupTag, Kind, Request};
use crate::teller::{Teller, Then};

/// A tensor as the caller gave it. Whoever submits it keeps the memory valid, and leaves it alone, until the
/// operation is finished.
#[derive(Debug)]
pub struct Tensor {
    /// This rank's input.
    pub source: *const u8,
    /// Where the result goes; null where the engine allocates it.
    pub target: *mut u8,
    /// Bytes at `target` for a result whose size only the ranks together know: where exactly so many are needed, they are taken.
    pub capacity: usize,
    /// Extents of the input.
    pub shape: Vec<u64>,
    /// Type of the elements as they travel: what ranks compare, what is fused and what is reduced.
    pub dtype: DType,
    /// Type of the elements in memory, if it is another, wider one: then they are narrowed on their way out and widened on their
    /// way back. For an allreduce of floats in the memory of a device.
    pub stored: Option<DType>,
    /// When the input may be read; `None`: now.
    pub ready: Option<Arc<dyn Event>>,
}

// SAFETY: a tensor only says where memory is; that it may be used from the engine's threads is what a submitter promises.
unsafe impl Send for Tensor {}
// SAFETY: as above.
unsafe impl Sync for Tensor {}

impl Tensor {
    /// Elements of one row, that is of everything but the first dimension.
    pub fn row_elements(&self) -> usize {
        self.shape.iter().skip(1).product::<u64>() as usize
    }

    /// Rows, that is the first dimension; 1 for a scalar.
    pub fn rows(&self) -> usize {
        self.shape.first().map_or(1, |&rows| rows as usize)
    }

    /// All bytes of the input, as they travel.
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<u64>() as usize * self.dtype.size()
    }
}

/// What a caller asks for.
#[derive(Debug)]
pub struct Submission {
    /// Which collective.
    pub kind: Kind,
    /// The name under which the ranks find each other's requests.
    pub name: Arc<str>,
    /// The tensors: one, or several of a group; none for barriers and the like.
    pub tensors: Vec<Tensor>,
    /// Whether the tensors form a group, whose members carry names of their own.
    pub grouped: bool,
    /// The reduction.
    pub op: ReduceOp,
    /// Factor for every input.
    pub prescale: f64,
    /// Factor for the result.
    pub postscale: f64,
    /// What is wanted earlier has the lower number.
    pub priority: i32,
    /// Root of a broadcast, as a rank of the job.
    pub root: usize,
    /// Rows for each member in an all-to-all.
    pub splits: Option<Vec<usize>>,
    /// Ranks of a process set to add, or to remove.
    pub ranks: Vec<usize>,
    /// Where the tensors are.
    pub device: Device,
    /// The caller waits for it as soon as it is submitted.
    pub awaited: bool,
    /// This rank's arguments are wrong, and why: the others are told instead of left waiting.
    pub fault: Option<String>,
}

impl Submission {
    /// An operation without factors, root or splits.
    pub fn new(kind: Kind, name: impl Into<Arc<str>>, tensors: Vec<Tensor>) -> Submission {
        Submission {
            kind,
            name: name.into(),
            tensors,
            grouped: false,
            op: ReduceOp::Sum,
            prescale: 1.0,
            postscale: 1.0,
            priority: 0,
            root: 0,
            splits: None,
            ranks: Vec::new(),
            device: Device::Host,
            awaited: false,
            fault: None,
        }
    }
}

/// Where a result lies whose size only the ranks together knew.
#[derive(Debug)]
pub enum Memory {
    /// In host memory that the engine allocated.
    Host(Buffer),
    /// In the target that was given, which is of the right size.
    Target,
    /// In memory of a device that the engine allocated.
    Device(Box<dyn DeviceMemory>),
}

/// A result whose size only the ranks together knew.
#[derive(Debug)]
pub struct Rows {
    /// The bytes.
    pub memory: Memory,
    /// Extents of the result.
    pub shape: Vec<u64>,
}

/// What an operation gives besides the targets it has written.
#[derive(Debug, Default)]
pub struct Finished {
    /// Results of allgather and alltoall, one a tensor.
    pub rows: Vec<Option<Rows>>,
    /// Rows received from each member in an all-to-all.
    pub received: Vec<usize>,
    /// The rank that joined last.
    pub last_joined: Option<usize>,
    /// The process set that was added.
    pub set: Option<u32>,
    /// Points in device streams after which results are there.
    pub events: Vec<Arc<dyn Event>>,
}

struct Progress {
    /// Items that have not come to an end.
    left: usize,
    outcome: Result<Finished, Error>,
    /// Points in device streams, up to which those use the tensors of items that were started, also if another item failed.
    events: Vec<Arc<dyn Event>>,
    /// Whom to tell in the end, and by whom.
    then: Option<(Then, Arc<Teller>)>,
}

/// See the module's text.
pub(crate) struct Operation {
    pub(crate) what: Submission,
    /// The names of a group's members; empty where the operation is its only item.
    members: Vec<Arc<str>>,
    /// The process set ends with this operation.
    pub(crate) closes_set: bool,
    progress: Mutex<Progress>,
    done: Flag,
}

impl Operation {
    pub(crate) fn new(what: Submission) -> Operation {
        let count = what.tensors.len();
        let members: Vec<Arc<str>> = if what.grouped && count > 1 {
            (1..=count).map(|index| format!("{}_{index}of{count}", what.name).into()).collect()
        } else {
            Vec::new()
        };
        let mut finished = Finished::default();
        if matches!(what.kind, Kind::Allgather | Kind::Alltoall) {
            finished.rows.resize_with(count, || None);
        }
        let left = members.len().max(1);
        let progress = Mutex::new(Progress { left, outcome: Ok(finished), events: Vec::new(), then: None });
        Operation { what, members, closes_set: false, progress, done: Flag::default() }
    }

    /// Has `then` told by `teller` when the operation is over, which nobody waits for.
    pub(crate) fn tell(&mut self, then: Then, teller: Arc<Teller>) {
        self.progress().then = Some((then, teller));
    }

    /// The names of its items, under which they are in flight.
    pub(crate) fn names(&self) -> &[Arc<str>] {
        if self.members.is_empty() { std::slice::from_ref(&self.what.name) } else { &self.members }
    }

    /// What is negotiated, item by item.
    pub(crate) fn requests(&self) -> impl Iterator<Item = Request> + '_ {
        let what = &self.what;
        let group = (!self.members.is_empty())
            .then(|| GroupTag { name: what.name.clone(), of: self.members.len() as u32 });
        self.names().iter().enumerate().map(move |(index, name)| Request {
            name: name.clone(),
            kind: what.kind,
            dtype: what.tensors.get(index).map_or(DType::U8, |tensor| tensor.dtype),
            shape: what.tensors.get(index).map_or_else(Vec::new, |tensor| tensor.shape.clone()),
            op: what.op,
            prescale: what.prescale,
            postscale: what.postscale,
            root: what.root as u32,
            device: what.device,
            priority: what.priority,
            group: group.clone(),
            ranks: what.ranks.iter().map(|&rank| rank as u32).collect(),
            fault: what.fault.clone(),
        })
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        // A panic elsewhere leaves at worst an unfinished item, which shutting down ends.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to what the caller will get.
    pub(crate) fn record(&self, add: impl FnOnce(&mut Finished)) {
        if let Ok(finished) = &mut self.progress().outcome {
            add(finished);
        }
    }

    /// An item was given to a device, which is done with it at this point.
    pub(crate) fn started(&self, event: Arc<dyn Event>) {
        self.progress().events.push(event);
    }

    /// One item has come to its end. The first failure is the operation's.
    pub(crate) fn end_item(&self, failure: Option<&Error>) {
        let then = {
            let mut progress = self.progress();
            if let (Some(error), Ok(_)) = (failure, &progress.outcome) {
                progress.outcome = Err(error.clone());
            }
            progress.left = progress.left.saturating_sub(1);
            if progress.left > 0 {
                return;
            }
            progress.then.take()
        };
        self.end(then);
    }

    /// All items end at once.
    pub(crate) fn fail(&self, error: &Error) {
        let then = {
            let mut progress = self.progress();
            if progress.left == 0 {
                return;
            }
            progress.left = 0;
            progress.outcome = Err(error.clone());
            progress.then.take()
        };
        self.end(then);
    }

    /// Makes an operation that is done on the host a failed one, unless its device is done with it as well.
    pub(crate) fn spoil(&self, error: &Error) {
        let mut progress = self.progress();
        if progress.outcome.is_ok() && progress.events.iter().any(|event| !event.reached()) {
            progress.outcome = Err(error.clone());
        }
    }

    fn end(&self, then: Option<(Then, Arc<Teller>)>) {
        self.done.raise();
        if let Some((then, teller)) = then {
            let used = self.still_used();
            let then: Then = Box::new(move |outcome| {
                wait_for(&used);
                then(outcome);
            });
            teller.tell(then, self.outcome());
        }
    }

    /// Points up to which a device still uses the tensors of an operation that failed. Whoever is told of the failure may free them,
    /// so they are waited for first; the results of one that did not fail come with such points of their own.
    fn still_used(&self) -> Vec<Arc<dyn Event>> {
        let progress = self.progress();
        let used = progress.events.iter().filter(|event| progress.outcome.is_err() && !event.reached());
        used.cloned().collect()
    }

    /// Returns once no device uses the tensors of an operation that failed.
    pub(crate) fn settle(&self) {
        wait_for(&self.still_used());
    }

    /// Whether its outcome can be told without waiting for anything.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_done() && self.still_used().is_empty()
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done.is_raised()
    }

    /// Whether the results are there, on a device too.
    pub(crate) fn is_reached(&self) -> bool {
        self.is_done() && self.progress().events.iter().all(|event| event.reached())
    }

    pub(crate) fn sleep(&self, limit: Duration) {
        self.done.sleep(limit);
    }

    /// The outcome. What there is besides the targets is given once, a failure to everybody who waits.
    pub(crate) fn outcome(&self) -> Result<Finished, Error> {
        let mut progress = self.progress();
        let finished = progress.outcome.as_mut().map(std::mem::take).map_err(|failure| failure.clone())?;
        Ok(Finished { events: progress.events.clone(), ..finished })
    }
}

fn wait_for(events: &[Arc<dyn Event>]) {
    for event in events {
        // A device that failed uses nothing any more.
        let _ = event.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(shape: &[u64]) -> Tensor {
        Tensor {
            source: std::ptr::null(),
            target: std::ptr::null_mut(),
            capacity: 0,
            shape: shape.to_vec(),
            dtype: DType::F32,
            stored: None,
            ready: None,
        }
    }

    fn grouped(count: usize) -> Operation {
        let tensors = (0..count).map(|_| tensor(&[2, 3])).collect();
        Operation::new(Submission {
            grouped: true,
            ..Submission::new(Kind::Allreduce, "allreduce.g", tensors)
        })
    }

    #[test]
    fn members_of_a_group_carry_their_number_and_a_group_of_one_does_not() {
        let names: Vec<String> = grouped(2).requests().map(|request| request.name.to_string()).collect();
        assert_eq!(names, ["allreduce.g_1of2", "allreduce.g_2of2"]);
        let alone: Vec<_> = grouped(1).requests().collect();
        assert_eq!(&*alone[0].name, "allreduce.g");
        assert!(alone[0].group.is_none());
    }

    #[test]
    fn a_group_is_done_with_its_last_member_and_keeps_the_first_failure() {
        let operation = grouped(3);
        operation.end_item(None);
        operation.end_item(Some(&Error::Mismatch("first".into())));
        assert!(!operation.is_done());
        operation.end_item(Some(&Error::Mismatch("second".into())));
        assert!(operation.is_done());
        for waiter in 0..2 {
            assert_eq!(operation.outcome().expect_err("a failure").to_string(), "first", "waiter {waiter}");
        }
    }

    #[test]
    fn scalars_have_one_row_of_one_element() {
        assert_eq!((tensor(&[]).rows(), tensor(&[]).row_elements(), tensor(&[]).bytes()), (1, 1, 4));
        assert_eq!((tensor(&[5, 2]).rows(), tensor(&[5, 2]).row_elements()), (5, 2));
    }
}
