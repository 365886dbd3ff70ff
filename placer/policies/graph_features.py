"""What the network is told of each group, relative to the others of its graph.

Nothing depends on names, on the unit of time, or on the order of devices, so that a network
that was trained on some graphs can be asked about others. Times are in units of the mean
compute time of a group, paths in shares of the longest.

Array shapes: N ops, G groups, E pairs of groups, D devices.
"""

from collections.abc import Sequence

import numpy as np

from placer.devices import UNLIMITED_BYTES
from placer.graph import BoolArray, FloatArray, IntArray
from placer.grouping import Grouping
from placer.profile import Profile
from placer.traffic import GroupTraffic

NUM_FEATURES = 33
_LARGEST = 3.0


def group_features(
    profile: Profile,
    grouping: Grouping,
    traffic: GroupTraffic,
    unit_s: float,
    is_opening: BoolArray,
) -> FloatArray:
    """Return the features, ``[G, NUM_FEATURES]``.

    Args:
        profile: What is placed.
        grouping: Its groups, numbered in the order of placing.
        traffic: Between these groups.
        unit_s: The unit of time.
        is_opening: Ops that can be scheduled as soon as their group is placed, ``[N]``.
    """
    num_groups = grouping.num_groups
    fastest = _fastest(profile, grouping) / unit_s
    work = _sums(grouping.group_of_op, fastest, num_groups)
    computing = _paths(profile, grouping, fastest, np.zeros(2))
    sending = _paths(profile, grouping, fastest, _mean_link(profile) / unit_s)
    total = float(work.sum()) or 1.0
    columns = [
        *_sizes(grouping, work, fastest, is_opening),
        *computing.columns(grouping),
        *sending.columns(grouping),
        *_surroundings(traffic, work, unit_s),
        *_devices(profile, grouping, traffic),
        np.arange(num_groups) / num_groups,
    ]
    whole = [
        np.log(total / computing.length),
        np.log(sending.length / computing.length),
        np.log1p(traffic.transfer_time_s.sum() / unit_s / total),
        np.log(num_groups) / 4,
        np.log(profile.topology.num_devices),
        np.log1p(_mean_link(profile)[0] / unit_s),
    ]
    columns += [np.full(num_groups, value) for value in whole]
    return np.stack(columns, axis=1)


class _Paths:
    """The longest paths to and from each op.

    Attributes:
        head: Longest path to an op, its own time left out, ``[N]``.
        through: Longest path through it, ``[N]``.
        length: Of the longest of all.
    """

    def __init__(self, head: FloatArray, time: FloatArray, tail: FloatArray) -> None:
        self.head = head
        self.through = head + time + tail
        self.length = float(self.through.max()) or 1.0
        self._end = head + time

    def columns(self, grouping: Grouping) -> list[FloatArray]:
        """Return when groups begin and how near they are to the longest path, ``[G]`` each."""
        begin = np.full(grouping.num_groups, np.inf)
        np.minimum.at(begin, grouping.group_of_op, self.head)
        end = np.zeros(grouping.num_groups)
        np.maximum.at(end, grouping.group_of_op, self._end)
        through = np.zeros(grouping.num_groups)
        np.maximum.at(through, grouping.group_of_op, self.through)
        return [begin / self.length, end / self.length, through / self.length]


def _paths(profile: Profile, grouping: Grouping, time: FloatArray, link: FloatArray) -> _Paths:
    """Return the paths if tensors between groups take latency and time per byte of ``link``."""
    graph = profile.graph
    latency, per_byte = link.tolist()
    times: list[float] = time.tolist()
    group_of_op: list[int] = grouping.group_of_op.tolist()
    sent: list[list[tuple[int, float]]] = [[] for _ in graph.ops]
    for tensor in graph.tensors:
        transfer = latency + per_byte * tensor.size_bytes
        sent[tensor.producer] += [
            (op, 0.0 if group_of_op[op] == group_of_op[tensor.producer] else transfer)
            for op in tensor.consumers
        ]
    head, tail = [0.0] * graph.num_ops, [0.0] * graph.num_ops
    order: list[int] = graph.topological_order.tolist()
    for op in order:
        for consumer, transfer in sent[op]:
            head[consumer] = max(head[consumer], head[op] + times[op] + transfer)
    for op in reversed(order):
        for consumer, transfer in sent[op]:
            tail[op] = max(tail[op], transfer + times[consumer] + tail[consumer])
    return _Paths(np.array(head), time, np.array(tail))


