"""Placements timed on real workers, and what becomes of those that cannot run."""

import dataclasses
import itertools
import math
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
from profiling.messages import Ending
from profiling.placed_step import ImportedStep, PlacedStep, check_devices, one_line
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
QUICK = MeasurementConfig(max_warmup_steps=2, min_timed_steps=3, max_timed_steps=3, timeout_s=30)


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


def devices_of_nodes(imported):
    return {op.name: op.device for op in imported.graph.get_operations()}


def test_a_variable_is_initialised_on_its_own_device(step):
    imported = ImportedStep(step)

    imported.place(
        ["/cpu:0" if device == 0 else "/cpu:1" for device in second_layer_on_1(step).device_of_op]
    )

    device_of_node = devices_of_nodes(imported)
    for first, second in (
        ("w1/Assign", "w2/Assign"),
        ("w1/Initializer/initial_value", "w2/Initializer/initial_value"),
    ):
        assert tf.DeviceSpec.from_string(device_of_node[first]).device_index == 0
        assert tf.DeviceSpec.from_string(device_of_node[second]).device_index == 1


def test_placing_leaves_the_captured_graph_without_devices(step):
    ImportedStep(step).place(["/cpu:0"] * step.op_graph.num_ops)

    assert {node.device for node in step.graph_def.node} == {""}


def test_a_step_imported_once_runs_on_one_placement_after_another(step, cluster):
    imported = ImportedStep(step)
    actual = []
    for placement in (all_on(step, 0), second_layer_on_1(step), all_on(step, 1)):
        names = [cluster.devices[device] for device in placement.device_of_op]
        placed = PlacedStep(imported, names, cluster, timeout_s=30)
        # Raises if an op is where the placement before had put it.
        placed.run_checked()
        actual.append(placed.loss)
        placed.close()

    np.testing.assert_allclose(actual, actual[0], rtol=1e-5)


def test_a_step_is_fed_in_place_of_a_tensor_of_the_graph(step, cluster):
    placed = opened(step, second_layer_on_1(step), cluster)
    ones = np.ones((64, 64), np.float32)

    placed.run(feed={"layer1/ReadVariableOp:0": ones})
    fed = placed.loss
    placed.close()

    # The rows of x·w1 are of ones, w2 halves them: the mean of 0.5 squared.
    np.testing.assert_allclose(fed, 0.25, rtol=1e-5)


def test_a_value_of_another_shape_is_not_fed(step, cluster):
    placed = opened(step, all_on(step, 0), cluster)

    with pytest.raises(ValueError, match="Cannot feed value of shape"):
        placed.run(feed={"layer1/ReadVariableOp:0": np.ones((3, 3), np.float32)})
    placed.close()


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


def test_compared_placements_take_turns_in_an_order_that_changes(environment, step, monkeypatch):
    order = []
    run = PlacedStep.run

    def recorded(self, metadata=None, *, feed=None):
        order.append(id(self))
        return run(self, metadata, feed=feed)

    monkeypatch.setattr(PlacedStep, "run", recorded)

    measurements = environment.compare(
        [all_on(step, 0), all_on(step, 1), second_layer_on_1(step)], rounds=6
    )

    timed = order[-18:]
    rounds = [timed[start : start + 3] for start in range(0, 18, 3)]
    # All six orders of three.
    assert len({tuple(each) for each in rounds}) == 6
    assert all(len(set(each)) == 3 for each in rounds)
    assert [len(measurement.samples_s) for measurement in measurements] == [6, 6, 6]


def test_sample_after_sample_is_of_the_same_round(environment, step, monkeypatch):
    times_s = iter(range(1, 100))
    monkeypatch.setattr(PlacedStep, "run", scripted(times_s))

    first, second = environment.compare([all_on(step, 0), all_on(step, 1)], rounds=3)

    # 1 and 2 warm up. Turns: 3 first, 4 second, 5 second, 6 first, 7 first, 8 second.
    assert first.samples_s == (3.0, 6.0, 7.0)
    assert second.samples_s == (4.0, 5.0, 8.0)


def scripted(times_s):
    """Steps that take the given times, whatever they really take."""

    def run(self, metadata=None, *, feed=None):
        del metadata, feed
        self.times_s.append(float(next(times_s)))
        return self.times_s[-1]

    return run


def test_steps_are_timed_until_the_median_is_known_well_enough(step, cluster, monkeypatch):
    config = MeasurementConfig(max_warmup_steps=1, min_timed_steps=6, relative_half_width=0.02)
    times_s = itertools.chain([1.0, 1.1, 1.0, 1.0, 0.9, 1.0], itertools.repeat(1.0))
    monkeypatch.setattr(PlacedStep, "run", scripted(times_s))

    (measurement,) = RealEnvironment(step, TWO_CPUS, cluster, config).measure([all_on(step, 0)])

    # Up to eight, the interval of the median is the range, 0.9 to 1.1. Of nine samples, all
    # but one on one side of the median is 3.9 % for both sides together: one is left out.
    assert len(measurement.samples_s) == 9
    assert measurement.step_time_s == 1.0


