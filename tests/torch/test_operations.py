"""Every operation gives what its definition says: all types, one to three dimensions, all ranks or some of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

import horovod.torch as hvd
from together import on_ranks

WHOLE = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
REAL = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
EVERY = [*WHOLE, *REAL, torch.bool]
SHAPES = [(17,), (3, 5), (2, 3, 4)]


def numbers(rank: int, shape: tuple[int, ...], dtype: torch.dtype, rows: int | None = None) -> Tensor:
    """Return what a rank contributes: small whole numbers, different on each rank, exact in every type."""
    if rows is not None:
        shape = (rows, *shape[1:])
    count = torch.Size(shape).numel()
    values = (torch.arange(count) * (rank + 1) + rank) % 5
    return values.reshape(shape).to(dtype)


def sets() -> Iterator[hvd.ProcessSet]:
    """Yield all ranks, and a set that leaves rank 0 out, on those that belong to it."""
    yield hvd.global_process_set
    if hvd.size() == 1:
        return
    some = hvd.add_process_set(list(range(1, hvd.size())))
    if some.included():
        yield some
    hvd.barrier()
    assert hvd.remove_process_set(some)


def cases(
    dtypes: list[torch.dtype], shapes: list[tuple[int, ...]] = SHAPES
) -> Iterator[tuple[hvd.ProcessSet, list[int], tuple[int, ...], torch.dtype]]:
    for process_set in sets():
        for dtype, shape in itertools.product(dtypes, shapes):
            assert process_set.ranks is not None
            yield process_set, process_set.ranks, shape, dtype


def same(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert torch.equal(found, expected), f"{found} is not {expected}"


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.float(), expected.float(), rtol=1e-2, atol=1e-2)
    assert found.shape == expected.shape


def everybodys(ranks: list[int], shape: tuple[int, ...], rows: int | None = None) -> Tensor:
    """Return what the ranks contribute, one after the other, wide enough that nothing computed of it overflows."""
    return torch.stack([numbers(rank, shape, torch.int64, rows) for rank in ranks])


def total(ranks: list[int], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return everybodys(ranks, shape).sum(0).to(dtype)


@on_ranks(1, 2, 3, 4)
def test_allreduce_adds_up_in_all_four_forms() -> None:
    for process_set, ranks, shape, dtype in cases([*WHOLE, *REAL]):
        mine = numbers(hvd.rank(), shape, dtype)
        kept = mine.clone()
        expected = total(ranks, shape, dtype)
        same(hvd.allreduce(mine, op=hvd.Sum, process_set=process_set), expected)
        same(hvd.synchronize(hvd.allreduce_async(mine, op=hvd.Sum, process_set=process_set)), expected)
        same(mine, kept)
        assert hvd.allreduce_(mine, op=hvd.Sum, process_set=process_set) is mine
        same(mine, expected)
        mine.copy_(kept)
        assert hvd.synchronize(hvd.allreduce_async_(mine, op=hvd.Sum, process_set=process_set)) is mine
        same(mine, expected)


@on_ranks(1, 2, 3, 4)
def test_allreduce_averages_by_default_and_exactly_for_whole_numbers() -> None:
    for process_set, ranks, shape, dtype in cases([*WHOLE, *REAL]):
        found = hvd.allreduce(numbers(hvd.rank(), shape, dtype), process_set=process_set)
        exact = total(ranks, shape, torch.float64) / len(ranks)
        if dtype.is_floating_point:
            close(found, exact.to(dtype))
        else:
            same(found, exact.trunc().to(dtype))


@on_ranks(1, 2, 3, 4)
def test_min_max_and_product() -> None:
    for process_set, ranks, shape, dtype in cases([*WHOLE, *REAL]):
        everybody = everybodys(ranks, shape)
        mine = numbers(hvd.rank(), shape, dtype)
        same(hvd.allreduce(mine, op=hvd.Min, process_set=process_set), everybody.amin(0).to(dtype))
        same(hvd.allreduce(mine, op=hvd.Max, process_set=process_set), everybody.amax(0).to(dtype))
        # Four times 4 is more than 8 bits hold: what is left of it is the same everywhere.
        same(hvd.allreduce(mine, op=hvd.Product, process_set=process_set), everybody.prod(0).to(dtype))


@on_ranks(1, 2, 3, 4)
def test_bool_is_reduced_by_or_and_and() -> None:
    for process_set, ranks, shape, dtype in cases([torch.bool]):
        everybody = everybodys(ranks, shape).bool()
        mine = numbers(hvd.rank(), shape, dtype)
        same(hvd.allreduce(mine, op=hvd.Max, process_set=process_set), everybody.any(0))
        same(hvd.allreduce(mine, op=hvd.Min, process_set=process_set), everybody.all(0))


@on_ranks(1, 2, 3, 4)
def test_factors_are_applied_before_and_after() -> None:
    for process_set, ranks, shape, dtype in cases(REAL):
        mine = numbers(hvd.rank(), shape, dtype)
        found = hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0, process_set=process_set)
        same(found, total(ranks, shape, torch.int64).mul(2).to(dtype))


@on_ranks(2)
def test_the_old_argument_average_still_works() -> None:
    ones = torch.ones(2)
    assert hvd.allreduce(ones, average=False).tolist() == [2.0, 2.0]
    assert hvd.allreduce(ones, True).tolist() == [1.0, 1.0]
    assert hvd.allreduce_(ones, average=False).tolist() == [2.0, 2.0]


@on_ranks(2, 4)
def test_adasum_keeps_equal_and_adds_orthogonal_vectors() -> None:
    for dtype, shape in itertools.product(REAL, SHAPES):
        equal = numbers(1, shape, dtype)
        close(hvd.allreduce(equal, op=hvd.Adasum), equal)
        orthogonal = torch.zeros(shape, dtype=dtype)
        orthogonal.view(-1)[hvd.rank()] = 1.0
        expected = torch.zeros(shape, dtype=dtype)
        expected.view(-1)[: hvd.size()] = 1.0
        found = hvd.allreduce(orthogonal, op=hvd.Adasum)
        assert found.dtype == dtype
        close(found, expected)


@on_ranks(1, 2, 3, 4)
def test_compression_travels_in_16_bits_and_comes_back_in_the_type_it_had() -> None:
    for dtype, (compression, narrow) in itertools.product(
        [torch.float32, torch.float64],
        [(hvd.Compression.fp16, torch.float16), (hvd.Compression.bf16, torch.bfloat16)],
    ):
        # This number is not one of 16 bits, so what comes back shows that it was rounded.
        mine = torch.full((5,), 1.0001, dtype=dtype)
        expected = mine.to(narrow).to(dtype)
        assert not torch.equal(mine, expected)
        same(hvd.allreduce(mine, compression=compression), expected)
        for found in hvd.grouped_allreduce([mine, mine], compression=compression):
            same(found, expected)
        same(hvd.reducescatter(mine, compression=compression), expected[: found_rows(5)])
    same(hvd.allreduce(torch.tensor([3]), compression=hvd.Compression.fp16), torch.tensor([3]))


def found_rows(rows: int) -> int:
    each, more = divmod(rows, hvd.size())
    return each + (hvd.rank() < more)


@on_ranks(1, 2, 3, 4)
def test_grouped_allreduce_in_all_four_forms() -> None:
    # A group has tensors of all shapes, so one shape of each case is enough.
    for process_set, ranks, _, dtype in cases([*WHOLE, *REAL], shapes=SHAPES[:1]):
        kinds = [dtype, torch.float64, dtype]
        mine = [numbers(hvd.rank(), shape, kind) for shape, kind in zip(SHAPES, kinds)]
        expected = [total(ranks, shape, kind) for shape, kind in zip(SHAPES, kinds)]
        forms = [
            hvd.grouped_allreduce(mine, op=hvd.Sum, process_set=process_set),
            hvd.synchronize(hvd.grouped_allreduce_async(mine, op=hvd.Sum, process_set=process_set)),
            hvd.grouped_allreduce_([t.clone() for t in mine], op=hvd.Sum, process_set=process_set),
            hvd.synchronize(
                hvd.grouped_allreduce_async_([t.clone() for t in mine], op=hvd.Sum, process_set=process_set)
            ),
        ]
        assert isinstance(forms[0], list)
        assert isinstance(forms[1], tuple)
        for form, (found, wanted) in itertools.product(range(4), enumerate(expected)):
            same(forms[form][found], wanted)
        assert hvd.grouped_allreduce_(mine, op=hvd.Sum, process_set=process_set)[0] is mine[0]


@on_ranks(1, 2, 3, 4)
def test_allgather_joins_different_numbers_of_rows() -> None:
    for process_set, ranks, shape, dtype in cases(EVERY):
        # One of them has none at all.
        mine = numbers(hvd.rank(), shape, dtype, rows=hvd.rank())
        expected = torch.cat([numbers(rank, shape, dtype, rows=rank) for rank in ranks])
        same(hvd.allgather(mine, process_set=process_set), expected)
        same(hvd.synchronize(hvd.allgather_async(mine, process_set=process_set)), expected)
        first, second = hvd.grouped_allgather([mine, mine[:0]], process_set=process_set)
        same(first, expected)
        same(second, expected[:0])
        handle = hvd.grouped_allgather_async([mine], process_set=process_set)
        same(hvd.synchronize(handle)[0], expected)


@on_ranks(1, 2, 3, 4)
def test_broadcast_in_all_four_forms_from_every_root() -> None:
    for process_set, ranks, shape, dtype in cases(EVERY):
        mine = numbers(hvd.rank(), shape, dtype)
        kept = mine.clone()
        for root in ranks:
            same(hvd.broadcast(mine, root, process_set=process_set), numbers(root, shape, dtype))
        root = ranks[-1]
        expected = numbers(root, shape, dtype)
        same(hvd.synchronize(hvd.broadcast_async(mine, root, process_set=process_set)), expected)
        same(mine, kept)
        assert hvd.broadcast_(mine, root, process_set=process_set) is mine
        same(mine, expected)
        mine.copy_(kept)
        assert hvd.synchronize(hvd.broadcast_async_(mine, root, process_set=process_set)) is mine
        same(mine, expected)


@on_ranks(1, 2, 3, 4)
def test_alltoall_with_and_without_splits() -> None:
    for process_set, ranks, shape, dtype in cases(EVERY):
        place, size = process_set.rank(), len(ranks)
        even = [numbers(rank, shape, dtype, rows=2 * size) for rank in ranks]
        expected = torch.cat([t[2 * place : 2 * place + 2] for t in even])
        same(hvd.alltoall(even[place], process_set=process_set), expected)
        rows, received = hvd.synchronize(hvd.alltoall_async(even[place], process_set=process_set))
        same(rows, expected)
        assert received.tolist() == [2] * size

        # Rank r sends r + i rows to the i-th rank, and keeps one row that nobody gets.
        splits = {rank: [rank + i for i in range(size)] for rank in ranks}
        uneven = [numbers(rank, shape, dtype, rows=sum(splits[rank]) + 1) for rank in ranks]
        expected = torch.cat([t.split([*splits[rank], 1])[place] for rank, t in zip(ranks, uneven)])
        mine = splits[hvd.rank()]
        for given in (mine, tuple(mine), torch.tensor(mine, dtype=torch.int32)):
            rows, received = hvd.alltoall(uneven[place], splits=given, process_set=process_set)
            same(rows, expected)
            # It is where the splits were.
            where = given.device if isinstance(given, Tensor) else "cpu"
            same(received, torch.tensor([splits[rank][place] for rank in ranks], dtype=torch.int32, device=where))


@on_ranks(1, 2, 3, 4)
def test_reducescatter_shares_rows_out_unevenly() -> None:
    for process_set, ranks, shape, dtype in cases([*WHOLE, *REAL]):
        place, size = process_set.rank(), len(ranks)
        rows = 2 * size + 1
        own = everybodys(ranks, shape, rows).sum(0).split([3, *[2] * (size - 1)])[place]
        mine = numbers(hvd.rank(), shape, dtype, rows)
        same(hvd.reducescatter(mine, op=hvd.Sum, process_set=process_set), own.to(dtype))
        handle = hvd.reducescatter_async(mine, op=hvd.Sum, process_set=process_set)
        same(hvd.synchronize(handle), own.to(dtype))
        for found in hvd.grouped_reducescatter([mine, mine], op=hvd.Sum, process_set=process_set):
            same(found, own.to(dtype))
        handle = hvd.grouped_reducescatter_async([mine], op=hvd.Sum, process_set=process_set)
        same(hvd.synchronize(handle)[0], own.to(dtype))
        if dtype.is_floating_point:
            found = hvd.reducescatter(mine, process_set=process_set, prescale_factor=3.0, postscale_factor=0.5)
            close(found, (own.double() / size * 1.5).to(dtype))


@on_ranks(2)
def test_tensors_in_any_order_of_memory_are_taken() -> None:
    plain = numbers(hvd.rank(), (4, 6), torch.float32)
    expected = total([0, 1], (4, 6), torch.float32)
    for arrange in (lambda t: t.t(), lambda t: t[:, ::2], lambda t: t.t()[::2]):
        mine = arrange(plain.clone())
        assert not mine.is_contiguous()
        same(hvd.allreduce(mine, op=hvd.Sum), arrange(expected))
        same(hvd.allgather(mine), torch.cat([arrange(numbers(rank, (4, 6), torch.float32)) for rank in (0, 1)]))
        same(hvd.broadcast(mine, 1), arrange(numbers(1, (4, 6), torch.float32)))
        assert hvd.allreduce_(mine, op=hvd.Sum) is mine
        same(mine, arrange(expected))
        hvd.grouped_allreduce_([mine], op=hvd.Max)
        same(mine, arrange(expected))
        mine = arrange(plain.clone())
        hvd.broadcast_(mine, 1)
        same(mine, arrange(numbers(1, (4, 6), torch.float32)))


@on_ranks(2)
def test_scalars_and_empty_tensors() -> None:
    assert hvd.allreduce(torch.tensor(1.5), op=hvd.Sum).item() == 3.0
    assert hvd.allreduce(torch.tensor(1.5), op=hvd.Sum).shape == ()
    assert hvd.broadcast(torch.tensor(hvd.rank()), 1).item() == 1
    assert hvd.allreduce(torch.empty(0, 3)).shape == (0, 3)
    assert hvd.allgather(torch.empty(0, 3)).shape == (0, 3)
    assert hvd.alltoall(torch.empty(0, 3)).shape == (0, 3)
    assert hvd.reducescatter(torch.empty(0, 3)).shape == (0, 3)


@on_ranks(2)
def test_in_place_forms_work_on_what_autograd_tracks() -> None:
    weights = torch.nn.Parameter(torch.full((3,), float(hvd.rank())))
    assert hvd.broadcast_(weights, 1) is weights
    assert weights.tolist() == [1.0] * 3
    assert hvd.allreduce_(weights, op=hvd.Sum) is weights
    assert weights.tolist() == [2.0] * 3
    assert weights.requires_grad


@on_ranks(2, 3, 4)
def test_many_operations_at_once_in_different_orders() -> None:
    names = [f"at once {number}" for number in range(200)]
    order = names if hvd.rank() % 2 else names[::-1]
    handles = {
        name: hvd.allreduce_async(torch.full((names.index(name) + 1,), 1.0), name=name, op=hvd.Sum) for name in order
    }
    for name in names:
        found = hvd.synchronize(handles[name])
        same(found, torch.full((names.index(name) + 1,), float(hvd.size())))


@on_ranks(2)
def test_poll_says_when_an_operation_is_over() -> None:
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(2), name="polled")
        # The other rank starts its half only after this, so it cannot be over.
        assert not hvd.poll(handle)
        hvd.barrier()
    else:
        hvd.barrier()
        handle = hvd.allreduce_async(torch.ones(2), name="polled")
    hvd.synchronize(handle)
    assert hvd.poll(handle)
    assert hvd.synchronize(handle) is None


@on_ranks(2)
def test_a_tensor_that_its_owner_forgets_stays_alive() -> None:
    handles = [
        hvd.allreduce_async(torch.full((100_000,), float(number)), name=f"forgotten {number}", op=hvd.Sum)
        for number in range(10)
    ]
    for number, handle in enumerate(handles):
        assert torch.equal(hvd.synchronize(handle), torch.full((100_000,), 2.0 * number))


@on_ranks(2, 3, 4)
def test_sparse_tensors_are_reduced_as_places_and_values() -> None:
    rank, size = hvd.rank(), hvd.size()
    places = torch.tensor([[0, rank + 1, rank + 1]])
    mine = torch.sparse_coo_tensor(places, torch.tensor([[1.0, 2.0]] * 3), (size + 2, 2), check_invariants=True)
    for op, divisor in ((hvd.Sum, 1), (hvd.Average, size)):
        reduced = hvd.sparse_allreduce_async(mine, name="sparse", op=op)()
        assert reduced.is_sparse
        expected = torch.tensor([[size * 1.0, size * 2.0], *[[2.0, 4.0]] * size, [0.0, 0.0]]) / divisor
        torch.testing.assert_close(reduced.to_dense(), expected)


@on_ranks(2, 3, 4)
def test_join_contributes_zeros_and_names_the_last() -> None:
    rank, size = hvd.rank(), hvd.size()
    for turn in range(rank + 1):
        # Ranks below `turn` have joined already; an average still divides by all.
        left = size - turn
        found = hvd.allreduce(torch.ones(4), name=f"before join {turn}", op=hvd.Sum)
        assert found.tolist() == [float(left)] * 4
        found = hvd.allreduce(torch.ones(4), name=f"average before join {turn}")
        torch.testing.assert_close(found, torch.full((4,), left / size))
    assert hvd.join() == size - 1
    # And again, the other way round: the job is as it was.
    for turn in range(size - rank):
        hvd.allreduce(torch.ones(1), name=f"second join {turn}")
    assert hvd.join() == 0
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == size


@on_ranks(2, 3)
def test_operations_without_a_name_pair_up_again_after_a_join() -> None:
    for _ in range(hvd.rank()):
        hvd.allreduce(torch.ones(1))
    hvd.join()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


@on_ranks(3)
def test_unnamed_operations_of_a_set_do_not_disturb_the_count_of_others() -> None:
    pair = hvd.add_process_set([0, 2])
    if pair.included():
        for _ in range(3):
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=pair).item() == 2
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 3
    hvd.remove_process_set(pair)
    # The number of the set is used again, by other members.
    other = hvd.add_process_set([1, 2])
    if other.included():
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=other).item() == 2
    hvd.remove_process_set(other)
    # And one rank registers the object it had before, with what it has counted, while the others make a new one.
    again = hvd.add_process_set(pair if hvd.rank() == 0 else [0, 2])
    if again.included():
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=again).item() == 2
    hvd.remove_process_set(again)


@on_ranks(3)
def test_process_sets_know_their_members() -> None:
    everybody = hvd.global_process_set
    assert (everybody.process_set_id, everybody.ranks, everybody.size()) == (0, [0, 1, 2], 3)
    assert everybody.rank() == hvd.rank()
    assert everybody.included()
    unregistered = hvd.ProcessSet([2, 0])
    assert (unregistered.process_set_id, unregistered.ranks, unregistered.size()) == (None, [0, 2], None)
    pair = hvd.add_process_set(unregistered)
    assert pair is unregistered
    assert (pair.process_set_id, pair.size(), pair.included()) == (1, 2, hvd.rank() != 1)
    if pair.included():
        assert pair.rank() == [0, None, 1][hvd.rank()]
    assert "ranks=[0, 2]" in str(pair)
    assert hvd.remove_process_set(pair)
    assert pair.process_set_id is None
    assert not hvd.remove_process_set(pair)
    assert not hvd.remove_process_set(everybody)
    alone = hvd.add_process_set([1])
    if alone.included():
        hvd.barrier(process_set=alone)
        assert hvd.allgather(torch.ones(2), process_set=alone).tolist() == [1.0, 1.0]
    hvd.remove_process_set(alone)
