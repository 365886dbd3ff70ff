"""Graph partitioners as placement rules: METIS, and Scotch.

Both balance compute time and keep the cut small. Neither knows that ops must wait for
each other, which is why balanced parts can take longer than one device.

Array shapes: G groups, D devices.
"""

import numpy as np
import scotchpy

from placer.graph import BoolArray, FloatArray, IntArray
from placer.grouping import Grouping
from placer.heuristics.permitted import accelerators, fastest_permitted, permitted
from placer.metis import PartitionGraph, partition
from placer.policy import Actions
from placer.profile import Profile
from placer.traffic import group_traffic

FASTEST_SPEED = 1000
"""Scotch counts speeds in integers: the fastest device has this, no device less than one."""


def metis_min_cut(profile: Profile, grouping: Grouping, *, seed: int = 0) -> Actions:
    """Return METIS's minimum cut into equal parts, one for each accelerator, ``[G]``.

    As the paper's MinCut, which leaves the CPU out: only groups that may not run on every
    accelerator go elsewhere, each to its fastest device.
    """
    targets = accelerators(profile.topology)
    traffic = group_traffic(profile, grouping)
    graph = traffic.partition_graph(traffic.compute_time_s[:, targets].mean(axis=1))
    movable = np.flatnonzero(_movable(profile, grouping))
    actions = fastest_permitted(profile, grouping)
    actions[movable] = targets[partition(graph.induced(movable), len(targets), seed=seed)]
    return actions


def scotch_mapping(profile: Profile, grouping: Grouping, *, seed: int = 0) -> Actions:
    """Return Scotch's mapping onto all devices, each loaded by its speed, ``[G]``.

    The target is a complete graph of devices weighted by speed (Pellegrini's ``cmpltw``).
    Groups that may not run on every accelerator are fixed to their fastest device, and
    load it.
    """
    traffic = group_traffic(profile, grouping)
    movable = _movable(profile, grouping)
    total_s = traffic.compute_time_s[movable].sum(axis=0)
    graph = traffic.partition_graph(traffic.compute_time_s[:, total_s.argmin()])
    fixed = np.where(movable, -1, fastest_permitted(profile, grouping))
    return permitted(profile, grouping, _scotch_map(graph, _speeds(total_s), fixed, seed))


def _movable(profile: Profile, grouping: Grouping) -> BoolArray:
    """Return whether each group may run on every accelerator, ``[G]``."""
    targets = accelerators(profile.topology)
    movable: BoolArray = np.logical_and.reduce(grouping.allowed(profile)[:, targets], axis=1)
    return movable


def _speeds(total_s: FloatArray) -> IntArray:
    """Return integers in proportion to the speeds of devices, ``[D]``.

    Args:
        total_s: Seconds in which each device would compute everything, ``[D]``.
    """
    if total_s.min() == 0:
        return np.where(total_s == 0, FASTEST_SPEED, 1)
    speeds: IntArray = np.rint(FASTEST_SPEED * total_s.min() / total_s).astype(np.int64)
    return np.maximum(1, speeds)


def _scotch_map(graph: PartitionGraph, speeds: IntArray, fixed: IntArray, seed: int) -> IntArray:
    """Return the device of each vertex, ``[G]``.

    Args:
        graph: What to map.
        speeds: Weight of each device, ``[D]``.
        fixed: The device of vertices that may not move, -1 for the others, ``[G]``.
        seed: Of Scotch's generator, which belongs to the process and is reset here.
    """
    scotchpy.common.random_seed(seed % 2**31)
    scotchpy.common.random_reset()
    source = scotchpy.build_graph(
        verttab=graph.adjacency.indptr.astype(np.int64),
        edgetab=graph.adjacency.indices.astype(np.int64),
        edlotab=graph.adjacency.data,
        velotab=graph.vertex_weights,
    )
    # Scotch takes a thread a core unless told otherwise, and its threads race to the result.
    context = scotchpy.Context()
    context.thread_spawn(1, None)
    bound = scotchpy.Graph()
    context.bind_graph(source, bound)
    bound.base(0)  # changes nothing, but makes the binding learn the number of vertices
    target = scotchpy.Arch()
    target.cmpltw(speeds)
    device_of_vertex = fixed.astype(np.int64)
    bound.map_fixed(target, parttab=device_of_vertex)
    bound.exit()  # before the context it is bound to
    return device_of_vertex
