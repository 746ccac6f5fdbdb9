//! The launcher's own: what `ronde agent` takes where its flags are not given, for containers; another `ssh`; and the
//! files of a call that `horovod.run` makes.

use crate::variable::Kind::{Count, Text};
use crate::variable::Status::Honoured;
use crate::variable::variables;

variables! {
    /// Where the launcher listens, as `host:port`; the flag is `--connect`. The secret's file is named by
    /// `RONDE_SECRET_FILE`.
    AGENT_CONNECT = "RONDE_AGENT_CONNECT": Text, None, Honoured;

    /// How many ranks the agent's machine takes; the flag is `--slots`. Without it, as many as the launcher wants.
    AGENT_SLOTS = "RONDE_AGENT_SLOTS": Count, None, Honoured;

    /// The one port through which the ranks of other hosts reach those of the agent; the flag is `--data-port`.
    AGENT_DATA_PORT = "RONDE_AGENT_DATA_PORT": Count, None, Honoured;

    /// How others reach that port, as `host:port`; the flag is `--advertise`.
    AGENT_ADVERTISE = "RONDE_AGENT_ADVERTISE": Text, None, Honoured;

    /// What the agent's machine is called in messages; the flag is `--name`. Without it, its host name.
    AGENT_NAME = "RONDE_AGENT_NAME": Text, None, Honoured;

    /// The network interfaces that may be used, separated by commas; the flag is `--network-interfaces`. Without it, all.
    AGENT_INTERFACES = "RONDE_AGENT_INTERFACES": Text, None, Honoured;

    /// The program to use instead of `ssh`; it must understand the same options.
    SSH = "RONDE_SSH": Text, None, Honoured;

    /// The image that brings Ronde into the pods of a job on Kubernetes, where `--manager-image` is not given. Without it,
    /// `ghcr.io/ronde/manager` with this version, which is not published yet.
    MANAGER_IMAGE = "RONDE_MANAGER_IMAGE": Text, None, Honoured;

    /// Set in the pods of a job on Kubernetes that the Python package was brought to: the folder it is in. The launcher puts
    /// it first on the `PYTHONPATH` of ranks.
    PYTHON_PATH = "RONDE_PYTHON_PATH": Text, None, Honoured;

    /// Set in the pods of a job over ssh: the file with its hosts and their GPUs, a line each, as `mpirun` and `horovodrun`
    /// read it. `%%ronde` and `ronde.run` take their hosts from it where they are given none; in the reference cluster,
    /// where it is not set, from `/mnt/share/.ronde/hostfile`.
    HOSTFILE = "RONDE_HOSTFILE": Text, None, Honoured;

    /// Set by the launcher: the file with the call that `horovod.run` asks every rank to make.
    TASK_PAYLOAD = "RONDE_TASK_PAYLOAD": Text, None, Honoured;

    /// Set by the launcher: the file that takes this rank's result of that call.
    TASK_RESULT = "RONDE_TASK_RESULT": Text, None, Honoured;
}
