"""Train a small transformer on Python's manual: ``ronde run -np 2 python examples/torch_language_model.py``.

The text is what ``help("topics")`` shows, which comes with every Python; the network predicts it letter by letter and
writes a few lines at the end. What it shows of distributed training, beside the usual steps: gradients are clipped by
their norm *after* they were averaged, with ``synchronize`` and ``skip_synchronize``, and a learning rate that warms up.

All ranks draw the places of one batch for the whole job, from the same seed, and each takes its part. Four ranks with
batches of 4 therefore learn the same as one rank with batches of 16, and print the same losses but for rounding.
"""

from __future__ import annotations

import argparse
import time
from pydoc_data.topics import topics

import torch
from torch import Tensor
from torch.nn import functional

import horovod.torch as hvd
from models import Transformer


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="PyTorch language model example")
    parser.add_argument("--batch-size", type=int, default=16, help="pieces of text a step and rank")
    parser.add_argument("--context", type=int, default=64, help="letters in a piece")
    parser.add_argument("--width", type=int, default=128, help="numbers for each letter inside the network")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--warmup-steps", type=int, default=30)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--clip", type=float, default=1.0, help="largest norm of the gradients of all ranks")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--log-interval", type=int, default=30, help="steps between two lines")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--write", type=int, default=300, help="letters to write at the end")
    parser.add_argument("--no-cuda", action="store_true", help="stay on the CPU")
    return parser.parse_args()


def load() -> tuple[Tensor, str]:
    """Return the text as numbers, and the letters that they stand for."""
    text = "\n".join(topics[name] for name in sorted(topics))
    letters = "".join(sorted(set(text)))
    number = {letter: index for index, letter in enumerate(letters)}
    return torch.tensor([number[letter] for letter in text]), letters


def batch(text: Tensor, step: int, args: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Return this rank's part of the batch of a step: pieces of text, and the same moved on by one letter."""
    draw = torch.Generator().manual_seed(args.seed * 1_000_003 + step)
    places = torch.randint(len(text) - args.context - 1, (args.batch_size * hvd.size(),), generator=draw)
    mine = places[hvd.rank() * args.batch_size :][: args.batch_size]  # distributed
    pieces = torch.stack([text[place : place + args.context + 1] for place in mine.tolist()])
    return pieces[:, :-1], pieces[:, 1:]


def write(model: Transformer, letters: str, count: int, device: torch.device) -> str:
    """Return what the network writes when it takes the likeliest letters by chance."""
    draw = torch.Generator().manual_seed(0)
    text = torch.zeros(1, 1, dtype=torch.long)
    with torch.no_grad():
        for _ in range(count):
            scores = model(text[:, -model.context :].to(device))[0, -1].cpu()
            following = torch.multinomial(functional.softmax(scores / 0.7, dim=0), 1, generator=draw)
            text = torch.cat([text, following[None]], dim=1)
    return "".join(letters[number] for number in text[0, 1:].tolist())


def main() -> None:
    """Train on all ranks and say on rank 0 how it goes."""
    args = arguments()
    hvd.init()  # distributed
    torch.set_num_threads(1)  # the ranks are what runs in parallel here
    use_cuda = torch.cuda.is_available() and not args.no_cuda
    device = torch.device("cuda", hvd.local_rank()) if use_cuda else torch.device("cpu")  # distributed
    # Every rank draws weights of its own, as happens when no care is taken; those of rank 0 count.
    torch.manual_seed(args.seed + hvd.rank())

    text, letters = load()
    model = Transformer(len(letters), args.context, args.width, args.layers).to(device)
    plain = torch.optim.AdamW(model.parameters(), lr=args.lr)
    optimizer = hvd.DistributedOptimizer(  # distributed
        plain,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
    )
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / args.warmup_steps))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # distributed
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)  # distributed

    started = time.perf_counter()
    for step in range(1, args.steps + 1):
        pieces, following = batch(text, step, args)
        optimizer.zero_grad()
        scores = model(pieces.to(device))
        loss = functional.cross_entropy(scores.flatten(0, 1), following.flatten().to(device))
        loss.backward()
        # Only the average of all ranks has the norm that is to be clipped, so it must have arrived before.
        optimizer.synchronize()  # distributed
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        with optimizer.skip_synchronize():  # distributed
            optimizer.step()
        warmup.step()
        if step % args.log_interval == 0:
            mean = hvd.allreduce(loss.detach(), name="loss").item()  # distributed
            if hvd.rank() == 0:
                speed = step * args.batch_size * args.context * hvd.size() / (time.perf_counter() - started)
                print(f"step {step:4}/{args.steps}   loss {mean:.6f}   {speed:,.0f} letters/s", flush=True)

    if hvd.rank() == 0 and args.write > 0:
        print(write(model, letters, args.write, device), flush=True)


if __name__ == "__main__":
    main()