def test_contenders_are_timed_until_all_of_them_are_known_well_enough(step, cluster, monkeypatch):
    config = MeasurementConfig(max_warmup_steps=1, min_timed_steps=3, relative_half_width=0.02)
    steady, varied = iter([1.0] * 99), iter([1.0, 1.2, 1.0, 1.0, 1.0, 1.0] + [1.0] * 99)
    by_session = {}

    def run(self, metadata=None, *, feed=None):
        del metadata, feed
        times_s = by_session.setdefault(id(self), varied if by_session else steady)
        self.times_s.append(next(times_s))
        return self.times_s[-1]

    monkeypatch.setattr(PlacedStep, "run", run)

    first, second = RealEnvironment(step, TWO_CPUS, cluster, config).compare(
        [all_on(step, 0), all_on(step, 1)]
    )

    # The second needs nine (see above); the first had enough after three.
    assert len(first.samples_s) == len(second.samples_s) == 9


@pytest.mark.parametrize(
    ("samples_s", "is_enough"),
    [
        # Eight have their range, 0.09 to 0.11: 10 % to either side.
        ([0.1] * 5, False),
        ([0.1] * 6, True),
        ([0.09, *[0.1] * 6, 0.11], False),
        # Nine leave out one at either end.
        ([0.09, *[0.1] * 7, 0.11], True),
        # At most ten, or 3.5 seconds of steps.
        ([1e-3, 1.0] * 4, True),
        ([1e-3, 1e-2] * 4, False),
        ([1e-3, 1e-2] * 5, True),
    ],
)
def test_timing_ends_when_the_median_is_known_or_the_bounds_are_met(samples_s, is_enough):
    config = MeasurementConfig(
        min_timed_steps=6, max_timed_steps=10, relative_half_width=0.05, budget_s=3.5
    )

    assert config.is_enough(samples_s) is is_enough


class ScriptedStep(PlacedStep):
    """Steps of given times, to see when warming up ends."""

    def __init__(self, times_s):
        self.script_s = iter(times_s)
        self.times_s = []

    def run(self, metadata=None, *, feed=None):
        del metadata, feed
        self.times_s.append(next(self.script_s))
        return self.times_s[-1]


def test_warming_up_ends_when_times_have_settled():
    placed = ScriptedStep([5.0, 2.0, 1.0, 1.04, 0.98, 1.0, 1.0])

    placed.warm_up(8)

    # The record of 1.0 was followed by three steps that were not much faster.
    assert placed.times_s == [5.0, 2.0, 1.0, 1.04, 0.98, 1.0]


def test_warming_up_is_bounded_where_times_never_settle():
    placed = ScriptedStep([16.0, 8.0, 4.0, 2.0, 1.0])

    placed.warm_up(3)

    assert placed.times_s == [16.0, 8.0, 4.0]


def test_warming_up_counts_the_steps_before():
    placed = ScriptedStep([16.0, 8.0, 4.0, 2.0, 1.0])
    placed.run()

    placed.warm_up(3)

    assert placed.times_s == [16.0, 8.0, 4.0]


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


# Of three placements, steps 1 to 3 warm up; in the first round, the order is 4, 6, 5.
@pytest.mark.parametrize(("worker", "step_number"), [(1, 2), (0, 6)], ids=["warming up", "timed"])
def test_a_worker_that_is_killed_costs_one_measurement_and_no_other(
    environment, step, cluster, monkeypatch, worker, step_number
):
    before = cluster.pids
    run = PlacedStep.run
    num_run = 0

    def killing(self, metadata=None, *, feed=None):
        nonlocal num_run
        num_run += 1
        if num_run == step_number:
            os.kill(before[worker], signal.SIGKILL)
        return run(self, metadata, feed=feed)

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


def test_samples_from_before_a_worker_was_lost_are_kept(environment, step, cluster, monkeypatch):
    # Steps 1 to 3 warm up, 4 to 6 are the first round; then one is opened anew by a warm-up.
    times_s = itertools.count(1)
    run = scripted(times_s)

    def killing(self, metadata=None, *, feed=None):
        time_s = run(self, metadata, feed=feed)
        if time_s == 9.0:
            os.kill(cluster.pids[1], signal.SIGKILL)
            while not cluster.lost_workers():
                pass
            raise tf.errors.UnavailableError(None, None, "the worker is gone")
        return time_s

    monkeypatch.setattr(PlacedStep, "run", killing)

    first, second, third = environment.compare([second_layer_on_1(step)] * 3)

    # Turns: 4 first, 5 third, 6 second; 7 second, 8 first, 9 third is lost; 10 and 12 warm up
    # anew, and 11 and 13 are of the third round.
    assert third.outcome is Outcome.CRASHED
    assert {first.samples_s, second.samples_s} == {(4.0, 8.0, 13.0), (6.0, 7.0, 11.0)}


