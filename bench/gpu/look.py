"""Says what this interpreter would measure with, as JSON: `python -m gpu.look`. Without a GPU it says why not."""

from __future__ import annotations

import importlib.util
import json
import sys


def main() -> int:
    """Look for PyTorch and for a GPU."""
    if importlib.util.find_spec("torch") is None:
        print(f"{sys.executable} has no PyTorch, and this benchmark needs one that sees a GPU", file=sys.stderr)
        return 1
    import torch

    if not torch.cuda.is_available():
        print(
            f"PyTorch {torch.__version__} of {sys.executable} sees no GPU, which this benchmark needs", file=sys.stderr
        )
        return 1
    found = {
        "gpu": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(str(part) for part in torch.cuda.nccl.version()),
    }
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
