//! What a rank asks for, and the part of it that must be the same everywhere.
//!
//! A [`Request`] is what the runtime hands in. Its [`Facts`] are what travels, what ranks are compared by and what the
//! response cache remembers: everything that does not matter for the kind at hand is brought to one form (an allgather
//! has no reduction operation, and its number of rows is each rank's own business), so that equality of facts means
//! "these may run together".

use std::fmt;
use std::sync::Arc;

use ronde_collective::types::{DType, ReduceOp};
use serde::{Deserialize, Serialize};

/// The runtime's number for a request it submitted.
pub type Ticket = u64;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// Reduce a tensor over all ranks; everybody gets the result.
    Allreduce,
    /// Concatenate everybody's rows.
    Allgather,
    /// Everybody gets the root's tensor.
    Broadcast,
    /// Everybody sends some rows to everybody.
    Alltoall,
    /// Reduce over all ranks; everybody gets its share of the rows.
    Reducescatter,
    /// Wait for everybody.
    Barrier,
    /// No more data from this rank.
    Join,
    /// Register a process set.
    AddSet,
    /// Forget a process set.
    RemoveSet,
}

impl Kind {
    /// Whether results of this kind are remembered by the response cache.
    pub(super) fn is_cached(self) -> bool {
        matches!(
            self,
            Kind::Allreduce | Kind::Allgather | Kind::Broadcast | Kind::Alltoall | Kind::Reducescatter
        )
    }

    /// Whether the first dimension may differ between ranks.
    pub(super) fn has_own_rows(self) -> bool {
        matches!(self, Kind::Allgather | Kind::Alltoall)
    }

    /// Whether elements are combined, so that operation and factors matter.
    pub(super) fn reduces(self) -> bool {
        matches!(self, Kind::Allreduce | Kind::Reducescatter)
    }
}

/// Writes the name that tensor names of this kind begin with.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Allreduce => "allreduce",
            Kind::Allgather => "allgather",
            Kind::Broadcast => "broadcast",
            Kind::Alltoall => "alltoall",
            Kind::Reducescatter => "reducescatter",
            Kind::Barrier => "barrier",
            Kind::Join => "join",
            Kind::AddSet => "add_process_set",
            Kind::RemoveSet => "remove_process_set",
        })
    }
}

/// Where a tensor lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Device {
    /// Main memory.
    Host,
    /// The memory of a GPU, whichever.
    Gpu,
}

/// Writes what the error texts say.
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Device::Host => "CPU",
            Device::Gpu => "GPU",
        })
    }
}

/// Which group a tensor belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GroupTag {
    /// The group's name, equal on all ranks.
    pub name: Arc<str>,
    /// How many tensors the group has.
    pub of: u32,
}

/// One rank's side of an operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// What ranks are matched by; one request a name may be in flight.
    pub name: Arc<str>,
    /// What is to be done.
    pub kind: Kind,
    /// Type of an element.
    pub dtype: DType,
    /// Extents of the tensor.
    pub shape: Vec<u64>,
    /// How contributions are combined, where they are.
    pub op: ReduceOp,
    /// Factor before the reduction.
    pub prescale: f64,
    /// Factor after the reduction.
    pub postscale: f64,
    /// Global rank of a broadcast's root.
    pub root: u32,
    /// Where the tensor lives.
    pub device: Device,
    /// Of what is ready at the same time, the lower number goes first.
    pub priority: i32,
    /// The group the tensor came in.
    pub group: Option<GroupTag>,
    /// Global ranks of the process set to add or remove. Must be equal on all ranks for every kind.
    pub ranks: Vec<u32>,
    /// This rank found its arguments wrong: the operation fails on every rank, and this says why.
    pub fault: Option<String>,
}

impl Request {
    /// A request with everything that can have a default at it: sum, factors 1, root 0, main memory.
    pub fn new(kind: Kind, name: impl Into<Arc<str>>, dtype: DType, shape: impl Into<Vec<u64>>) -> Request {
        Request {
            name: name.into(),
            kind,
            dtype,
            shape: shape.into(),
            op: ReduceOp::Sum,
            prescale: 1.0,
            postscale: 1.0,
            root: 0,
            device: Device::Host,
            priority: 0,
            group: None,
            ranks: Vec::new(),
            fault: None,
        }
    }

    /// The first extent, which is this rank's own business where rows may differ.
    pub(super) fn rows(&self) -> u64 {
        self.shape.first().copied().unwrap_or(0)
    }
}

/// What must be equal on all ranks, brought to one form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Facts {
    pub(super) name: Arc<str>,
    pub(super) kind: Kind,
    pub(super) dtype: DType,
    /// The first extent is 0 where rows may differ.
    pub(super) shape: Arc<[u64]>,
    pub(super) op: ReduceOp,
    /// Bits of the factors: what must be equal is what was given, NaN included.
    prescale: u64,
    postscale: u64,
    pub(super) root: u32,
    pub(super) device: Device,
    pub(super) priority: i32,
    pub(super) group: Option<GroupTag>,
    pub(super) ranks: Vec<u32>,
    pub(super) fault: Option<String>,
}

