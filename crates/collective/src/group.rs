//! A set of ranks that run collectives together.
//!
//! A group knows which of its members share memory with this rank (its *host*) and which are reached over
//! the network, picks an algorithm by the table, and guards what callers see: arguments are checked before a
//! byte moves, and once a collective has failed, every later call returns the same first cause, because the
//! members can no longer agree on what has been sent. Groups share no buffers, signals or wires, so
//! several may be in use at once from different threads.

use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::batch::Staging;
use crate::algorithm::{self, table};
use crate::error::{Error, Result};
use crate::fabric::Shared;
use crate::host::{Host, Segment};
use crate::kernel::{Fold, FoldPlan, Identity};
use crate::net::Wires;
use crate::types::{DType, ReduceOp};

/// What a reduction does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reduction {
    /// Type of the elements.
    pub dtype: DType,
    /// How two elements become one.
    pub op: ReduceOp,
    /// Factor for every input.
    pub prescale: f64,
    /// Factor for the result.
    pub postscale: f64,
}

impl Reduction {
    /// A reduction without factors.
    pub fn new(dtype: DType, op: ReduceOp) -> Reduction {
        Reduction { dtype, op, prescale: 1.0, postscale: 1.0 }
    }

    /// What a rank without data contributes.
    pub(crate) fn identity(&self) -> Identity {
        Identity::new(self.dtype, fold_of(self.op))
    }
}

fn fold_of(op: ReduceOp) -> Fold {
    match op {
        ReduceOp::Sum | ReduceOp::Average | ReduceOp::Adasum => Fold::Sum,
        ReduceOp::Min => Fold::Min,
        ReduceOp::Max => Fold::Max,
        ReduceOp::Product => Fold::Product,
    }
}

/// How many of `rows` each of `ranks` gets when they are scattered: equal shares, the first ranks one more.
pub fn rows_of(rows: usize, ranks: usize) -> Vec<usize> {
    (0..ranks).map(|rank| rows / ranks + usize::from(rank < rows % ranks)).collect()
}

/// See the module's text.
pub struct Group {
    pub(crate) shared: Arc<Shared>,
    /// Ranks in the job, ascending. Everything below speaks of positions in this list.
    pub(crate) members: Vec<usize>,
    pub(crate) me: usize,
    /// Members by host, hosts ordered by their first member.
    pub(crate) hosts: Vec<Vec<usize>>,
    /// This rank's host, and its position in it.
    pub(crate) my_host: usize,
    pub(crate) local: usize,
    /// Memory shared with the others on this host, if there are any.
    pub(crate) host: Option<Host>,
    pub(crate) wires: Wires,
    /// Private memory in which the tensors of a batch lie together.
    pub(crate) staging: Staging,
    /// The number that names it among all groups of the job.
    pub(crate) id: u64,
    /// How often its members have handed each other descriptors.
    pub(crate) traded: u16,
    failed: Option<Error>,
}

impl Group {
    pub(crate) fn form(
        shared: &Arc<Shared>,
        job_hosts: &[Vec<usize>],
        id: u64,
        members: &[usize],
    ) -> Result<Group> {
        let ascending = members.windows(2).all(|pair| pair[0] < pair[1]);
        let known = members.last().is_some_and(|&last| last < shared.cards.len());
        let me = members.iter().position(|&member| member == shared.rank);
        let Some(me) = me.filter(|_| ascending && known) else {
            return Err(Error::Invalid(format!(
                "a group needs ascending ranks of the job with rank {} among them, not {members:?}",
                shared.rank
            )));
        };
        let position = |rank: &usize| members.iter().position(|member| member == rank);
        let hosts: Vec<Vec<usize>> = job_hosts
            .iter()
            .map(|host| host.iter().filter_map(position).collect::<Vec<_>>())
            .filter(|host| !host.is_empty())
            .collect();
        let mut hosts = hosts;
        hosts.sort_unstable_by_key(|host| host[0]);
        let find = |host: &Vec<usize>| host.iter().position(|&member| member == me);
        let (my_host, local) = hosts
            .iter()
            .enumerate()
            .find_map(|(index, host)| Some((index, find(host)?)))
            .ok_or_else(|| Error::Invalid("this rank has no host".into()))?;
        let mut group = Group {
            shared: shared.clone(),
            members: members.to_vec(),
            me,
            my_host,
            local,
            host: None,
            wires: Wires::new(id, shared.clone()),
            staging: Staging::default(),
            id,
            traded: 0,
            failed: None,
            hosts,
        };
        group.host = group.share_memory(id)?;
        // Nobody may leave before all are here: leaving is news that would fail those still forming the group.
        group.barrier()?;
        Ok(group)
    }

