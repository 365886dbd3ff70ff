"""What workers received in a step, beside what the simulation says they are sent.

TensorFlow cuts a placed graph at the edges between devices: a ``_Send`` on one side, a ``_Recv``
of the same key on the other. A tensor has one such pair for each device that needs it. A control
edge becomes one too: it waits for a constant of no elements that is sent once its producer is
done. The trace says which keys went from one worker to another; between devices of one worker
there is no message, and the pair itself says it. Workers are told to write down what they receive
while the step begins already, so that one trace may lack some: several are taken together.

What the client asks for goes to the first worker, which hands it on: the loss. No op of the
step waits for it there, and a simulation has no client. So it is known beforehand, and apart.
"""

import collections
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2, step_stats_pb2
from tensorflow.core.protobuf import config_pb2

from placer.errors import WorkerError
from placer.graph import OpGraph
from placer.placement import Placement
from placer.simulator import Simulator, Transfer
from profiling.cluster import Cluster
from profiling.placed_step import ImportedStep, PlacedStep, one_line

_SENDS = ("_Send", "_HostSend")
_RECEIVES = ("_Recv", "_HostRecv")
_LABEL = re.compile(r"(\S+) from (\S+) to (\S+)$")
_MAX_TRACED_STEPS = 5


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class MovedTensor:
    """A tensor that goes from one device to another.

    Attributes:
        name: As TensorFlow names it: ``op:0`` for an output, ``^op`` for a control edge.
        source: Device of the producer.
        destination: Device that receives it.
    """

    name: str
    source: str
    destination: str

    def __str__(self) -> str:
        return f"{self.name} from {self.source} to {self.destination}"


@dataclasses.dataclass(frozen=True, slots=True)
class ReceivedTensors:
    """What was received in one step.

    Attributes:
        by_ops: What ops waited for, and got.
        by_client: What moved for the client alone: the loss, unless it is made where the client
            is connected, or an op there needs it too.
        unseen: What was waited for, but is in no trace.
    """

    by_ops: frozenset[MovedTensor]
    by_client: frozenset[MovedTensor]
    unseen: frozenset[MovedTensor]


@dataclasses.dataclass(frozen=True, slots=True)
class TransferComparison:
    """The tensors that a simulation sends, beside those that were received.

    Attributes:
        predicted: By the simulation.
        received: By the ops of the workers.
        by_client: What moved for the client alone, and is in neither of them: the loss.
    """

    predicted: frozenset[MovedTensor]
    received: frozenset[MovedTensor]
    by_client: frozenset[MovedTensor] = frozenset()

    @property
    def in_both(self) -> list[MovedTensor]:
        """What was predicted and received, in order of names."""
        return sorted(self.predicted & self.received)

    @property
    def missing(self) -> list[MovedTensor]:
        """What was predicted and not received, in order of names."""
        return sorted(self.predicted - self.received)

    @property
    def extra(self) -> list[MovedTensor]:
        """What was received and not predicted, in order of names."""
        return sorted(self.received - self.predicted)

    @property
    def agree(self) -> bool:
        """Whether both are the same, one by one."""
        return self.predicted == self.received


def compare_transfers(
    imported: ImportedStep,
    placement: Placement,
    simulator: Simulator,
    cluster: Cluster,
    *,
    timeout_s: float = 120.0,
) -> TransferComparison:
    """Run a step as placed, and compare what was received with what the simulation sends.

    The step is repeated, a few times at most, until traces tell of every tensor.

    Args:
        imported: The step.
        placement: Of its ops.
        simulator: Of a profile of this step on this cluster.
        cluster: The workers.
        timeout_s: Limit on the initialisation and on the step.

    Raises:
        WorkerError: If the step fails, or the workers did not say what they received.
    """
    graph, transfers = imported.step.op_graph, simulator.schedule(placement).transfers
    names = [cluster.devices[device] for device in placement.device_of_op]
    try:
        placed = PlacedStep(imported, names, cluster, timeout_s=timeout_s)
        try:
            received = _run_until_seen(placed, graph)
        finally:
            placed.close()
    except (tf.errors.OpError, ArithmeticError) as error:
        raise WorkerError(f"the step cannot be traced as placed: {one_line(error)}") from error
    return TransferComparison(
        predicted_tensors(graph, transfers, cluster.devices),
        received.by_ops,
        received.by_client,
    )


def _run_until_seen(placed: PlacedStep, graph: OpGraph) -> ReceivedTensors:
    steps: list[config_pb2.RunMetadata] = []
    while True:
        steps.append(config_pb2.RunMetadata())
        placed.run(steps[-1])
        received = received_tensors(graph, steps)
        if not received.unseen or len(steps) == _MAX_TRACED_STEPS:
            return received


