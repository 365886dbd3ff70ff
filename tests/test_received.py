"""What the workers received is what the simulation sends, tensor by tensor."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from placer.devices import DeviceTopology, Link
from placer.errors import WorkerError
from placer.graph import Op, OpGraph, Tensor
from placer.group_ops import GroupingConfig, group_ops
from placer.heuristics import expert, random_placement
from placer.placement import Placement
from placer.profile import OpCosts, Profile
from placer.simulator import Simulator, Transfer
from profiling.capture import capture
from profiling.placed_step import ImportedStep, PlacedStep
from profiling.received import (
    MovedTensor,
    TransferComparison,
    compare_transfers,
    predicted_tensors,
    received_tensors,
    tensor_names,
)
from profiling.step import CapturedStep
from profiling.workloads import capture_workload

pytest_plugins = ["tests.local_cluster"]
pytestmark = pytest.mark.slow

TWO_CPUS = DeviceTopology.uniform(2, Link(1e9), kind="CPU")


def profile_of(step: CapturedStep) -> Profile:
    """Return a profile of the step in which every op takes a tenth of a millisecond."""
    num_ops = step.op_graph.num_ops
    costs = OpCosts(
        ("reference",),
        np.full((num_ops, 1), 1e-4),
        np.zeros((num_ops, 1), dtype=np.bool_),
        np.zeros(num_ops, dtype=np.int64),
    )
    return Profile(step.op_graph, costs, TWO_CPUS)


def weighted_sum() -> CapturedStep:
    """Two vectors' products are summed; one is updated, and the other only after that."""
    first = tf.Variable(np.linspace(1, 2, 8, dtype=np.float32), name="first")
    second = tf.Variable(np.linspace(3, 4, 8, dtype=np.float32), name="second")

    def step(x: tf.Tensor) -> tf.Tensor:
        halves = tf.split(x * first, 2)
        loss = tf.reduce_sum(halves[0] * halves[1]) + tf.reduce_sum(second * x)
        with tf.control_dependencies([first.assign_sub(0.1 * x)]):
            second.assign_sub(0.1 * x)
        return loss

    return capture(step, [np.linspace(5, 6, 8, dtype=np.float32)], name="weighted-sum")


def scattered(step: CapturedStep, seed: int) -> Placement:
    """Return a placement at random of all ops that are free to go."""
    generator = np.random.default_rng(seed)
    device_of_set: dict[str, int] = {}
    for op in step.op_graph.ops:
        device_of_set.setdefault(op.colocation or op.name, int(generator.integers(2)))
    return Placement([device_of_set[op.colocation or op.name] for op in step.op_graph.ops])


def only_on_1(step: CapturedStep, *names: str) -> Placement:
    """Return the placement with these ops, and all that they are tied to, on device 1."""
    keys = {op.colocation or op.name for op in step.op_graph.ops if op.name in names}
    return Placement([int((op.colocation or op.name) in keys) for op in step.op_graph.ops])


@pytest.fixture(scope="module")
def step():
    return weighted_sum()


@pytest.fixture(scope="module")
def imported(step):
    return ImportedStep(step)


@pytest.fixture(scope="module")
def simulator(step):
    return Simulator(profile_of(step))


@pytest.fixture(scope="module")
def metadata(step, imported, cluster):
    """Trace and graphs of a step that is scattered over both workers."""
    names = [cluster.devices[device] for device in scattered(step, 0).device_of_op]
    placed = PlacedStep(imported, names, cluster, timeout_s=30)
    while True:
        found = config_pb2.RunMetadata()
        placed.run(found)
        if not received_tensors(step.op_graph, [found]).unseen:
            break
    placed.close()
    return found


def copy_of(metadata: config_pb2.RunMetadata) -> config_pb2.RunMetadata:
    copy = config_pb2.RunMetadata()
    copy.CopyFrom(metadata)
    return copy


@pytest.mark.parametrize("seed", range(4))
def test_a_scattered_step_receives_each_tensor_that_is_simulated(
    step, imported, simulator, cluster, seed
):
    found = compare_transfers(imported, scattered(step, seed), simulator, cluster)

    assert found.agree
    assert len(found.in_both) > 3
    assert found.missing == found.extra == []


def test_control_edges_between_workers_are_received_as_simulated(step, imported, cluster):
    simulator = Simulator(profile_of(step))
    waiting = [node.name for node in step.graph_def.node if any("^" in i for i in node.input)]
    assert waiting, "the step must have a control edge for this test to say something"

    found = compare_transfers(imported, only_on_1(step, waiting[0]), simulator, cluster)

    assert found.agree
    assert any(tensor.name.startswith("^") for tensor in found.in_both)