impl Facts {
    pub(super) fn of(request: Request) -> Facts {
        let Request { kind, mut shape, mut ranks, .. } = request;
        if let (true, Some(rows)) = (kind.has_own_rows(), shape.first_mut()) {
            *rows = 0;
        }
        if matches!(kind, Kind::AddSet | Kind::RemoveSet) {
            ranks.sort_unstable();
        }
        let one = 1.0f64.to_bits();
        Facts {
            name: request.name,
            kind,
            dtype: if kind.is_cached() { request.dtype } else { DType::U8 },
            shape: if kind.is_cached() { shape.into() } else { [].into() },
            op: if kind.reduces() { request.op } else { ReduceOp::Sum },
            prescale: if kind.reduces() { request.prescale.to_bits() } else { one },
            postscale: if kind.reduces() { request.postscale.to_bits() } else { one },
            root: if kind == Kind::Broadcast { request.root } else { 0 },
            device: if kind.is_cached() { request.device } else { Device::Host },
            priority: request.priority,
            group: request.group,
            ranks,
            fault: request.fault,
        }
    }

    /// Whether a request has these facts; says so without building the request's own.
    pub(super) fn cover(&self, request: &Request) -> bool {
        let skipped = usize::from(self.kind.has_own_rows());
        self.kind == request.kind
            && self.dtype == request.dtype
            && self.shape.len() == request.shape.len()
            && self.shape.iter().skip(skipped).eq(request.shape.iter().skip(skipped))
            && (!self.kind.reduces()
                || (self.op == request.op
                    && self.prescale == request.prescale.to_bits()
                    && self.postscale == request.postscale.to_bits()))
            && (self.kind != Kind::Broadcast || self.root == request.root)
            && self.device == request.device
            && self.priority == request.priority
            && self.group == request.group
            && *self.ranks == *request.ranks
            && request.fault.is_none()
    }

    pub(super) fn factors(&self) -> (f64, f64) {
        (f64::from_bits(self.prescale), f64::from_bits(self.postscale))
    }

    /// Whether the name may be used again, so that remembering it pays. Operations that users do not name are counted up.
    pub(super) fn comes_back(&self) -> bool {
        !self.name.contains(".noname.")
    }

    pub(super) fn has_factors(&self) -> bool {
        self.factors() != (1.0, 1.0)
    }

    /// Whether two tensors may travel in one batch.
    pub(super) fn fuses_with(&self, other: &Facts) -> bool {
        self.kind == other.kind
            && self.dtype == other.dtype
            && self.op == other.op
            && self.prescale == other.prescale
            && self.postscale == other.postscale
            && self.device == other.device
    }

    /// Bytes of the tensor, for a rank with that many rows where rows may differ.
    pub(super) fn bytes(&self, rows: u64) -> u64 {
        let skipped = usize::from(self.kind.has_own_rows());
        let first = if skipped == 1 { rows } else { 1 };
        let elements =
            self.shape.iter().skip(skipped).fold(first, |product, &extent| product.saturating_mul(extent));
        elements.saturating_mul(self.dtype.size() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(change: impl FnOnce(&mut Request)) -> Facts {
        let mut request = Request::new(Kind::Allreduce, "x", DType::F32, [3, 4]);
        change(&mut request);
        Facts::of(request)
    }

    /// A cache hit and equality of facts must be the same thing.
    #[test]
    fn facts_cover_a_request_exactly_when_they_equal_its_own() {
        let changes: [fn(&mut Request); 9] = [
            |_| {},
            |r| r.dtype = DType::F64,
            |r| r.shape = vec![4, 4],
            |r| r.shape = vec![3, 4, 1],
            |r| r.op = ReduceOp::Max,
            |r| r.prescale = f64::NAN,
            |r| r.root = 1,
            |r| r.device = Device::Gpu,
            |r| r.group = Some(GroupTag { name: "g".into(), of: 1 }),
        ];
        for kind in [Kind::Allreduce, Kind::Allgather, Kind::Broadcast, Kind::Alltoall, Kind::Reducescatter] {
            for one in changes {
                for other in changes {
                    let mut request = Request::new(kind, "x", DType::F32, [3, 4]);
                    other(&mut request);
                    let remembered = facts(|r| {
                        r.kind = kind;
                        one(r);
                    });
                    assert_eq!(
                        remembered.cover(&request),
                        remembered == Facts::of(request.clone()),
                        "{request:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn rows_count_only_where_they_may_differ() {
        assert_eq!(facts(|_| {}).bytes(100), 48);
        assert_eq!(facts(|r| r.kind = Kind::Allgather).bytes(100), 1600);
        assert_eq!(facts(|r| r.shape = vec![u64::MAX, u64::MAX]).bytes(1), u64::MAX);
        assert_eq!(facts(|r| r.shape = vec![]).bytes(1), 4);
    }

    #[test]
    fn names_that_are_counted_up_do_not_come_back() {
        assert!(facts(|r| r.name = "allreduce.grad.fc".into()).comes_back());
        assert!(!facts(|r| r.name = "allreduce.noname.17".into()).comes_back());
    }
}
