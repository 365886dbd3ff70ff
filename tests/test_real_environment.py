"""Placements timed on real workers, and what becomes of those that cannot run."""

import dataclasses
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import config_pb2

from placer.devices import DeviceTopology, Link
from placer.environment import Outcome
from placer.errors import InvalidValueError, WorkerError
from placer.graph import Op, OpGraph
from placer.placement import Placement
from profiling.placed_step import PlacedStep, check_devices, one_line, place
from profiling.real_environment import MeasurementConfig, RealEnvironment
from tests.steps import (
    all_on,
    captured,
    forward_step,
    hanging_step,
    second_layer_on_1,
    two_layer_step,
)

pytest_plugins = ["tests.local_cluster"]
pytestmark = pytest.mark.slow

v1 = tf.compat.v1

TWO_CPUS = DeviceTopology.uniform(2, Link(1e9), kind="CPU")
QUICK = MeasurementConfig(max_warmup_steps=2, timed_steps=3, timeout_s=30)


@pytest.fixture
def step():
    return two_layer_step()


@pytest.fixture
def environment(step, cluster):
    return RealEnvironment(step, TWO_CPUS, cluster, QUICK)


def opened(step, placement, cluster):
    names = [cluster.devices[device] for device in placement.device_of_op]
    return PlacedStep(step, names, cluster, timeout_s=30)


def losses(step, placement, cluster, num_steps):
    placed = opened(step, placement, cluster)
    found = []
    for _ in range(num_steps):
        placed.run()
        found.append(placed.loss)
    placed.close()
    return found


# What a step computes, and where.


def test_a_step_across_two_workers_computes_what_it_does_on_one(step, cluster):
    on_one = losses(step, all_on(step, 0), cluster, num_steps=3)
    across = losses(step, second_layer_on_1(step), cluster, num_steps=3)

    np.testing.assert_allclose(across, on_one, rtol=1e-5)
    # Gradient descent: every update is made, and lowers the loss.
    assert on_one[0] > on_one[1] > on_one[2]


def test_the_first_loss_is_the_one_of_numpy(step, cluster):
    (loss,) = losses(step, second_layer_on_1(step), cluster, num_steps=1)

    x = np.linspace(-1, 1, 64 * 64).reshape(64, 64)
    expected = np.mean((np.maximum(x, 0) / 2) ** 2)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_every_op_runs_on_the_device_it_was_placed_on(step, cluster):
    placement = second_layer_on_1(step)
    placed = opened(step, placement, cluster)
    metadata = config_pb2.RunMetadata()

    placed.run(metadata)
    placed.close()

    actual = {node.name: node.device for graph in metadata.partition_graphs for node in graph.node}
    for op, device in zip(step.op_graph.ops, placement.device_of_op, strict=True):
        assert actual[op.name] == cluster.devices[device]


def test_a_variable_is_initialised_on_its_own_device(step):
    placed = place(
        step, ["a" if device == 0 else "b" for device in second_layer_on_1(step).device_of_op]
    )

    device_of_node = {node.name: node.device for node in placed.node}
    assert device_of_node["w1/Assign"] == device_of_node["w1/Initializer/initial_value"] == "a"
    assert device_of_node["w2/Assign"] == device_of_node["w2/Initializer/initial_value"] == "b"


def test_placing_leaves_the_captured_graph_without_devices(step):
    place(step, ["a"] * step.op_graph.num_ops)

    assert {node.device for node in step.graph_def.node} == {""}


def test_ops_that_ran_elsewhere_are_named():
    ran = graph_pb2.GraphDef()
    ran.node.add(name="a", device="/cpu:0")
    ran.node.add(name="b", device="/cpu:0")

    check_devices({"a": "/cpu:0", "b": "/cpu:0"}, [ran])

    with pytest.raises(WorkerError, match=r"^1 ops .*: 'b' on /cpu:0 instead of /cpu:1$"):
        check_devices({"a": "/cpu:0", "b": "/cpu:1"}, [ran])
    with pytest.raises(WorkerError, match="did not say which ops they ran"):
        check_devices({"a": "/cpu:0"}, [])


def test_an_op_that_tensorflow_moves_without_a_word_is_found_out(step, cluster):
    # The op graph does not say that reading a variable must be where the variable is.
    ops = tuple(Op(op.name, op.type) for op in step.op_graph.ops)
    undeclared = dataclasses.replace(step, op_graph=OpGraph(ops, step.op_graph.tensors))
    reads = [int(op.type == "ReadVariableOp") for op in ops]

    with pytest.raises(WorkerError, match="ran elsewhere than placed: 'layer1/ReadVariableOp' on"):
        RealEnvironment(undeclared, TWO_CPUS, cluster, QUICK).measure([Placement(reads)])


# Timing.


def test_the_step_time_is_the_median_of_positive_samples(environment, step):
    measurements = environment.measure([all_on(step, 0), second_layer_on_1(step)])

    for measurement in measurements:
        assert measurement.outcome is Outcome.OK
        assert len(measurement.samples_s) == 3
        assert min(measurement.samples_s) > 0
        assert measurement.step_time_s == sorted(measurement.samples_s)[1]


