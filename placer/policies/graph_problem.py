"""What the graph policy knows of a profile before anything is placed.

Groups are placed in the topological order of their first ops, but that what merely holds or
reads (weights, constants) comes right before its first user: its device follows from theirs. All
names here go by this order: group g is the g-th to be placed.

An op can be scheduled once its group and the groups of all ops before it are placed. So each
placed group makes some ops schedulable: its own *opening* ops, those that wait for nothing
unplaced, and then ops of groups placed earlier that waited for them, such as the
backward ops of a unit. This order of ops is the same for every placement.

Times are in units of the mean compute time of a group, each on its fastest device.

Array shapes: N ops, G groups, D devices, T tensors, I inputs, E pairs of neighbours, F features.
"""

import heapq
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from placer.devices import UNLIMITED_BYTES
from placer.graph import BoolArray, FloatArray, IntArray, OpGraph
from placer.grouping import Grouping
from placer.policies.graph_features import group_features
from placer.policies.locality import placed_neighbors
from placer.profile import Profile
from placer.traffic import GroupEdges, GroupTraffic, group_traffic


class Program(NamedTuple):
    """The graph as the decoder schedules it; ops by the order in which they are scheduled.

    Attributes:
        first_op: First op that each placed group makes schedulable, ``[G + 1]``.
        end_of_opening: End of its opening ops, ``[G]``.
        group_of_op: ``[N]``.
        compute: Of each op on each device, ``[N, D]``.
        first_input: Where each op's inputs start in the next, ``[N + 1]``.
        inputs: Tensors, ``[I]``.
        producer: Op that makes each tensor, ``[T]``.
        size_bytes: Of each tensor, ``[T]``.
        latency: From row to column, ``[D, D]``.
        per_byte: Time of sending a byte, ``[D, D]``.
        first_neighbor: Where each group's placed neighbours start in the two next, ``[G + 1]``.
        neighbors: Groups, ``[E]``.
        shares: How much each counts, ``[E]``; they sum to 1 for each group.
        load: Of each group on each device, in shares of the mean work of a device, ``[G, D]``.
        shared: Time in which a group sends to and receives from its placed neighbours, ``[G]``.
        held: Share of each device's memory that a group takes for good, ``[G, D]``.
        per_limit: Share of each device's memory that a byte takes, ``[D]``; 0 if unlimited.
        allowed: Where each group may go, ``[G, D]``.
    """

    first_op: IntArray
    end_of_opening: IntArray
    group_of_op: IntArray
    compute: FloatArray
    first_input: IntArray
    inputs: IntArray
    producer: IntArray
    size_bytes: FloatArray
    latency: FloatArray
    per_byte: FloatArray
    first_neighbor: IntArray
    neighbors: IntArray
    shares: FloatArray
    load: FloatArray
    shared: FloatArray
    held: FloatArray
    per_limit: FloatArray
    allowed: BoolArray


class GraphProblem:
    """A profile and its groups, prepared for network and decoder.

    Attributes:
        order: The group that is placed at each step, ``[G]``.
        program: What the decoder schedules.
        features: Of each group, ``[G, F]``, in the order of placing.
        before: Averages over what each group receives from, by transfer time, ``[G, G]``.
        after: Averages over what each group sends to, ``[G, G]``.

    Raises:
        InfeasibleError: If a group has no permitted device.
    """

    def __init__(self, profile: Profile, grouping: Grouping) -> None:
        graph = profile.graph
        late_index = _late_index(profile)
        first = np.full(grouping.num_groups, graph.num_ops)
        np.minimum.at(first, grouping.group_of_op, late_index)
        self.order: IntArray = np.argsort(first)
        step_of_group = np.argsort(self.order)
        placed = Grouping(step_of_group[grouping.group_of_op])
        traffic = group_traffic(profile, placed)
        allowed = placed.allowed(profile)
        scheduled, first_op, end_of_opening = _schedule_order(graph, placed, late_index)
        unit_s = _mean_fastest_s(traffic.compute_time_s, allowed)
        self.program = _program(
            profile, placed, traffic, unit_s, (scheduled, first_op, end_of_opening)
        )
        is_opening = np.zeros(graph.num_ops, dtype=np.bool_)
        for start, stop in zip(first_op[:-1], end_of_opening, strict=True):
            is_opening[scheduled[start:stop]] = True
        self.features = group_features(profile, placed, traffic, unit_s, is_opening)
        self.before = _averages(traffic.edges, traffic.transfer_time_s, grouping.num_groups)
        self.after = _averages(
            _reversed(traffic.edges), traffic.transfer_time_s, grouping.num_groups
        )

    @property
    def num_groups(self) -> int:
        """G."""
        return len(self.order)

    @property
    def num_devices(self) -> int:
        """D."""
        return int(self.program.allowed.shape[1])


def _late_index(profile: Profile) -> IntArray:
    """Return a topological numbering in which what needs no computing comes late, ``[N]``."""
    graph = profile.graph
    index = graph.topological_index.tolist()
    time_s = profile.compute_time_s.min(axis=1).tolist()
    computes = [False] * graph.num_ops
    for op in graph.topological_order.tolist():
        computes[op] = time_s[op] > 0 or any(computes[before] for before in graph.predecessors[op])
    key = list(index)
    for op in graph.topological_order[::-1].tolist():
        if not computes[op] and graph.successors[op]:
            key[op] = min(key[consumer] for consumer in graph.successors[op])
    late = np.empty(graph.num_ops, dtype=np.int64)
    late[np.lexsort((index, key))] = np.arange(graph.num_ops)
    return late


