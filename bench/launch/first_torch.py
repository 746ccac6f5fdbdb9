"""A rank that sums four bytes over all ranks and says so, through `import horovod.torch`: ours, or upstream's."""

from __future__ import annotations

import torch

import horovod.torch as hvd

hvd.init()
value = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum, name="first")
print(f"first allreduce: rank {hvd.rank()} of {hvd.size()}, sum {value.item():.0f}", flush=True)
