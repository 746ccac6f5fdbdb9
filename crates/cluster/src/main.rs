//! The program `ronde-cluster`, which `ronde cluster` hands over to.

use std::process::ExitCode;

fn main() -> ExitCode {
    ronde_cluster::command_line(std::env::args_os())
}