def _schedule_order(
    graph: OpGraph, grouping: Grouping, late_index: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Return the ops in the order of the program, ``[N]``, and its two bounds for each group."""
    waiting = [len(producers) for producers in graph.predecessors]
    group_of_op: list[int] = grouping.group_of_op.tolist()
    index: list[int] = late_index.tolist()
    scheduled: list[int] = []
    first_op: list[int] = [0]
    end_of_opening: list[int] = []
    for group, ops in enumerate(grouping.ops_of_group):
        opening = [(index[op], op) for op in ops.tolist() if waiting[op] == 0]
        released: list[tuple[int, int]] = []
        heapq.heapify(opening)
        while opening or released:
            if not opening and len(end_of_opening) == group:
                end_of_opening.append(len(scheduled))
            _, op = heapq.heappop(opening or released)
            scheduled.append(op)
            for consumer in graph.successors[op]:
                waiting[consumer] -= 1
                if waiting[consumer] == 0 and group_of_op[consumer] <= group:
                    is_opening = len(end_of_opening) == group and group_of_op[consumer] == group
                    heapq.heappush(opening if is_opening else released, (index[consumer], consumer))
        if len(end_of_opening) == group:
            end_of_opening.append(len(scheduled))
        first_op.append(len(scheduled))
    return np.array(scheduled), np.array(first_op), np.array(end_of_opening)


def _program(
    profile: Profile,
    grouping: Grouping,
    traffic: GroupTraffic,
    unit_s: float,
    order: tuple[IntArray, IntArray, IntArray],
) -> Program:
    graph, topology = profile.graph, profile.topology
    scheduled, first_op, end_of_opening = order
    place_of_op = np.argsort(scheduled)
    consumers = [op for tensor in graph.tensors for op in tensor.consumers]
    tensors = np.repeat(np.arange(len(graph.tensors)), [len(t.consumers) for t in graph.tensors])
    places = place_of_op[np.array(consumers, dtype=np.int64)]
    by_consumer = np.argsort(places, kind="stable")
    neighbors = placed_neighbors(profile, grouping)
    limits = topology.memory_bytes
    per_limit = np.where(limits == UNLIMITED_BYTES, 0.0, 1 / limits)
    return Program(
        first_op=first_op,
        end_of_opening=end_of_opening,
        group_of_op=grouping.group_of_op[scheduled],
        compute=profile.compute_time_s[scheduled] / unit_s,
        first_input=np.searchsorted(places[by_consumer], np.arange(graph.num_ops + 1)),
        inputs=tensors[by_consumer],
        producer=place_of_op[np.array([t.producer for t in graph.tensors], dtype=np.int64)],
        size_bytes=np.array([t.size_bytes for t in graph.tensors], dtype=np.float64),
        latency=topology.latency_s / unit_s,
        per_byte=1 / topology.bandwidth_bytes_per_s / unit_s,
        first_neighbor=neighbors.first,
        neighbors=neighbors.groups,
        shares=neighbors.shares,
        load=traffic.compute_time_s * (topology.num_devices / (unit_s * grouping.num_groups)),
        shared=_shared(traffic, grouping.num_groups) / unit_s,
        held=_held_bytes(profile, grouping)[:, np.newaxis] * per_limit,
        per_limit=per_limit,
        allowed=grouping.allowed(profile),
    )


def _shared(traffic: GroupTraffic, num_groups: int) -> FloatArray:
    """Return the seconds in which a group's tensors from and to those before are sent, ``[G]``."""
    later = np.maximum(traffic.edges.sources, traffic.edges.destinations)
    return np.bincount(later, traffic.transfer_time_s, num_groups).astype(np.float64)


def _held_bytes(profile: Profile, grouping: Grouping) -> FloatArray:
    """Return what a group takes, ``[G]``, as the list schedulers count.

    Its variables, its workspace and every tensor it makes.
    """
    size_bytes = profile.memory_bytes.astype(np.float64)
    for tensor in profile.graph.tensors:
        size_bytes[tensor.producer] += tensor.size_bytes
    return np.bincount(grouping.group_of_op, size_bytes).astype(np.float64)


def _mean_fastest_s(compute_time_s: FloatArray, allowed: BoolArray) -> float:
    """Return the mean over groups of the time on the fastest permitted device."""
    mean_s = float(np.where(allowed, compute_time_s, np.inf).min(axis=1).mean())
    return mean_s or 1.0


def _reversed(edges: GroupEdges) -> GroupEdges:
    return GroupEdges(edges.destinations, edges.sources, edges.size_bytes, edges.num_tensors)


def _averages(edges: GroupEdges, transfer_time_s: FloatArray, num_groups: int) -> Any:
    """Return a matrix that averages over the sources of each destination, ``[G, G]``.

    As in ``placed_neighbors``, each counts by one plus its relative transfer time.
    """
    mean_s = float(transfer_time_s.mean()) if transfer_time_s.size else 0.0
    counts = 1 + transfer_time_s / (mean_s or 1.0)
    total = np.bincount(edges.destinations, counts, minlength=num_groups)
    shares = counts / total[edges.destinations]
    places = (edges.destinations, edges.sources)
    return scipy.sparse.csr_array((shares, places), shape=(num_groups, num_groups))
