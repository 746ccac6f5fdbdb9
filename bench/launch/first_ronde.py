"""A rank that sums four bytes over all ranks and says so, without any framework: `import ronde` alone."""

from __future__ import annotations

from array import array

import ronde

ronde.init()
value = array("f", [ronde.rank() + 1])
ronde.allreduce_(value, op=ronde.Sum)
print(f"first allreduce: rank {ronde.rank()} of {ronde.size()}, sum {value[0]:.0f}", flush=True)
