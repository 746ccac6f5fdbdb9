//! [`Gpu`]: the GPU of this rank, and the worker of one process set on it.
//!
//! The worker turns a batch into long tensors, has the entry of the set's way wait for them, and hands on what comes back. It
//! knows all operations and no way; a way knows long tensors and no operation's arguments.

use std::sync::{Arc, Once};

use ronde_collective::types::ReduceOp;
use ronde_collective::{Group, Reduction, rows_of};
use ronde_cuda::{Device, Mark, Stream};
use ronde_engine::device::{Event, Executor, Place, Started, Worker};
use ronde_engine::negotiation::{Batch, Item};
use ronde_engine::{Error, Kind, Rows, Settings, Tensor};
use ronde_nccl::Library;
use ronde_settings::{GpuPath, Level};

use crate::alone::Alone;
use crate::between::Between;
use crate::both::Both;
use crate::failure::{of_cuda, of_start};
use crate::layout::{Card, Way, choose};
use crate::path::{Fold, Handing, Path, Sources};
use crate::peers::Peers;
use crate::point::{All, Point, latest};
use crate::results;
use crate::spans::{Span, lay_out};
use crate::staged::Staged;
use crate::stand_in::StandIn;

/// See the module's text.
pub struct Gpu {
    device: Arc<Device>,
    path: GpuPath,
    lanes: usize,
    nccl: Result<&'static Library, String>,
}

impl Gpu {
    /// Opens the GPU with this number among the visible ones, and looks for NCCL.
    pub fn open(ordinal: i32, settings: &Settings) -> Result<Arc<Gpu>, Error> {
        let named = settings.nccl_library.as_deref().and_then(std::path::Path::to_str);
        let nccl = Library::open(named).map_err(|error| error.to_string());
        Gpu::open_with(ordinal, settings, nccl)
    }

    /// The same with a copy of NCCL that was found, or why none was.
    pub fn open_with(
        ordinal: i32,
        settings: &Settings,
        nccl: Result<&'static Library, String>,
    ) -> Result<Arc<Gpu>, Error> {
        let device = Device::open(ordinal).map_err(|error| {
            Error::Invalid(format!("GPU {ordinal} cannot be used for collectives: {error}"))
        })?;
        Ok(Arc::new(Gpu { device, path: settings.gpu_path, lanes: settings.num_nccl_streams, nccl }))
    }

    /// Its number.
    pub fn ordinal(&self) -> i32 {
        self.device.ordinal()
    }

    /// The point after everything that was given so far to a stream of the framework; 0 is its default stream.
    pub fn record(&self, stream: u64) -> Result<Arc<dyn Event>, Error> {
        let mark = Mark::record(&self.device, stream).map_err(of_start)?;
        Ok(Arc::new(Point(mark)))
    }

    fn card(&self) -> Card {
        let version = |library: &&Library| u32::try_from(library.version().0).unwrap_or(0);
        Card {
            uuid: self.device.uuid(),
            shares_memory: self.device.shares_memory(),
            asked: self.path,
            lanes: u8::try_from(self.lanes).unwrap_or(u8::MAX),
            nccl: self.nccl.as_ref().map_or(0, version),
        }
    }
}

impl Executor for Gpu {
    fn open(&self, group: &mut Group) -> Result<Box<dyn Worker>, Error> {
        let cards = group.gather_small(&self.card().to_bytes())?;
        let cards: Option<Vec<Card>> = cards.iter().map(|bytes| Card::from_bytes(bytes)).collect();
        let cards = cards.ok_or_else(|| Error::ShutDown("a rank says nothing about its GPU".into()))?;
        let way = choose(&cards, group.hosts()).map_err(Error::Invalid)?;
        let stream = Arc::new(Stream::new(&self.device).map_err(of_cuda)?);
        // Whoever fails gives up this group. So nobody is left waiting for it in others that are made now, or in the first batch.
        group.barrier()?;
        let path: Box<dyn Path> = match way {
            Way::Alone => Box::new(Alone::new(&stream)),
            Way::Device => {
                let everybody: Vec<usize> = (0..group.size()).collect();
                Box::new(Peers::new(group.subset(&everybody, 0)?, &stream)?)
            }
            Way::Host(why) => {
                say_staged(group, &why);
                Box::new(Staged::new(&stream)?)
            }
            Way::Nccl => {
                let library = self.nccl.as_ref().map_err(|why| Error::Invalid(why.clone()))?;
                Box::new(Between::new(group, &self.device, library, self.lanes)?)
            }
            Way::Both(gpus) => {
                let library = self.nccl.as_ref().map_err(|why| Error::Invalid(why.clone()))?;
                Box::new(Both::new(group, gpus, &stream, library)?)
            }
        };
        group.barrier()?;
        Ok(Box::new(Set { path, aside: None, stream }))
    }
}

