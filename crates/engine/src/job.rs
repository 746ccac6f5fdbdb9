//! A process's membership in a job.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ronde_collective::types::{DType, ReduceOp};
use ronde_collective::{Card, Fabric, Group, Interrupt, LinkKind, Listening, Reduction};
use ronde_rendezvous::{Client, JobSpec, Place};

use crate::agreement::{self, Kind, Offer};
use crate::error::Error;

type Result<T> = std::result::Result<T, Error>;

/// The group of all ranks.
const WORLD: u64 = 0;

/// Variable that keeps ranks on one machine from sharing memory: only those with the same value do (default: all).
pub const MEMORY_DOMAIN: &str = "RONDE_MEMORY_DOMAIN";

/// This process's place in a job, and the links to the others. Calls from several threads take turns; every rank
/// must make the same calls in the same order.
pub struct Job {
    place: Place,
    links: Vec<LinkKind>,
    // Dropped in this order: collectives end before links say goodbye, links before the rendezvous is left.
    world: Mutex<Group>,
    fabric: Fabric,
    membership: Membership,
}

/// The connection to the rendezvous, if there is one. A job that is dropped leaves in order, so that ranks which end because
/// another one was lost are not taken for lost themselves.
struct Membership(Option<Client>);

impl Drop for Membership {
    fn drop(&mut self) {
        if let Some(client) = self.0.take() {
            client.leave();
        }
    }
}

impl Job {
    /// Joins the job that the environment describes; without one, a job of size 1. Waits until all ranks have joined;
    /// `interrupted` is asked now and then whether to give up.
    pub fn start(interrupted: Interrupt) -> Result<Job> {
        match JobSpec::from_environment(|name| std::env::var(name).ok()).map_err(Error::Rendezvous)? {
            Some(spec) => Job::join(&spec, interrupted),
            None => {
                let fabric = Fabric::alone(interrupted)?;
                let world = Mutex::new(fabric.group(WORLD, &[0])?);
                Ok(Job {
                    place: Place::alone(),
                    links: fabric.links(),
                    world,
                    fabric,
                    membership: Membership(None),
                })
            }
        }
    }

    /// Joins the job that `spec` describes.
    pub fn join(spec: &JobSpec, interrupted: Interrupt) -> Result<Job> {
        let gave_up = || interrupted();
        let domain = std::env::var(MEMORY_DOMAIN).unwrap_or_default();
        let mut listening = None;
        let joined = Client::join(
            spec,
            |address| {
                listening = Some(Listening::open(address.ip()).map(|open| open.apart(&domain)));
                match &listening {
                    Some(Ok(listening)) => postcard::to_stdvec(listening.card()).unwrap_or_default(),
                    _ => Vec::new(),
                }
            },
            &gave_up,
        );
        let listening = listening.transpose()?;
        let (client, cards) = joined.map_err(rendezvous_error)?;
        let listening = listening.ok_or_else(|| Error::Invalid("the rendezvous asked for no card".into()))?;
        let cards = cards
            .iter()
            .enumerate()
            .map(|(rank, card)| {
                postcard::from_bytes(card)
                    .map_err(|_| Error::Invalid(format!("rank {rank} runs another version of Ronde")))
            })
            .collect::<Result<Vec<Card>>>()?;
        let rank = spec.place.rank;
        let mut failed = None;
        let fabric = listening.connect(rank, cards, spec.secret.clone(), interrupted.clone(), |links| {
            client.exchange("links", links, &gave_up).map_err(|error| {
                let text = error.to_string();
                failed = Some(rendezvous_error(error));
                ronde_collective::Error::RendezvousLost(text)
            })
        });
        let fabric = match (fabric, failed) {
            (_, Some(error)) => return Err(error),
            (fabric, None) => fabric?,
        };
        let report = fabric.reporter();
        client.on_loss(move |loss| report(loss.rank, &loss.host, &loss.reason));
        let members: Vec<usize> = (0..spec.place.size).collect();
        let world = Mutex::new(fabric.group(WORLD, &members)?);
        Ok(Job {
            place: spec.place,
            links: fabric.links(),
            world,
            fabric,
            membership: Membership(Some(client)),
        })
    }

    /// Where this process stands in the job.
    pub fn place(&self) -> Place {
        self.place
    }

    /// How each rank is reached.
    pub fn links(&self) -> &[LinkKind] {
        &self.links
    }

    /// The group of all ranks, for callers that need no agreement: a mismatch between ranks is theirs to exclude.
    pub fn world(&self) -> MutexGuard<'_, Group> {
        // A panic inside a collective is a bug there; the group then still refuses what it cannot do.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another group of ranks; see [`Fabric::group`]. `id` 0 is taken by the group of all.
    pub fn group(&self, id: u64, members: &[usize]) -> Result<Group> {
        Ok(self.fabric.group(id, members)?)
    }

