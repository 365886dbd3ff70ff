"""HEFT: heterogeneous earliest finish time.

Topcuoglu, Hariri and Wu, *Performance-Effective and Low-Complexity Task Scheduling for
Heterogeneous Computing* (IEEE TPDS, 2002). Ops are scheduled by falling upward rank, each
on the device where it ends first, in the first gap there that is long enough. The op that decides
for its group is judged with the work of the whole group: by its own alone, a constant of no
duration would end as soon on the slowest device, and take all others there. As in the paper
links carry any number of tensors at once. How groups are pinned and how memory is counted is
in ``placer.heuristics.partial_schedule``.

Array shapes: N ops, G groups.
"""

import bisect

import numpy as np

from placer.graph import FloatArray
from placer.grouping import Grouping
from placer.heuristics.partial_schedule import (
    NOWHERE,
    PinnedGroups,
    TransferTimes,
    inputs_of_ops,
    mean_compute_time_s,
    op_traffic,
)
from placer.policy import Actions
from placer.profile import Profile
from placer.traffic import group_compute_time_s


def heft(profile: Profile, grouping: Grouping) -> Actions:
    """Return HEFT's placement, ``[G]``.

    Equal ranks: the op first in topological order. Equal ends: the device of the lowest
    index.

    Raises:
        InfeasibleError: If a group has no permitted device, or fits on none.
    """
    schedule = _Schedule(profile, grouping)
    ranks_s = upward_ranks_s(profile, grouping)
    # A rank is never below a consumer's, so that producers come first.
    for op in np.lexsort((profile.graph.topological_index, -ranks_s)).tolist():
        schedule.add(op)
    return schedule.groups.actions


def upward_ranks_s(profile: Profile, grouping: Grouping) -> FloatArray:
    """Return the length of the longest path from each op to the end, its own time too, ``[N]``.

    With compute times of the mean device among those permitted, and transfer times of the mean
    link, zero within a group.
    """
    ranks_s = mean_compute_time_s(profile, grouping, grouping.allowed(profile))
    traffic = op_traffic(profile, grouping)
    transfer_s = traffic.transfer_time_s
    # Edges ascend by producer: those of op i are first[i] … first[i + 1] - 1.
    first = np.searchsorted(traffic.edges.sources, np.arange(len(ranks_s) + 1))
    for op in profile.graph.topological_order[::-1]:
        leaving = slice(first[op], first[op + 1])
        consumers = traffic.edges.destinations[leaving]
        ranks_s[op] += np.max(transfer_s[leaving] + ranks_s[consumers], initial=0.0)
    return ranks_s


class Timeline:
    """When a device is busy."""

    def __init__(self) -> None:
        self._starts_s: list[float] = []
        self._ends_s: list[float] = []

    def earliest_start_s(self, ready_s: float, duration_s: float) -> float:
        """Return where the first gap begins, from ``ready_s`` on, that is long enough."""
        start_s = ready_s
        for span in range(bisect.bisect_right(self._ends_s, ready_s), len(self._ends_s)):
            if start_s + duration_s <= self._starts_s[span]:
                break
            start_s = max(start_s, self._ends_s[span])
        return start_s

    def occupy(self, start_s: float, end_s: float) -> None:
        """Fill a gap, or a part of one; no time at all fills none."""
        if start_s < end_s:
            span = bisect.bisect_left(self._starts_s, start_s)
            self._starts_s.insert(span, start_s)
            self._ends_s.insert(span, end_s)


class _Schedule:
    """The ops that are scheduled so far."""

    def __init__(self, profile: Profile, grouping: Grouping) -> None:
        self.groups = PinnedGroups(profile, grouping, grouping.allowed(profile))
        self._group_of_op: list[int] = grouping.group_of_op.tolist()
        self._compute_s: list[list[float]] = profile.compute_time_s.tolist()
        self._group_compute_s: list[list[float]] = group_compute_time_s(profile, grouping).tolist()
        self._transfer = TransferTimes(profile)
        self._inputs_of_op = inputs_of_ops(profile.graph)
        self._producer_of_tensor = [tensor.producer for tensor in profile.graph.tensors]
        self._timelines = [Timeline() for _ in profile.topology.devices]
        self._end_s: dict[int, float] = {}

    def add(self, op: int) -> None:
        """Put an op where it ends first, with its group if that is still open."""
        group = self._group_of_op[op]
        is_open = self.groups.device(group) == NOWHERE
        work_s = self._group_compute_s[group] if is_open else self._compute_s[op]
        devices = self.groups.devices(group)
        starts_s = [self._start_s(op, device) for device in devices]
        _, device, start_s = min(
            (start_s + work_s[device], device, start_s)
            for device, start_s in zip(devices, starts_s, strict=True)
        )
        end_s = start_s + self._compute_s[op][device]
        self.groups.pin(group, device)
        self._timelines[device].occupy(start_s, end_s)
        self._end_s[op] = end_s

    def _start_s(self, op: int, device: int) -> float:
        ready_s = max((self._arrival_s(t, device) for t in self._inputs_of_op[op]), default=0.0)
        return self._timelines[device].earliest_start_s(ready_s, self._compute_s[op][device])

    def _arrival_s(self, tensor: int, device: int) -> float:
        producer = self._producer_of_tensor[tensor]
        source = self.groups.device(self._group_of_op[producer])
        return self._end_s[producer] + self._transfer.seconds(tensor, source, device)