/// Says once why tensors go through the host.
fn say_staged(group: &Group, why: &str) {
    static SAID: Once = Once::new();
    if group.rank() == 0 {
        SAID.call_once(|| {
            let text = format!("tensors on GPUs go through the memory of the host, which is slow: {why}");
            ronde_settings::log(Level::Warning, &text);
        });
    }
}

/// The worker of one process set.
struct Set {
    path: Box<dyn Path>,
    /// For what the path does not do.
    aside: Option<Staged>,
    stream: Arc<Stream>,
}

impl Worker for Set {
    fn run(&mut self, group: &mut Group, batch: &Batch, items: &[Place<'_>]) -> Result<Started, Error> {
        let ready = items.iter().flatten().filter_map(|item| item.tensor.ready.as_ref());
        let events = latest(ready);
        let path: &mut dyn Path = match (batch.op, batch.kind) {
            (ReduceOp::Adasum, Kind::Allreduce) if group.size() > 1 => {
                if self.aside.is_none() {
                    say_staged(group, "Adasum is computed there");
                    self.aside = Some(Staged::new(&self.stream)?);
                }
                match &mut self.aside {
                    Some(aside) => aside,
                    None => self.path.as_mut(),
                }
            }
            _ => self.path.as_mut(),
        };
        if path.is_alone()
            && let Some(started) = untouched(batch, items)
        {
            return Ok(started);
        }
        let entry = path.entry().handle();
        let mut own = Own::default();
        let ordered = events.iter().try_for_each(|event| event.order(entry).map_err(Error::ShutDown));
        let started = ordered.and_then(|()| start(path, group, batch, items, &mut own));
        if !matches!(started, Ok(_) | Err(Error::Invalid(_))) {
            path.drain();
        }
        started
    }
}

/// Memory that was allocated for a batch. Dropping it frees it in the order of the path's entry stream, while other streams of the
/// path may still use it. So if the batch fails, it is kept until the path is drained.
#[derive(Default)]
struct Own {
    /// Results of allgather and alltoall, one an item.
    rows: Vec<Option<Rows>>,
    stand_in: Option<StandIn>,
}

/// What a rank by itself gives at once: its own tensors, as soon as they are ready, where the batch changes nothing in them.
fn untouched(batch: &Batch, items: &[Place<'_>]) -> Option<Started> {
    let how =
        Reduction { dtype: batch.dtype, op: batch.op, prescale: batch.prescale, postscale: batch.postscale };
    // What travels in a narrower type loses something even here.
    let in_place = |tensor: &&Tensor| tensor.source == tensor.target.cast_const() && tensor.stored.is_none();
    let tensors = tensors(items).ok()?;
    let is_nothing = batch.kind == Kind::Allreduce
        && Fold::new(&how, 1).is_ok_and(|fold| fold.is_copy())
        && tensors.iter().all(in_place);
    let ready = || latest(tensors.iter().filter_map(|tensor| tensor.ready.as_ref()));
    is_nothing.then(|| Started::at(Arc::new(All(ready()))))
}

/// A tensor that is there: on a device only an allreduce may be joined by ranks without data.
fn tensors<'a>(items: &'a [Place<'a>]) -> Result<Vec<&'a Tensor>, Error> {
    let all: Option<Vec<&Tensor>> = items.iter().map(|item| item.as_ref().map(|item| item.tensor)).collect();
    all.ok_or_else(|| Error::Invalid("a rank that has joined can take part in an allreduce only".into()))
}

fn start(
    path: &mut dyn Path,
    group: &mut Group,
    batch: &Batch,
    items: &[Place<'_>],
    own: &mut Own,
) -> Result<Started, Error> {
    let how =
        Reduction { dtype: batch.dtype, op: batch.op, prescale: batch.prescale, postscale: batch.postscale };
    if matches!(batch.kind, Kind::Allreduce | Kind::Reducescatter) {
        // What no rank can do is refused before anything is given to a stream.
        Fold::new(&how, group.size())?;
    }
    let mut received = Vec::new();
    match batch.kind {
        Kind::Allreduce => {
            allreduce(path, group, batch, items, &how, &mut own.stand_in)?;
            let mark = path.end()?;
            if let Some(stand_in) = &own.stand_in {
                stand_in.keep_until(&mark)?;
            }
            return Ok(Started::at(Arc::new(Point(mark))));
        }
        Kind::Reducescatter => reducescatter(path, group, &tensors(items)?, &how)?,
        Kind::Broadcast => broadcast(path, group, batch, &tensors(items)?)?,
        Kind::Allgather => allgather(path, group, &tensors(items)?, &mut own.rows)?,
        Kind::Alltoall => received = alltoall(path, group, items, &mut own.rows)?,
        Kind::Barrier | Kind::Join | Kind::AddSet | Kind::RemoveSet => {}
    }
    let event = Arc::new(Point(path.end()?));
    Ok(Started { event, rows: std::mem::take(&mut own.rows), received })
}

fn sources(tensors: &[&Tensor]) -> (Vec<Span>, usize) {
    lay_out(tensors.iter().map(|tensor| Span::of(tensor, tensor.source as u64)))
}

fn allreduce(
    path: &mut dyn Path,
    group: &mut Group,
    batch: &Batch,
    items: &[Place<'_>],
    how: &Reduction,
    stand_in: &mut Option<StandIn>,
) -> Result<(), Error> {
    let bytes = |shape: &[u64]| shape.iter().product::<u64>() as usize * batch.dtype.size();
    let missing = |item: &Item, place: &Place<'_>| if place.is_none() { bytes(&item.shape) } else { 0 };
    let missing = batch.items.iter().zip(items).map(|(item, place)| missing(item, place));
    let (missing, missing_len) = lay_out(missing.map(|bytes| Span::plain(0, bytes)));
    if items.iter().all(Option::is_none) {
        return path.allreduce(group, Sources::Nothing, &missing, missing_len, how);
    }
    // What was asked for before this rank joined may travel with what others ask for after.
    *stand_in = (missing_len > 0).then(|| StandIn::new(path.entry(), missing_len, how)).transpose()?;
    let start = stand_in.as_ref().map_or(0, StandIn::address);
    let places = |own: fn(&Tensor) -> u64| {
        lay_out(items.iter().zip(&missing).map(|(place, missing)| match place {
            Some(input) => Span::of(input.tensor, own(input.tensor)),
            None => Span::plain(start + missing.at as u64, missing.bytes),
        }))
    };
    let (sources, len) = places(|tensor| tensor.source as u64);
    let (targets, _) = places(|tensor| tensor.target as u64);
    path.allreduce(group, Sources::Tensors(&sources), &targets, len, how)
}

fn reducescatter(
    path: &mut dyn Path,
    group: &mut Group,
    tensors: &[&Tensor],
    how: &Reduction,
) -> Result<(), Error> {
    if !matches!(how.op, ReduceOp::Sum | ReduceOp::Average) {
        return Err(Error::Invalid(format!("reducescatter knows Sum and Average, not {}", how.op)));
    }
    let members = group.size();
    let (sources, len) = sources(tensors);
    let mut shares = vec![Vec::with_capacity(tensors.len()); members];
    for (tensor, span) in tensors.iter().zip(&sources) {
        let mut at = span.at;
        let row_bytes = tensor.row_elements() * tensor.dtype.size();
        for (share, rows) in shares.iter_mut().zip(rows_of(tensor.rows(), members)) {
            share.push(Span { at, ..Span::plain(tensor.target as u64, rows * row_bytes) });
            at += rows * row_bytes;
        }
    }
    path.reducescatter(group, &sources, &shares, len, how)
}

fn broadcast(
    path: &mut dyn Path,
    group: &mut Group,
    batch: &Batch,
    tensors: &[&Tensor],
) -> Result<(), Error> {
    let root = group
        .members()
        .iter()
        .position(|&rank| rank == batch.root as usize)
        .ok_or_else(|| Error::Invalid(format!("rank {} is not in this process set", batch.root)))?;
    let (spans, len) = sources(tensors);
    let (targets, _) = lay_out(tensors.iter().map(|tensor| Span::of(tensor, tensor.target as u64)));
    let is_root = group.rank() == root;
    let only = |spans: Vec<Span>| -> Vec<Vec<Span>> {
        (0..group.size()).map(|member| if member == root { spans.clone() } else { Vec::new() }).collect()
    };
    let what = Handing {
        kind: Kind::Broadcast,
        root,
        lens: (0..group.size()).map(|member| if member == root { len } else { 0 }).collect(),
        wanted: only(targets),
        given: if is_root { vec![spans.clone(); group.size()] } else { vec![Vec::new(); group.size()] },
        sources: if is_root { spans } else { Vec::new() },
    };
    path.hand(group, &what)
}

fn allgather(
    path: &mut dyn Path,
    group: &mut Group,
    tensors: &[&Tensor],
    results: &mut Vec<Option<Rows>>,
) -> Result<(), Error> {
    let counts = group.gather_numbers(&tensors.iter().map(|tensor| tensor.rows()).collect::<Vec<_>>())?;
    let row_bytes: Vec<usize> =
        tensors.iter().map(|tensor| tensor.row_elements() * tensor.dtype.size()).collect();
    let mut ends = Vec::new();
    for (index, tensor) in tensors.iter().enumerate() {
        let total = counts.iter().map(|counts| counts[index]).sum();
        let (address, rows) = results::place(path.entry(), tensor, total)?;
        results.push(Some(rows));
        ends.push(address);
    }
    let (sources, _) = sources(tensors);
    let (mut lens, mut wanted) = (Vec::new(), Vec::new());
    for counts in &counts {
        let parts = counts.iter().zip(&row_bytes).zip(&mut ends).map(|((count, row_bytes), end)| {
            let (address, bytes) = (*end, count * row_bytes);
            *end += bytes as u64;
            Span::plain(address, bytes)
        });
        let (spans, len) = lay_out(parts);
        lens.push(len);
        wanted.push(spans);
    }
    let given = vec![sources.clone(); group.size()];
    path.hand(group, &Handing { kind: Kind::Allgather, root: 0, sources, lens, wanted, given })
}

fn alltoall(
    path: &mut dyn Path,
    group: &mut Group,
    items: &[Place<'_>],
    results: &mut Vec<Option<Rows>>,
) -> Result<Vec<usize>, Error> {
    let mut received = Vec::new();
    // Negotiation never fuses them.
    for (item, tensor) in items.iter().flatten().zip(tensors(items)?) {
        let (me, size) = (group.rank(), group.size());
        let sent = item.splits.map_or_else(|| vec![tensor.rows() / size; size], <[usize]>::to_vec);
        let all = group.gather_numbers(&sent)?;
        let row_bytes = tensor.row_elements() * tensor.dtype.size();
        received = all.iter().map(|row| row.get(me).copied().unwrap_or(0)).collect();
        let (mut end, rows) = results::place(path.entry(), tensor, received.iter().sum())?;
        results.push(Some(rows));
        let before = |row: &[usize], member: usize| row.iter().take(member).sum::<usize>() * row_bytes;
        let mut wanted = Vec::with_capacity(size);
        for (row, count) in all.iter().zip(&received) {
            let bytes = count * row_bytes;
            wanted.push(vec![Span { at: before(row, me), ..Span::plain(end, bytes) }]);
            end += bytes as u64;
        }
        let given = (0..size)
            .map(|member| {
                let at = before(&sent, member);
                let address = tensor.source as u64 + at as u64;
                vec![Span { at, ..Span::plain(address, sent[member] * row_bytes) }]
            })
            .collect();
        let lens = all.iter().map(|row| row.iter().sum::<usize>() * row_bytes).collect();
        let sources = vec![Span::plain(tensor.source as u64, before(&sent, size))];
        path.hand(group, &Handing { kind: Kind::Alltoall, root: 0, sources, lens, wanted, given })?;
    }
    Ok(received)
}
