"""The space of placements: which are permitted, which are neighbours, which are the same.

Groups are numbered in topological order, so that a run of consecutive numbers is a piece of
the graph.

Array shapes: B placements, G groups, D devices.
"""

import itertools

import numpy as np

from placer.devices import DeviceTopology
from placer.graph import BoolArray, IntArray
from placer.grouping import Grouping
from placer.heuristics.permitted import random_permitted
from placer.policy import Actions
from placer.profile import Profile
from placer.search.moves import Moves
from placer.traffic import group_traffic


class SearchSpace:
    """All placements of a grouping that are permitted.

    Attributes:
        allowed: Where each group may go, ``[G, D]``.
        num_groups: G.
        num_devices: D.

    Raises:
        InfeasibleError: If a group has no permitted device.
    """

    def __init__(self, profile: Profile, grouping: Grouping) -> None:
        self.allowed: BoolArray = grouping.allowed(profile)
        self.num_groups, self.num_devices = self.allowed.shape
        self._moves = Moves(self.allowed, group_traffic(profile, grouping))
        self._class_of_device = interchangeable_devices(profile)
        self._has_twins = len(set(self._class_of_device.tolist())) < self.num_devices

    @property
    def has_choices(self) -> bool:
        """Whether there is more than one placement."""
        return self._moves.has_choices

    def random(self, rng: np.random.Generator, count: int) -> Actions:
        """Return placements with every permitted device equally likely, ``[count, G]``."""
        return random_permitted(self.allowed, rng, count)

    def neighbor(self, actions: Actions, rng: np.random.Generator) -> Actions:
        """Return a placement close to one, ``[G]``; itself only if there is no other."""
        return self._moves.neighbor(actions, rng)

    def canonical(self, actions: Actions) -> Actions:
        """Return the same placements with devices named in order of first use, ``[B, G]``.

        Only devices that nothing tells apart exchange their names, so that the step takes
        exactly as long.
        """
        if not self._has_twins:
            return actions
        named = np.empty_like(actions)
        for row, given in zip(named, actions, strict=True):
            row[:] = self._names_by_first_use(given)[given]
        return named

    def _names_by_first_use(self, actions: Actions) -> IntArray:
        """Return the new number of each device, ``[D]``."""
        used, first_use = np.unique(actions, return_index=True)
        rank = np.full(self.num_devices, self.num_groups, dtype=np.int64)
        rank[used] = first_use
        names = np.arange(self.num_devices)
        for number in np.unique(self._class_of_device):
            twins = np.flatnonzero(self._class_of_device == number)
            names[twins[np.argsort(rank[twins], kind="stable")]] = twins
        return names


def interchangeable_devices(profile: Profile) -> IntArray:
    """Return a number for each device, ``[D]``, that it shares with those exactly like it.

    Two devices are alike if exchanging them changes nothing: neither permitted ops, compute
    times and memory nor any link.
    """
    topology = profile.topology
    class_of_device = np.arange(topology.num_devices)
    for first, second in itertools.combinations(range(topology.num_devices), 2):
        if class_of_device[second] == second and _are_alike(profile, first, second):
            class_of_device[second] = class_of_device[first]
    return class_of_device


def _are_alike(profile: Profile, first: int, second: int) -> bool:
    topology = profile.topology
    return (
        topology.devices[first].memory_bytes == topology.devices[second].memory_bytes
        and np.array_equal(profile.allowed[:, first], profile.allowed[:, second])
        and np.array_equal(profile.compute_time_s[:, first], profile.compute_time_s[:, second])
        and _links_are_alike(topology, first, second)
    )


def _links_are_alike(topology: DeviceTopology, first: int, second: int) -> bool:
    exchanged = np.arange(topology.num_devices)
    exchanged[[first, second]] = second, first
    return all(
        np.array_equal(table, table[np.ix_(exchanged, exchanged)])
        for table in (
            topology.latency_s,
            topology.bandwidth_bytes_per_s,
            topology.source_load,
            topology.destination_load,
        )
    )