def test_compared_placements_take_turns(environment, step, monkeypatch):
    order = []
    run = PlacedStep.run

    def recorded(self, metadata=None):
        order.append(id(self))
        return run(self, metadata)

    monkeypatch.setattr(PlacedStep, "run", recorded)

    measurements = environment.compare(
        [all_on(step, 0), all_on(step, 1), second_layer_on_1(step)], rounds=4
    )

    timed = order[-12:]
    assert len(set(timed[:3])) == 3
    assert timed == timed[:3] * 4
    assert [len(measurement.samples_s) for measurement in measurements] == [4, 4, 4]


class ScriptedStep(PlacedStep):
    """Steps of given times, to see when warming up ends."""

    def __init__(self, times_s):
        self.times_s = list(times_s)
        self.num_run = 0

    def run(self, metadata=None):
        del metadata
        self.num_run += 1
        return self.times_s[self.num_run - 1]


def test_warming_up_ends_when_two_steps_in_a_row_agree_to_5_percent():
    # 5 and 2 differ, 2 and 1 differ, 1.00 and 1.04 agree.
    placed = ScriptedStep([5.0, 2.0, 1.0, 1.04, 1.0])

    placed.warm_up(8)

    assert placed.num_run == 4


def test_warming_up_is_bounded_where_times_never_settle():
    placed = ScriptedStep([1.0, 2.0, 4.0, 8.0, 16.0])

    placed.warm_up(3)

    assert placed.num_run == 3


def test_nothing_to_measure_is_nothing_measured(environment):
    assert environment.measure([]) == []


def test_variables_of_measured_placements_do_not_pile_up(cluster):
    # Each placement holds 16 MiB of variables on worker 1: twelve would be 192 MiB.
    with tf.Graph().as_default() as graph:
        large = v1.get_variable("large", initializer=tf.ones([2**22]), use_resource=True)
        step = captured("large", graph, tf.reduce_sum(large), [], [large.initializer])
    environment = RealEnvironment(step, TWO_CPUS, cluster, QUICK)
    environment.measure([all_on(step, 1)] * 2)
    before_bytes = resident_bytes(cluster.pids[1])

    measurements = environment.measure([all_on(step, 1)] * 12)

    assert {measurement.outcome for measurement in measurements} == {Outcome.OK}
    assert resident_bytes(cluster.pids[1]) - before_bytes < 64 * 2**20


