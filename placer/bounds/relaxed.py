"""Bounds that leave transfers out: critical path, work, and one machine.

They hold for every placement of the groups on permitted devices, whether or not it fits the
memory: each leaves out something that can only make a step longer (transfers, other ops, the loads
of links).

* *Critical path.* Along a path ops run one after another, each for no less than on its fastest
  device.
* *Work.* Let ``t_gd`` be the sum of compute times of group g on device d, and T the makespan
  of a placement that puts g on ``d(g)``. A device runs one op at a time, so that the groups on
  each take at most T together. For any weights ``w_d`` of devices, not negative:

      T sum_d w_d >= sum_g w_d(g) t_g,d(g) >= sum_g min_d w_d t_gd    over permitted d

  With equal weights that is the work of the fastest devices, shared by all. For devices that
  differ the weights are the dual solution of the problem in which groups may be divided, for
  which the bound is the sharpest.
* *One machine.* All ops of a group run on one device, one at a time. None starts before the
  longest path to it (its *head*), and after its end the longest path from it (its *tail*) is still
  to come. Relaxed to ops that may be interrupted, that is solved by always running the op of the
  longest tail (Carlier, *The one-machine sequencing problem*, EJOR 1982), and what it takes is
  the largest, over subsets of the group's ops, of least head + work + least tail. On the
  device where this is least, and for the group where it is most, that is a bound. It is
  never below the critical path.

Array shapes: N ops, G groups, D devices.
"""

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.optimize
import scipy.sparse

from placer.bounds.paths import compute_ps, fastest_ps, heads_ps, tails_ps
from placer.event_loop import PS_PER_S
from placer.graph import BoolArray, FloatArray, IntArray
from placer.grouping import Grouping
from placer.profile import Profile

_WEIGHT_SCALE = 2**30
"""Weights of devices are whole multiples of one part in so many."""


def critical_path_s(profile: Profile, grouping: Grouping) -> float:
    """Return the longest path, each op on the fastest device permitted to its group.

    Raises:
        InfeasibleError: If a group has no permitted device.
    """
    times_ps = fastest_ps(profile, grouping)
    heads = heads_ps(profile.graph, times_ps)
    return max(head + own for head, own in zip(heads, times_ps, strict=True)) / PS_PER_S


def work_s(profile: Profile, grouping: Grouping) -> float:
    """Return the time in which all devices together could do all work, if it were divisible.

    Raises:
        InfeasibleError: If a group has no permitted device.
    """
    allowed = grouping.allowed(profile)
    group_ps = np.zeros(allowed.shape, dtype=np.int64)
    np.add.at(group_ps, grouping.group_of_op, compute_ps(profile))
    weightings = [[1] * profile.topology.num_devices]
    if not (allowed.all() and (group_ps == group_ps[:, :1]).all()):
        weightings.append(_dual_weights(group_ps, allowed))
    return max(_work_ps(group_ps, allowed, weights) for weights in weightings) / PS_PER_S


def one_machine_s(profile: Profile, grouping: Grouping) -> float:
    """Return the time of the group that takes longest, with the paths to and from its ops.

    Raises:
        InfeasibleError: If a group has no permitted device.
    """
    allowed = grouping.allowed(profile)
    times_ps = compute_ps(profile)
    shortest_ps = fastest_ps(profile, grouping)
    heads = np.array(heads_ps(profile.graph, shortest_ps), dtype=np.int64)
    tails = np.array(tails_ps(profile.graph, shortest_ps), dtype=np.int64)
    longest_ps = 0
    for ops, permitted in zip(grouping.ops_of_group, allowed, strict=True):
        head, tail = heads[ops].tolist(), tails[ops].tolist()
        distinct = set(map(tuple, times_ps[np.ix_(ops, permitted)].T.tolist()))
        longest_ps = max(longest_ps, min(one_machine(head, times, tail) for times in distinct))
    return longest_ps / PS_PER_S


def one_machine(heads: Sequence[int], times: Sequence[int], tails: Sequence[int]) -> int:
    """Return how long jobs take on one machine, if they may be interrupted.

    Jackson's preemptive schedule: whatever has the longest tail runs, of all that is there.

    Args:
        heads: When each job is there.
        times: How long the machine is busy with it.
        tails: How long it takes after that, without the machine.
    """
    coming = sorted(range(len(heads)), key=heads.__getitem__, reverse=True)
    left = list(times)
    present: list[tuple[int, int]] = []
    now = end = 0
    while coming or present:
        if not present:
            now = max(now, heads[coming[-1]])
        while coming and heads[coming[-1]] <= now:
            job = coming.pop()
            heapq.heappush(present, (-tails[job], job))
        job = present[0][1]
        run = min(left[job], heads[coming[-1]] - now) if coming else left[job]
        now += run
        left[job] -= run
        if left[job] == 0:
            heapq.heappop(present)
            end = max(end, now + tails[job])
    return end


def _work_ps(group_ps: IntArray, allowed: BoolArray, weights: Sequence[int]) -> int:
    """Return the bound by work for these weights, ``[D]``, rounded up to whole picoseconds."""
    weighted = 0  # of Python's integers, which do not overflow
    for times_ps, permitted in zip(group_ps.tolist(), allowed.tolist(), strict=True):
        devices = zip(weights, times_ps, permitted, strict=True)
        weighted += min(weight * time_ps for weight, time_ps, is_open in devices if is_open)
    return -(-weighted // sum(weights))


def _dual_weights(group_ps: IntArray, allowed: BoolArray) -> list[int]:
    """Return weights, ``[D]``, for which the bound by work is about the sharpest.

    Maximises the sum of ``z_g`` subject to ``z_g <= w_d t_gd`` for permitted d, with weights that
    sum to one. Any weights give a bound, so that the solver's tolerances do no harm.
    """
    num_groups, num_devices = group_ps.shape
    times: FloatArray = group_ps / max(int(group_ps.max()), 1)
    groups, devices = np.nonzero(allowed)
    rows = np.arange(len(groups))
    # Typed loosely: the stubs of scipy know no sparse constraints.
    below: Any = scipy.sparse.coo_array(
        (
            np.concatenate([np.ones(len(rows)), -times[groups, devices]]),
            (np.tile(rows, 2), np.concatenate([groups, num_groups + devices])),
        ),
        shape=(len(rows), num_groups + num_devices),
    )
    is_weight = np.arange(num_groups + num_devices) >= num_groups
    total: Any = scipy.sparse.coo_array(is_weight[np.newaxis].astype(np.float64))
    found: Any = scipy.optimize.linprog(
        is_weight - 1.0,
        A_ub=below,
        b_ub=np.zeros(len(rows)),
        A_eq=total,
        b_eq=np.ones(1),
        method="highs",
    )
    if found.x is None:
        return [1] * num_devices
    weights: list[int] = np.rint(found.x[num_groups:] * _WEIGHT_SCALE).astype(np.int64).tolist()
    return [max(weight, 0) for weight in weights]