def predicted_tensors(
    graph: OpGraph, transfers: Iterable[Transfer], devices: Sequence[str]
) -> frozenset[MovedTensor]:
    """Return the transfers of a simulation by TensorFlow's names.

    Args:
        graph: See ``tensor_names``.
        transfers: Of a schedule.
        devices: TensorFlow's names of the devices.
    """
    names = tensor_names(graph)
    return frozenset(
        MovedTensor(names[each.tensor], devices[each.source], devices[each.destination])
        for each in transfers
    )


def tensor_names(graph: OpGraph) -> list[str]:
    """Return TensorFlow's name of each tensor: ``op:0`` of an output, ``^op`` of a control edge.

    Args:
        graph: A captured graph: an op's outputs are its first tensors, in their order, and the
            one behind them is its control edge.
    """
    num_named = [0] * graph.num_ops
    names = []
    for tensor in graph.tensors:
        op, output = graph.ops[tensor.producer], num_named[tensor.producer]
        names.append(f"{op.name}:{output}" if output < len(op.output_shapes) else f"^{op.name}")
        num_named[tensor.producer] += 1
    return names


def received_tensors(graph: OpGraph, steps: Sequence[config_pb2.RunMetadata]) -> ReceivedTensors:
    """Return what was received in steps of one session.

    Args:
        graph: Its ops; what else the workers ran was put in by TensorFlow.
        steps: At least one, with a full trace and the graphs of the workers.

    Raises:
        WorkerError: If the graphs are missing, or a tensor was received or waited for that
            nobody sends.
    """
    nodes = [node for partition in steps[-1].partition_graphs for node in partition.node]
    if not nodes:
        raise WorkerError("the workers did not say which ops they ran, so no transfer is known")
    sent = _sent_tensors(graph, nodes)
    key_of_receiver = {node.name: _key(node) for node in nodes if node.op in _RECEIVES}
    waited_for = set(key_of_receiver.values())
    traced = {key for step in steps for key in _traced_keys(step.step_stats)}
    if odd := sorted((waited_for ^ sent.keys()) | (traced - waited_for)):
        raise WorkerError(
            f"{len(odd)} tensors have a sender or a receiver alone: {' '.join(odd[0])}"
        )
    between_workers = {key for key in waited_for if _worker(key[1]) != _worker(key[2])}
    unseen = between_workers - traced
    for_client = _for_client(nodes, key_of_receiver) - unseen
    return ReceivedTensors(
        by_ops=frozenset(sent[key] for key in waited_for - unseen - for_client),
        by_client=frozenset(sent[key] for key in for_client),
        unseen=frozenset(sent[key] for key in unseen),
    )


_Key = tuple[str, str, str]
"""The name by which a sender and a receiver find each other, and their devices."""


def _sent_tensors(graph: OpGraph, nodes: Sequence[node_def_pb2.NodeDef]) -> dict[_Key, MovedTensor]:
    """Return the tensor behind each key."""
    # A control edge sends a constant that TensorFlow put in, and that waits for the producer.
    awaited = {
        node.name: node.input[0]
        for node in nodes
        if node.op == "Const" and node.name not in graph.index_of_name
    }
    sent: dict[_Key, MovedTensor] = {}
    for node in nodes:
        if node.op in _SENDS and not _is_client(node):
            name, _, output = node.input[0].partition(":")
            key = _key(node)
            sent[key] = MovedTensor(awaited.get(name, f"{name}:{output or 0}"), *key[1:])
    return sent


def _for_client(
    nodes: Sequence[node_def_pb2.NodeDef], key_of_receiver: Mapping[str, _Key]
) -> set[_Key]:
    """Return the keys of what is received only to be handed on to the client."""
    readers = collections.defaultdict(list)
    for node in nodes:
        for name in node.input:
            readers[name.removeprefix("^").split(":")[0]].append(node)
    return {
        key
        for name, key in key_of_receiver.items()
        if all(node.op in _SENDS and _is_client(node) for node in readers[name])
    }


def _traced_keys(trace: step_stats_pb2.StepStats) -> set[_Key]:
    """Return the keys of the messages between workers that a trace tells of."""
    labels = (
        _LABEL.search(stats.timeline_label)
        for device in trace.dev_stats
        for stats in device.node_stats
        if stats.node_name == "RecvTensor"
    )
    return {(label[1], label[2], label[3]) for label in labels if label}


def _key(node: node_def_pb2.NodeDef) -> _Key:
    name, source, destination = (
        node.attr[attribute].s.decode()
        for attribute in ("tensor_name", "send_device", "recv_device")
    )
    return name, source, destination


def _is_client(node: node_def_pb2.NodeDef) -> bool:
    return bool(node.attr["client_terminated"].b)


def _worker(device: str) -> int:
    return int(tf.DeviceSpec.from_string(device).task)