def _fastest(profile: Profile, grouping: Grouping) -> FloatArray:
    """Return each op's time on the device that is fastest for its group, ``[N]``."""
    allowed = grouping.allowed(profile)[grouping.group_of_op]
    return np.asarray(np.where(allowed, profile.compute_time_s, np.inf).min(axis=1))


def _mean_link(profile: Profile) -> FloatArray:
    """Return latency and seconds per byte of the mean link; zeros if there is none."""
    links = list(profile.topology.links.values())
    if not links:
        return np.zeros(2)
    terms = [(link.latency_s, 1 / link.bandwidth_bytes_per_s) for link in links]
    return np.asarray(np.mean(terms, axis=0))


def _sizes(
    grouping: Grouping, work: FloatArray, fastest: FloatArray, is_opening: BoolArray
) -> Sequence[FloatArray]:
    """Return columns on how much a group computes, and how much of that at once."""
    num_groups = grouping.num_groups
    at_once = _sums(grouping.group_of_op, fastest * is_opening, num_groups)
    num_ops = np.bincount(grouping.group_of_op)
    return [
        np.log1p(work),
        _share(at_once, work - at_once),
        np.log(num_ops) / 2,
        (work == 0).astype(np.float64),
    ]


def _surroundings(traffic: GroupTraffic, work: FloatArray, unit_s: float) -> Sequence[FloatArray]:
    """Return columns on what a group receives and sends."""
    edges, num_groups = traffic.edges, len(work)
    transfer = traffic.transfer_time_s / unit_s
    is_later = edges.sources > edges.destinations
    columns: list[FloatArray] = []
    for ends in (edges.destinations, edges.sources):
        total = _sums(ends, transfer, num_groups)
        largest = np.zeros(num_groups)
        np.maximum.at(largest, ends, transfer)
        columns += [
            np.log1p(total),
            np.log1p(largest),
            _share(total, work),
            np.log1p(_sums(ends, np.ones(len(ends)), num_groups)) / 2,
        ]
    later = np.maximum(edges.sources, edges.destinations)
    earlier = np.minimum(edges.sources, edges.destinations)
    placed = _sums(later, transfer, num_groups)
    unplaced = _sums(earlier, transfer, num_groups)
    back = _sums(earlier, transfer * is_later, num_groups)
    return [*columns, _share(placed, unplaced), _share(back, unplaced - back)]


def _devices(profile: Profile, grouping: Grouping, traffic: GroupTraffic) -> Sequence[FloatArray]:
    """Return columns on how devices differ for a group, and how tight memory is."""
    allowed = grouping.allowed(profile)
    times = np.maximum(traffic.compute_time_s, 1e-12)
    fastest = np.where(allowed, times, np.inf).min(axis=1)
    slowest = np.where(allowed, times, 0).max(axis=1)
    limits = profile.topology.memory_bytes.astype(np.float64)
    limits[limits == UNLIMITED_BYTES] = np.inf
    size_bytes = profile.memory_bytes.astype(np.float64)
    for tensor in profile.graph.tensors:
        size_bytes[tensor.producer] += tensor.size_bytes
    held = _sums(grouping.group_of_op, size_bytes, grouping.num_groups)
    mean_bytes = max(float(held.mean()), 1.0)
    is_single = allowed.sum(axis=1) == 1
    return [
        np.minimum(np.log(slowest / fastest), _LARGEST),
        is_single.astype(np.float64),
        np.log1p(held / mean_bytes),
        held / limits.min(),
        np.full(len(held), min(held.sum() / limits.min(), _LARGEST)),
        np.full(len(held), min(held.sum() / limits.sum(), _LARGEST)),
    ]


def _sums(numbers: IntArray, values: FloatArray, count: int) -> FloatArray:
    """Return the sum of the values of each number below ``count``."""
    return np.bincount(numbers, values, minlength=count).astype(np.float64)


def _share(part: FloatArray, rest: FloatArray) -> FloatArray:
    """Return ``part / (part + rest)``, one half where both are zero."""
    total = part + rest
    return np.asarray(np.where(total > 0, part / np.where(total > 0, total, 1), 0.5))