def resident_bytes(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# Placements that cannot run are outcomes.


@pytest.mark.parametrize("worker", [0, 1])
def test_a_worker_that_is_killed_costs_one_measurement_and_no_other(
    environment, step, cluster, monkeypatch, worker
):
    before = cluster.pids
    run = PlacedStep.run
    num_run = 0

    def killing(self, metadata=None):
        # Runs 1 to 3 check and warm up the first placement, 4 to 6 the second, 7 to 9 time.
        nonlocal num_run
        num_run += 1
        if num_run == 5:
            os.kill(before[worker], signal.SIGKILL)
        return run(self, metadata)

    monkeypatch.setattr(PlacedStep, "run", killing)
    placements = [second_layer_on_1(step)] * 3

    first, second, third = environment.compare(placements)

    assert second.outcome is Outcome.CRASHED
    assert second.detail == f"worker {worker} was killed by SIGKILL"
    assert second.step_time_s is None
    for other in (first, third):
        assert other.outcome is Outcome.OK
        assert len(other.samples_s) == 3
    assert cluster.pids[worker] != before[worker]
    assert cluster.lost_workers() == {}


def test_a_worker_that_died_before_is_replaced_and_costs_no_measurement(environment, step, cluster):
    os.kill(cluster.pids[1], signal.SIGKILL)
    while not cluster.lost_workers():
        pass

    (measurement,) = environment.measure([second_layer_on_1(step)])

    assert measurement.outcome is Outcome.OK


def test_a_step_that_hangs_is_timed_out_and_the_next_one_runs(step, environment, cluster):
    hanging = hanging_step()
    impatient = RealEnvironment(hanging, TWO_CPUS, cluster, MeasurementConfig(timeout_s=2))
    before = cluster.pids

    (hung,) = impatient.measure([all_on(hanging, 1)])
    (next_one,) = environment.measure([all_on(step, 1)])

    assert hung.outcome is Outcome.TIMED_OUT
    assert hung.detail == "the step, or its initialisation, did not end within 2 s"
    # What hangs may hold its core: it is gone.
    assert not set(cluster.pids) & set(before)
    assert next_one.outcome is Outcome.OK


def test_a_step_that_needs_more_memory_than_its_worker_has_is_out_of_memory(cluster):
    step = forward_step("huge", lambda: tf.reduce_sum(tf.fill([2**50], 1.0, name="huge")))

    (measurement,) = RealEnvironment(step, TWO_CPUS, cluster, QUICK).measure([all_on(step, 1)])

    assert measurement.outcome is Outcome.OUT_OF_MEMORY
    assert measurement.detail.startswith("OOM when allocating tensor with shape[1125899906842624]")
    assert "task:1/device:CPU:0" in measurement.detail
    assert "\n" not in measurement.detail


def test_a_loss_that_is_not_a_number_is_a_crash(cluster):
    step = forward_step("nan", lambda: tf.math.log(tf.constant(-1.0)))

    (measurement,) = RealEnvironment(step, TWO_CPUS, cluster, QUICK).measure([all_on(step, 0)])

    assert measurement.outcome is Outcome.CRASHED
    assert measurement.detail == "the loss became nan"


def test_an_op_without_a_kernel_is_named_by_tensorflow(cluster):
    def build():
        one = tf.constant([[1]], tf.uint8)
        return tf.cast(tf.matmul(one, one, name="multiply_bytes"), tf.float32)

    step = forward_step("no kernel", build)

    (measurement,) = RealEnvironment(step, TWO_CPUS, cluster, QUICK).measure([all_on(step, 0)])

    assert measurement.outcome is Outcome.CRASHED
    assert "No OpKernel" in measurement.detail
    assert "multiply_bytes" in measurement.detail


def test_an_op_whose_kinds_exclude_the_device_is_named_before_anything_runs(step, cluster):
    ops = tuple(
        dataclasses.replace(op, device_kinds=("GPU",)) if op.name == "layer1" else op
        for op in step.op_graph.ops
    )
    gpu_only = dataclasses.replace(step, op_graph=OpGraph(ops, step.op_graph.tensors))

    (measurement,) = RealEnvironment(gpu_only, TWO_CPUS, cluster, QUICK).measure([all_on(step, 1)])

    assert measurement.outcome is Outcome.CRASHED
    assert measurement.detail == "op 'layer1' (MatMul) has no kernel on 'device:1'"


def test_colocated_ops_on_different_devices_are_a_crash_beside_placements_that_run(
    environment, step
):
    apart = Placement([int(op.type == "ReadVariableOp") for op in step.op_graph.ops])

    split, whole = environment.compare([apart, all_on(step, 0)])

    assert split.outcome is Outcome.CRASHED
    assert split.detail == "ops 'x' and 'layer1/ReadVariableOp' must share a device"
    assert whole.outcome is Outcome.OK


# Wrong questions are exceptions.


def test_a_placement_of_another_graph_is_refused(environment):
    with pytest.raises(InvalidValueError, match="of 3 ops, but step 'two-layer' has"):
        environment.measure([Placement([0, 0, 0])])


def test_a_device_that_is_not_in_the_topology_is_refused(environment, step):
    with pytest.raises(InvalidValueError, match=r"names device 2, but .* devices 0 to 1"):
        environment.measure([all_on(step, 2)])


def test_a_topology_that_is_not_of_the_cluster_is_refused(step, cluster):
    with pytest.raises(InvalidValueError, match="devices"):
        RealEnvironment(step, DeviceTopology.uniform(3, Link(1e9), kind="CPU"), cluster)


def test_no_rounds_are_refused(environment, step):
    with pytest.raises(InvalidValueError, match="rounds must be at least 1, got 0"):
        environment.compare([all_on(step, 0)], rounds=0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_warmup_steps": 0},
        {"timed_steps": 0},
        {"timeout_s": 0.0},
        {"timeout_s": float("inf")},
        {"timeout_s": float("nan")},
    ],
)
def test_a_configuration_that_measures_nothing_is_refused(wrong):
    (name,) = wrong

    with pytest.raises(InvalidValueError, match=f"{name} must be"):
        MeasurementConfig(**wrong)


@pytest.mark.parametrize(
    "message",
    [
        "Shape [2] is not [3].",
        "Graph execution error:\n\nDetected at node 'x' defined at (most recent call last):\n"
        "    File \"step.py\", line 1, in <module>\nNode: 'x'\n"
        "From /job:worker/replica:0/task:0:\nShape [2] is not [3].\n\t [[{{node x}}]]",
        "Graph execution error:\n\n2 root error(s) found.\n"
        "  (0) INVALID_ARGUMENT: Shape [2] is not [3].\n  (1) ABORTED: another",
        "\n=====================\nINVALID_ARGUMENT: From /job:worker/replica:0/task:1:\n"
        "Shape [2] is not [3].\n=====================\n",
    ],
)
def test_one_line_of_an_error_is_the_one_that_says_what_is_wrong(message):
    error = tf.errors.InvalidArgumentError(None, None, message)

    assert one_line(error) == "Shape [2] is not [3]."


def test_an_error_without_a_message_is_called_by_its_type():
    assert one_line(tf.errors.AbortedError(None, None, "")) == "AbortedError"
    assert one_line(FloatingPointError("the loss became inf")) == "the loss became inf"
