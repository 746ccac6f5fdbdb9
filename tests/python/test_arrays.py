"""What counts as an array and what kind comes back; a job of size 1 is enough for that."""

from __future__ import annotations

import array
import subprocess
import sys
import textwrap
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ronde

pytestmark = pytest.mark.usefixtures("alone")


class OnlyDlpack:
    """A tensor of a library that offers nothing but DLPack, in its present or its first form."""

    def __init__(self, values: np.ndarray, versioned: bool) -> None:
        self.values = values
        self.versioned = versioned

    def __dlpack__(self, **options: Any) -> Any:
        if not self.versioned and options:
            raise TypeError("__dlpack__() takes no arguments")
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.values.__dlpack_device__()


@pytest.mark.parametrize(
    "given",
    [
        np.arange(12.0).reshape(3, 4).T,
        np.arange(12)[::-2],
        np.asfortranarray(np.arange(12, dtype=np.int16).reshape(3, 4)),
        np.arange(6, dtype=">f4"),
        np.frombuffer(bytes(range(8)), np.uint8),
        np.float32(2.5),
    ],
    ids=["transposed", "reversed", "fortran", "other byte order", "read-only", "scalar"],
)
def test_any_layout_is_taken_and_comes_back_as_a_plain_numpy_array(given: np.ndarray) -> None:
    result = ronde.allreduce(given, op=ronde.Sum)
    assert isinstance(result, np.ndarray)
    assert result.flags.c_contiguous
    assert result.dtype.isnative
    np.testing.assert_array_equal(result, given)


@pytest.mark.parametrize(
    "given", [array.array("f", [1.0, 2.0]), b"\x01\x02", bytearray(b"\x01\x02"), memoryview(b"\x01\x02")]
)
def test_plain_buffers_come_back_as_numpy_arrays(given: Any) -> None:
    result = ronde.allreduce(given, op=ronde.Sum)
    assert isinstance(result, np.ndarray)
    assert result.tolist() == [1, 2]


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "int64", "float16", "float64", "bool"])
def test_dlpack_alone_is_enough(dtype: str, versioned: bool) -> None:
    values = np.arange(6).reshape(2, 3).astype(dtype)
    for layout in (values, values.T):
        result = ronde.broadcast(OnlyDlpack(layout, versioned), root_rank=0)
        assert result.dtype == values.dtype
        np.testing.assert_array_equal(result, layout)


def test_dlpack_tensors_change_in_place() -> None:
    values = np.ones(3)
    tensor = OnlyDlpack(values, versioned=True)
    assert ronde.allreduce_(tensor, postscale_factor=4.0) is tensor
    assert values.tolist() == [4.0, 4.0, 4.0]


def test_plain_buffers_change_in_place() -> None:
    values = array.array("d", [1.0, 2.0])
    ronde.allreduce_(values, postscale_factor=2.0)
    assert values.tolist() == [2.0, 4.0]


def test_bfloat16_stays_bfloat16() -> None:
    result = ronde.allreduce(np.array([1.5, 2.0], ml_dtypes.bfloat16))
    assert result.dtype == ml_dtypes.bfloat16
    assert result.astype(float).tolist() == [1.5, 2.0]


@pytest.mark.parametrize("given", [np.arange(6)[::2], np.ones((2, 3)).T, np.arange(6, dtype=">i4")])
def test_in_place_refuses_what_it_would_have_to_copy(given: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"C-contiguous.*allreduce takes any array"):
        ronde.allreduce_(given)


@pytest.mark.parametrize("given", [b"abc", np.frombuffer(b"abc", np.uint8)])
def test_in_place_refuses_what_is_read_only(given: Any) -> None:
    with pytest.raises(ValueError, match="read-only"):
        ronde.broadcast_(given, root_rank=0)


@pytest.mark.parametrize("dtype", ["uint32", "complex64", "datetime64[s]", "object"])
def test_another_element_type_is_named_with_those_there_are(dtype: str) -> None:
    name = np.dtype(dtype).name
    with pytest.raises(ValueError, match=rf"{name.partition('[')[0]}.*not supported.*float32, float64, bool"):
        ronde.allreduce(np.zeros(2, dtype))


@pytest.mark.parametrize("given", [[1.0, 2.0], 3.0, "text", None])
def test_what_is_no_array_is_named(given: Any) -> None:
    with pytest.raises(TypeError, match=rf"expected an array.*not {type(given).__name__}"):
        ronde.allreduce(given)


@pytest.mark.parametrize("op", [-1, 6, 1 << 40])
def test_an_unknown_reduction_is_refused_with_the_known_ones(op: int) -> None:
    with pytest.raises(ValueError, match=r"Average \(0\), Sum \(1\)"):
        ronde.allreduce(np.zeros(2), op=op)


@pytest.mark.parametrize(
    ("splits", "message"),
    [([1, 2], "2 entries, but the job has 1"), ([2], "do not add up to the 3 rows"), ([-3], "do not add up")],
)
def test_splits_have_to_fit(splits: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ronde.alltoall(np.zeros(3), splits)


@pytest.mark.parametrize("root", [-1, 1])
def test_the_root_has_to_be_a_rank(root: int) -> None:
    with pytest.raises(ValueError, match=f"root_rank {root} is not a rank"):
        ronde.broadcast(np.zeros(3), root)


def test_arrays_without_dimensions_have_no_rows_to_deal() -> None:
    with pytest.raises(ValueError, match="no dimensions"):
        ronde.reducescatter(np.array(1.0))
    with pytest.raises(ValueError, match="no dimensions"):
        ronde.alltoall(np.array(1.0))


WITHOUT_NUMPY = """
    import array, sys
    sys.modules["numpy"] = None  # what `import numpy` finds where it is not installed
    import ronde
    ronde.init()
    floats = ronde.allreduce(array.array("f", [1.5, 2.5]))
    assert isinstance(floats, memoryview) and floats.format == "f" and floats.tolist() == [1.5, 2.5]
    table = memoryview(bytes(range(12))).cast("h", (2, 3))
    assert ronde.broadcast(table, root_rank=0).tolist() == table.tolist()
    assert ronde.allgather(table).shape == (2, 3)
    assert ronde.allreduce(memoryview(array.array("i", range(6)))[::2]).tolist() == [0, 2, 4]
    assert ronde.allreduce(memoryview(b"\\x07").cast("B", ())).tolist() == 7
    assert ronde.allreduce(array.array("d")).tolist() == []
    rows, received = ronde.alltoall(array.array("q", [8, 9]), [2])
    assert rows.tolist() == [8, 9] and received.tolist() == [2]
    number = bytearray(b"\\x05")
    assert ronde.allreduce_(number, op=ronde.Sum, postscale_factor=3.0) is number and number[0] == 15
    for wrong in (array.array("I", [1]), memoryview(b"ab").cast("c")):
        try:
            ronde.allreduce(wrong)
        except ValueError as error:
            assert "not supported" in str(error)
        else:
            raise AssertionError(wrong)
"""


def test_plain_buffers_work_without_numpy() -> None:
    subprocess.run([sys.executable, "-c", textwrap.dedent(WITHOUT_NUMPY)], check=True, timeout=60)