    /// The lowest member on the host makes the segment and hands it out.
    fn share_memory(&self, id: u64) -> Result<Option<Host>> {
        let neighbours: Vec<usize> =
            self.hosts[self.my_host].iter().map(|&member| self.members[member]).collect();
        let count = neighbours.len();
        if count == 1 {
            return Ok(None);
        }
        let segment = if self.local == 0 {
            let segment = Segment::create(count)?;
            for &rank in &neighbours[1..] {
                self.shared.give_memory(rank, id, segment.fd())?;
            }
            segment
        } else {
            Segment::adopt(self.shared.await_memory(id, neighbours[0])?, count)?
        };
        let segment = Arc::new(segment);
        self.shared.guard(neighbours, Arc::downgrade(&segment))?;
        let spin = if count > cores() { Duration::ZERO } else { table::SPIN };
        Ok(Some(Host::new(segment, self.local, count, spin, self.shared.clone())))
    }

    /// Position of this rank in the group.
    pub fn rank(&self) -> usize {
        self.me
    }

    /// Ranks in the job of all members, ascending.
    pub fn members(&self) -> &[usize] {
        &self.members
    }

    /// Members of the group.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// Members that share this rank's memory, by host.
    pub fn hosts(&self) -> &[Vec<usize>] {
        &self.hosts
    }

    /// Whether somebody waits for what the group does: then ranks look for each other longer before they sleep. Work in the
    /// background leaves the cores to those who compute.
    pub fn set_eager(&mut self, eager: bool) {
        if let Some(host) = &mut self.host {
            host.set_eager(eager);
        }
    }

    /// Reduces `input` over all members into every member's `output`. Without `input`, `output` is both.
    pub fn allreduce(&mut self, input: Option<&[u8]>, output: &mut [u8], how: &Reduction) -> Result<()> {
        elements(output.len(), how.dtype)?;
        if let Some(input) = input.filter(|input| input.len() != output.len()) {
            return Err(mismatch("allreduce", input.len(), output.len()));
        }
        let source = input.map_or(output.as_ptr(), <[u8]>::as_ptr);
        self.guarded(|group| algorithm::allreduce(group, source, output, how))
    }

    /// Concatenates everybody's `input` in order; member `m` gives `lengths[m]` bytes. `input` may lie in
    /// place in `output`: then pass `None`.
    pub fn allgather(&mut self, input: Option<&[u8]>, lengths: &[usize], output: &mut [u8]) -> Result<()> {
        self.expect_one_each("allgather", lengths)?;
        let total: usize = lengths.iter().sum();
        if total != output.len() {
            return Err(mismatch("allgather", total, output.len()));
        }
        let start: usize = lengths[..self.me].iter().sum();
        if let Some(input) = input {
            if input.len() != lengths[self.me] {
                return Err(mismatch("allgather", input.len(), lengths[self.me]));
            }
            output[start..start + input.len()].copy_from_slice(input);
        }
        self.guarded(|group| algorithm::allgather(group, lengths, output))
    }

    /// Gives everybody the bytes of member `root`.
    pub fn broadcast(&mut self, buffer: &mut [u8], root: usize) -> Result<()> {
        if root >= self.size() {
            return Err(Error::Invalid(format!("broadcast from rank {root} in a group of {}", self.size())));
        }
        self.guarded(|group| algorithm::broadcast(group, buffer, root))
    }

    /// Reduces `input` over all members; member `m` gets the next `lengths[m]` elements of the result.
    pub fn reducescatter(
        &mut self,
        input: &[u8],
        lengths: &[usize],
        output: &mut [u8],
        how: &Reduction,
    ) -> Result<()> {
        self.expect_one_each("reducescatter", lengths)?;
        let size = how.dtype.size();
        if elements(input.len(), how.dtype)? != lengths.iter().sum::<usize>() {
            return Err(mismatch("reducescatter", input.len(), lengths.iter().sum::<usize>() * size));
        }
        if output.len() != lengths[self.me] * size {
            return Err(mismatch("reducescatter", lengths[self.me] * size, output.len()));
        }
        if how.op == ReduceOp::Adasum {
            return Err(Error::Unsupported { op: how.op, dtype: how.dtype });
        }
        let bytes: Vec<usize> = lengths.iter().map(|&len| len * size).collect();
        self.guarded(|group| algorithm::reducescatter(group, input, &bytes, output, how))
    }

