//! How tensors move: batches, order, memory, connections, processor.

use crate::variable::Kind::{Bytes, Cores, Count, Milliseconds, Switch, Text, Word};
use crate::variable::Status::{Accepted, Honoured};
use crate::variable::variables;

const LAYOUT: &str = "the layout is always chosen from what is there: shared memory inside a host, and one ring for every \
                      local rank between hosts";

variables! {
    /// How many bytes of tensors may travel as one batch. 0 turns batches off. Tensors are never copied into a buffer of
    /// this size, so a large value costs no memory. On GPUs a batch never has more than 25 MiB, so that the first gradients
    /// travel while the last are computed.
    FUSION_THRESHOLD = "HOROVOD_FUSION_THRESHOLD": Bytes, Some("134217728"), Honoured;

    /// An upper bound for how long a tensor may wait for others to make a batch with. Ronde does not work in cycles: it acts
    /// when a tensor is ready on all ranks, and what has piled up meanwhile goes along. Only a storm of tensors, while nobody
    /// waits for one of them, is let pile up for this time; on CPUs never longer than 1 ms.
    CYCLE_TIME = "HOROVOD_CYCLE_TIME": Milliseconds, Some("1"), Honoured;

    /// How many tensors a process set remembers, so that their names need not travel again in the next step. 0 turns
    /// remembering off.
    CACHE_CAPACITY = "HOROVOD_CACHE_CAPACITY": Count, Some("1024"), Honoured;

    /// Keeps the tensors of a grouped operation from sharing a batch with others.
    DISABLE_GROUP_FUSION = "HOROVOD_DISABLE_GROUP_FUSION": Switch, Some("0"), Honoured;

    /// Allows process sets to be added and removed after `init()`.
    DYNAMIC_PROCESS_SETS = "HOROVOD_DYNAMIC_PROCESS_SETS": Switch, Some("0"), Honoured;

    /// The processor cores for the engine's thread: one number for each rank of this host, in the order of local ranks,
    /// separated by commas. A list with fewer numbers than the host has ranks is not used.
    THREAD_AFFINITY = "HOROVOD_THREAD_AFFINITY": Cores, None, Honoured;

    /// Makes repeated runs with the same layout give the same bits, at the cost of fusion. All ranks of one run always get
    /// the same bits, and so do repeated runs on a single host.
    DETERMINISTIC = "RONDE_DETERMINISTIC": Switch, Some("0"), Honoured;

    /// Ranks share memory only with ranks that have the same value here; by default all on a machine do. Give every rank
    /// its own value to see how a job behaves over TCP.
    MEMORY_DOMAIN = "RONDE_MEMORY_DOMAIN": Text, None, Honoured;

    /// The congestion control of connections between hosts. By default that of the system, or `reno` where that is `bbr`,
    /// which is made for the internet and costs a third of the throughput between fast hosts.
    TCP_CONGESTION = "RONDE_TCP_CONGESTION": Text, None, Honoured;

    /// Use no better instructions than these; by default the best this processor has. Results are the same at every level.
    CPU_LEVEL = "RONDE_CPU_LEVEL": Word(&["avx512", "avx2", "portable"]), None, Honoured;

    /// Reduce inside hosts first, then between them.
    HIERARCHICAL_ALLREDUCE = "HOROVOD_HIERARCHICAL_ALLREDUCE": Switch, Some("0"), Accepted(LAYOUT);

    /// Gather inside hosts first, then between them.
    HIERARCHICAL_ALLGATHER = "HOROVOD_HIERARCHICAL_ALLGATHER": Switch, Some("0"), Accepted(LAYOUT);

    /// Reduce along the two dimensions of a torus of GPUs.
    TORUS_ALLREDUCE = "HOROVOD_TORUS_ALLREDUCE": Switch, Some("0"), Accepted(LAYOUT);
}
