"""The operations as the library registers them: eagerly, in functions and in graphs, without what users call."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format

from ranks import on_ranks as run_job
from ronde._basics import basics
from ronde._plugin import path_of
from ronde.process_sets import add_process_set, remove_process_set
from ronde.tensorflow._library import is_asynchronous, ops
from ronde.tensorflow.naming import let_run
from together import on_ranks

AVERAGE, SUM, MINIMUM = 0, 1, 3
TYPES = [tf.float32, tf.bfloat16, tf.int64, tf.uint8]
FACTORS = {"prescale_factor": 1.0, "postscale_factor": 1.0}
# The last version whose C interface reaches variables.
CHANGES_IN_PLACE = tuple(map(int, tf.__version__.split(".")[:2])) <= (2, 18)


def summed(tensor: Any, **attributes: Any) -> Any:
    """Return the sum over all ranks."""
    return let_run(ops.horovod_allreduce(tensor, reduce_op=SUM, **FACTORS, **attributes))


def all_operations(tensor: Any) -> dict[str, Any]:
    """Run every collective on a tensor of 2 columns, with rank + 2 rows where ranks may differ."""
    own = tensor[: basics.rank() + 2]
    exchanged, received = ops.horovod_alltoall(own, splits=[1, basics.rank() + 1])
    return {
        "allreduce": summed(tensor),
        "average": ops.horovod_allreduce(tensor, reduce_op=AVERAGE, **FACTORS),
        "scaled": ops.horovod_allreduce(tensor, reduce_op=SUM, prescale_factor=2.0, postscale_factor=2.0),
        "grouped_allreduce": ops.horovod_grouped_allreduce([tensor, own[0]], reduce_op=SUM, **FACTORS),
        "allgather": ops.horovod_allgather(own),
        "grouped_allgather": ops.horovod_grouped_allgather([own, tensor]),
        "broadcast": ops.horovod_broadcast(tensor * tf.cast(ops.horovod_rank() + 1, tensor.dtype), root_rank=1),
        "reducescatter": ops.horovod_reducescatter(tensor, reduce_op=SUM),
        "grouped_reducescatter": ops.horovod_grouped_reducescatter([tensor, tensor[:1]], reduce_op=SUM),
        "exchanged": exchanged,
        "received": received,
        "place": tf.stack([ops.horovod_size(), ops.horovod_local_size(), ops.horovod_rank(), ops.horovod_local_rank()]),
    }


def test_on_gpus_all_tensors_are_in_host_memory() -> None:
    """Nodes may be placed on a GPU; TensorFlow then brings tensors to the host and back, in its own order."""
    from tensorflow.python.framework import kernels, op_def_registry

    for name in ("HorovodAllreduce", "HorovodGroupedAllgather", "HorovodAlltoall", "HorovodJoin", "HorovodRank"):
        found = {kernel.device_type: kernel for kernel in kernels.get_registered_kernels_for_op(name).kernel}
        definition = op_def_registry.get(name)
        arguments = {argument.name for argument in [*definition.input_arg, *definition.output_arg]}
        assert set(found) == {"CPU", "GPU"}, name
        assert set(found["GPU"].host_memory_arg) == arguments, name
    variables = kernels.get_registered_kernels_for_op("HorovodBroadcastInplace").kernel
    assert [kernel.device_type for kernel in variables] == ["CPU"]


def expected(tensor: np.ndarray, rank: int) -> dict[str, Any]:
    """Return what the operations give on one of two ranks."""
    share = tensor[:2] if rank == 0 else tensor[2:]
    return {
        "allreduce": tensor * 2,
        "average": tensor,
        "scaled": tensor * 8,
        "grouped_allreduce": [tensor * 2, tensor[0] * 2],
        "allgather": np.concatenate([tensor[:2], tensor[:3]]),
        "grouped_allgather": [np.concatenate([tensor[:2], tensor[:3]]), np.concatenate([tensor, tensor])],
        "broadcast": tensor * 2,
        "reducescatter": share * 2,
        "grouped_reducescatter": [share * 2, tensor[: 1 - rank] * 2],
        "exchanged": np.stack([tensor[0], tensor[0]]) if rank == 0 else tensor[[1, 1, 2]],
        "received": np.array([1, 1] if rank == 0 else [1, 2]),
        "place": np.array([2, 2, rank, rank]),
    }


def check_all_operations(run: Callable[[Any], dict[str, Any]]) -> None:
    """Compare what a function gives with what is expected, for some types."""
    for dtype in TYPES:
        tensor = np.arange(6).reshape(3, 2)
        found = run(tf.constant(tensor, dtype))
        wanted = expected(tensor, basics.rank())
        assert set(found) == set(wanted)
        for operation, values in wanted.items():
            values = values if isinstance(values, list) else [values]
            results = found[operation] if isinstance(found[operation], list) else [found[operation]]
            for value, result in zip(values, results):
                assert operation in ("received", "place") or tf.as_dtype(result.dtype) == dtype
                np.testing.assert_array_equal(np.asarray(result).astype(int), value, err_msg=f"{operation} of {dtype}")


def raises(error: type[Exception], text: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    """Check what a call raises."""
    with pytest.raises(error, match=text):
        function(*arguments, **named)


@on_ranks(2)
def test_every_operation_runs_eagerly() -> None:
    check_all_operations(all_operations)


@on_ranks(2)
def test_every_operation_runs_in_a_function_and_again_without_tracing() -> None:
    function = tf.function(all_operations)
    check_all_operations(function)
    check_all_operations(function)


@on_ranks(2)
def test_every_operation_runs_in_a_session() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        check_all_operations(lambda tensor: session.run(all_operations(tensor)))


@on_ranks(2)
def test_empty_tensors_and_scalars() -> None:
    rank = basics.rank()
    assert summed(tf.constant(rank + 1.0)).numpy() == 3.0
    assert summed(tf.zeros([0, 3])).shape == [0, 3]
    assert ops.horovod_broadcast(tf.zeros([0]), root_rank=0).shape == [0]
    assert ops.horovod_allgather(tf.zeros([0, 3])).shape == [0, 3]
    assert ops.horovod_allgather(tf.ones([2 * rank, 3])).shape == [2, 3]
    assert ops.horovod_reducescatter(tf.zeros([0, 3]), reduce_op=SUM).shape == [0, 3]
    assert ops.horovod_reducescatter(tf.ones([1]), reduce_op=SUM).numpy().tolist() == [2.0] * (1 - rank)
    exchanged, received = ops.horovod_alltoall(tf.zeros([0, 3]), splits=tf.constant([], tf.int32))
    assert (exchanged.shape, received.numpy().tolist()) == ([0, 3], [0, 0])
    exchanged, received = ops.horovod_alltoall(tf.range(4) + 10 * rank, splits=tf.constant([], tf.int32))
    assert exchanged.numpy().tolist() == ([0, 1, 10, 11] if rank == 0 else [2, 3, 12, 13])
    assert received.numpy().tolist() == [2, 2]


@on_ranks(2)
def test_shapes_are_known_as_far_as_they_can_be() -> None:
    shapes = {}

    @tf.function(input_signature=[tf.TensorSpec([4, 3]), tf.TensorSpec([None, 3]), tf.TensorSpec(None)])
    def look(full: Any, rows: Any, nothing: Any) -> None:
        exchanged, received = ops.horovod_alltoall(full, splits=[2, 2])
        shapes.update(
            allreduce=[summed(tensor).shape for tensor in (full, rows, nothing)],
            broadcast=ops.horovod_broadcast(rows, root_rank=0).shape,
            allgather=[ops.horovod_allgather(tensor).shape for tensor in (full, nothing)],
            grouped=[tensor.shape for tensor in ops.horovod_grouped_allgather([full, full[0]])],
            reducescatter=ops.horovod_reducescatter(full, reduce_op=SUM).shape,
            exchanged=exchanged.shape,
            received=received.shape,
            size=ops.horovod_size().shape,
            join=ops.horovod_join().shape,
        )

    look.get_concrete_function()
    known = {
        name: [str(shape) for shape in (found if isinstance(found, list) else [found])]
        for name, found in shapes.items()
    }
    assert known == {
        "allreduce": ["(4, 3)", "(None, 3)", "<unknown>"],
        "broadcast": ["(None, 3)"],
        "allgather": ["(None, 3)", "<unknown>"],
        "grouped": ["(None, 3)", "(None,)"],
        "reducescatter": ["(None, 3)"],
        "exchanged": ["(None, 3)"],
        "received": ["(None,)"],
        "size": ["()"],
        "join": ["()"],
    }


@on_ranks(2)
def test_shapes_that_cannot_work_are_refused_when_a_graph_is_built() -> None:
    scalar = [tf.TensorSpec([])]
    for refused in (
        tf.function(ops.horovod_allgather, input_signature=scalar),
        tf.function(lambda tensor: ops.horovod_reducescatter(tensor, reduce_op=SUM), input_signature=scalar),
        tf.function(lambda tensor: ops.horovod_alltoall(tensor, splits=[1, 1]), input_signature=scalar),
    ):
        raises(ValueError, "must be at least rank 1", refused.get_concrete_function)


@on_ranks(2)
def test_an_input_that_others_need_keeps_its_values() -> None:
    @tf.function
    def both(tensor: Any) -> tuple[Any, Any, Any]:
        doubled = tensor * 2.0
        return doubled, summed(doubled), ops.horovod_broadcast(doubled, root_rank=1)

    given = tf.fill([1000], basics.rank() + 1.0)
    for _ in range(10):
        doubled, reduced, sent = both(given)
        assert set(doubled.numpy()) == {2.0 * (basics.rank() + 1)}
        assert (set(reduced.numpy()), set(sent.numpy()), set(given.numpy())) == ({6.0}, {4.0}, {basics.rank() + 1.0})


@on_ranks(2)
def test_results_are_given_back_to_the_engine() -> None:
    """Each gather gives 16 MiB; all of them together would show."""
    tensor = tf.ones([2, 1 << 20])
    gather = tf.function(lambda tensor: (ops.horovod_allgather(tensor), summed(tensor)))
    for _ in range(3):
        gather(tensor)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(40):
        gather(tensor)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    assert grown < 200, f"{grown} MiB more"


# As Horovod saves them: without what the library adds.
SAVED = """
node { name: "x" op: "Placeholder" attr { key: "dtype" value { type: DT_FLOAT } } }
node {
  name: "HorovodAllreduce_x_0" op: "HorovodAllreduce" input: "x"
  attr { key: "T" value { type: DT_FLOAT } }
  attr { key: "reduce_op" value { i: 1 } }
  attr { key: "prescale_factor" value { f: 1.0 } }
  attr { key: "postscale_factor" value { f: 0.5 } }
}
node {
  name: "HorovodAllgather_x_0" op: "HorovodAllgather" input: "HorovodAllreduce_x_0"
  attr { key: "T" value { type: DT_FLOAT } }
  attr { key: "ignore_name_scope" value { b: true } }
  attr { key: "process_set_id" value { i: 0 } }
}
node {
  name: "HorovodReducescatter_x_0" op: "HorovodReducescatter" input: "HorovodAllgather_x_0"
  attr { key: "T" value { type: DT_FLOAT } }
  attr { key: "reduce_op" value { i: 0 } }
}
"""


@on_ranks(2)
def test_a_graph_that_horovod_saved_runs() -> None:
    saved = text_format.Parse(SAVED, tf.compat.v1.GraphDef())
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        given, result = tf.import_graph_def(saved, return_elements=["x:0", "HorovodReducescatter_x_0:0"], name="")
        assert session.run(result, {given: [basics.rank() + 1.0, 3.0]}).tolist() == [1.5, 3.0]


@on_ranks(2)
def test_names_match_whatever_scopes_are_around_them() -> None:
    def reduce(tensor: Any) -> Any:
        with tf.name_scope("inner" if basics.rank() == 0 else "other"):
            return summed(tensor, name="gradient", ignore_name_scope=True)

    assert tf.function(reduce)(tf.constant(1.0)).numpy() == 2.0
    named = tf.function(lambda tensor: summed(tensor, name=f"rank_{basics.rank()}", tensor_name="the/same"))
    assert named(tf.constant(2.0)).numpy() == 4.0
    assert summed(tf.constant(3.0), tensor_name="a name").numpy() == 6.0


@on_ranks(2)
def test_mismatches_fail_on_every_rank_and_the_job_goes_on() -> None:
    different = tf.ones([2 + basics.rank()])
    precondition = tf.errors.FailedPreconditionError
    named = tf.function(lambda: summed(different, name="wrong"))
    raises(precondition, r"HorovodAllreduce: .*Mismatched.*shape \(2\).*shape \(3\)", summed, different)
    raises(precondition, r'HorovodAllreduce: allreduce "wrong": Mismatched.*shape \(2\).*shape \(3\)', named)
    raises(precondition, "HorovodAllgather: .*without dimensions", ops.horovod_allgather, tf.constant(1.0))
    assert summed(tf.constant(1.0)).numpy() == 2.0


@on_ranks(2)
def test_arguments_that_cannot_be_right_are_refused() -> None:
    tensor, invalid = tf.ones([4]), tf.errors.InvalidArgumentError
    raises(invalid, "HorovodAllreduce: .*reduction", ops.horovod_allreduce, tensor, reduce_op=77, **FACTORS)
    raises(invalid, "HorovodAllreduce: .*no process set 99", summed, tensor, process_set_id=99)
    raises(invalid, "HorovodAllreduce: .*no process set -1", summed, tensor, process_set_id=-1)
    raises(invalid, "HorovodSize: .*no process set 99", ops.horovod_size, process_set_id=99)
    raises(invalid, "HorovodBroadcast: .*root rank 77", ops.horovod_broadcast, tensor, root_rank=77)
    raises(invalid, "HorovodReducescatter: .*no dimensions", ops.horovod_reducescatter, tensor[0], reduce_op=SUM)
    raises(
        tf.errors.AbortedError, "HorovodReducescatter: .*Average", ops.horovod_reducescatter, tensor, reduce_op=MINIMUM
    )


@on_ranks(2)
def test_ranks_hear_of_splits_that_another_rank_got_wrong() -> None:
    tensor = tf.ones([4])
    for wrong, text in (([[2], [2]], "not a list"), ([1, 2, 1], "3 splits for 2 ranks"), ([3, 3], "more than the 4")):
        if basics.rank() == 0:
            raises(
                tf.errors.InvalidArgumentError, f"HorovodAlltoall: .*{text}", ops.horovod_alltoall, tensor, splits=wrong
            )
        else:
            raises(tf.errors.OpError, "HorovodAlltoall: ", ops.horovod_alltoall, tensor, splits=[2, 2])


@on_ranks(2)
def test_process_sets_have_their_own_members_counts_and_shares() -> None:
    rank = basics.rank()
    first, second = add_process_set([0]), add_process_set([1])
    own, other = (first, second) if rank == 0 else (second, first)
    mine, theirs = own.process_set_id, other.process_set_id
    # Only one of the ranks counts these, in its own set.
    for _ in range(rank + 1):
        assert summed(tf.constant(5.0), process_set_id=mine).numpy() == 5.0
    assert summed(tf.constant(1.0)).numpy() == 2.0
    included = ops.horovod_process_set_included
    assert [included(process_set_id=number).numpy() for number in (0, mine, theirs, 99)] == [1, 1, 0, -3]
    assert [ops.horovod_size(process_set_id=number).numpy() for number in (0, mine, theirs)] == [2, 1, 1]
    scatter = ops.horovod_reducescatter
    assert scatter(tf.range(3), reduce_op=SUM, process_set_id=mine).numpy().tolist() == [0, 1, 2]
    raises(
        tf.errors.InvalidArgumentError, "not in process set", scatter, tf.range(3), reduce_op=SUM, process_set_id=theirs
    )
    raises(
        tf.errors.InvalidArgumentError, "HorovodAllreduce: .*process set", summed, tf.range(3), process_set_id=theirs
    )
    remove_process_set(first)
    remove_process_set(second)


@on_ranks(2)
def test_joined_ranks_take_part_until_all_have_joined() -> None:
    if basics.rank() == 0:
        last = tf.function(ops.horovod_join)()
    else:
        assert summed(tf.constant(2.0), tensor_name="while joined").numpy() == 2.0
        last = ops.horovod_join()
    assert last.numpy() == 1


@on_ranks(2)
def test_compiled_functions_are_refused() -> None:
    compiled = tf.function(summed, jit_compile=True)
    raises(tf.errors.InvalidArgumentError, "unsupported operations.*HorovodAllreduce", compiled, tf.ones([2]))


@on_ranks(2)
def test_variables_are_changed_in_place_or_that_is_refused() -> None:
    rank = basics.rank()
    weight, count = tf.Variable([rank + 1.0, 5.0]), tf.Variable(rank)

    def send(root: int) -> None:
        ops.horovod_broadcast_inplace_resource(
            [weight.handle, count.handle], root_rank=root, variable_names=["weight", "count"]
        )

    if not CHANGES_IN_PLACE:
        raises(tf.errors.UnimplementedError, "hvd.broadcast_variables", send, 0)
        raises(tf.errors.UnimplementedError, "hvd.broadcast_variables", tf.function(send), 0)
        return
    before = weight.read_value()
    send(1)
    assert (weight.numpy().tolist(), count.numpy()) == ([2.0, 5.0], 1)
    assert before.numpy().tolist() == [rank + 1.0, 5.0]
    weight.assign([rank + 3.0, 6.0])
    tf.function(send)(0)
    assert weight.numpy().tolist() == [3.0, 6.0]


@on_ranks(2)
def test_reference_variables_are_changed_in_place_or_that_is_refused() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        initial = tf.constant([basics.rank() + 1.0, 2.0])
        weight = tf.compat.v1.get_variable("weight", initializer=initial, use_resource=False)
        sent = ops.horovod_broadcast_inplace([weight], root_rank=1, variable_names=["weight"])
        session.run(tf.compat.v1.global_variables_initializer())
        if CHANGES_IN_PLACE:
            assert session.run(sent)[0].tolist() == [2.0, 2.0]
            assert session.run(weight).tolist() == [2.0, 2.0]
        else:
            raises(tf.errors.UnimplementedError, "hvd.broadcast_variables", session.run, sent)


OPERATIONS = 200


def many_in_flight() -> None:
    """Run as many operations as nobody has threads for, built and begun in opposite orders on neighbouring ranks.

    The last rank leaves before the others.
    """
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    # Counted before there is a job, by one rank only; the job starts from 0.
    if os.environ["HOROVOD_RANK"] == "0":
        raises(tf.errors.FailedPreconditionError, "HorovodAllreduce: .*not been initialized", summed, tf.ones([2]))
        assert ops.horovod_process_set_included().numpy() == -1
    basics.init()
    assert is_asynchronous()
    assert summed(tf.constant(1.0)).numpy() == basics.size()
    order = range(OPERATIONS) if basics.rank() % 2 == 0 else reversed(range(OPERATIONS))
    numbers = list(order)

    def reduce(tensor: Any) -> list[Any]:
        reduced = {number: summed(tensor + float(number), name=f"x{number}") for number in numbers}
        return [reduced[number] for number in range(OPERATIONS)]

    wanted = [[basics.size() * (1.0 + number)] * 3 for number in range(OPERATIONS)]
    function = tf.function(reduce)
    for _ in range(3):
        assert [found.numpy().tolist() for found in function(tf.ones([3]))] == wanted
    one_thread = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
    with tf.Graph().as_default(), tf.compat.v1.Session(config=one_thread) as session:
        results = reduce(tf.ones([3]))
        for _ in range(3):
            assert [found.tolist() for found in session.run(results)] == wanted
    if basics.rank() != 3:
        # Elastic training tells a job that is over from other errors by the class and the name of the operation.
        late = tf.function(lambda: summed(tf.ones([2]), name="late"))
        raises(tf.errors.UnknownError, "HorovodAllreduce: ", summed, tf.ones([2]))
        raises(tf.errors.UnknownError, "HorovodAllreduce: ", late)
    basics.shutdown()
    raises(tf.errors.FailedPreconditionError, "HorovodAllreduce: .*not been initialized", summed, tf.ones([2]))


def test_operations_in_flight_need_no_threads_and_no_order() -> None:
    # A deadlock ends the job, with a report of who waits for what.
    stalls = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "30", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "90"}
    done = run_job(4, many_in_flight, timeout=300.0, PYTHONPATH=os.pathsep.join(sys.path), **stalls)
    assert done.status == 0, done.output


def test_without_tensorflow_nothing_is_registered() -> None:
    program = f"""
    import ctypes, sys
    library = ctypes.CDLL({path_of("tensorflow")!r})
    library.ronde_tensorflow_problem.restype = ctypes.c_char_p
    print(library.ronde_tensorflow_problem().decode())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert done.stdout == "TensorFlow is not loaded: import tensorflow first\n"


def test_without_an_engine_operations_say_what_to_import() -> None:
    program = f"""
    import tensorflow as tf
    ops = tf.load_op_library({path_of("tensorflow")!r})
    try:
        ops.horovod_rank()
    except tf.errors.FailedPreconditionError as error:
        print(error.message)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert "HorovodRank: the library has no engine yet: import horovod.tensorflow first" in done.stdout


def test_a_table_of_another_version_is_refused() -> None:
    library = ctypes.CDLL(path_of("tensorflow"))
    library.ronde_attach.restype = ctypes.c_bool
    assert not library.ronde_attach(None)
    assert not library.ronde_attach(ctypes.byref(ctypes.c_uint32(0)))
