//! Variables of others: those that Ronde reads or sets, and those that people who know Horovod expect to matter.

use crate::variable::Kind::{Count, Path, Seconds, Switch, Text};
use crate::variable::Status::{Accepted, Honoured};
use crate::variable::variables;

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

    /// This process's rank, as torchrun says it, and whatever else follows PyTorch's names. Where `HOROVOD_RANK` is not set,
    /// `init()` takes the rank from the first of these launchers that is there: torchrun, Open MPI, PMI, a step of Slurm.
    TORCH_RANK = "RANK": Count, None, Honoured;

    /// The number of ranks, by torchrun.
    TORCH_WORLD_SIZE = "WORLD_SIZE": Count, None, Honoured;

    /// This rank among those of its host, by torchrun.
    TORCH_LOCAL_RANK = "LOCAL_RANK": Count, None, Honoured;

    /// How many ranks this host has, by torchrun.
    TORCH_LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE": Count, None, Honoured;

    /// This host among the others, by torchrun.
    TORCH_GROUP_RANK = "GROUP_RANK": Count, None, Honoured;

    /// How many hosts there are, by torchrun.
    TORCH_GROUP_WORLD_SIZE = "GROUP_WORLD_SIZE": Count, None, Honoured;

    /// The host of rank 0, which serves the rendezvous of jobs that other launchers start.
    MASTER_ADDR = "MASTER_ADDR": Text, None, Honoured;

    /// A port of that host. It is taken by PyTorch's own store, so the rendezvous listens at the next one (29501 where only
    /// `MASTER_ADDR` is set), unless `RONDE_RENDEZVOUS_PORT` says otherwise.
    MASTER_PORT = "MASTER_PORT": Count, Some("29500"), Honoured;

    /// The name of a job of torchrun's, by which its ranks find each other.
    TORCHELASTIC_RUN_ID = "TORCHELASTIC_RUN_ID": Text, None, Honoured;

    /// How often torchrun has started the job anew; every start is a job of its own.
    TORCHELASTIC_RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT": Count, None, Honoured;

    /// This process's rank, as Open MPI's mpirun says it.
    OMPI_COMM_WORLD_RANK = "OMPI_COMM_WORLD_RANK": Count, None, Honoured;

    /// The number of ranks, by Open MPI's mpirun.
    OMPI_COMM_WORLD_SIZE = "OMPI_COMM_WORLD_SIZE": Count, None, Honoured;

    /// This rank among those of its host, by Open MPI's mpirun.
    OMPI_COMM_WORLD_LOCAL_RANK = "OMPI_COMM_WORLD_LOCAL_RANK": Count, None, Honoured;

    /// How many ranks this host has, by Open MPI's mpirun.
    OMPI_COMM_WORLD_LOCAL_SIZE = "OMPI_COMM_WORLD_LOCAL_SIZE": Count, None, Honoured;

    /// The name of a job of Open MPI's, by which its ranks find each other.
    PMIX_NAMESPACE = "PMIX_NAMESPACE": Text, None, Honoured;

    /// This process's rank, as MPICH, Intel MPI and their relatives say it.
    PMI_RANK = "PMI_RANK": Count, None, Honoured;

    /// The number of ranks, by MPICH and its relatives.
    PMI_SIZE = "PMI_SIZE": Count, None, Honoured;

    /// The name of a job, by some relatives of MPICH.
    PMI_JOBID = "PMI_JOBID": Text, None, Honoured;

    /// This rank among those of its host, by MPICH and its relatives.
    MPI_LOCALRANKID = "MPI_LOCALRANKID": Count, None, Honoured;

    /// How many ranks this host has, by MPICH and its relatives.
    MPI_LOCALNRANKS = "MPI_LOCALNRANKS": Count, None, Honoured;

    /// Which step of a Slurm job this is. Without it, in a batch script or a shell, a process is a job of its own.
    SLURM_STEP_ID = "SLURM_STEP_ID": Count, None, Honoured;

    /// The number of a Slurm job.
    SLURM_JOB_ID = "SLURM_JOB_ID": Count, None, Honoured;

    /// How often Slurm has started the job anew.
    SLURM_RESTART_COUNT = "SLURM_RESTART_COUNT": Count, None, Honoured;

    /// This process's rank, as Slurm's srun says it.
    SLURM_PROCID = "SLURM_PROCID": Count, None, Honoured;

    /// The number of ranks of the step.
    SLURM_STEP_NUM_TASKS = "SLURM_STEP_NUM_TASKS": Count, None, Honoured;

    /// The same, where the step does not say it.
    SLURM_NTASKS = "SLURM_NTASKS": Count, None, Honoured;

    /// This rank among those of its host, by srun.
    SLURM_LOCALID = "SLURM_LOCALID": Count, None, Honoured;

    /// This host among those of the step, by srun.
    SLURM_NODEID = "SLURM_NODEID": Count, None, Honoured;

    /// How many ranks each host of the step has, such as `4(x2),3`.
    SLURM_STEP_TASKS_PER_NODE = "SLURM_STEP_TASKS_PER_NODE": Text, None, Honoured;

    /// The hosts of the step, such as `gpu[1-3,7],login`. The first one serves the rendezvous, unless `MASTER_ADDR` or
    /// `RONDE_RENDEZVOUS` names another.
    SLURM_STEP_NODELIST = "SLURM_STEP_NODELIST": Text, None, Honoured;

    /// The folder in which the ranks of a job that another launcher started find each other (`.ronde/jobs` in it), and in
    /// which the project keeps its tools.
    HOME = "HOME": Path, None, Honoured;

    /// How Open MPI reaches other hosts.
    OMPI_MCA_PLM_RSH_AGENT = "OMPI_MCA_plm_rsh_agent": Path, None, Accepted("the launcher does not start mpirun");

    /// The GPUs that programs see, by number or by UUID, separated by commas; read by CUDA. The value that a host itself has
    /// counts there: the launcher's own does not travel to other hosts. With `--gpus-per-rank` the launcher sets it for every
    /// rank, to that rank's share of what is visible on its host.
    CUDA_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES": Text, None, Honoured;

    /// How many queues of work CUDA gives a process on a GPU. Where ranks outnumber the GPUs of a host and NVIDIA's MPS does not run there, the
    /// launcher sets it to 1, unless it is set: a process with several keeps the GPU from the others for milliseconds.
    CUDA_DEVICE_MAX_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS": Count, None, Honoured;

    /// The folder in which programs of a host find NVIDIA's MPS; `/tmp/nvidia-mps` without it. If one answers there, `--mps`
    /// starts none; if not, the launcher sets it for ranks to a folder of the job. The launcher's own does not travel to other
    /// hosts.
    CUDA_MPS_PIPE_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY": Path, None, Honoured;

    /// The folder in which NVIDIA's MPS writes its logs. With `--mps` the launcher sets it, to a folder that is gone after the
    /// job.
    CUDA_MPS_LOG_DIRECTORY = "CUDA_MPS_LOG_DIRECTORY": Path, None, Honoured;

    /// The network interfaces for NCCL, which reads it itself. Others of NCCL's own variables reach it in the same way.
    NCCL_SOCKET_IFNAME = "NCCL_SOCKET_IFNAME": Text, None, Honoured;

    /// Keeps NCCL from InfiniBand; NCCL reads it itself.
    NCCL_IB_DISABLE = "NCCL_IB_DISABLE": Switch, Some("0"), Honoured;

    /// The hosts of a Slurm allocation. `ronde run` starts its ranks there where neither `-np` nor hosts are given.
    SLURM_JOB_NODELIST = "SLURM_JOB_NODELIST": Text, None, Honoured;

    /// How many ranks each of them takes, such as `4(x2),3`.
    SLURM_TASKS_PER_NODE = "SLURM_TASKS_PER_NODE": Text, None, Honoured;

    /// The job's number in LSF. Inside such a job, hosts and slots are LSF's where none are named.
    LSB_JOBID = "LSB_JOBID": Text, None, Honoured;

    /// The hosts of the LSF job, each with its number of slots.
    LSB_MCPU_HOSTS = "LSB_MCPU_HOSTS": Text, None, Honoured;

    /// The same, where that is not set: a name for each slot.
    LSB_HOSTS = "LSB_HOSTS": Text, None, Honoured;

    /// The same, where neither is set: a file with a line for each slot.
    LSB_DJOB_HOSTFILE = "LSB_DJOB_HOSTFILE": Path, None, Honoured;

    /// The allocation of IBM's cluster manager.
    CSM_ALLOCATION_ID = "CSM_ALLOCATION_ID": Text, None,
        Accepted("hosts and slots are those that LSF's own variables name");

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
