"""A second simulator: slow, plain, and written from the rules alone.

It keeps no queues. At every step it asks of all work what could start now, and takes by
the rule; what is in memory when is read from the finished schedule.
"""

import dataclasses
import math
from fractions import Fraction

import networkx as nx

from placer.placement import Placement
from placer.profile import Profile

Span = tuple[int, int]
"""Start and end in picoseconds."""


@dataclasses.dataclass(frozen=True)
class PlainSchedule:
    """Spans of every op, and of every transfer by (tensor, destination)."""

    op_spans: dict[int, Span]
    transfer_spans: dict[tuple[int, int], Span]
    peak_memory_bytes: list[int]

    @property
    def makespan_ps(self) -> int:
        """The time of the last completion."""
        spans = [*self.op_spans.values(), *self.transfer_spans.values()]
        return max(end for _, end in spans)


def to_ps(seconds: float) -> int:
    """Round to whole picoseconds, half to even."""
    return round(float(seconds) * 1e12)


class PlainSimulator:
    """One simulation of one placement."""

    def __init__(self, profile: Profile, placement: Placement) -> None:
        self.profile = profile
        self.tensors = profile.graph.tensors
        self.device = placement.device_of_op.tolist()
        graph = nx.DiGraph()
        graph.add_nodes_from(range(profile.graph.num_ops))
        for tensor in self.tensors:
            graph.add_edges_from((tensor.producer, consumer) for consumer in tensor.consumers)
        order = list(nx.lexicographical_topological_sort(graph))
        self.rank = {op: order.index(op) for op in order}
        self.op_spans: dict[int, Span] = {}
        self.transfer_spans: dict[tuple[int, int], Span] = {}
        self.arrival: dict[tuple[int, int], int] = {}  # when a tensor is on a device
        self.running: dict[int, Fraction] = {}  # picoseconds of work left of each op
        self.moving: dict[tuple[int, int], int] = {}  # when each transfer will end

    def run(self) -> PlainSchedule:
        now = 0
        while True:
            self.apply_completions(now)
            self.start_ops(now)
            self.start_transfers(now)
            ends = [*self.moving.values(), *self.ends_of_ops(now)]
            if not ends:
                break
            later = min(ends)
            for op in self.running:
                self.running[op] -= self.rate(self.device[op]) * (later - now)
            now = later
        assert len(self.op_spans) == len(self.device)
        num_devices = self.profile.topology.num_devices
        peaks = [self.peak(device) for device in range(num_devices)]
        return PlainSchedule(self.op_spans, self.transfer_spans, peaks)

    def rate(self, device: int) -> Fraction:
        """What the running transfers leave of a device's time."""
        rate = Fraction(1)
        for number, destination in self.moving:
            source = self.device[self.tensors[number].producer]
            link = self.profile.topology.links[source, destination]
            if device == source:
                rate -= Fraction(round(link.source_load * 1000), 1000)
            if device == destination:
                rate -= Fraction(round(link.destination_load * 1000), 1000)
        return max(rate, Fraction(0))

    def ends_of_ops(self, now: int) -> list[int]:
        """When each running op would end if nothing else changed, in whole picoseconds."""
        ends = []
        for op, left in self.running.items():
            rate = self.rate(self.device[op])
            if left <= 0 or rate > 0:
                ends.append(now + (math.ceil(left / rate) if left > 0 else 0))
        return ends

    def apply_completions(self, now: int) -> None:
        for which, end in list(self.moving.items()):
            if end == now:
                del self.moving[which]
                self.arrival[which] = now
        for op, left in list(self.running.items()):
            if left <= 0:
                del self.running[op]
                self.op_spans[op] = (self.op_spans[op][0], now)
                for number, tensor in enumerate(self.tensors):
                    if tensor.producer == op:
                        self.arrival[number, self.device[op]] = now

    def start_ops(self, now: int) -> None:
        for device in range(self.profile.topology.num_devices):
            if any(self.device[op] == device for op in self.running):
                continue
            waiting = []
            for op in range(len(self.device)):
                inputs = [n for n, t in enumerate(self.tensors) if op in t.consumers]
                there = [self.arrival.get((number, device)) for number in inputs]
                if self.device[op] == device and op not in self.op_spans and None not in there:
                    waiting.append((max(there, default=0), self.rank[op], op))
            if waiting:
                _, _, op = min(waiting)
                self.op_spans[op] = (now, now)  # its end is not known yet
                self.running[op] = Fraction(to_ps(self.profile.compute_time_s[op, device]))

    def start_transfers(self, now: int) -> None:
        num_devices = self.profile.topology.num_devices
        for source in range(num_devices):
            for destination in range(num_devices):
                if source == destination or any(
                    d == destination and self.device[self.tensors[number].producer] == source
                    for number, d in self.moving
                ):
                    continue
                waiting = []
                for number, tensor in enumerate(self.tensors):
                    wanted = any(self.device[op] == destination for op in tensor.consumers)
                    made = self.arrival.get((number, source))
                    from_here = self.device[tensor.producer] == source
                    new = (number, destination) not in self.transfer_spans
                    if wanted and from_here and new and made is not None:
                        waiting.append((made, self.rank[tensor.producer], number))
                if waiting:
                    _, _, number = min(waiting)
                    link = self.profile.topology.links[source, destination]
                    size_bytes = self.tensors[number].size_bytes
                    seconds = link.latency_s + size_bytes / link.bandwidth_bytes_per_s
                    end = now + to_ps(seconds)
                    self.transfer_spans[number, destination] = (now, end)
                    self.moving[number, destination] = end

    def peak(self, device: int) -> int:
        """The most bytes resident at once: residence includes its start and not its end."""
        base = sum(
            int(self.profile.memory_bytes[op])
            for op in range(len(self.device))
            if self.device[op] == device
        )
        stays = []
        for number, tensor in enumerate(self.tensors):
            ends = [self.op_spans[op][1] for op in tensor.consumers if self.device[op] == device]
            if self.device[tensor.producer] == device:
                ends += [end for (n, _), (_, end) in self.transfer_spans.items() if n == number]
                start, producer_end = self.op_spans[tensor.producer]
                stays.append((start, max(ends, default=producer_end), tensor.size_bytes))
            elif ends:
                start, _ = self.transfer_spans[number, device]
                stays.append((start, max(ends), tensor.size_bytes))
        levels = [sum(b for start, end, b in stays if start <= at < end) for at, _, _ in stays]
        return base + max(levels, default=0)
