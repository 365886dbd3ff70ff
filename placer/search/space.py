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

_MOVES = 3
_TRIES = 8


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
        self._choices = [np.flatnonzero(row) for row in self.allowed]
        self._movable = np.flatnonzero(self.allowed.sum(axis=1) > 1)
        self._class_of_device = interchangeable_devices(profile)
        self._has_twins = len(set(self._class_of_device.tolist())) < self.num_devices

    @property
    def has_choices(self) -> bool:
        """Whether there is more than one placement."""
        return self._movable.size > 0

    def random(self, rng: np.random.Generator, count: int) -> Actions:
        """Return placements with every permitted device equally likely, ``[count, G]``."""
        return random_permitted(self.allowed, rng, count)

    def neighbor(self, actions: Actions, rng: np.random.Generator) -> Actions:
        """Return a placement close to one, ``[G]``; itself only if there is hardly another.

        One of three moves, equally likely: one group to another device, a run of
        consecutive groups to one device, or two groups exchange devices.
        """
        for _ in range(_TRIES):
            kind = int(rng.integers(_MOVES))
            if kind == 0:
                moved = self._one_moved(actions, rng)
            elif kind == 1:
                moved = self._run_moved(actions, rng)
            else:
                moved = self._two_exchanged(actions, rng)
            if not np.array_equal(moved, actions):
                return moved
        return self._one_moved(actions, rng)

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

    def _one_moved(self, actions: Actions, rng: np.random.Generator) -> Actions:
        moved = actions.copy()
        if self.has_choices:
            group = int(rng.choice(self._movable))
            others = self._choices[group]
            moved[group] = rng.choice(others[others != actions[group]])
        return moved

    def _run_moved(self, actions: Actions, rng: np.random.Generator) -> Actions:
        """Move a run: as many short ones as long ones, up to a quarter of all groups."""
        longest = max(2.0, self.num_groups / 4)
        length = round(float(np.exp(rng.uniform(np.log(2), np.log(longest)))))
        start = int(rng.integers(max(1, self.num_groups - length + 1)))
        device = int(rng.integers(self.num_devices))
        run = slice(start, start + length)
        moved = actions.copy()
        moved[run] = np.where(self.allowed[run, device], device, moved[run])
        return moved

    def _two_exchanged(self, actions: Actions, rng: np.random.Generator) -> Actions:
        first, second = rng.integers(self.num_groups, size=2)
        moved = actions.copy()
        if self.allowed[first, actions[second]] and self.allowed[second, actions[first]]:
            moved[first], moved[second] = actions[second], actions[first]
        return moved

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
