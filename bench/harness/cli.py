"""The command line of `bench/run`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gpu import suite as gpu_suite
from gpu.aims import PARTS as GPU_PARTS
from gpu.launch import Launcher, look
from harness import environment, printing, starts, training_tensorflow
from harness.aims import (
    IN_HOST_RANKS,
    IN_HOST_SECTIONS,
    KIB,
    LAUNCH_HOSTS,
    LAUNCH_PARTS,
    MIB,
    OVERSUBSCRIBED,
    RONDE_PYTHON,
    TENSORFLOW_IMPORT,
    TENSORFLOW_SECTIONS,
    TRAINING_RANKS,
    TRAINING_SECTIONS,
)
from harness.environment import SetupError
from harness.inhost import Effort, Peers, in_host, select
from harness.jobs import JobError, WrongPathError
from harness.memory import memory
from harness.multihost import DEFAULT_CASES, Case, multi_host
from harness.report import Report
from harness.training import training
from kube import suite as kube_suite
from kube.aims import PARTS as KUBE_PARTS

FULL = Effort(rounds=5, openmpi_launches=5, seconds=0.5)
QUICK = Effort(rounds=1, openmpi_launches=2, seconds=0.1)
# Calls take longer over limited links, so a size needs more time there.
NET = Effort(rounds=2, openmpi_launches=0, seconds=2.0)
QUICK_NET = Effort(rounds=1, openmpi_launches=0, seconds=0.5)
QUICK_CASES = ("4x1@1gbit", "2x2@1gbit", "5+1@1gbit")
QUICK_NET_SIZES = (MIB, 16 * MIB)
# Training steps take a quarter of a second each.
TRAINING = Effort(rounds=3, openmpi_launches=0, seconds=3.0)
QUICK_TRAINING = Effort(rounds=1, openmpi_launches=0, seconds=0.3)
# Starts are timed one by one, so it takes more launches to know the usual one.
LAUNCH = Effort(rounds=7, openmpi_launches=0, seconds=0.0)
QUICK_LAUNCH = Effort(rounds=1, openmpi_launches=0, seconds=0.0)
BIG_MACHINE_RANKS = (2, 4, 8, 16)
UNITS = {"": 1, "b": 1, "k": KIB, "kib": KIB, "m": MIB, "mib": MIB, "g": 1 << 30, "gib": 1 << 30}


def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmark that the command line names; what is not met does not make it fail."""
    given = list(sys.argv[1:] if words is None else words)
    names_command = bool(given) and (not given[0].startswith("-") or given[0] in ("-h", "--help"))
    options = _parser().parse_args(given if names_command else ["all", *given])
    report = Report(command=" ".join(["bench/run", *given]))
    status = 0
    try:
        options.act(options, report)
    except (SetupError, JobError, WrongPathError) as error:
        print(f"error: {error}", file=sys.stderr)
        status = 1
        if not report.rows:
            return status
    except KeyboardInterrupt:
        return 130
    report.print()
    if options.figures:
        report.print_figures()
    if options.json:
        report.write(options.json)
        environment.say(f"wrote {options.json}")
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench/run",
        description="Measure our collectives beside the ones you would otherwise use, and compare with the aims.",
        epilog="Without a command: all. `bench/run COMMAND --help` shows a command's options.",
    )
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--quick", action="store_true", help="one short round: shows that it works, not how fast it is")
    shared.add_argument("--json", type=Path, help="also write everything to this file")
    shared.add_argument("--figures", action="store_true", help="also print the figures of every launch")
    shared.add_argument("--ronde", type=Path, help="the ronde binary to use (built from this tree otherwise)")
    shared.add_argument("--wheel", type=Path, help="the wheel to use (built by `make wheel` otherwise)")
    common = argparse.ArgumentParser(add_help=False, parents=[shared])
    common.add_argument("--rounds", type=int, help="launches of each tool")
    common.add_argument("--seconds", type=float, help="how long to measure each size in each launch")
    common.add_argument("--probe", type=Path, help="the ronde-probe binary to use (built from this tree otherwise)")

    commands = parser.add_subparsers(title="commands", metavar="")
    everything = commands.add_parser(
        "all", parents=[common], help="host, memory, torch, tensorflow, and net and launch where root allows it"
    )
    everything.set_defaults(act=_all, ranks=IN_HOST_RANKS, sizes=[], only=[], case=[], python=None, horovod=False)
    everything.set_defaults(hosts=list(LAUNCH_HOSTS))

    host = commands.add_parser("host", parents=[common], help="ranks on this machine")
    host.add_argument("--ranks", type=int, default=IN_HOST_RANKS)
    host.add_argument("--sizes", type=_size, nargs="+", default=[], help="only these of the table's sizes, as in 64MiB")
    host.add_argument("--only", choices=sorted(IN_HOST_SECTIONS), nargs="+", default=[], help="only these parts")
    host.set_defaults(act=_host)

    net = commands.add_parser("net", parents=[common], help="ranks on test hosts with limited links; needs root")
    net.add_argument("--case", nargs="+", default=[], help=f"layout and link, as in {' '.join(DEFAULT_CASES)}")
    net.add_argument("--sizes", type=_size, nargs="+", default=[], help="instead of each case's own")
    net.set_defaults(act=_net)

    used = commands.add_parser("memory", parents=[common], help="memory beyond the tensor")
    used.add_argument("--ranks", type=int, default=IN_HOST_RANKS)
    used.set_defaults(act=_memory)

    torch = commands.add_parser("torch", parents=[common], help="training with PyTorch, ranks on this machine")
    torch.add_argument("--ranks", type=int, default=TRAINING_RANKS)
    torch.add_argument("--only", choices=sorted(TRAINING_SECTIONS), nargs="+", default=[], help="only these parts")
    torch.add_argument("--python", type=Path, help="the interpreter with torch to use (made on first use otherwise)")
    torch.add_argument("--horovod", action="store_true", help="also measure upstream Horovod, compiled on first use")
    torch.set_defaults(act=_torch)

    tensorflow = commands.add_parser(
        "tensorflow", parents=[common], help="training with TensorFlow, ranks on this machine; its import"
    )
    tensorflow.add_argument("--ranks", type=int, default=TRAINING_RANKS)
    parts = sorted([*TENSORFLOW_SECTIONS, TENSORFLOW_IMPORT])
    tensorflow.add_argument("--only", choices=parts, nargs="+", default=[], help="only these parts")
    tensorflow.add_argument("--python", type=Path, help="the interpreter with TensorFlow (made on first use otherwise)")
    tensorflow.set_defaults(act=_tensorflow)

    launch = commands.add_parser("launch", parents=[common], help="starting jobs, and their output; starts need root")
    launch.add_argument("--hosts", type=int, nargs="+", default=list(LAUNCH_HOSTS), help="on so many ssh hosts")
    launch.add_argument("--only", choices=LAUNCH_PARTS, nargs="+", default=[], help="only these parts")
    launch.add_argument("--horovod", action="store_true", help="also measure upstream Horovod, compiled on first use")
    launch.set_defaults(act=_launch)

    gpu = commands.add_parser("gpu", parents=[shared], help="tensors on a GPU: training, packing, ranks that share it")
    gpu.add_argument("--only", choices=GPU_PARTS, nargs="+", default=[], help="only these parts")
    gpu.add_argument("--python", type=Path, default=Path(sys.executable), help="the interpreter with torch to use")
    gpu.set_defaults(act=_gpu)

    kube = commands.add_parser("kube", parents=[shared], help="jobs on Kubernetes, beside the MPI Operator; needs root")
    kube.add_argument("--only", choices=KUBE_PARTS, nargs="+", default=[], help="only these parts")
    kube.add_argument("--rounds", type=int, help="jobs of each manager on real nodes")
    kube.add_argument("--jobs", type=int, help="so many jobs in the queue, and for the manager's memory")
    kube.add_argument("--nodes", type=int, help="on so many simulated nodes")
    kube.set_defaults(act=_kube)

    big = commands.add_parser("gpubox", parents=[common], help="the in-host table for 2, 4, 8 and 16 ranks, offline")
    big.add_argument("--ranks", type=int, nargs="+", default=list(BIG_MACHINE_RANKS))
    big.add_argument("--sizes", type=_size, nargs="+", default=[])
    big.set_defaults(act=_gpubox)
    return parser


