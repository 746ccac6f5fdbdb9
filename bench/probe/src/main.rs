//! Times collectives of a running job, as one of its ranks.
//!
//! `bench/run` starts one of these a rank, with the environment any rank gets, and reads the JSON
//! lines that each prints: one for how it reaches every other rank, then one for every size. What
//! is timed, and how, is in [`timing`]; [`workload`] holds the data whose sum can be checked;
//! [`usage`] reads what the kernel counts. The peers in `bench/peers` do the same in their own
//! languages, so that figures can be compared.

mod buffer;
mod session;
mod timing;
mod usage;
mod workload;

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use serde::Serialize;

use crate::session::Session;
use crate::timing::{Allreduce, Copy};

/// Why a rank's measurement ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Engine(#[from] ronde_engine::Error),
    #[error(transparent)]
    Collective(#[from] ronde_collective::Error),
    #[error("wrong result: element {index} of {count} is {found}, not {expected}, after {calls} calls")]
    WrongResult { index: usize, count: usize, found: f32, expected: f32, calls: u32 },
    #[error("cannot read what the kernel counts in {path}: {source}")]
    Usage { path: &'static str, source: std::io::Error },
    #[error("{path} has no line {field}, which this measurement needs")]
    NoSuchCounter { path: &'static str, field: &'static str },
    #[error("cannot write the report: {0}")]
    Write(#[from] std::io::Error),
}

/// Times collectives of the job that the environment describes.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    work: Work,
}

#[derive(Subcommand)]
enum Work {
    /// Sum f32 tensors of the given sizes over all ranks, in place.
    Allreduce {
        /// Which way into the collectives to take.
        #[arg(long, value_enum, default_value_t = Via::World)]
        via: Via,
        #[command(flatten)]
        plan: Plan,
    },
    /// Copy as many bytes from one private buffer to another: what memory itself allows.
    Copy {
        /// Copy on rank 0 only, instead of on all ranks at once.
        #[arg(long)]
        alone: bool,
        #[command(flatten)]
        plan: Plan,
    },
    /// Report the most memory that one allreduce needs.
    Memory {
        /// Size of the tensor.
        bytes: usize,
    },
}

#[derive(clap::Args)]
struct Plan {
    /// About how long to measure each size.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Sizes in bytes.
    #[arg(required = true)]
    sizes: Vec<usize>,
}

/// The two ways in: the collectives alone, or as a user's call takes them.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Via {
    /// Straight on the group of all ranks.
    World,
    /// Through the engine, in which ranks first agree on what to do.
    Engine,
}

/// How this rank reaches every rank, in their order.
#[derive(Serialize)]
struct Links {
    work: &'static str,
    rank: usize,
    links: Vec<String>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse().work) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(work: &Work) -> Result<(), Error> {
    let session = Session::start()?;
    let rank = session.place().rank;
    print(&Links {
        work: "links",
        rank,
        links: session.engine().links().iter().map(|link| format!("{link:?}")).collect(),
    })?;
    match work {
        Work::Allreduce { via, plan } => {
            for &bytes in &plan.sizes {
                let mut allreduce = Allreduce::new(&session, *via, bytes);
                print(&timing::measure(&session, &mut allreduce, plan.seconds)?)?;
            }
        }
        Work::Copy { alone, plan } => {
            for &bytes in &plan.sizes {
                let mut copy = Copy::new(bytes, *alone, rank);
                let report = timing::measure(&session, &mut copy, plan.seconds)?;
                if !*alone || rank == 0 {
                    print(&report)?;
                }
            }
        }
        Work::Memory { bytes } => print(&usage::measure(&session, *bytes)?)?,
    }
    Ok(())
}

/// Writes one line at once, so that lines of ranks that share an output never mix.
fn print(report: &impl Serialize) -> Result<(), Error> {
    use std::io::Write;
    let mut line = serde_json::to_string(report).map_err(std::io::Error::other)?;
    line.push('\n');
    let mut output = std::io::stdout().lock();
    output.write_all(line.as_bytes())?;
    output.flush()?;
    Ok(())
}
