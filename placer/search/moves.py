"""Moves from a placement to one close to it.

Good placements cut few edges, so a good move takes along what belongs together: a piece of the
topological order, or a piece of the graph. Some moves change little, which is what the
last improvements need, and others much, which is what leads out of a valley.

Array shapes: G groups, D devices.
"""

from collections.abc import Sequence

import numpy as np

from placer.graph import BoolArray
from placer.policy import Actions
from placer.traffic import GroupEdges

_TRIES = 8
_LONGEST = 0.25


class Moves:
    """The moves of a search, all equally likely.

    * ``one``: a group goes to any device.
    * ``follow``: a group goes to the device of one of its neighbours.
    * ``exchange``: two groups exchange devices, which moves when memory is full.
    * ``run``: consecutive groups go to one device.
    * ``shift``: a run of one device gives up one of its ends, from a group on, to one device.
    * ``piece``: connected groups go to one device; half of the time only such as share one now.

    Runs and pieces have from 2 groups to a quarter of all, by the logarithm equally likely.

    Args:
        allowed: Where each group may go, ``[G, D]``.
        edges: Between groups.
    """

    def __init__(self, allowed: BoolArray, edges: GroupEdges) -> None:
        self._allowed = allowed
        self._num_groups, self._num_devices = allowed.shape
        self._choices = [np.flatnonzero(row) for row in allowed]
        self._movable = np.flatnonzero(allowed.sum(axis=1) > 1)
        self._neighbors = _neighbors(edges, self._num_groups)
        self._moves = (
            self._one,
            self._follow,
            self._exchange,
            self._run,
            self._shift,
            self._piece,
        )

    @property
    def has_choices(self) -> bool:
        """Whether there is more than one placement."""
        return self._movable.size > 0

    def neighbor(self, actions: Actions, rng: np.random.Generator) -> Actions:
        """Return a placement close to one, ``[G]``; itself only if there is no other."""
        for _ in range(_TRIES):
            moved = actions.copy()
            self._moves[int(rng.integers(len(self._moves)))](moved, rng)
            if not np.array_equal(moved, actions):
                return moved
        moved = actions.copy()
        self._one(moved, rng)
        return moved

    def _one(self, moved: Actions, rng: np.random.Generator) -> None:
        if self.has_choices:
            group = int(rng.choice(self._movable))
            others = self._choices[group]
            moved[group] = rng.choice(others[others != moved[group]])

    def _follow(self, moved: Actions, rng: np.random.Generator) -> None:
        group = int(rng.integers(self._num_groups))
        if neighbors := self._neighbors[group]:
            self._put(moved, [group], int(moved[neighbors[rng.integers(len(neighbors))]]))

    def _exchange(self, moved: Actions, rng: np.random.Generator) -> None:
        first, second = rng.integers(self._num_groups, size=2)
        if self._allowed[first, moved[second]] and self._allowed[second, moved[first]]:
            moved[first], moved[second] = moved[second], moved[first]

    def _run(self, moved: Actions, rng: np.random.Generator) -> None:
        length = self._length(rng)
        start = int(rng.integers(max(1, self._num_groups - length + 1)))
        groups = range(start, min(start + length, self._num_groups))
        self._put(moved, groups, int(rng.integers(self._num_devices)))

    def _shift(self, moved: Actions, rng: np.random.Generator) -> None:
        group = int(rng.integers(self._num_groups))
        changes = np.flatnonzero(np.diff(moved)) + 1
        bounds = [0, *changes.tolist(), self._num_groups]
        segment = int(np.searchsorted(changes, group, side="right"))
        if rng.random() < 0.5:
            groups = range(group, bounds[segment + 1])
        else:
            groups = range(bounds[segment], group + 1)
        self._put(moved, groups, int(rng.integers(self._num_devices)))

    def _piece(self, moved: Actions, rng: np.random.Generator) -> None:
        start = int(rng.integers(self._num_groups))
        same_device = rng.random() < 0.5
        length = self._length(rng)
        piece: list[int] = []
        seen, border = {start}, [start]
        while border and len(piece) < length:
            at = int(rng.integers(len(border)))
            border[at], border[-1] = border[-1], border[at]
            group = border.pop()
            if same_device and moved[group] != moved[start]:
                continue
            piece.append(group)
            new = [neighbor for neighbor in self._neighbors[group] if neighbor not in seen]
            seen.update(new)
            border += new
        self._put(moved, piece, int(rng.integers(self._num_devices)))

    def _length(self, rng: np.random.Generator) -> int:
        longest = max(2.0, _LONGEST * self._num_groups)
        return round(float(np.exp(rng.uniform(np.log(2), np.log(longest)))))

    def _put(self, moved: Actions, groups: Sequence[int], device: int) -> None:
        """Put those of the groups on a device that may go there."""
        chosen = np.asarray(groups)
        moved[chosen[self._allowed[chosen, device]]] = device


def _neighbors(edges: GroupEdges, num_groups: int) -> list[list[int]]:
    """Return the groups that each group sends to or receives from, ascending."""
    neighbors: list[set[int]] = [set() for _ in range(num_groups)]
    for source, destination in zip(
        edges.sources.tolist(), edges.destinations.tolist(), strict=True
    ):
        neighbors[source].add(destination)
        neighbors[destination].add(source)
    return [sorted(groups) for groups in neighbors]