    /// Sends `sent[m]` bytes of `input` to member `m` and receives `received[m]` bytes from it, both in order.
    pub fn alltoall(
        &mut self,
        input: &[u8],
        sent: &[usize],
        output: &mut [u8],
        received: &[usize],
    ) -> Result<()> {
        self.expect_one_each("alltoall", sent)?;
        self.expect_one_each("alltoall", received)?;
        if sent.iter().sum::<usize>() != input.len() || received.iter().sum::<usize>() != output.len() {
            return Err(mismatch("alltoall", sent.iter().sum(), input.len()));
        }
        if sent[self.me] != received[self.me] {
            return Err(mismatch("alltoall", sent[self.me], received[self.me]));
        }
        self.guarded(|group| algorithm::alltoall(group, input, sent, output, received))
    }

    /// Returns once every member has called it.
    pub fn barrier(&mut self) -> Result<()> {
        self.guarded(algorithm::barrier)
    }

    /// Everybody's few bytes, in order; all give equally many.
    pub fn gather_small(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.guarded(|group| algorithm::gather_small(group, bytes))
    }

    /// Everybody's few numbers, in order; all give equally many.
    pub fn gather_numbers(&mut self, own: &[usize]) -> Result<Vec<Vec<usize>>> {
        let bytes: Vec<u8> = own.iter().flat_map(|&number| (number as u64).to_le_bytes()).collect();
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes) as usize;
        let all = self.gather_small(&bytes)?;
        Ok(all.iter().map(|bytes| bytes.chunks_exact(8).map(word).collect()).collect())
    }

    /// Whether everybody gives the same bytes: `None` if so, else everybody's.
    pub fn compare(&mut self, bytes: &[u8]) -> Result<Option<Vec<Vec<u8>>>> {
        self.guarded(|group| algorithm::compare(group, bytes))
    }

    /// Runs a collective unless one failed before, and remembers a failure that leaves the members apart.
    pub(crate) fn guarded<T>(&mut self, run: impl FnOnce(&mut Group) -> Result<T>) -> Result<T> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let outcome = run(self);
        if let Err(error) = &outcome
            && !matches!(error, Error::Invalid(_) | Error::Unsupported { .. })
        {
            self.abandon(error);
        }
        outcome
    }

    /// The other members will not wait for this one any more, and every later call fails with `error`.
    pub fn abandon(&mut self, error: &Error) {
        let named = match error {
            Error::PeerLost { rank, .. } | Error::Unreachable { rank, .. } => *rank,
            _ => self.shared.rank,
        };
        if let Some(host) = &self.host {
            host.abandon(named);
        }
        self.wires.close();
        self.failed = Some(error.clone());
    }

    /// The kernel for a reduction over this group.
    pub(crate) fn plan(&self, how: &Reduction) -> Result<FoldPlan> {
        let divide = (how.op == ReduceOp::Average).then_some(self.size() as u64);
        FoldPlan::new(how.dtype, fold_of(how.op), how.prescale, how.postscale, divide)
            .map_err(|_| Error::Unsupported { op: how.op, dtype: how.dtype })
    }

    /// The member that speaks for a host.
    pub(crate) fn leader(&self, host: usize) -> usize {
        self.hosts[host][0]
    }

    pub(crate) fn expect_one_each(&self, what: &str, list: &[usize]) -> Result<()> {
        if list.len() == self.size() {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "{what} needs one length for each of {} ranks, not {}",
            self.size(),
            list.len()
        )))
    }
}

pub(crate) fn elements(bytes: usize, dtype: DType) -> Result<usize> {
    if bytes.is_multiple_of(dtype.size()) {
        return Ok(bytes / dtype.size());
    }
    Err(Error::Invalid(format!("{bytes} bytes are no whole number of {dtype} elements")))
}

fn mismatch(what: &str, given: usize, expected: usize) -> Error {
    Error::Invalid(format!("{what}: buffer of {given} bytes where {expected} are needed"))
}

/// Cores this process may run on.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ranks_take_the_remainder() {
        assert_eq!(rows_of(7, 3), [3, 2, 2]);
        assert_eq!(rows_of(2, 4), [1, 1, 0, 0]);
        assert_eq!(rows_of(0, 2), [0, 0]);
    }
}