def test_a_worker_that_is_stopped_is_a_time_out_and_is_replaced(step, cluster, monkeypatch):
    config = dataclasses.replace(QUICK, timeout_s=20, timeout_factor=2, min_timeout_s=1)
    environment = RealEnvironment(step, TWO_CPUS, cluster, config)
    before = cluster.pids
    run = PlacedStep.run
    num_run = 0

    def stopping(self, metadata=None, *, feed=None):
        nonlocal num_run
        num_run += 1
        if num_run == 4:
            os.kill(before[0], signal.SIGSTOP)
        return run(self, metadata, feed=feed)

    monkeypatch.setattr(PlacedStep, "run", stopping)

    first, second = environment.compare([second_layer_on_1(step)] * 2)

    assert {first.outcome, second.outcome} == {Outcome.OK, Outcome.TIMED_OUT}
    (stopped,) = (one for one in (first, second) if one.outcome is not Outcome.OK)
    assert stopped.detail == "a step did not end within 1 s"
    assert not Path(f"/proc/{before[0]}").exists()
    assert cluster.lost_workers() == {}


def test_a_worker_that_ended_for_want_of_memory_is_out_of_memory(
    environment, step, cluster, monkeypatch
):
    ending = Ending("was killed by SIGABRT when it ran out of memory", out_of_memory=True)
    lost = iter([{}, {1: ending}])
    monkeypatch.setattr(type(cluster), "lost_workers", lambda _: next(lost, {}))

    def failing(self, metadata=None, *, feed=None):
        raise tf.errors.UnavailableError(None, None, "the worker is gone")

    monkeypatch.setattr(PlacedStep, "run", failing)

    (measurement,) = environment.measure([all_on(step, 1)])

    assert measurement.outcome is Outcome.OUT_OF_MEMORY
    assert measurement.detail == "worker 1 was killed by SIGABRT when it ran out of memory"


def test_a_worker_that_does_not_come_up_again_is_given_a_second_try(
    environment, step, cluster, monkeypatch, caplog
):
    def failing(self, worker):
        raise WorkerError(f"worker {worker} was killed by SIGKILL at start")

    os.kill(cluster.pids[1], signal.SIGKILL)
    while not cluster.lost_workers():
        pass
    monkeypatch.setattr(type(cluster), "restart", failing)

    (measurement,) = environment.measure([second_layer_on_1(step)])

    assert measurement.outcome is Outcome.OK
    assert "worker 1 was killed by SIGKILL at start; all workers are started anew" in caplog.text


@pytest.mark.parametrize(
    ("changes", "fastest_s", "limit_s"),
    [
        ({}, 1.0, 10.0),
        ({}, 0.1, 5.0),
        ({}, 100.0, 120.0),
        ({}, math.inf, 120.0),
        ({"timeout_factor": None}, 1.0, 120.0),
        ({"timeout_factor": 3.0, "min_timeout_s": 1.0}, 0.5, 1.5),
        ({"timeout_s": 2.0}, 0.1, 2.0),
    ],
)
def test_the_limit_on_a_step_derives_from_the_fastest_one(changes, fastest_s, limit_s):
    assert MeasurementConfig(**changes).limit_s(fastest_s) == limit_s


def test_a_placement_much_slower_than_the_best_so_far_is_given_up(cluster):
    # A third of a second or so: 16 GFLOP on one core.
    square = forward_step("square", lambda: product_of_ones(2000))
    config = dataclasses.replace(QUICK, timeout_factor=10, min_timeout_s=0.01)
    environment = RealEnvironment(square, TWO_CPUS, cluster, config)
    environment._fastest_s = 1e-3

    (measurement,) = environment.measure([all_on(square, 0)])

    # The first step, which has the whole of timeout_s, ended.
    assert measurement.outcome is Outcome.TIMED_OUT
    assert measurement.detail == "a step did not end within 0.01 s"


def product_of_ones(size):
    ones = tf.ones([size, size])
    return tf.reduce_mean(tf.matmul(ones, ones))


def test_a_step_that_hangs_is_timed_out_and_the_next_one_runs(step, environment, cluster):
    hanging = hanging_step()
    impatient = RealEnvironment(hanging, TWO_CPUS, cluster, MeasurementConfig(timeout_s=2))
    before = cluster.pids

    (hung,) = impatient.measure([all_on(hanging, 1)])
    (next_one,) = environment.measure([all_on(step, 1)])

    assert hung.outcome is Outcome.TIMED_OUT
    assert hung.detail == "the first step did not end within 2 s"
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
        {"min_timed_steps": 0},
        {"max_timed_steps": 5},
        {"relative_half_width": 0.0},
        {"budget_s": float("inf")},
        {"min_timeout_s": -1.0},
        {"timeout_factor": 1.0},
        {"timeout_factor": float("nan")},
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
