"""Earliest task first, with or without favourite children.

Always the op and device of the earliest start come next, among ops whose producers are
scheduled (Hwang et al., 1989). An op starts when its device is free and its inputs have
arrived. A tensor is sent once to each device that needs it, when the first of its consumers
there is scheduled; a link carries one tensor at a time, in the order in which they are
asked for. Ties: the op first in topological order, then a device that is not kept for another
op (see below), then the one that ends sooner, then the device of the lowest index.

With favourite children this is SCT (Hanen and Munier, 2001) as Baechi has it. A device
*awaits* the favourite child of its last op, once that child's producers have all ended, as
long as its group is pinned nowhere and no other device could start it sooner. Then it starts

* the favourite child, or
* an op whose group is pinned to this device, or
* an op that is *urgent*: all devices are idle, and all its inputs have had the time to arrive
  wherever it may be placed,

whichever of them can start first, the favourite child if several can. Baechi's program
prefers the urgent op of an equal start, which another device can start as soon.

Starts only ever move to later while other ops are scheduled. So queues keep what was true when
they were last asked, and look again only at what would come first: a step of the
algorithm costs no more than a few ops on each device, however many are ready.
"""

import functools
import heapq
from collections.abc import Callable, Iterator, Sequence

from placer.grouping import Grouping
from placer.heuristics.partial_schedule import (
    NOWHERE,
    PinnedGroups,
    TransferTimes,
    accelerator_choices,
    inputs_of_ops,
)
from placer.policy import Actions
from placer.profile import Profile

NO_OP = -1
"""In the place of an op: the favourite child of an op that has none."""

_Input = tuple[float, int, int]
"""When an input was made, which tensor it is, and on which device it was made."""

_Start = tuple[float, int, int]
"""When an op can start, its topological index, and the op."""


class ReadyQueue:
    """Ops by the time at which they could start on a device, then by topological index.

    Args:
        arrival_s: Tells when the inputs of an op will be there, never sooner than it told
            before; None if the op does not belong to this queue any more.
    """

    def __init__(self, arrival_s: Callable[[int], float | None]) -> None:
        self._arrival_s = arrival_s
        self._coming: list[_Start] = []
        self._arrived: list[_Start] = []

    def push(self, op: int, index: int) -> None:
        """Add an op that has this topological index."""
        heapq.heappush(self._coming, (0.0, index, op))

    def first(self, free_s: float) -> _Start | None:
        """Return what can start first on a device that is free from ``free_s``; leave it there.

        ``free_s`` must not be below what it was before.
        """
        while True:
            while self._coming and self._coming[0][0] <= free_s:
                _, index, op = heapq.heappop(self._coming)
                heapq.heappush(self._arrived, (0.0, index, op))
            queue = self._arrived or self._coming
            if not queue:
                return None
            known_s, index, op = queue[0]
            start_s = max(known_s, free_s)
            arrival_s = self._arrival_s(op)
            if arrival_s is not None and arrival_s <= start_s:
                return start_s, index, op
            heapq.heappop(queue)
            if arrival_s is not None:
                heapq.heappush(self._coming, (arrival_s, index, op))


class LinkQueues:
    """Links that carry one tensor at a time, in the order in which they are asked to."""

    def __init__(self, profile: Profile) -> None:
        num_devices = profile.topology.num_devices
        self._transfer = TransferTimes(profile)
        self._free_s = [[0.0] * num_devices for _ in range(num_devices)]
        self._arrival_s: dict[tuple[int, int], float] = {}

    def arrival_s(self, inputs: Sequence[_Input], device: int) -> float:
        """Return when all inputs would be on a device, if they were asked for next."""
        arrivals_s = (arrival_s for _, _, arrival_s in self._arrivals(inputs, device))
        return max(arrivals_s, default=0.0)

    def send(self, inputs: Sequence[_Input], device: int) -> None:
        """Ask for the inputs that are not on the device, nor on their way."""
        for tensor, source, arrival_s in self._arrivals(inputs, device):
            self._arrival_s[tensor, device] = arrival_s
            if source != device:
                link_free_s = self._free_s[source][device]
                self._free_s[source][device] = max(link_free_s, arrival_s)

    def _arrivals(self, inputs: Sequence[_Input], device: int) -> Iterator[tuple[int, int, float]]:
        """Yield each tensor, where it was made, and when it is on the device."""
        free_s = [row[device] for row in self._free_s]
        for made_s, tensor, source in inputs:
            if source == device:
                arrival_s = made_s
            elif (tensor, device) in self._arrival_s:
                arrival_s = self._arrival_s[tensor, device]
            else:
                sent_s = max(made_s, free_s[source])
                arrival_s = sent_s + self._transfer.seconds(tensor, source, device)
                free_s[source] = arrival_s
            yield tensor, source, arrival_s


