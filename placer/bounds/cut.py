"""The bound by cuts: what a placement does not send it must keep together.

Let the *value* of a tensor between two groups be the longest path through it if it is sent: the
path to its producer, the producer, the transfer, the consumer and the path from there, each op on
the fastest permitted device, over the fastest link between two devices that differ. A placement
that sends the tensor takes at least its value, since the consumer cannot start before the
transfer ended.

For any p, a placement either sends a tensor of value p or more, and takes at least p; or it sends
none, and then keeps the groups at the ends of each on one device. For the groups so *merged* any
other bound holds, say B(p): fewer devices may be permitted to them, and each runs on one
machine. Hence every placement takes at least

    min(p, B(p))    for every p

of which the largest is returned. As p grows fewer groups are merged, and B(p) falls.

Memory enters here. Ops hold their ``memory_bytes`` for the whole step, so that merged groups must
fit a device that is permitted to them, and all groups together all devices. Where they do
not, B(p) is infinite: a placement that fits must send a tensor of value p or more. This bound
therefore holds for placements that fit. What tensors take of the memory is left out.

Array shapes: N ops, G groups, D devices, E pairs of a tensor and a group that it goes to.
"""

import math

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from placer.bounds.paths import NEVER_PS, compute_ps, fastest_ps, heads_ps, tails_ps, transfer_ps
from placer.bounds.relaxed import one_machine_s, work_s
from placer.errors import InfeasibleError
from placer.event_loop import PS_PER_S
from placer.graph import IntArray
from placer.grouping import Grouping
from placer.profile import Profile

_PAIRS_AT_ONCE = 2**14
"""Their sums of all pairs of devices are in memory at once."""


def cut_s(profile: Profile, grouping: Grouping) -> float:
    """Return the largest ``min(p, B(p))``, for placements that fit the devices' memory.

    B is the larger of the bounds by work and by one machine. The result is infinite where it
    shows that no placement fits, and zero where no tensor goes to another group.

    Raises:
        InfeasibleError: If a group has no permitted device.
    """
    if not _may_fit(profile, grouping):
        return math.inf
    ends, values = _values(profile, grouping)
    candidates = np.unique(values)
    best_s, low, high = 0.0, 0, len(candidates) - 1
    while low <= high:
        middle = (low + high) // 2
        value_ps = int(candidates[middle])
        value_s = math.inf if value_ps == NEVER_PS else value_ps / PS_PER_S
        merged_s = _merged_s(profile, _merged(grouping, ends[values >= value_ps]))
        best_s = max(best_s, min(value_s, merged_s))
        if merged_s >= value_s:
            low = middle + 1
        else:
            high = middle - 1
    return best_s


def _values(profile: Profile, grouping: Grouping) -> tuple[IntArray, IntArray]:
    """Return the groups at the ends of every pair, ``[E, 2]``, and its value, ``[E]``.

    The value is ``NEVER_PS`` where both groups have one device, and the same.
    """
    graph, groups = profile.graph, grouping.group_of_op
    allowed = grouping.allowed(profile)[groups]
    times_ps, shortest_ps = compute_ps(profile), fastest_ps(profile, grouping)
    before = np.array(heads_ps(graph, shortest_ps))[:, np.newaxis] + times_ps
    after = np.array(tails_ps(graph, shortest_ps))[:, np.newaxis] + times_ps
    sent = [
        (tensor.producer, consumer, tensor.size_bytes)
        for tensor in graph.tensors
        for consumer in tensor.consumers
        if groups[tensor.producer] != groups[consumer]
    ]
    producers, consumers, sizes = np.array(sent, dtype=np.int64).reshape(-1, 3).T
    values = np.empty(len(sent), dtype=np.int64)
    differ = ~np.eye(profile.topology.num_devices, dtype=np.bool_)
    for start in range(0, len(sent), _PAIRS_AT_ONCE):
        part = slice(start, start + _PAIRS_AT_ONCE)
        sums_ps = transfer_ps(profile.topology, sizes[part])
        sums_ps += before[producers[part], :, np.newaxis] + after[consumers[part], np.newaxis]
        open_ = allowed[producers[part], :, np.newaxis] & allowed[consumers[part], np.newaxis]
        values[part] = np.where(open_ & differ, sums_ps, NEVER_PS).min(axis=(1, 2))
    return np.stack([groups[producers], groups[consumers]], axis=1), values


def _merged(grouping: Grouping, pairs: IntArray) -> Grouping:
    """Return the grouping in which both groups of each pair, ``[E, 2]``, are one."""
    num_groups = grouping.num_groups
    joined = coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), (num_groups, num_groups))
    _, part_of_group = connected_components(joined, directed=False)
    return Grouping(part_of_group[grouping.group_of_op])


def _merged_s(profile: Profile, merged: Grouping) -> float:
    """Return the bound for merged groups; infinite if they have no device or cannot fit."""
    try:
        if not _may_fit(profile, merged):
            return math.inf
    except InfeasibleError:
        return math.inf
    return max(one_machine_s(profile, merged), work_s(profile, merged))


def _may_fit(profile: Profile, grouping: Grouping) -> bool:
    """Return whether each group fits a permitted device, and all groups all devices."""
    limits = profile.topology.memory_bytes
    held = np.zeros(grouping.num_groups, dtype=np.int64)
    np.add.at(held, grouping.group_of_op, profile.memory_bytes)
    largest = np.where(grouping.allowed(profile), limits, 0).max(axis=1)
    return bool((held <= largest).all()) and int(held.sum()) <= sum(limits.tolist())
