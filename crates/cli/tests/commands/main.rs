//! Real command lines: exit code, standard output and standard error of the `ronde` binary, and
//! what is left of a job after every way of ending it.

mod agent_verb;
mod beside;
mod check_build;
mod failures;
mod flags;
mod gpus;
mod host_verbs;
mod job;
mod joining;
mod mps;
mod no_orphans;
mod output;
mod rendezvous_verb;
mod signals;
mod timeline;
mod usage;