def test_a_step_on_one_device_receives_nothing(step, imported, simulator, cluster):
    found = compare_transfers(imported, Placement([0] * step.op_graph.num_ops), simulator, cluster)

    assert (found.predicted, found.received, found.by_client) == (set(), set(), set())


def test_a_loss_that_is_made_on_the_second_worker_moves_for_the_client_alone(
    step, imported, simulator, cluster
):
    found = compare_transfers(imported, Placement([1] * step.op_graph.num_ops), simulator, cluster)

    # The client is connected to worker 0.
    assert found.by_client == {MovedTensor(step.fetches[0], *reversed(cluster.devices))}
    assert (found.predicted, found.received) == (set(), set())


def test_the_expert_and_a_random_placement_of_rnnlm_receive_what_is_simulated(cluster):
    step = capture_workload("rnnlm")
    profile = profile_of(step)
    grouping = group_ops(profile, GroupingConfig()).grouping
    simulator, imported = Simulator(profile), ImportedStep(step)

    by_expert, at_random = (
        compare_transfers(imported, Placement.from_groups(grouping, actions), simulator, cluster)
        for actions in (expert(profile, grouping), random_placement(profile, grouping))
    )

    assert by_expert.agree
    assert at_random.agree
    assert 0 < len(by_expert.in_both) < len(at_random.in_both)


def test_what_differs_is_told_by_name(metadata, step, cluster):
    received = received_tensors(step.op_graph, [metadata]).by_ops
    lost, *others = sorted(received)
    invented = MovedTensor("nobody:0", *cluster.devices)

    found = TransferComparison(frozenset(others) | {invented}, received)

    assert found.missing == [invented]
    assert found.extra == [lost]
    assert not found.agree
    assert str(invented) == f"nobody:0 from {cluster.devices[0]} to {cluster.devices[1]}"


def test_what_is_in_no_trace_counts_as_not_received(metadata, step):
    silent = copy_of(metadata)
    del silent.step_stats.dev_stats[:]

    seen = received_tensors(step.op_graph, [metadata, silent])
    unseen = received_tensors(step.op_graph, [silent])

    assert seen.unseen == unseen.by_ops == unseen.by_client == set()
    assert unseen.unseen == seen.by_ops | seen.by_client


def test_a_step_is_repeated_until_traces_tell_of_every_tensor(
    step, imported, simulator, cluster, monkeypatch
):
    run, num_run = PlacedStep.run, 0

    def silent_at_first(self, metadata=None, **options):
        nonlocal num_run
        num_run += 1
        elapsed_s = run(self, metadata, **options)
        if num_run == 1:
            del metadata.step_stats.dev_stats[:]
        return elapsed_s

    monkeypatch.setattr(PlacedStep, "run", silent_at_first)

    found = compare_transfers(imported, scattered(step, 0), simulator, cluster)

    assert found.agree
    assert num_run >= 2


@pytest.mark.parametrize("half", ["_Send", "_Recv"])
def test_half_a_pair_is_an_error(metadata, step, half):
    odd = copy_of(metadata)
    for graph in odd.partition_graphs:
        kept = [node for node in graph.node if node.op != half]
        del graph.node[:]
        graph.node.extend(kept)

    with pytest.raises(WorkerError, match=r"\d+ tensors have a sender or a receiver alone: edge_"):
        received_tensors(step.op_graph, [odd])


def test_without_the_workers_graphs_nothing_is_known(step):
    with pytest.raises(WorkerError, match="did not say which ops they ran"):
        received_tensors(step.op_graph, [config_pb2.RunMetadata()])


def test_a_step_that_fails_is_told_in_one_line(step, simulator, cluster):
    apart = dataclasses.replace(step, initializers=())

    with pytest.raises(WorkerError, match="cannot be traced as placed: ") as failed:
        compare_transfers(
            ImportedStep(apart), Placement([0] * step.op_graph.num_ops), simulator, cluster
        )

    assert "\n" not in str(failed.value)


def test_outputs_are_named_by_number_and_control_edges_by_a_caret():
    # a has two outputs and a control edge, b an output, c none but a control edge.
    ops = (
        Op("a", "Split", output_shapes=((2,), (2,))),
        Op("b", "MatMul", output_shapes=((2,),)),
        Op("c", "NoOp"),
        Op("d", "NoOp"),
    )
    tensors = (
        Tensor(0, (1,), 8),
        Tensor(0, (1,), 8),
        Tensor(1, (), 8),
        Tensor(0, (2,), 0),
        Tensor(2, (3,), 0),
    )
    graph = OpGraph(ops, tensors)

    assert tensor_names(graph) == ["a:0", "a:1", "b:0", "^a", "^c"]
    moved = [Transfer(tensor=1, source=0, destination=1, start_s=0, end_s=1)]
    assert predicted_tensors(graph, moved, ["x", "y"]) == {MovedTensor("a:1", "x", "y")}
