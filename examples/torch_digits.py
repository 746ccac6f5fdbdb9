"""Learn to read handwritten digits with PyTorch: ``ronde run -np 2 python examples/torch_digits.py``.

The script is what a Horovod user would write, and runs as it is under Horovod: join the job, pin a device, let a
sampler give each rank its part of the data, scale the learning rate, start from the same weights, wrap the optimizer.
Those places are marked with ``# distributed``. The digits are the 1,797 images that come inside scikit-learn.

A batch of the whole job is ``--batch-size`` times the number of ranks. Four ranks with batches of 30 see the same
images in the same order as one rank with batches of 120, and so print the same losses but for rounding.
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import horovod.torch as hvd

TEST_IMAGES = 360
# The learning rate on the command line is for batches of this many images.
USUAL_BATCH = 64


class Net(nn.Module):
    """Two convolutions and two full layers. There is no dropout: it would make every layout draw its own numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 2 * 2, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logarithm of the probability of each digit."""
        values = functional.max_pool2d(functional.relu(self.conv1(images)), 2)
        values = functional.max_pool2d(functional.relu(self.conv2(values)), 2)
        values = functional.relu(self.fc1(values.flatten(1)))
        return functional.log_softmax(self.fc2(values), dim=1)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="PyTorch digits example")
    parser.add_argument("--batch-size", type=int, default=30, help="images a step and rank")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.05, help=f"learning rate for batches of {USUAL_BATCH} images")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--no-cuda", action="store_true", help="stay on the CPU")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--use-adasum", action="store_true", help="combine gradients with Adasum")
    parser.add_argument("--gradient-predivide-factor", type=float, default=1.0, help="divide before the sum by this")
    return parser.parse_args()


def load() -> tuple[TensorDataset, TensorDataset]:
    """Return the digits to learn from and those to be tested with."""
    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8)[order] / 16.0
    digits = torch.tensor(labels)[order]
    return (
        TensorDataset(images[TEST_IMAGES:], digits[TEST_IMAGES:]),
        TensorDataset(images[:TEST_IMAGES], digits[:TEST_IMAGES]),
    )


def train(model: Net, optimizer: torch.optim.Optimizer, loader: DataLoader, device: torch.device) -> float:
    """Go once through this rank's part of the images and return the mean loss of all ranks."""
    model.train()
    losses = []
    for images, digits in loader:
        optimizer.zero_grad()
        loss = functional.nll_loss(model(images.to(device)), digits.to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return hvd.allreduce(torch.stack(losses).mean(), name="train_loss").item()  # distributed


def test(model: Net, loader: DataLoader, device: torch.device) -> tuple[float, float]:
    """Return the mean loss and the share of digits read right, over the test images of all ranks."""
    model.eval()
    # Sums travel, not means, so that ranks may have unequal parts.
    totals = torch.zeros(3, dtype=torch.float64)
    with torch.no_grad():
        for images, digits in loader:
            output = model(images.to(device)).cpu()
            totals[0] += functional.nll_loss(output, digits, reduction="sum")
            totals[1] += (output.argmax(dim=1) == digits).sum()
            totals[2] += len(digits)
    loss, right, images_seen = hvd.allreduce(totals, op=hvd.Sum, name="test_totals").tolist()  # distributed
    return loss / images_seen, right / images_seen


def main() -> None:
    """Train on all ranks and say on rank 0 how it goes."""
    args = arguments()
    hvd.init()  # distributed
    torch.set_num_threads(1)  # the ranks are what runs in parallel here
    use_cuda = torch.cuda.is_available() and not args.no_cuda
    device = torch.device("cuda", hvd.local_rank()) if use_cuda else torch.device("cpu")  # distributed
    # Every rank draws weights of its own, as happens when no care is taken; those of rank 0 count.
    torch.manual_seed(args.seed + hvd.rank())

    training, testing = load()
    sampler = DistributedSampler(training, hvd.size(), hvd.rank(), seed=args.seed, drop_last=True)  # distributed
    loader = DataLoader(training, args.batch_size, sampler=sampler, drop_last=True)
    mine = Subset(testing, range(hvd.rank(), len(testing), hvd.size()))  # distributed
    test_loader = DataLoader(mine, batch_size=200)

    model = Net().to(device)
    # The learning rate grows with the batch of the whole job; Adasum finds the right length of steps by itself.
    ranks_in_scale = 1 if args.use_adasum else hvd.size()  # distributed
    scaled_lr = args.lr * args.batch_size * ranks_in_scale / USUAL_BATCH
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=scaled_lr, momentum=args.momentum)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # distributed
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)  # distributed
    optimizer = hvd.DistributedOptimizer(  # distributed
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
        gradient_predivide_factor=args.gradient_predivide_factor,
    )

    for epoch in range(1, args.epochs + 1):
        sampler.set_epoch(epoch)
        loss = train(model, optimizer, loader, device)
        test_loss, accuracy = test(model, test_loader, device)
        if hvd.rank() == 0:
            line = f"epoch {epoch:2}/{args.epochs}   loss {loss:.6f}   test loss {test_loss:.6f}"
            print(f"{line}   accuracy {accuracy:.2%}", flush=True)


if __name__ == "__main__":
    main()
