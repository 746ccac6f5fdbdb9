"""What we want to reach, as data: which of our figures is compared with whose, and how.

The tables below decide what is measured at all: the drivers collect the tools and
sizes that their aims name, and nothing else. An aim without a bound is shown for
what it tells and has no verdict.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

KIB = 1 << 10
MIB = 1 << 20

RONDE = "ronde"
RONDE_JOB = "ronde, checked"
RONDE_PYTHON = "ronde, Python"
GLOO = "Gloo"
OPEN_MPI = "Open MPI"
FLOOR = "floor: copy by all ranks"
COPY_ALONE = "copy by one thread"
LINK = "floor: link"
TENSOR = "tensor"
DDP = "DDP with Gloo"
HOROVOD = "Horovod 0.28.1"
NO_EXCHANGE = "without exchange"
MIRRORED = "MultiWorkerMirroredStrategy"
TENSORFLOW = "import tensorflow"
TIME_WAITED = "time waited"
RONDE_FIRST = "ronde, Python, first start"
RONDE_TORCH = "ronde, torch"
RONDE_TORCH_FIRST = "ronde, torch, first start"
RONDE_PLAIN = "ronde, no labels"
OPEN_MPI_C = "Open MPI, C"
OPEN_MPI_PYTHON = "Open MPI, Python"
OPEN_MPI_LABELLED = "Open MPI, labels"
OPEN_MPI_PLAIN = "Open MPI, no labels"
HOROVOD_FIRST = "Horovod 0.28.1, first start"
SSH_ALONE = "floor: ssh and Python"
SHELL_ALONE = "floor: sh and cat"
SILENT = "ranks that print nothing"


class Measure(enum.Enum):
    """How our figure and the other are put in relation."""

    FASTER = "their time over ours; more is better"
    WITHIN = "our time over theirs; less is better"
    SHARE = "the floor's time over ours, of 1; more is better"
    BYTES = "bytes on the host's link over the floor's; 1 is right"
    BEYOND = "bytes beyond theirs; less is better"
    ADDED = "our time, which comes on top of theirs; less is better"
    REQUESTS = "our requests over theirs; less is better"
    MEMORY = "our bytes over theirs; less is better"


@dataclass(frozen=True)
class Aim:
    """One line of the table of figures to reach, for several sizes."""

    section: str
    sizes: tuple[int, ...]
    ours: str
    theirs: str
    measure: Measure
    bound: float | None = None

    def met_by(self, ratio: float) -> bool | None:
        """Judge a ratio; no bound, no judgement."""
        if self.bound is None:
            return None
        if self.measure in (Measure.FASTER, Measure.SHARE):
            return ratio >= self.bound
        return ratio <= self.bound


BANDWIDTH = "in-host allreduce"
LATENCY = "in-host latency, Rust"
PYTHON = "in-host latency, Python"
OVERSUBSCRIBED = "8 ranks on 2 cores"

# What `--only` takes for the in-host table.
IN_HOST_SECTIONS = {
    "bandwidth": BANDWIDTH,
    "latency": LATENCY,
    "python": PYTHON,
    "oversubscribed": OVERSUBSCRIBED,
}

_TINY = (4, 64, KIB, 4 * KIB)
_LARGE = (64 * MIB, 256 * MIB)
_ALL_LARGE = (MIB, 16 * MIB, *_LARGE)

IN_HOST: tuple[Aim, ...] = (
    Aim(BANDWIDTH, (MIB,), RONDE, GLOO, Measure.FASTER, 10),
    Aim(BANDWIDTH, (16 * MIB, *_LARGE), RONDE, GLOO, Measure.FASTER, 5),
    Aim(BANDWIDTH, (MIB, 16 * MIB), RONDE, OPEN_MPI, Measure.FASTER, 1.5),
    Aim(BANDWIDTH, _LARGE, RONDE, OPEN_MPI, Measure.FASTER, 2.5),
    Aim(BANDWIDTH, (MIB,), RONDE, FLOOR, Measure.WITHIN, 3),
    Aim(BANDWIDTH, (16 * MIB, *_LARGE), RONDE, FLOOR, Measure.WITHIN, 2),
    Aim(BANDWIDTH, _ALL_LARGE, RONDE, COPY_ALONE, Measure.WITHIN),
    Aim(BANDWIDTH, _ALL_LARGE, RONDE_PYTHON, GLOO, Measure.FASTER),
    Aim(LATENCY, _TINY, RONDE, OPEN_MPI, Measure.WITHIN, 1.5),
    Aim(LATENCY, (64 * KIB,), RONDE, OPEN_MPI, Measure.WITHIN, 0.7),
    Aim(LATENCY, (*_TINY, 64 * KIB), RONDE_JOB, OPEN_MPI, Measure.WITHIN),
    Aim(PYTHON, (*_TINY, 64 * KIB), RONDE_PYTHON, GLOO, Measure.WITHIN, 1 / 20),
    Aim(OVERSUBSCRIBED, (16 * MIB,), RONDE, GLOO, Measure.FASTER, 3),
)
# The aims above are for this many ranks; other counts are shown without a verdict.
IN_HOST_RANKS = 2

MEMORY_SIZE = 256 * MIB
MEMORY_PEAK = Aim("memory, as each process sees it", (MEMORY_SIZE,), RONDE, TENSOR, Measure.BEYOND, 32 * MIB)
MEMORY_SHARE = Aim("memory, shared pages split", (MEMORY_SIZE,), RONDE, TENSOR, Measure.BEYOND, 32 * MIB)

GRADIENTS = "ResNet-50's gradients"
SMALL = "1,000 tensors of 1 KiB"
NAMED = "blocking allreduce, torch"
RESNET_STEP = "ResNet-50, whole step"
TRANSFORMER_STEP = "transformer, whole step"
WAITING = "CPU time while waiting"

# What `--only` takes for training with PyTorch; training/works.py does the works of these names.
TRAINING_SECTIONS = {
    "gradients": GRADIENTS,
    "small": SMALL,
    "named": NAMED,
    "resnet": RESNET_STEP,
    "transformer": TRANSFORMER_STEP,
    "waiting": WAITING,
}

# The bytes of all parameters of the networks in training/works.py.
_RESNET = (4 * 25_557_032,)
_TRANSFORMER = (4 * 19_210_496,)
_THOUSAND = (1000 * KIB,)

TRAINING: tuple[Aim, ...] = (
    Aim(GRADIENTS, _RESNET, RONDE, GLOO, Measure.FASTER, 6),
    Aim(GRADIENTS, _RESNET, RONDE, HOROVOD, Measure.FASTER, 8),
    Aim(SMALL, _THOUSAND, RONDE, GLOO, Measure.FASTER, 5),
    Aim(SMALL, _THOUSAND, RONDE, HOROVOD, Measure.FASTER, 5),
    Aim(NAMED, (4,), RONDE, GLOO, Measure.WITHIN, 1 / 20),
    Aim(NAMED, (4,), RONDE, HOROVOD, Measure.WITHIN),
    Aim(RESNET_STEP, _RESNET, RONDE, DDP, Measure.FASTER, 1),
    Aim(RESNET_STEP, _RESNET, RONDE, HOROVOD, Measure.FASTER),
    Aim(RESNET_STEP, _RESNET, RONDE, NO_EXCHANGE, Measure.WITHIN),
    Aim(TRANSFORMER_STEP, _TRANSFORMER, RONDE, DDP, Measure.FASTER, 1),
    Aim(TRANSFORMER_STEP, _TRANSFORMER, RONDE, HOROVOD, Measure.FASTER),
    Aim(TRANSFORMER_STEP, _TRANSFORMER, RONDE, NO_EXCHANGE, Measure.WITHIN),
    Aim(WAITING, (4,), RONDE, TIME_WAITED, Measure.WITHIN, 0.02),
    Aim(WAITING, (4,), RONDE, HOROVOD, Measure.WITHIN),
)
TRAINING_RANKS = 2

TAPE_STEP = "step with ResNet-50's gradients, TensorFlow"
KERAS_RESNET_STEP = "Keras' ResNet-50, whole step"
IMPORT = "import horovod.tensorflow"

# What `--only` takes for training with TensorFlow; training_tf/works.py does the works of these names.
TENSORFLOW_SECTIONS = {
    "tape": TAPE_STEP,
    "resnet": KERAS_RESNET_STEP,
}
# The remaining part, which has no ranks.
TENSORFLOW_IMPORT = "import"

# Keras' convolutions have biases.
_KERAS_RESNET = (4 * 25_583_592,)

TENSORFLOW_TRAINING: tuple[Aim, ...] = (
    Aim(TAPE_STEP, _RESNET, RONDE, MIRRORED, Measure.FASTER, 1),
    Aim(TAPE_STEP, _RESNET, RONDE, NO_EXCHANGE, Measure.WITHIN),
    Aim(KERAS_RESNET_STEP, _KERAS_RESNET, RONDE, MIRRORED, Measure.FASTER, 1),
    Aim(KERAS_RESNET_STEP, _KERAS_RESNET, RONDE, NO_EXCHANGE, Measure.WITHIN),
)
IMPORT_AIM = Aim(IMPORT, (0,), RONDE, TENSORFLOW, Measure.ADDED, 50e3)

# What `--only` takes for launchers: starts of jobs, the ranks' output, and the launcher's memory while nobody reads it.
LAUNCH_PARTS = ("start", "output", "memory")
LAUNCH_HOSTS = (2, 8)
OUTPUT_RANKS = 8
OUTPUT_SIZE = OUTPUT_RANKS * 32 * MIB

OUTPUT = f"output of {OUTPUT_RANKS} ranks"
_OUTPUT = (OUTPUT_SIZE,)

OUTPUT_AIMS: tuple[Aim, ...] = (
    Aim(OUTPUT, _OUTPUT, RONDE, OPEN_MPI_LABELLED, Measure.FASTER, 1),
    Aim(OUTPUT, _OUTPUT, RONDE_PLAIN, OPEN_MPI_PLAIN, Measure.FASTER, 1),
    Aim(OUTPUT, _OUTPUT, RONDE, HOROVOD, Measure.FASTER, 1),
    Aim(OUTPUT, _OUTPUT, RONDE_PLAIN, SHELL_ALONE, Measure.WITHIN),
)

UNREAD = "launcher's memory, output not read"
UNREAD_AIMS: tuple[Aim, ...] = (
    Aim(UNREAD, _OUTPUT, RONDE, SILENT, Measure.BEYOND, 16 * MIB),
    Aim(UNREAD, _OUTPUT, OPEN_MPI_LABELLED, SILENT, Measure.BEYOND),
)

# Headers, acknowledgements and barriers come on top of the floor's bytes; whole segments
# carry one header each on these links, so it is little. Fewer bytes than the floor means
# that something went another way than through the link.
MOST_BYTES = 1.06
FEWEST_BYTES = 0.99


def multi_host_aims(section: str, sizes: tuple[int, ...], one_rank_each: bool, limited: bool) -> list[Aim]:
    """Return the aims of one multi-host case."""
    small = tuple(size for size in sizes if size < 4 * MIB)
    large = tuple(size for size in sizes if size >= 4 * MIB)
    if not limited:
        aims = [
            Aim(section, small, RONDE, GLOO, Measure.FASTER),
            Aim(section, large, RONDE, GLOO, Measure.FASTER, 1.5),
        ]
    elif one_rank_each:
        aims = [
            Aim(section, small, RONDE, LINK, Measure.SHARE, 0.92),
            Aim(section, large, RONDE, LINK, Measure.SHARE, 0.97),
            Aim(section, sizes, GLOO, LINK, Measure.SHARE),
        ]
    else:
        aims = [
            Aim(section, small, RONDE, LINK, Measure.SHARE),
            Aim(section, large, RONDE, LINK, Measure.SHARE, 0.95),
            Aim(section, sizes, GLOO, LINK, Measure.SHARE),
            Aim(section, large, RONDE, GLOO, Measure.FASTER, 1.4),
        ]
    aims += [
        Aim(section, large, RONDE, LINK, Measure.BYTES, MOST_BYTES),
        Aim(section, large, GLOO, LINK, Measure.BYTES),
    ]
    return [aim for aim in aims if aim.sizes]


WHOLE_JOB = "whole job"


def start_aims(hosts: int) -> list[Aim]:
    """Return the aims of starting jobs on so many hosts: to the first allreduce, and to the launcher's end."""
    start, whole, size = f"start on {hosts} hosts", f"{WHOLE_JOB} on {hosts} hosts", (4,)
    return [
        Aim(start, size, RONDE_PYTHON, OPEN_MPI_PYTHON, Measure.FASTER, 1),
        Aim(start, size, RONDE, OPEN_MPI_C, Measure.FASTER, 1),
        Aim(start, size, RONDE_TORCH, HOROVOD, Measure.FASTER, 1),
        Aim(start, size, RONDE_TORCH_FIRST, HOROVOD_FIRST, Measure.FASTER, 1),
        Aim(start, size, RONDE_FIRST, RONDE_PYTHON, Measure.WITHIN),
        Aim(start, size, RONDE_PYTHON, SSH_ALONE, Measure.WITHIN),
        Aim(whole, size, RONDE_PYTHON, OPEN_MPI_PYTHON, Measure.FASTER),
        Aim(whole, size, RONDE, OPEN_MPI_C, Measure.FASTER),
        Aim(whole, size, RONDE_TORCH, HOROVOD, Measure.FASTER),
    ]
