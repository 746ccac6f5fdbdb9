"""Measure images a second over all ranks: ``ronde run -np 2 python examples/torch_synthetic_benchmark.py``.

Takes the flags and prints the lines of the script of that name that Horovod ships, so figures can be compared; the
network is written out in ``models.py``, so torchvision is not needed. The images are noise: only the speed matters.

The loss at the end shows that the ranks learnt together. With ``--sync-batch-norm``, which takes the statistics of
batches over all ranks, four ranks with batches of 2 end with the same loss as one rank with batches of 8.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import nn
from torch.nn import functional

import horovod.torch as hvd
from models import RESNET_STAGES, resnet

CLASSES = 1000


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="PyTorch synthetic benchmark")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--model", choices=[f"resnet{depth}" for depth in RESNET_STAGES], default="resnet50")
    parser.add_argument("--batch-size", type=int, default=32, help="images a step and rank")
    parser.add_argument("--image-size", type=int, default=224, help="pixels on each side")
    parser.add_argument("--num-warmup-batches", type=int, default=10, help="steps before the clock starts")
    parser.add_argument("--num-batches-per-iter", type=int, default=10, help="steps for each printed figure")
    parser.add_argument("--num-iters", type=int, default=10, help="printed figures")
    parser.add_argument("--no-cuda", action="store_true", help="stay on the CPU")
    parser.add_argument("--use-adasum", action="store_true", help="combine gradients with Adasum")
    parser.add_argument("--sync-batch-norm", action="store_true", help="batch statistics over all ranks")
    parser.add_argument("--lr", type=float, default=0.01, help="learning rate")
    parser.add_argument("--seed", type=int, default=42)
    return parser.parse_args()


def data(args: argparse.Namespace, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's part of one batch of noise for the whole job."""
    draw = torch.Generator().manual_seed(args.seed)
    images = torch.randn(args.batch_size * hvd.size(), 3, args.image_size, args.image_size, generator=draw)
    labels = torch.randint(CLASSES, (args.batch_size * hvd.size(),), generator=draw)
    mine = slice(hvd.rank() * args.batch_size, (hvd.rank() + 1) * args.batch_size)  # distributed
    return images[mine].to(device), labels[mine].to(device)


def say(line: str) -> None:
    """Print once for the whole job."""
    if hvd.rank() == 0:
        print(line, flush=True)


def main() -> None:
    """Time the steps of all ranks and print images a second, for a rank and in total."""
    args = arguments()
    hvd.init()  # distributed
    use_cuda = torch.cuda.is_available() and not args.no_cuda
    device = torch.device("cuda", hvd.local_rank()) if use_cuda else torch.device("cpu")  # distributed
    if not use_cuda:
        torch.set_num_threads(1)  # the ranks are what runs in parallel here
    torch.manual_seed(args.seed + hvd.rank())

    norm = hvd.SyncBatchNorm if args.sync_batch_norm else nn.BatchNorm2d
    model = resnet(int(args.model[len("resnet") :]), CLASSES, norm).to(device)
    plain = torch.optim.SGD(model.parameters(), lr=args.lr)
    optimizer = hvd.DistributedOptimizer(  # distributed
        plain,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # distributed
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)  # distributed
    images, labels = data(args, device)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    kind = "GPU" if use_cuda else "CPU"
    say(f"Model: {args.model}\nBatch size: {args.batch_size}\nNumber of {kind}s: {hvd.size()}\nRunning warmup...")
    for _ in range(args.num_warmup_batches):
        loss = step()
    say("Running benchmark...")
    speeds = []
    for number in range(args.num_iters):
        started = time.perf_counter()
        for _ in range(args.num_batches_per_iter):
            loss = step()
        if use_cuda:
            torch.cuda.synchronize()
        speeds.append(args.batch_size * args.num_batches_per_iter / (time.perf_counter() - started))
        say(f"Iter #{number}: {speeds[-1]:.1f} img/sec per {kind}")

    # 1.96 standard deviations either way hold 95 of 100 figures.
    mean, spread = statistics.mean(speeds), 1.96 * statistics.pstdev(speeds)
    say(f"Img/sec per {kind}: {mean:.1f} +-{spread:.1f}")
    say(f"Total img/sec on {hvd.size()} {kind}(s): {hvd.size() * mean:.1f} +-{hvd.size() * spread:.1f}")
    say(f"Loss: {hvd.allreduce(loss, name='loss').item():.6f}")  # distributed


if __name__ == "__main__":
    main()
