//! Variables of others: those that Ronde reads or sets, and those that people who know Horovod expect to matter.

use crate::variable::Kind::{Count, Path, Seconds, Switch, Text};
use crate::variable::Status::{Accepted, Explained, Honoured};
use crate::variable::variables;

const NOT_BY_MPI: &str = "ranks do not take their place from MPI, so this process is a job of its own; start the ranks with \
                          `ronde run` or `horovodrun` instead of mpirun";
const NO_NCCL: &str =
    "NCCL is not used by this version; what NCCL itself makes of it in your framework is unchanged";
const NOT_BY_LSF: &str = "hosts and slots are not taken from LSF; name them with -H";
const NO_SPARK: &str = "there is no Spark integration in this version";

variables! {
    /// How many threads a rank computes with. Where it is not set, the launcher sets it to cores / ranks.
    OMP_NUM_THREADS = "OMP_NUM_THREADS": Count, None, Honoured;

    /// Where it is not set, the launcher sets it to 1, so that a rank's output appears as it is printed.
    PYTHONUNBUFFERED = "PYTHONUNBUFFERED": Text, None, Honoured;

    /// Where the launcher looks for the command it is to run, and `--check-build` for Python.
    PATH = "PATH": Text, None, Honoured;

    /// Decides, before the next two, whether messages of the launcher use characters beyond ASCII.
    LC_ALL = "LC_ALL": Text, None, Honoured;

    /// The same, where `LC_ALL` is not set.
    LC_CTYPE = "LC_CTYPE": Text, None, Honoured;

    /// The same, where neither is set.
    LANG = "LANG": Text, None, Honoured;

    /// This process's rank, as Open MPI's mpirun says it.
    OMPI_COMM_WORLD_RANK = "OMPI_COMM_WORLD_RANK": Count, None, Explained(NOT_BY_MPI);

    /// The number of ranks, as Open MPI's mpirun says it.
    OMPI_COMM_WORLD_SIZE = "OMPI_COMM_WORLD_SIZE": Count, None, Explained(NOT_BY_MPI);

    /// This process's rank, as MPICH and its relatives say it.
    PMI_RANK = "PMI_RANK": Count, None, Explained(NOT_BY_MPI);

    /// The number of ranks, as MPICH and its relatives say it.
    PMI_SIZE = "PMI_SIZE": Count, None, Explained(NOT_BY_MPI);

    /// How Open MPI reaches other hosts.
    OMPI_MCA_PLM_RSH_AGENT = "OMPI_MCA_plm_rsh_agent": Path, None, Accepted("the launcher does not start mpirun");

    /// The network interfaces for NCCL.
    NCCL_SOCKET_IFNAME = "NCCL_SOCKET_IFNAME": Text, None, Accepted(NO_NCCL);

    /// Keeps NCCL from InfiniBand.
    NCCL_IB_DISABLE = "NCCL_IB_DISABLE": Switch, Some("0"), Accepted(NO_NCCL);

    /// The job's number in LSF.
    LSB_JOBID = "LSB_JOBID": Text, None, Accepted(NOT_BY_LSF);

    /// The allocation of IBM's cluster manager.
    CSM_ALLOCATION_ID = "CSM_ALLOCATION_ID": Text, None, Accepted(NOT_BY_LSF);

    /// Options of IBM's DDL.
    DDL_OPTIONS = "DDL_OPTIONS": Text, None, Accepted("DDL is not used");

    /// The container in YARN, by which Horovod told hosts apart.
    CONTAINER_ID = "CONTAINER_ID": Text, None,
        Accepted("which ranks share a host is found out by trying to share memory");

    /// The version of Databricks' runtime.
    DATABRICKS_RUNTIME_VERSION = "DATABRICKS_RUNTIME_VERSION": Text, None, Accepted(NO_SPARK);

    /// How long to wait for files on Databricks.
    DATABRICKS_WAIT_TIMEOUT = "DATABRICKS_FILE_AVAILABILITY_WAIT_TIMEOUT_SECS": Seconds, Some("30"), Accepted(NO_SPARK);

    /// How often to look for files on Databricks.
    DATABRICKS_CHECK_INTERVAL =
        "DATABRICKS_FILE_AVAILABILITY_CHECK_INTERVAL_SECS": Seconds, Some("0.1"), Accepted(NO_SPARK);
}
