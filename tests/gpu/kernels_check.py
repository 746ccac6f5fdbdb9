"""Checks every kernel on a real GPU against NumPy, to the bit, and measures the ones that have to be fast.

Needs a GPU, PyTorch and NumPy; no Rust. The texts come from another machine::

    cargo run --package ronde-cuda --example kernel_texts -- target/kernel-texts
    python3 tests/gpu/kernels_check.py target/kernel-texts

The texts go through the driver's compiler, as in a job. One line is printed for each failure; the last one is the sum.
With ``--no-figures`` nothing is measured, for a run under NVIDIA's compute-sanitizer. It only sees where memory of one
tensor ends if each has an allocation of its own::

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --error-exitcode 1 python3 tests/gpu/kernels_check.py ...
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kernel_reference as reference

Array = reference.Array
Span = tuple[int, int, int]

# Bytes around results that must stay as they are.
GUARD = 64
SENTINEL = 0xA5
# Prescale, postscale and divisor.
NO_FACTORS = (1.0, 1.0, 1)
FACTORS = [(1.0, 1.0, 4), (1.0, 1.0, 3), (0.3, 1.0, 1), (1.0, -2.5, 1), (0.1, 7.0, 16)]
# For integers as well: what is not a number becomes 0, what is too large stays at the limit; and a divisor that makes
# the remainder of a long division large.
HARSH_FACTORS = [(float("nan"), 1.0, 1), (1e300, 1.0, 7), (1.0, 1.5, (1 << 62) + 12345)]


class Driver:
    """As much of CUDA's driver as a launch takes, in the context that PyTorch uses."""

    def __init__(self) -> None:
        torch.cuda.init()
        torch.zeros(1, device="cuda")
        self.library = ctypes.CDLL("libcuda.so.1")
        self.context = ctypes.c_void_p()
        self.call("cuCtxGetCurrent", ctypes.byref(self.context))

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.library, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} failed with error {status}")

    def load(self, text: Path) -> ctypes.c_void_p:
        """Compiles a text; its entry has the name of the file."""
        self.call("cuCtxSetCurrent", self.context)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), text.read_bytes() + b"\0")
        self.call("cuModuleGetFunction", ctypes.byref(function), module, text.stem.encode())
        return function

    def launch(self, function: ctypes.c_void_p, table: Table, *words: int | float) -> None:
        """Launch on PyTorch's stream: one block a piece, all parameters eight bytes."""
        values: list[Any] = [ctypes.c_uint64(table.address)]
        values += [ctypes.c_double(word) if isinstance(word, float) else ctypes.c_uint64(word) for word in words]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        grid = ctypes.c_uint(table.pieces), ctypes.c_uint(1), ctypes.c_uint(1)
        block = ctypes.c_uint(table.threads), ctypes.c_uint(1), ctypes.c_uint(1)
        self.call("cuLaunchKernel", function, *grid, *block, ctypes.c_uint(0), stream, pointers, None)


class Table:
    """Pieces, in host memory that the GPU reads."""

    threads = 256

    def __init__(self, pieces: list[Span]) -> None:
        self.memory = torch.tensor(pieces, dtype=torch.int64).pin_memory()
        self.address = self.memory.data_ptr()
        self.pieces = len(pieces)


def to_gpu(elements: Array) -> torch.Tensor:
    """Put the bytes of an array on the GPU, with room before and behind."""
    data = np.ascontiguousarray(elements).view(np.uint8)
    guard = np.full(GUARD, SENTINEL, dtype=np.uint8)
    return torch.from_numpy(np.concatenate([guard, data, guard])).cuda()


def samples(dtype: str, count: int, seed: int) -> Array:
    """Elements of which some are random bits, some of a usual size, and some awkward."""
    random = np.random.default_rng(seed)
    kind = reference.stored(dtype)
    bits = random.integers(0, 256, count * kind.itemsize, dtype=np.uint8).view(kind)
    if dtype == "bool":
        return np.where(random.random(count) < 0.5, bits, 0).astype(kind)
    if dtype in reference.FLOATS:
        limits = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1.0, -1.0, 1e-40, 65504.0, 65520.0, 6e-8]
        usual = reference.narrow(dtype, random.normal(0, 2, count))
        awkward = reference.narrow(dtype, np.array(limits))
    else:
        extremes = np.iinfo(kind)
        usual = random.integers(max(extremes.min, -20), 20, count).astype(kind)
        awkward = np.array([extremes.min, extremes.max, 0, 1, extremes.max - 1, extremes.min + 1], dtype=kind)
    which = random.integers(0, 3, count)
    return np.where(which == 0, bits, np.where(which == 1, usual, random.choice(awkward, count)))


