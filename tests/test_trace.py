"""Compute times of ops: arithmetic on hand-made traces, and a real trace."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import step_stats_pb2

from placer.devices import Device, DeviceTopology, Link
from placer.errors import InfeasibleError, InvalidValueError, WorkerError
from placer.graph import Op, OpGraph
from placer.profile import Profile
from profiling.trace import devices_for_type, op_times_s, op_workspace_bytes, trace_costs
from tests.steps import forward_step, two_layer_step

pytest_plugins = ["tests.local_cluster"]
pytestmark = pytest.mark.slow

CPU = "/job:worker/replica:0/task:0/device:CPU:0"
GPU = "/job:worker/replica:0/task:0/device:GPU:0"
TWO_CPUS = DeviceTopology(
    (Device("cpu:0", "CPU", "cpu-core"), Device("cpu:1", "CPU", "cpu-core")),
    {(0, 1): Link(1e9), (1, 0): Link(1e9)},
)
CPU_AND_GPU = DeviceTopology(
    (Device("cpu:0", "CPU", "cpu-host"), Device("gpu:0", "GPU", "k80")),
    {(0, 1): Link(1e9), (1, 0): Link(1e9)},
)


def graph_of(*ops):
    return OpGraph(tuple(op if isinstance(op, Op) else Op(op, "NoOp") for op in ops), ())


def trace_of(*records):
    """Make a trace of (device, op, nanoseconds) records."""
    trace = step_stats_pb2.StepStats()
    device_stats = {}
    for device, op, elapsed_ns in records:
        if device not in device_stats:
            device_stats[device] = trace.dev_stats.add(device=device)
        device_stats[device].node_stats.add(node_name=op, all_end_rel_nanos=elapsed_ns)
    return trace


# Times in a trace.


def test_an_op_costs_what_its_record_says_and_nothing_without_one():
    trace = trace_of((CPU, "_SOURCE", 5000), (CPU, "a", 1000), (CPU, "b", 2500))

    times_s = op_times_s(graph_of("a", "b", "pruned"), trace)

    np.testing.assert_allclose(times_s, [1e-6, 2.5e-6, 0.0])


def test_an_op_in_a_loop_costs_the_sum_of_its_runs():
    trace = trace_of((CPU, "a", 1000), (CPU, "a", 2000), (CPU, "a", 3000))

    np.testing.assert_allclose(op_times_s(graph_of("a"), trace), [6e-6])


def test_on_a_gpu_the_longer_of_launch_and_kernels_counts():
    # a: launched in 1 µs, its two kernels take 4 and 5. b: launched in 3 µs, kernel takes 2.
    # What single streams and the host's own trace say would count twice.
    trace = trace_of(
        (GPU, "a", 1000),
        (GPU, "b", 3000),
        ("/device:GPU:0/stream:all", "a:MatMul", 4000),
        ("/device:GPU:0/stream:all", "a:MatMul", 5000),
        ("/device:GPU:0/stream:all", "b:Relu", 2000),
        ("/device:GPU:0/stream:7", "a:MatMul", 4000),
        ("/host:CPU", "a", 9000),
    )

    np.testing.assert_allclose(op_times_s(graph_of("a", "b"), trace), [9e-6, 3e-6])


def test_a_record_without_nanoseconds_is_read_in_microseconds():
    trace = step_stats_pb2.StepStats()
    trace.dev_stats.add(device=CPU).node_stats.add(node_name="a", all_end_rel_micros=7)

    np.testing.assert_allclose(op_times_s(graph_of("a"), trace), [7e-6])


@pytest.mark.parametrize("trace", [trace_of(), trace_of((CPU, "another", 1000))])
def test_a_trace_without_any_of_the_ops_is_an_error(trace):
    with pytest.raises(WorkerError, match="trace of a step is empty"):
        op_times_s(graph_of("a"), trace)


def test_the_workspace_of_an_op_is_its_temporary_memory():
    trace = trace_of((CPU, "a", 1), (CPU, "a", 1), (CPU, "b", 1))
    first, second, _ = trace.dev_stats[0].node_stats
    first.memory_stats.temp_memory_size = 100
    second.memory_stats.temp_memory_size = 300

    workspace_bytes = op_workspace_bytes(graph_of("a", "b", "c"), trace)

    # Runs in a loop use the same scratch memory one after the other.
    assert workspace_bytes.tolist() == [300, 0, 0]


# On which device an op is traced.


def test_ops_are_traced_on_the_first_device_of_the_type():
    graph = graph_of("a", "b")

    assert devices_for_type(graph, TWO_CPUS, "cpu-core") == [0, 0]
    assert devices_for_type(graph, CPU_AND_GPU, "cpu-host") == [0, 0]
    assert devices_for_type(graph, CPU_AND_GPU, "k80") == [1, 1]


def test_an_op_without_a_kernel_on_the_type_takes_those_it_is_colocated_with_along():
    graph = graph_of(
        "free",
        Op("text", "StringJoin", device_kinds=("CPU",), colocation="variable"),
        Op("read", "ReadVariableOp", colocation="variable"),
    )

    assert devices_for_type(graph, CPU_AND_GPU, "k80") == [1, 0, 0]


def test_an_op_without_a_permitted_device_is_named():
    graph = graph_of(Op("reduce", "NcclAllReduce", device_kinds=("GPU",)))

    with pytest.raises(InfeasibleError, match=r"'reduce' \(NcclAllReduce\) .* kind GPU"):
        devices_for_type(graph, TWO_CPUS, "cpu-core")


def test_colocated_ops_without_a_common_kind_have_no_device():
    graph = graph_of(
        Op("a", "A", device_kinds=("CPU",), colocation="both"),
        Op("b", "B", device_kinds=("GPU",), colocation="both"),
    )

    with pytest.raises(InfeasibleError, match="kind none"):
        devices_for_type(graph, CPU_AND_GPU, "k80")


# A real trace.


@pytest.fixture(scope="module")
def traced(cluster):
    step = two_layer_step(width=256)
    # One more op that the step never runs.
    idle = Op("idle", "NoOp")
    graph = OpGraph((*step.op_graph.ops, idle), step.op_graph.tensors)
    step = dataclasses.replace(step, op_graph=graph)
    return step, *trace_costs(step, TWO_CPUS, cluster, steps=3)


def test_equal_devices_are_one_type_traced_once(traced):
    step, costs, _ = traced

    assert costs.device_types == ("cpu-core",)
    assert costs.compute_time_s.shape == (step.op_graph.num_ops, 1)
    assert costs.measured.all()


def test_every_op_that_runs_takes_time_and_the_others_none(traced):
    step, costs, _ = traced

    for op, time_s in zip(step.op_graph.ops, costs.compute_time_s[:, 0], strict=True):
        assert (time_s == 0) == (op.name == "idle"), op.name


def test_a_product_of_matrices_takes_longer_than_reading_one(traced):
    # 64 · 256 · 256 multiplications against the copy of a reference.
    step, costs, _ = traced
    time_s = dict(zip(step.op_graph.index_of_name, costs.compute_time_s[:, 0], strict=True))

    assert time_s["layer1"] > time_s["layer1/ReadVariableOp"]
    assert time_s["layer2"] > time_s["layer2/ReadVariableOp"]


def test_op_times_add_up_to_the_step_time_without_a_trace(traced):
    _, costs, provenance = traced

    step_time_s = float(provenance.facts["step_time_s"])
    np.testing.assert_allclose(costs.compute_time_s.sum(), step_time_s, rtol=1e-5)


def test_the_provenance_says_how_when_and_where(traced):
    _, _, provenance = traced

    assert provenance.method == "trace"
    assert provenance.host
    assert provenance.date.endswith("+00:00")
    assert provenance.facts["steps"] == "3"
    assert provenance.facts["tensorflow"].startswith("2.")
    assert float(provenance.facts["traced_sum_s"]) > 0


def test_the_costs_make_a_profile_of_the_step(traced):
    step, costs, provenance = traced

    profile = Profile(step.op_graph, costs, TWO_CPUS, provenance)

    np.testing.assert_array_equal(profile.compute_time_s[:, 0], profile.compute_time_s[:, 1])


def test_a_step_that_fails_is_an_error_in_one_line(cluster):
    step = forward_step("nan", lambda: tf.math.log(tf.constant(-1.0)))

    with pytest.raises(
        WorkerError, match=r"step 'nan' cannot be traced on .*: the loss became nan"
    ):
        trace_costs(step, TWO_CPUS, cluster)


def test_no_steps_and_another_cluster_are_refused(cluster):
    step = two_layer_step()

    with pytest.raises(InvalidValueError, match="steps must be at least 1, got 0"):
        trace_costs(step, TWO_CPUS, cluster, steps=0)
    with pytest.raises(InvalidValueError, match="has devices CPU, GPU, but"):
        trace_costs(step, CPU_AND_GPU, cluster)
