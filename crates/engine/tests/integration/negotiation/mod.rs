//! The negotiation of many ranks over a simulated network: frames wait on wires and are delivered in any order that
//! keeps each wire in order, ranks submit and advance at random moments, all from one seed.

mod agreement;
mod garbage;
mod joining;
mod listening;
mod load;
mod mismatches;
mod network;
mod process_sets;
mod stalls;
mod turns;
