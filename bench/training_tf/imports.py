"""Times the import of TensorFlow, and then that of our front for it: `python -m training_tf.imports`."""

from __future__ import annotations

import importlib
import json
import time


def seconds_to_import(module: str) -> float:
    """Import a module and return how long it took."""
    start = time.perf_counter()
    importlib.import_module(module)
    return time.perf_counter() - start


if __name__ == "__main__":
    framework, added = seconds_to_import("tensorflow"), seconds_to_import("horovod.tensorflow")
    print(json.dumps({"framework_seconds": framework, "added_seconds": added}))