class EarliestTaskFirst:
    """One run of the algorithm.

    Args:
        profile: What is placed.
        grouping: Its groups.
        favorite_of_op: The favourite child of each op, or ``NO_OP``, ``[N]``; none at all
            for plain ETF.

    Raises:
        InfeasibleError: If a group has no permitted device.
    """

    def __init__(
        self, profile: Profile, grouping: Grouping, favorite_of_op: Sequence[int] = ()
    ) -> None:
        self._graph = profile.graph
        self._index: list[int] = profile.graph.topological_index.tolist()
        self._compute_s: list[list[float]] = profile.compute_time_s.tolist()
        self._inputs_of_op = inputs_of_ops(profile.graph)
        self._group_of_op: list[int] = grouping.group_of_op.tolist()
        self._ops_of_group = grouping.ops_of_group
        self._favorite_of_op = favorite_of_op or [NO_OP] * profile.graph.num_ops
        self._groups = PinnedGroups(profile, grouping, accelerator_choices(profile, grouping))
        self._links = LinkQueues(profile)

        num_devices = profile.topology.num_devices
        self._now_s = 0.0
        self._free_s = [0.0] * num_devices
        self._last_op = [NO_OP] * num_devices
        self._waiting = [len(producers) for producers in profile.graph.predecessors]
        self._end_s: dict[int, float] = {}
        self._inputs: dict[int, list[_Input]] = {}
        """Of every op that is ready or scheduled, the soonest made first."""
        self._earliest = self._queues(num_devices, self._arrival_s)
        self._pinned = self._queues(num_devices, self._arrival_s)
        self._urgent = self._queues(num_devices, self._arrival_everywhere_s)

    @staticmethod
    def _queues(
        num_devices: int, arrival_s: Callable[[int, int], float | None]
    ) -> list[ReadyQueue]:
        devices = range(num_devices)
        return [ReadyQueue(functools.partial(arrival_s, device)) for device in devices]

    def run(self) -> Actions:
        """Schedule every op, and return the device of each group, ``[G]``.

        Raises:
            InfeasibleError: If a group fits nowhere.
        """
        for op, count in enumerate(self._waiting):
            if count == 0:
                self._make_ready(op)
        for _ in range(self._graph.num_ops):
            self._schedule_next()
        return self._groups.actions

    def _make_ready(self, op: int) -> None:
        tensors = self._graph.tensors
        producers = [(tensor, tensors[tensor].producer) for tensor in self._inputs_of_op[op]]
        self._inputs[op] = sorted(
            (self._end_s[producer], tensor, self._groups.device(self._group_of_op[producer]))
            for tensor, producer in producers
        )
        group = self._group_of_op[op]
        is_pinned = self._groups.device(group) != NOWHERE
        for device in self._groups.devices(group):
            self._earliest[device].push(op, self._index[op])
            (self._pinned if is_pinned else self._urgent)[device].push(op, self._index[op])

    def _is_ready(self, op: int) -> bool:
        return op in self._inputs and op not in self._end_s

    def _arrival_s(self, device: int, op: int) -> float | None:
        """Return when an op's inputs are on a device; None if it may not go there (any more)."""
        if op in self._end_s or not self._groups.is_open(self._group_of_op[op], device):
            return None
        return self._links.arrival_s(self._inputs[op], device)

    def _arrival_everywhere_s(self, device: int, op: int) -> float | None:
        """Return when an op's inputs could be wherever it may be placed; None as above."""
        group = self._group_of_op[op]
        if self._groups.device(group) != NOWHERE or self._arrival_s(device, op) is None:
            return None
        choices = self._groups.choices(group)
        return max(self._links.arrival_s(self._inputs[op], choice) for choice in choices)

    def _schedule_next(self) -> None:
        candidates = []
        for device in range(len(self._free_s)):
            favorite = self._awaited(device)
            first = self._first(device, favorite)
            if first is not None:
                start_s, index, op = first
                end_s = start_s + self._compute_s[op][device]
                is_kept = favorite not in (NO_OP, op)
                candidates.append((start_s, index, is_kept, end_s, device, op))
        if not candidates:  # no group of a ready op fits: let the first of them say so
            op = min(filter(self._is_ready, self._inputs), key=self._index.__getitem__)
            self._groups.devices(self._group_of_op[op])
        start_s, _, _, end_s, device, op = min(candidates)
        self._place(op, device, start_s, end_s)

    def _first(self, device: int, favorite: int) -> _Start | None:
        """Return what a device can start first, given the favourite child that it awaits."""
        free_s = max(self._free_s[device], self._now_s)
        earliest = self._earliest[device].first(free_s)
        if earliest is None or favorite == NO_OP or earliest[0] < self._made_s(favorite):
            return earliest
        arrival_s = self._links.arrival_s(self._inputs[favorite], device)
        starts = [
            (max(arrival_s, free_s), self._index[favorite], favorite),
            self._pinned[device].first(free_s),
            self._urgent[device].first(max(self._now_s, *self._free_s)),
        ]
        # The favourite child comes first in the list, and so first of equal starts.
        return min((start for start in starts if start), key=lambda start: start[0])

    def _made_s(self, op: int) -> float:
        """Return when the last input of a ready op is made."""
        return self._inputs[op][-1][0] if self._inputs[op] else 0.0

    def _awaited(self, device: int) -> int:
        """Return the favourite child that a device awaits or will await, or ``NO_OP``."""
        last = self._last_op[device]
        favorite = NO_OP if last == NO_OP else self._favorite_of_op[last]
        if favorite == NO_OP or not self._is_ready(favorite):
            return NO_OP
        group = self._group_of_op[favorite]
        if self._groups.device(group) != NOWHERE or not self._groups.is_open(group, device):
            return NO_OP
        start_s = {
            other: max(
                self._links.arrival_s(self._inputs[favorite], other),
                self._free_s[other],
                self._now_s,
            )
            for other in self._groups.devices(group)
        }
        return favorite if start_s[device] <= min(start_s.values()) else NO_OP

    def _place(self, op: int, device: int, start_s: float, end_s: float) -> None:
        group = self._group_of_op[op]
        was_pinned = self._groups.device(group) != NOWHERE
        self._links.send(self._inputs[op], device)
        self._groups.pin(group, device)
        self._now_s = start_s
        self._end_s[op] = self._free_s[device] = end_s
        self._last_op[device] = op
        if not was_pinned:
            for other in filter(self._is_ready, self._ops_of_group[group].tolist()):
                self._pinned[device].push(other, self._index[other])
        for consumer in self._graph.successors[op]:
            self._waiting[consumer] -= 1
            if self._waiting[consumer] == 0:
                self._make_ready(consumer)