def _all(options: argparse.Namespace, report: Report) -> None:
    _host(options, report)
    _memory(options, report)
    _torch(options, report)
    _tensorflow(options, report)
    if os.geteuid() == 0:
        _net(options, report)
        _launch(options, report)
    else:
        report.notes.append("what needs several hosts was left out, since that needs root (bench/run net, launch)")


def _host(options: argparse.Namespace, report: Report) -> None:
    sections = [IN_HOST_SECTIONS[name] for name in options.only] or list(IN_HOST_SECTIONS.values())
    sizes = options.sizes
    if options.quick and not sizes:
        sizes = [size for aim in select(sections, []) for size in aim.sizes if size <= 64 * MIB]
    aims = select(sections, sizes)
    if not aims:
        raise SetupError("none of the table's sizes was named: see bench/README.md for them")
    peers = Peers(environment.peer_python(), environment.openmpi_program())
    ours = _ours(options, need_package=any(aim.ours == RONDE_PYTHON for aim in aims))
    in_host(report, ours, peers, _in_host_effort(options), options.ranks, aims)


def _net(options: argparse.Namespace, report: Report) -> None:
    if os.geteuid() != 0:
        raise SetupError("bench/run net makes hosts of network namespaces, which needs root: run it as root")
    sizes = options.sizes or (QUICK_NET_SIZES if options.quick else ())
    names = options.case or (QUICK_CASES if options.quick else DEFAULT_CASES)
    cases = [Case.parse(name, sizes) for name in names]
    ours, python = _ours(options, need_package=False), environment.peer_python()
    effort = _effort(options, QUICK_NET if options.quick else NET)
    for case in cases:
        multi_host(report, ours, python, case, effort.rounds, effort.seconds)