    /// Locks the group and compares what this rank is about to do with the others.
    fn agreed(&self, offer: &Offer) -> Result<MutexGuard<'_, Group>> {
        let mut world = self.world();
        if world.size() > 1
            && let Some(offers) = world.compare(&offer.encode())?
        {
            return Err(Error::Mismatch(agreement::explain(&offers)));
        }
        Ok(world)
    }

    /// Reduces over all ranks. Without `input`, `output` is both.
    pub fn allreduce(
        &self,
        input: Option<&[u8]>,
        output: &mut [u8],
        dtype: DType,
        op: ReduceOp,
        prescale: f64,
        postscale: f64,
    ) -> Result<()> {
        let offer =
            Offer::new(Kind::Allreduce, dtype, output.len() / dtype.size()).reducing(op, prescale, postscale);
        let how = Reduction { dtype, op, prescale, postscale };
        Ok(self.agreed(&offer)?.allreduce(input, output, &how)?)
    }

    /// Everybody's number of rows in an allgather of rows of `row_bytes` bytes.
    pub fn gather_counts(&self, dtype: DType, row_bytes: usize, rows: usize) -> Result<Vec<usize>> {
        let mut world = self.agreed(&Offer::new(Kind::Allgather, dtype, row_bytes))?;
        let counts = world.gather_small(&(rows as u64).to_le_bytes())?;
        counts.iter().map(|bytes| number(bytes)).collect()
    }

    /// Concatenates everybody's `input`, rank r giving `bytes_by_rank[r]` bytes ([`Job::gather_counts`] tells them).
    pub fn allgather(&self, input: &[u8], bytes_by_rank: &[usize], output: &mut [u8]) -> Result<()> {
        Ok(self.world().allgather(Some(input), bytes_by_rank, output)?)
    }

    /// Gives everybody the bytes of rank `root`.
    pub fn broadcast(&self, buffer: &mut [u8], dtype: DType, root: usize) -> Result<()> {
        let offer = Offer {
            root: u32::try_from(root).unwrap_or(u32::MAX),
            ..Offer::new(Kind::Broadcast, dtype, buffer.len() / dtype.size())
        };
        Ok(self.agreed(&offer)?.broadcast(buffer, root)?)
    }

    /// Reduces over all ranks and gives rank r the next `rows_by_rank[r]` rows.
    #[expect(clippy::too_many_arguments, reason = "the interface of reducescatter has that many parts")]
    pub fn reducescatter(
        &self,
        input: &[u8],
        output: &mut [u8],
        rows_by_rank: &[usize],
        row_elements: usize,
        dtype: DType,
        op: ReduceOp,
        prescale: f64,
        postscale: f64,
    ) -> Result<()> {
        let elements = input.len() / dtype.size();
        let offer = Offer::new(Kind::Reducescatter, dtype, elements).reducing(op, prescale, postscale);
        let lengths: Vec<usize> = rows_by_rank.iter().map(|rows| rows * row_elements).collect();
        let how = Reduction { dtype, op, prescale, postscale };
        Ok(self.agreed(&offer)?.reducescatter(input, &lengths, output, &how)?)
    }

    /// How many rows this rank will receive from each in an all-to-all in which it sends `splits`.
    pub fn alltoall_counts(&self, dtype: DType, row_bytes: usize, splits: &[usize]) -> Result<Vec<usize>> {
        let mut world = self.agreed(&Offer::new(Kind::Alltoall, dtype, row_bytes))?;
        let row: Vec<u8> = splits.iter().flat_map(|&rows| (rows as u64).to_le_bytes()).collect();
        let all = world.gather_small(&row)?;
        all.iter().map(|row| number(row.get(8 * self.place.rank..).unwrap_or_default())).collect()
    }

    /// Sends `send_bytes[r]` bytes to rank r and receives `recv_bytes[r]` from it ([`Job::alltoall_counts`] tells them).
    pub fn alltoall(
        &self,
        input: &[u8],
        send_bytes: &[usize],
        output: &mut [u8],
        recv_bytes: &[usize],
    ) -> Result<()> {
        Ok(self.world().alltoall(input, send_bytes, output, recv_bytes)?)
    }

    /// Returns once every rank has called it.
    pub fn barrier(&self) -> Result<()> {
        let offer = Offer::new(Kind::Barrier, DType::U8, 0);
        // Comparing is meeting.
        self.agreed(&offer).map(drop)
    }

    /// To be called in a forked child, which shares this job's sockets without being part of it: closes them there, so
    /// that the parent's death stays visible to the other ranks. The job must not be used in the child afterwards.
    pub fn close_in_forked_child(&self) {
        let control = self.membership.0.iter().flat_map(Client::descriptors);
        for socket in self.fabric.sockets().into_iter().chain(control) {
            // SAFETY: the descriptors are this process's copies, and nothing in the child uses the job again.
            unsafe { libc::close(socket) };
        }
    }

    /// Leaves the job in order.
    pub fn shutdown(self) {
        drop(self);
    }
}

fn rendezvous_error(error: ronde_rendezvous::Error) -> Error {
    match error {
        ronde_rendezvous::Error::Interrupted => Error::Interrupted,
        other => Error::Rendezvous(other),
    }
}

fn number(bytes: &[u8]) -> Result<usize> {
    bytes
        .get(..8)
        .and_then(|bytes| bytes.try_into().ok())
        .and_then(|bytes| usize::try_from(u64::from_le_bytes(bytes)).ok())
        .ok_or_else(|| Error::Invalid("a rank sent a length that cannot be".into()))
}
