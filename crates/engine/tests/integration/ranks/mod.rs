//! Engines of several ranks as threads of one process, over a real rendezvous; ranks of different pretended hosts reach each
//! other by TCP over loopback exactly as ranks of different machines would.

#![allow(dead_code, reason = "the GPU tests use a part of this")]

use std::sync::Arc;
use std::time::Duration;

use ronde_collective::types::{DType, ReduceOp};
use ronde_engine::{Engine, Error, Finished, Handle, Kind, Network, Place, Settings, Submission, Tensor};
use ronde_rendezvous::{JobSpec, Server};
use ronde_trust::Secret;

/// Settings as in an empty environment, with process sets that may come and go.
pub(crate) fn settings() -> Settings {
    Settings { dynamic_process_sets: true, ..Settings::from_environment(|_| None).0 }
}

/// Runs `rank` on every rank of a layout (ranks of each host) and returns the results in rank order.
pub(crate) fn on_ranks<T: Send>(layout: &[usize], rank: impl Fn(&Engine) -> T + Sync) -> Vec<T> {
    on_ranks_with(layout, &settings(), &[], rank)
}

/// The same with settings and static process sets.
pub(crate) fn on_ranks_with<T: Send>(
    layout: &[usize],
    settings: &Settings,
    sets: &[Vec<usize>],
    rank: impl Fn(&Engine) -> T + Sync,
) -> Vec<T> {
    Rendezvous::new(layout).run(settings, sets, rank)
}

/// A job that ranks may join.
pub(crate) struct Rendezvous {
    server: Server,
    secret: Secret,
    /// The host of each rank.
    hosts: Vec<usize>,
    /// What ranks are told about the network, by host.
    networks: Vec<Network>,
}

impl Rendezvous {
    pub(crate) fn new(layout: &[usize]) -> Rendezvous {
        let secret = Secret::random().expect("random bytes");
        Rendezvous::over(layout, secret, vec![Network::default(); layout.len()])
    }

    /// The same with what ranks are told about the network, one for each host.
    pub(crate) fn over(layout: &[usize], secret: Secret, networks: Vec<Network>) -> Rendezvous {
        let hosts: Vec<usize> =
            layout.iter().enumerate().flat_map(|(host, &count)| std::iter::repeat_n(host, count)).collect();
        let server =
            Server::start(([127, 0, 0, 1], 0).into(), secret.clone(), hosts.len()).expect("rendezvous");
        Rendezvous { server, secret, hosts, networks }
    }

    pub(crate) fn size(&self) -> usize {
        self.hosts.len()
    }

    /// Runs `rank` on every rank and returns the results in rank order.
    pub(crate) fn run<T: Send>(
        &self,
        settings: &Settings,
        sets: &[Vec<usize>],
        rank: impl Fn(&Engine) -> T + Sync,
    ) -> Vec<T> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.size())
                .map(|number| {
                    let rank = &rank;
                    scope.spawn(move || {
                        let engine = self.join(number, settings.clone(), sets).expect("engine");
                        rank(&engine)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("rank did not panic")).collect()
        })
    }

    pub(crate) fn join(&self, rank: usize, settings: Settings, sets: &[Vec<usize>]) -> Result<Engine, Error> {
        let host = self.hosts[rank];
        let local_size = self.hosts.iter().filter(|&&other| other == host).count();
        let local_rank = self.hosts[..rank].iter().filter(|&&other| other == host).count();
        let place =
            Place { local_rank, local_size, rank, size: self.size(), cross_rank: host, cross_size: 1 };
        let spec = JobSpec {
            server: self.server.addr().to_string(),
            secret: self.secret.clone(),
            place,
            start_timeout: Duration::from_secs(60),
        };
        let network = Network { domain: format!("host {host}"), ..self.networks[host].clone() };
        Engine::join(&spec, &network, Arc::new(|| false), settings, sets)
    }
}

/// A tensor of floats that outlives its operation.
pub(crate) struct Floats(pub(crate) Vec<f32>);

impl Floats {
    pub(crate) fn tensor(&mut self) -> Tensor {
        self.shaped(&[self.0.len()])
    }

    pub(crate) fn shaped(&mut self, shape: &[usize]) -> Tensor {
        Tensor {
            source: self.0.as_ptr().cast(),
            target: self.0.as_mut_ptr().cast(),
            shape: shape.iter().map(|&extent| extent as u64).collect(),
            dtype: DType::F32,
            stored: None,
            ready: None,
            capacity: 0,
        }
    }
}

/// A sum of one tensor, in place.
pub(crate) fn sum(name: impl Into<Arc<str>>, tensor: Tensor) -> Submission {
    Submission { op: ReduceOp::Sum, ..Submission::new(Kind::Allreduce, name, vec![tensor]) }
}

/// Submits; the caller keeps the memory until it has waited.
pub(crate) fn submit(engine: &Engine, set: u32, what: Submission) -> Result<Handle, Error> {
    // SAFETY: every test keeps its tensors until it has waited for them or ended the engine.
    unsafe { engine.submit(set, what) }
}

/// Submits and waits.
pub(crate) fn complete(engine: &Engine, set: u32, what: Submission) -> Result<Finished, Error> {
    engine.wait(submit(engine, set, what)?).map(Option::unwrap_or_default)
}

/// Submits and waits for the error that must come.
pub(crate) fn refused(engine: &Engine, set: u32, what: Submission) -> String {
    complete(engine, set, what).expect_err("an error").to_string()
}

/// Numbers that look random, from a seed.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.roll(last + 1));
        }
    }
}