def _memory(options: argparse.Namespace, report: Report) -> None:
    memory(report, _ours(options, need_package=False), options.ranks)


def _torch(options: argparse.Namespace, report: Report) -> None:
    upstream = environment.upstream_horovod() if options.horovod else None
    ours, python = _ours(options, need_package=True), options.python or environment.peer_python()
    effort = _effort(options, QUICK_TRAINING if options.quick else TRAINING)
    works = options.only or list(TRAINING_SECTIONS)
    training(report, ours, python, upstream, works, options.ranks, effort.rounds, effort.seconds)


def _tensorflow(options: argparse.Namespace, report: Report) -> None:
    ours, python = _ours(options, need_package=True), options.python or environment.peer_python("tensorflow-newest")
    effort = _effort(options, QUICK_TRAINING if options.quick else TRAINING)
    parts = options.only or [*TENSORFLOW_SECTIONS, TENSORFLOW_IMPORT]
    works = [part for part in parts if part != TENSORFLOW_IMPORT]
    training_tensorflow.training(report, ours, python, works, options.ranks, effort.rounds, effort.seconds)
    if TENSORFLOW_IMPORT in parts:
        # A process takes seconds, and the figure is small beside what disturbs it.
        training_tensorflow.imports(report, ours, python, 3 * effort.rounds)


def _launch(options: argparse.Namespace, report: Report) -> None:
    parts = options.only or LAUNCH_PARTS
    if "start" in parts and os.geteuid() != 0:
        raise SetupError("starts are measured on hosts of namespaces, which need root; --only output memory does not")
    rounds = _effort(options, QUICK_LAUNCH if options.quick else LAUNCH).rounds
    upstream = environment.upstream_horovod() if options.horovod else None
    ours, openmpi = (
        environment.our_installation(options.ronde, options.probe, options.wheel),
        environment.openmpi_starter(),
    )
    if "start" in parts:
        peers = starts.Peers(environment.peer_python(), openmpi, upstream)
        starts.starts(report, ours, peers, options.hosts, rounds)
    if "output" in parts:
        printing.speed(report, ours, upstream, rounds)
    if "memory" in parts:
        printing.memory_unread(report, ours, rounds)


def _gpu(options: argparse.Namespace, report: Report) -> None:
    """Look for a GPU before anything is built for it."""
    found = look(options.python)
    ronde, package = environment.our_wheel(options.wheel)
    launcher = Launcher(options.ronde or ronde, package, options.python)
    gpu_suite.measure(report, launcher, found, options.only, options.quick)


def _kube(options: argparse.Namespace, report: Report) -> None:
    """Measure on clusters of namespaces, with the programs of the wheel."""
    if os.geteuid() != 0:
        raise SetupError("bench/run kube makes clusters of namespaces, which needs root: run it as root")
    ronde = options.ronde or environment.our_wheel(options.wheel)[0]
    usual = kube_suite.QUICK if options.quick else kube_suite.FULL
    effort = usual.changed(options.rounds, options.jobs, options.nodes)
    kube_suite.measure(report, kube_suite.our_programs(ronde), options.only, effort)


def _gpubox(options: argparse.Namespace, report: Report) -> None:
    """Measure with what the machine has: nothing is downloaded, built or installed."""
    if not (options.ronde and options.probe):
        raise SetupError("gpubox builds nothing: name the binaries with --ronde and --probe")
    if subprocess.run([sys.executable, "-c", "import numpy, torch.distributed"], check=False).returncode != 0:
        raise SetupError(f"{sys.executable} cannot import numpy and torch, which Gloo is measured with")
    peers = Peers(Path(sys.executable), environment.openmpi_program_if_there())
    if peers.openmpi is None:
        report.notes.append("Open MPI is not installed here and was left out")
    if options.wheel is None:
        report.notes.append("no --wheel was named, so the Python rows were left out")
    ours = _ours(options, need_package=options.wheel is not None)
    sections = [section for section in IN_HOST_SECTIONS.values() if section != OVERSUBSCRIBED]
    for ranks in options.ranks:
        in_host(report, ours, peers, _in_host_effort(options), ranks, select(sections, options.sizes))


def _ours(options: argparse.Namespace, need_package: bool) -> environment.OurBinaries:
    return environment.our_binaries(options.ronde, options.probe, options.wheel, need_package)


def _in_host_effort(options: argparse.Namespace) -> Effort:
    return _effort(options, QUICK if options.quick else FULL)


def _effort(options: argparse.Namespace, usual: Effort) -> Effort:
    return Effort(
        rounds=options.rounds or usual.rounds,
        openmpi_launches=options.rounds or usual.openmpi_launches,
        seconds=options.seconds or usual.seconds,
    )


def _size(text: str) -> int:
    number = text.rstrip("BKMGbkmgi")
    try:
        return int(number) * UNITS[text[len(number) :].lower()]
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write 4096, 64KiB or 16MiB") from None
