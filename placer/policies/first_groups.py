"""Where the hierarchical policy starts: its units, their first groups, who leads each.

A unit is a group of the grouping that is placed: ops that never part. The policy groups
units once more, and begins with a partition by METIS that keeps together those that send
each other most. Each first group has a leader, a unit that never leaves it.

Array shapes: G units, K groups of units, D devices.
"""

import dataclasses

import numpy as np

from placer.features import GroupFeatures, group_features
from placer.graph import FloatArray, IntArray
from placer.grouping import Grouping
from placer.metis import PartitionGraph, partition
from placer.profile import Profile
from placer.traffic import group_traffic


@dataclasses.dataclass(frozen=True, eq=False)
class Units:
    """What the hierarchical policy sees of a profile.

    Attributes:
        features: Of each unit.
        compute_shares: Each unit's share of the time of all, mean over devices, ``[G]``.
        closeness: How much two units want the same device: one plus the time in which they
            send each other their tensors, relative to the mean of all pairs; 0 for two
            that send each other nothing, ``[G, G]``, symmetric.
        partition_graph: Units weighted by compute time, edges by transfer time.
    """

    features: GroupFeatures
    compute_shares: FloatArray
    closeness: FloatArray
    partition_graph: PartitionGraph


def units_of(profile: Profile, grouping: Grouping) -> Units:
    """Return the units of a profile under a grouping.

    Raises:
        InvalidValueError: If the grouping is not one of this graph.
        InfeasibleError: If a unit has no permitted device.
    """
    traffic = group_traffic(profile, grouping)
    time_s = traffic.compute_time_s.mean(axis=1)
    edges = traffic.edges
    mean_s = float(traffic.transfer_time_s.mean()) if edges.sources.size else 0.0
    closeness = np.zeros((grouping.num_groups, grouping.num_groups))
    closeness[edges.sources, edges.destinations] = 1 + traffic.transfer_time_s / (mean_s or 1.0)
    return Units(
        features=group_features(profile, grouping),
        compute_shares=time_s / (time_s.sum() or 1.0),
        closeness=closeness + closeness.T,
        partition_graph=traffic.partition_graph(time_s),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class FirstGroups:
    """A partition of the units, with a leader for each part.

    Attributes:
        group_of_unit: ``[G]``; numbered in the order of their first units, none empty.
        leader_of_group: A unit of each, ``[K]``.
    """

    group_of_unit: IntArray
    leader_of_group: IntArray

    @property
    def num_groups(self) -> int:
        """Number of groups of units, K."""
        return len(self.leader_of_group)


def first_groups(units: Units, max_groups: int) -> FirstGroups:
    """Return at most ``max_groups`` groups of units, and who leads each.

    The leader is the unit that computes longest among those that may go to most devices:
    its device is the one that the whole group is offered.
    """
    parts = partition(units.partition_graph, max_groups)
    _, first, group_of_unit = np.unique(parts, return_index=True, return_inverse=True)
    group_of_unit = np.argsort(np.argsort(first))[group_of_unit]
    num_allowed = units.features.allowed.sum(axis=1)
    # The last of each group in ascending order of devices, then time, then falling index.
    order = np.lexsort((-np.arange(len(parts)), units.compute_shares, num_allowed, group_of_unit))
    ends = np.searchsorted(group_of_unit[order], np.arange(len(first)), side="right")
    return FirstGroups(group_of_unit, order[ends - 1])
