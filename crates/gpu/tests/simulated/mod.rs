//! Ranks with GPUs that are simulated: the driver's functions on host memory (`ronde-simulated-cuda`). Ranks are threads.

#![allow(dead_code, reason = "every test program uses its own part of this")]

use std::sync::Arc;

use ronde_collective::types::{DType, ReduceOp};
use ronde_cuda::{Device as Card, Scratch, Stream};
use ronde_engine::{Device, Engine, Error, Finished, Kind, Memory, Settings, Submission, Tensor};
use ronde_gpu::Gpu;
use ronde_nccl::Library;

/// A rank's GPU, with a stream in the framework's place.
pub(crate) struct Rank<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) card: Arc<Card>,
    pub(crate) stream: Stream,
}

impl<'a> Rank<'a> {
    /// Gives the rank the GPU with this number.
    pub(crate) fn on(engine: &'a Engine, ordinal: i32, settings: &Settings) -> Rank<'a> {
        // SAFETY: the simulated driver behaves like the real one.
        unsafe { ronde_cuda::install(ronde_simulated_cuda::lookup) };
        // SAFETY: NCCL for tests behaves like the real one.
        let nccl = unsafe { Library::with(ronde_test_nccl::lookup) }.map_err(|error| error.to_string());
        let gpu = Gpu::open_with(ordinal, settings, nccl).expect("a GPU");
        engine.set_executor(gpu.clone());
        let card = Card::open(ordinal).expect("a GPU");
        let stream = Stream::new(&card).expect("a stream");
        Rank { engine, gpu, card, stream }
    }

    /// Device memory with these bytes.
    pub(crate) fn memory(&self, bytes: &[u8]) -> Scratch {
        let memory = Scratch::new(&self.card, bytes.len()).expect("memory");
        // SAFETY: the memory is that long, and the stream is done with it when this returns.
        unsafe { self.stream.copy_in(bytes.as_ptr(), memory.address(), bytes.len()) }.expect("copied");
        self.stream.synchronize().expect("done");
        memory
    }

    /// The bytes at an address, once the framework's stream has come here.
    pub(crate) fn read(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: as above.
        unsafe { self.stream.copy_out(address, bytes.as_mut_ptr(), len) }.expect("copied");
        self.stream.synchronize().expect("done");
        bytes
    }

    /// A tensor that is ready where the framework's stream is now.
    pub(crate) fn tensor(
        &self,
        source: u64,
        target: u64,
        shape: &[u64],
        dtype: DType,
        capacity: usize,
    ) -> Tensor {
        Tensor {
            source: source as *const u8,
            target: target as *mut u8,
            shape: shape.to_vec(),
            dtype,
            stored: None,
            ready: Some(self.gpu.record(self.stream.handle()).expect("recorded")),
            capacity,
        }
    }

    /// Runs an operation of any kind and has the framework's stream wait for its end.
    pub(crate) fn complete(&self, set: u32, what: Submission) -> Result<Finished, Error> {
        let what = Submission { device: Device::Gpu, ..what };
        // SAFETY: every test keeps its tensors until it has read the results.
        let handle = unsafe { self.engine.submit(set, what) }?;
        let finished = self.engine.wait(handle)?.unwrap_or_default();
        for event in &finished.events {
            event.order(self.stream.handle()).expect("ordered");
        }
        Ok(finished)
    }
}

/// One operation on one or several tensors of whole bytes, the same on host and GPU.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) op: ReduceOp,
    pub(crate) factors: (f64, f64),
    pub(crate) root: usize,
    pub(crate) splits: Option<Vec<usize>>,
    /// Shape and content of each tensor.
    pub(crate) tensors: Vec<(Vec<u64>, Vec<u8>)>,
}

/// What came of it: the bytes of each result, and rows received.
pub(crate) type Outcome = Result<(Vec<Vec<u8>>, Vec<usize>), String>;

impl Case {
    pub(crate) fn new(kind: Kind, name: &str, dtype: DType, tensors: Vec<(Vec<u64>, Vec<u8>)>) -> Case {
        Case {
            kind,
            name: name.to_owned(),
            dtype,
            op: ReduceOp::Sum,
            factors: (1.0, 1.0),
            root: 0,
            splits: None,
            tensors,
        }
    }

    fn submission(&self, tensors: Vec<Tensor>, place: &str) -> Submission {
        Submission {
            grouped: tensors.len() > 1,
            op: self.op,
            prescale: self.factors.0,
            postscale: self.factors.1,
            root: self.root,
            splits: self.splits.clone(),
            ..Submission::new(self.kind, format!("{}.{place}", self.name), tensors)
        }
    }

