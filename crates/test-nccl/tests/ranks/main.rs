//! The test library as `ronde-nccl` uses it, over simulated GPUs, with ranks as threads.

mod collectives;
mod exchanges;
mod failures;
mod loading;
mod order;
mod world;
