//! Parts of Horovod that this version does not have: MPI, oneCCL, the autotuner, XLA, Spark.

use crate::variable::Kind::{Bytes, Count, Number, Path, Seconds, Switch, Text, Word};
use crate::variable::Status::{Accepted, Explained};
use crate::variable::variables;

const OWN_LIBRARY: &str =
    "Ronde coordinates ranks and moves tensors itself, in place of MPI, Gloo and oneCCL";
const NO_AUTOTUNER: &str = "there is no autotuner, because there are no cycles to tune; HOROVOD_FUSION_THRESHOLD and \
                            HOROVOD_CACHE_CAPACITY can be set by hand";
const NO_SPARK: &str = "there is no Spark integration in this version";

variables! {
    /// Which library coordinates the ranks.
    CONTROLLER = "HOROVOD_CONTROLLER": Word(&["gloo", "mpi"]), Some("gloo"), Explained(OWN_LIBRARY);

    /// Which library moves tensors in the memory of the host.
    CPU_OPERATIONS = "HOROVOD_CPU_OPERATIONS": Word(&["gloo", "mpi", "ccl"]), Some("gloo"), Explained(OWN_LIBRARY);

    /// Asks MPI for a single thread.
    MPI_THREADS_DISABLE = "HOROVOD_MPI_THREADS_DISABLE": Switch, Some("0"), Explained(OWN_LIBRARY);

    /// The largest message of Adasum over MPI.
    ADASUM_MPI_CHUNK_SIZE = "HOROVOD_ADASUM_MPI_CHUNK_SIZE": Bytes, Some("1073741824"),
        Accepted("Adasum does not go through MPI, and streams in chunks that fit the processor's cache");

    /// Lets oneCCL keep what it prepared for a tensor.
    CCL_CACHE = "HOROVOD_CCL_CACHE": Switch, Some("0"), Explained(OWN_LIBRARY);

    /// Searches for good values of the fusion threshold, the cycle time and others while the job runs.
    AUTOTUNE = "HOROVOD_AUTOTUNE": Switch, Some("0"), Explained(NO_AUTOTUNER);

    /// The file in which the autotuner wrote what it tried.
    AUTOTUNE_LOG = "HOROVOD_AUTOTUNE_LOG": Path, None, Explained(NO_AUTOTUNER);

    /// How many samples the autotuner threw away at first.
    AUTOTUNE_WARMUP_SAMPLES = "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": Count, Some("3"), Explained(NO_AUTOTUNER);

    /// How many steps a sample of the autotuner took.
    AUTOTUNE_STEPS_PER_SAMPLE = "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": Count, Some("10"), Explained(NO_AUTOTUNER);

    /// How many samples the autotuner took at most.
    AUTOTUNE_BAYES_OPT_MAX_SAMPLES =
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": Count, Some("20"), Explained(NO_AUTOTUNER);

    /// How noisy the autotuner took its samples to be, from 0 to 1.
    AUTOTUNE_GAUSSIAN_PROCESS_NOISE =
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": Number, Some("0.8"), Explained(NO_AUTOTUNER);

    /// Makes allreduce part of programs that TensorFlow compiles with XLA.
    ENABLE_XLA_OPS = "HOROVOD_ENABLE_XLA_OPS": Switch, Some("0"),
        Explained("operations inside XLA programs are not part of this version; outside them they work as always");

    /// How long a job on Spark waits for its tasks.
    SPARK_START_TIMEOUT = "HOROVOD_SPARK_START_TIMEOUT": Seconds, Some("600"), Accepted(NO_SPARK);

    /// The module path of a worker on Spark.
    SPARK_PYTHONPATH = "HOROVOD_SPARK_PYTHONPATH": Text, None, Accepted(NO_SPARK);

    /// The folder in which a worker on Spark runs.
    SPARK_WORK_DIR = "HOROVOD_SPARK_WORK_DIR": Path, None, Accepted(NO_SPARK);

    /// Chooses GPUs on Spark by local rank instead of what Spark assigned.
    SPARK_USE_LOCAL_RANK_GPU_INDEX = "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX": Switch, Some("0"), Accepted(NO_SPARK);
}