def layout(size: int) -> tuple[list[Span], int]:
    """Pieces in elements (from, to, count): tiny ones, aligned ones, and ones that are not; and the elements in all."""
    lanes = 16 // size
    round_of_four = 4 * 256 * lanes
    counts = [1, 2, 15, 16, 17, 255, 1000, 256 * lanes, round_of_four + 3 * lanes + 1, 0]
    pieces, end = [], 0
    for turn, count in enumerate(counts):
        for shift_from, shift_to in [(0, 0), (turn % lanes, turn % lanes), (1, 0), (0, lanes - 1), (lanes // 2, 0)]:
            taken = count if shift_from == shift_to else min(count, 700)
            pieces.append((end + shift_from, end + shift_to, taken))
            end += (taken + 2 * lanes) // lanes * lanes
    return pieces, end + lanes


class Checks:
    """Runs kernels and counts what is wrong."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.checked = 0
        self.failed: list[str] = []

    def compare(self, name: str, what: str, result: torch.Tensor, expected: Array) -> bool:
        """Whether a result with its guards is, bit for bit, as expected."""
        actual = result.cpu().numpy()
        wanted = to_bytes(expected)
        if np.array_equal(actual, wanted):
            return True
        size = expected.dtype.itemsize
        at = int(np.flatnonzero(actual != wanted)[0]) - GUARD
        differ = int(np.count_nonzero(actual != wanted))
        element = at // size * size + GUARD
        got, want = actual[element : element + size].tobytes(), wanted[element : element + size].tobytes()
        where = f"first at element {at // size}: {got[::-1].hex()} instead of {want[::-1].hex()}"
        print(f"{name} ({what}): {differ} bytes differ, {where}")
        self.failed.append(name)
        return False

    def kernel(self, entry: dict[str, Any], function: ctypes.c_void_p) -> None:
        """Check one kernel; the first failure is enough."""
        self.checked += 1
        checks = {"move": self.move, "fill": self.fill, "convert": self.convert, "fold": self.fold}
        for what, result, expected in checks[entry["kind"]](entry, function):
            if not self.compare(entry["entry"], what, result, expected):
                return

    def move(self, _: dict[str, Any], function: ctypes.c_void_p) -> Iterator[tuple[str, torch.Tensor, Array]]:
        pieces, end = [], 0
        for count in (0, 1, 3, 31, 1000, 70_001):
            for shift_from in (0, 1, 2, 4, 8, 9):
                for shift_to in (0, 1, 6, 8):
                    pieces.append((end + shift_from, end + shift_to, count))
                    end += (count + 48) // 16 * 16
        source = samples("uint8", end, 1)
        expected = np.full(end, SENTINEL, dtype=np.uint8)
        for start, to, count in pieces:
            expected[to : to + count] = source[start : start + count]
        data, result = to_gpu(source), to_gpu(np.full(end, SENTINEL, dtype=np.uint8))
        self.driver.launch(function, table(pieces, data, result))
        yield "from one place to another", result, expected
        self.driver.launch(function, table([(start, start, count) for start, _, count in pieces], data, data))
        yield "onto itself", data, source

    def fill(self, _: dict[str, Any], function: ctypes.c_void_p) -> Iterator[tuple[str, torch.Tensor, Array]]:
        pattern = 0x8877665544332211
        unit = np.frombuffer(pattern.to_bytes(8, "little"), dtype=np.uint8)
        pieces, end = [], 0
        for count in (0, 1, 7, 8, 9, 16, 33, 1000, 65_536, 100_003):
            for shift in (0, 1, 2, 4, 8, 13):
                pieces.append((0, end + shift, count))
                end += (count + 32) // 16 * 16
        expected = np.full(end, SENTINEL, dtype=np.uint8)
        for _, to, count in pieces:
            expected[to : to + count] = np.resize(unit, count)
        result = to_gpu(np.full(end, SENTINEL, dtype=np.uint8))
        self.driver.launch(function, table(pieces, result, result), pattern)
        yield "a pattern", result, expected

    def convert(self, entry: dict[str, Any], function: ctypes.c_void_p) -> Iterator[tuple[str, torch.Tensor, Array]]:
        source, target = entry["from"], entry["to"]
        sizes = reference.stored(source).itemsize, reference.stored(target).itemsize
        pieces, end = layout(min(sizes))
        elements = samples(source, end, 2)
        data = to_gpu(elements)
        for factor in (1.0, 0.1, -3.0, 1e-30, float("inf")):
            result = to_gpu(blank(target, end))
            self.driver.launch(function, table(pieces, data, result, sizes), factor)
            computed = reference.convert(source, target, elements, factor)
            yield f"times {factor}", result, placed(blank(target, end), pieces, computed)
        if source == target:
            self.driver.launch(function, table([(0, 0, end)], data, data, sizes), 0.5)
            yield "in place", data, reference.convert(source, target, elements, 0.5)

    def fold(self, entry: dict[str, Any], function: ctypes.c_void_p) -> Iterator[tuple[str, torch.Tensor, Array]]:
        dtype, to_type, how, count = entry["dtype"], entry["to"], entry["fold"], entry["sources"]
        size, to_size = reference.stored(dtype).itemsize, reference.stored(to_type).itemsize
        pieces, end = layout(size)
        sources = [samples(dtype, end, 10 + source) for source in range(count)]
        data = [to_gpu(source) for source in sources]
        bases = [source.data_ptr() + GUARD for source in data]

        def pieces_of(spans: list[Span], result: torch.Tensor) -> Table:
            to = result.data_ptr() + GUARD
            return Table([(a * size, to + b * to_size, n) for a, b, n in spans])

        terms: list[tuple[float, float, int] | None] = [None]
        if entry["scaled"]:
            integer = dtype.startswith(("int", "uint"))
            scaled = [NO_FACTORS, *(FACTORS if dtype != "bool" else []), *(HARSH_FACTORS if integer else [])]
            terms = [(before, after, divide if how == "sum" else 1) for before, after, divide in scaled]
        for each in terms:
            result = to_gpu(blank(to_type, end))
            self.driver.launch(function, pieces_of(pieces, result), *bases, *(each or ()))
            computed = reference.fold(dtype, how, sources, each)
            if to_type != dtype:
                computed = reference.convert(dtype, to_type, computed, 1.0)
            yield f"terms {each}", result, placed(blank(to_type, end), pieces, computed)
        if to_type != dtype:
            return
        result = data[-1]
        self.driver.launch(function, pieces_of([(0, 0, end)], result), *bases, *(terms[0] or ()))
        yield "in place of the last source", result, reference.fold(dtype, how, sources, terms[0])


def to_bytes(elements: Array) -> Array:
    guard = np.full(GUARD, SENTINEL, dtype=np.uint8)
    return np.concatenate([guard, np.ascontiguousarray(elements).view(np.uint8), guard])


def blank(dtype: str, count: int) -> Array:
    kind = reference.stored(dtype)
    return np.full(count * kind.itemsize, SENTINEL, dtype=np.uint8).view(kind)


def placed(result: Array, pieces: list[Span], computed: Array) -> Array:
    for start, to, count in pieces:
        result[to : to + count] = computed[start : start + count]
    return result


def table(pieces: list[Span], source: torch.Tensor, result: torch.Tensor, sizes: tuple[int, int] = (1, 1)) -> Table:
    a, b = source.data_ptr() + GUARD, result.data_ptr() + GUARD
    return Table([(a + start * sizes[0], b + to * sizes[1], count) for start, to, count in pieces])


def resnet50() -> list[int]:
    """Elements of the 161 tensors that ResNet-50 trains."""
    sizes, width_in = [64 * 3 * 49, 64, 64], 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            sizes += [
                width_in * width,
                width,
                width,
                width * width * 9,
                width,
                width,
                width * width * 4,
                width * 4,
                width * 4,
            ]
            if block == 0:
                sizes += [width_in * width * 4, width * 4, width * 4]
            width_in = width * 4
    return [*sizes, 2048 * 1000, 1000]


def seconds(work: Any, repeat: int = 30) -> float:
    """Measure how long one of many takes on the GPU."""
    for _ in range(3):
        work()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeat):
        work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / repeat


def measure(driver: Driver, functions: dict[str, ctypes.c_void_p]) -> None:
    """Print the bandwidth of what has to be fast, as a ratio of a plain copy's.

    The first size of pieces is that of ``Kernel::divide``; others are shown beside it.
    """
    sizes = resnet50()
    bytes_of = [4 * size for size in sizes]
    starts = np.concatenate([[0], np.cumsum([(size + 511) // 512 * 512 for size in bytes_of])]).tolist()
    total = sum(bytes_of)
    sources = [torch.zeros(starts[-1], dtype=torch.uint8, device="cuda") for _ in range(4)]
    result = torch.zeros(starts[-1], dtype=torch.uint8, device="cuda")
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    copy = 2 * starts[-1] / seconds(lambda: result.copy_(sources[0]))
    print(f"copy of {total / 1e6:.0f} MB in {len(sizes)} tensors: {copy / 1e12:.2f} TB/s; others as a ratio of that")

    spans = list(zip(starts, starts, bytes_of))
    whole = [(0, 0, starts[-1])]
    rule = min(max(total // (processors * 32), 4 << 10), 64 << 10)
    for length in (rule, 8 << 10, 64 << 10, 256 << 10):
        length = (length + 63) // 64 * 64
        pieces = cut(spans, length)
        moved = Table([(sources[0].data_ptr() + a, result.data_ptr() + b, n) for a, b, n in pieces])
        folded = Table([(a, result.data_ptr() + b, n // 4) for a, b, n in pieces])
        alone = Table([(sources[0].data_ptr() + a, result.data_ptr() + b, n) for a, b, n in cut(whole, length)])
        bases = [source.data_ptr() for source in sources]
        average = (1.0, 1.0, 2)
        rates = {
            "move": 2 * total / seconds(lambda t=moved: driver.launch(functions["ronde_move"], t)),
            "move of one span": 2 * total / seconds(lambda t=alone: driver.launch(functions["ronde_move"], t)),
        }
        for name, count, words in (
            ("float32_sum_2", 2, ()),
            ("float32_sum_4", 4, ()),
            ("float16_sum_2", 2, ()),
            ("float32_sum_2_scaled", 2, average),
            ("bfloat16_sum_4_scaled", 4, average),
        ):
            entry = functions[f"ronde_fold_{name}"]
            narrow = 2 if "16" in name.split("_")[0] else 1
            terms = [*bases[:count], *words]
            each = Table([(a, result.data_ptr() + b, n // 4 * narrow) for a, b, n in pieces]) if narrow == 2 else folded
            rates[name] = (count + 1) * total / seconds(lambda e=entry, t=each, v=terms: driver.launch(e, t, *v))
        shown = ", ".join(f"{name} {rate / copy:.2f}" for name, rate in rates.items())
        print(f"pieces of {length / 1024:.0f} KiB ({len(pieces)}): {shown}")


def cut(spans: list[Span], length: int) -> list[Span]:
    return [(a + at, b + at, min(length, n - at)) for a, b, n in spans for at in range(0, n, length)]


def main() -> int:
    """Check the kernels of the folder that is named."""
    parser = argparse.ArgumentParser(description="Checks every kernel on a GPU, to the bit.")
    parser.add_argument("folder", type=Path, help="where the example kernel_texts of ronde-cuda wrote them")
    parser.add_argument("--no-figures", action="store_true", help="measure nothing")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no GPU that PyTorch can use here")
    folder = arguments.folder
    index = json.loads((folder / "index.json").read_text())
    Table.threads = index["threads"]
    driver = Driver()
    began = time.monotonic()
    names = [entry["entry"] for entry in index["kernels"]]
    with ThreadPoolExecutor() as pool:
        functions = dict(zip(names, pool.map(lambda name: driver.load(folder / f"{name}.ptx"), names)))
    compiled = time.monotonic()
    checks = Checks(driver)
    for entry in index["kernels"]:
        checks.kernel(entry, functions[entry["entry"]])
    print(f"compiled in {compiled - began:.1f} s, checked in {time.monotonic() - compiled:.1f} s")
    if not arguments.no_figures:
        measure(driver, functions)
    print(f"kernels: {checks.checked} checked, {len(checks.failed)} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
