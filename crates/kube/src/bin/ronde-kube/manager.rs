//! `ronde kube manager`: the controller, as a pod of the cluster runs it.

use std::process::ExitCode;
use std::time::Duration;

use ronde_kube::Controller;

use crate::args::KubeManagerArgs;
use crate::{block_on, placed, refuse, surroundings};

pub(crate) fn manager(args: &KubeManagerArgs) -> ExitCode {
    // A pod's name is its own also after a restart. Outside, two of one machine must not be taken for one.
    let process =
        || format!("{}-{}", rustix::system::uname().nodename().to_string_lossy(), std::process::id());
    let identity = std::env::var("POD_NAME").ok().filter(|name| !name.is_empty()).unwrap_or_else(process);
    let controller = Controller {
        which: placed(&args.context, args.namespace.as_ref()),
        around: surroundings(&args.around),
        listen: args.listen,
        hold_after: Duration::from_secs(u64::from(args.hold_after)),
        identity,
    };
    match block_on(ronde_kube::control(controller)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => refuse(&error),
    }
}
