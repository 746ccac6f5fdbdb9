//! The planner: every policy against all ways to hand out GPUs, small clusters that people can check, drawings, files.

mod clusters;
mod drawing;
mod exact;
mod scenarios;
mod snapshots;
