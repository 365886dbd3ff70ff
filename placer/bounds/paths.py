"""What every bound is made of: times in whole picoseconds, and the longest paths.

Times are rounded as the simulation rounds them, so that a bound holds exactly.

Array shapes: N ops, D devices, T tensors.
"""

from collections.abc import Sequence

import numpy as np

from placer.devices import DeviceTopology
from placer.event_loop import PS_PER_S
from placer.graph import IntArray, OpGraph
from placer.grouping import Grouping
from placer.profile import Profile

NEVER_PS = 2**62
"""Longer than any step: the simulation refuses work that sums to as much."""


def compute_ps(profile: Profile) -> IntArray:
    """Return each op's time on each device, as the simulation rounds it, ``[N, D]``."""
    return np.rint(profile.compute_time_s * PS_PER_S).astype(np.int64)


def fastest_ps(profile: Profile, grouping: Grouping) -> list[int]:
    """Return each op's time on the fastest device permitted to its group, ``[N]``."""
    allowed = grouping.allowed(profile)[grouping.group_of_op]
    fastest: list[int] = np.where(allowed, compute_ps(profile), NEVER_PS).min(axis=1).tolist()
    return fastest


def heads_ps(graph: OpGraph, times_ps: Sequence[int]) -> list[int]:
    """Return the longest path to each op, its own time left out, ``[N]``."""
    heads_ps = [0] * graph.num_ops
    for op in graph.topological_order.tolist():
        for consumer in graph.successors[op]:
            heads_ps[consumer] = max(heads_ps[consumer], heads_ps[op] + times_ps[op])
    return heads_ps


def tails_ps(graph: OpGraph, times_ps: Sequence[int]) -> list[int]:
    """Return the longest path from each op, its own time left out, ``[N]``."""
    tails_ps = [0] * graph.num_ops
    for op in graph.topological_order[::-1].tolist():
        for consumer in graph.successors[op]:
            tails_ps[op] = max(tails_ps[op], times_ps[consumer] + tails_ps[consumer])
    return tails_ps


def transfer_ps(topology: DeviceTopology, size_bytes: IntArray) -> IntArray:
    """Return how long each tensor takes over each link, ``[T, D, D]``; zero on the diagonal."""
    sizes = size_bytes[:, np.newaxis, np.newaxis]
    times_s = topology.latency_s + sizes / topology.bandwidth_bytes_per_s
    times_ps: IntArray = np.rint(times_s * PS_PER_S).astype(np.int64)
    return times_ps
