//! What the doctor asks a host's agent, and what it hears.
//!
//! Each [`Question`] is answered by one [`Answer`], in order. They travel inside the protocol between driver and agent,
//! between processes of the same build, so there is nothing to negotiate.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Asked of one host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Question {
    /// What time is it?
    Clock,
    /// What are you like?
    Findings(Surroundings),
    /// Answer those who measure the way to you.
    Serve(Service),
    /// Measure the way to another host.
    Measure(Journey),
}

/// What the user's machine is like, where a host should be the same.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Surroundings {
    /// The variables that ranks would get.
    pub(crate) environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// The folder that ranks would run in.
    pub(crate) folder: Vec<u8>,
    /// A file in it that was just made, by which a shared folder is told from one of the same name.
    pub(crate) marker: Option<String>,
}

/// How to answer those who measure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Service {
    /// The secret they must know, as digits.
    pub(crate) secret: String,
    /// The ports that may be listened at.
    pub(crate) ports: Option<RangeInclusive<u16>>,
}

/// A way to measure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Journey {
    /// The secret that the other host must know, as digits.
    pub(crate) secret: String,
    /// Where it answers.
    pub(crate) address: SocketAddr,
    /// The interface, by number, without which the address means nothing; else 0.
    pub(crate) scope: u32,
    /// How long to send, and how long to receive.
    pub(crate) time: Duration,
}

/// Heard from one host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// Nanoseconds since 1970.
    Clock(i128),
    /// What it is like.
    Findings(Box<Findings>),
    /// The port at which it answers those who measure.
    Serving(u16),
    /// How much passes.
    Measured(Bandwidth),
    /// It could not be done.
    Failed(String),
}

/// What one host is like.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Findings {
    /// What it calls itself.
    pub hostname: String,
    /// Its kernel and machine: `Linux 6.1.0 x86_64`.
    pub system: String,
    /// How many processors a process may use.
    pub cores: usize,
    /// How many bytes of memory a process may use.
    pub memory: u64,
    /// The Python that ranks would use.
    pub python: Option<Python>,
    /// Its NVIDIA GPUs, visible or not; missing where neither `nvidia-smi` nor the kernel's driver is.
    pub gpus: Option<Vec<Gpu>>,
    /// How many of them programs see; of a GPU that is divided (MIG), every instance counts.
    pub visible_gpus: usize,
    /// What `CUDA_VISIBLE_DEVICES` is there, if it is set.
    pub visible_devices: Option<String>,
    /// The CUDA that the driver's library is for, `13.0`; missing where that cannot be opened.
    pub cuda: Option<String>,
    /// How many files a process may have open.
    pub open_files: u64,
    /// How many bytes a process may lock in memory; missing if there is no limit.
    pub locked_memory: Option<u64>,
    /// Whether it has InfiniBand or the like, which locks memory.
    pub infiniband: bool,
    /// How the user's current folder is seen there.
    pub folder: Folder,
    /// The container this is, if it is one.
    pub container: Option<Container>,
}

/// A Python and what is installed there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Python {
    /// Its program.
    pub path: String,
    /// `3.11.4`.
    pub version: String,
    /// The versions of Ronde and of the frameworks, by name.
    pub packages: BTreeMap<String, String>,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// What it is.
    pub name: String,
    /// The version of its driver.
    pub driver: String,
}

/// How the user's current folder is seen from a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Folder {
    /// It is the same.
    Shared,
    /// There is a folder of that name, with other files.
    Own,
    /// There is a folder of that name; whether it is the same is not known.
    Unclear,
    /// There is none.
    #[default]
    Missing,
}

/// A container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// What made it, as far as it shows: `docker`, `podman`, `kubernetes` or `container`.
    pub kind: String,
    /// How many bytes `/dev/shm` has.
    pub shared_memory: u64,
    /// Whether it has a network of its own, instead of that of the machine it runs on.
    pub own_network: bool,
}

/// How much passes between two hosts, in bits a second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Bandwidth {
    /// From the host that measured to the other.
    pub(crate) there: f64,
    /// From the other to the host that measured.
    pub(crate) back: f64,
}