    /// Bytes of this rank's part of the result, where that is known before.
    fn result_bytes(&self, tensor: usize, rank: usize, size: usize) -> usize {
        let (shape, content) = &self.tensors[tensor];
        if self.kind != Kind::Reducescatter {
            return content.len();
        }
        let rows = shape[0] as usize;
        content.len() / rows.max(1) * (rows / size + usize::from(rank < rows % size))
    }

    /// Through the host's data plane.
    pub(crate) fn on_host(&self, engine: &Engine, set: u32, place: (usize, usize)) -> Outcome {
        let mut targets: Vec<Vec<u8>> = (0..self.tensors.len())
            .map(|tensor| vec![0; self.result_bytes(tensor, place.0, place.1)])
            .collect();
        let tensors = self.tensors.iter().zip(&mut targets).map(|((shape, content), target)| Tensor {
            source: content.as_ptr(),
            target: target.as_mut_ptr(),
            shape: shape.clone(),
            dtype: self.dtype,
            stored: None,
            ready: None,
            capacity: 0,
        });
        let what = self.submission(tensors.collect(), "host");
        // SAFETY: sources and targets live until the operation has ended.
        let handle = unsafe { engine.submit(set, what) }.map_err(|error| error.to_string())?;
        let finished = engine.wait(handle).map_err(|error| error.to_string())?.unwrap_or_default();
        let rows = finished.rows.into_iter().flatten().map(|rows| match rows.memory {
            Memory::Host(buffer) => {
                // SAFETY: the buffer is that long.
                unsafe { std::slice::from_raw_parts(buffer.as_ptr(), buffer.len()) }.to_vec()
            }
            other => panic!("{other:?} is not in host memory"),
        });
        let rows: Vec<Vec<u8>> = rows.collect();
        Ok((if rows.is_empty() { targets } else { rows }, finished.received))
    }

    /// On the GPU. `guessed`: targets for results of unknown size are given, as if all ranks brought the same.
    pub(crate) fn on_gpu(&self, rank: &Rank<'_>, set: u32, place: (usize, usize), guessed: bool) -> Outcome {
        let unknown = matches!(self.kind, Kind::Allgather | Kind::Alltoall);
        let mut kept = Vec::new();
        let mut tensors = Vec::new();
        for (index, (shape, content)) in self.tensors.iter().enumerate() {
            let source = rank.memory(content);
            let bytes = match self.kind {
                Kind::Allgather => content.len() * place.1,
                Kind::Alltoall => content.len(),
                _ => self.result_bytes(index, place.0, place.1),
            };
            let target = rank.memory(&vec![0xEE; bytes]);
            let capacity = if unknown && guessed { bytes } else { 0 };
            let address = if unknown && !guessed { 0 } else { target.address() };
            tensors.push(rank.tensor(source.address(), address, shape, self.dtype, capacity));
            kept.push((source, target));
        }
        let finished =
            rank.complete(set, self.submission(tensors, "gpu")).map_err(|error| error.to_string())?;
        let mut results = Vec::new();
        if unknown {
            for (rows, (_, target)) in finished.rows.into_iter().flatten().zip(&kept) {
                results.push(match rows.memory {
                    Memory::Target => rank.read(target.address(), target.len()),
                    Memory::Device(memory) => {
                        let bytes = rank.read(memory.address(), memory.len());
                        memory.release(rank.stream.handle());
                        bytes
                    }
                    Memory::Host(_) => panic!("a result in host memory"),
                });
            }
        } else {
            for (index, (_, target)) in kept.iter().enumerate() {
                results.push(rank.read(target.address(), self.result_bytes(index, place.0, place.1)));
            }
        }
        Ok((results, finished.received))
    }
}

/// Elements of a type, small and different on each rank.
pub(crate) fn elements(dtype: DType, count: usize, rank: usize) -> Vec<u8> {
    let value = |index: usize| ((index * (rank + 1) + rank) % 5) as f32;
    (0..count)
        .flat_map(|index| {
            let value = value(index);
            match dtype {
                DType::U8 | DType::I8 => vec![value as u8],
                DType::Bool => vec![u8::from(value > 2.0)],
                DType::U16 | DType::I16 => (value as u16).to_le_bytes().to_vec(),
                DType::I32 => (value as i32).to_le_bytes().to_vec(),
                DType::I64 => (value as i64).to_le_bytes().to_vec(),
                DType::F32 => value.to_le_bytes().to_vec(),
                DType::F64 => f64::from(value).to_le_bytes().to_vec(),
                // 0 to 4 as halves.
                DType::F16 => {
                    [0x0000u16, 0x3c00, 0x4000, 0x4200, 0x4400][value as usize].to_le_bytes().to_vec()
                }
                DType::BF16 => ((value.to_bits() >> 16) as u16).to_le_bytes().to_vec(),
            }
        })
        .collect()
}
