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
from placer.traffic import GroupTraffic

_TRIES = 8
_LONGEST = 0.25
_TO_A_NEIGHBOR = 0.5


class Moves:
    """The moves of a search.

    * ``one``: a group goes to any device.
    * ``follow``: a group goes to the device of one of its neighbours.
    * ``exchange``: two groups exchange devices, which works where memory is full.
    * ``run``: consecutive groups go to one device.
    * ``piece``: connected groups go to one device, half of the time to that of a neighbour. A
      piece grows along edges that are drawn by the time of their transfers, so that heavy
      ones are rarely cut (the random contraction of Karger and Stein, 1996). It is drawn
      twice as often as each of the others.

    Runs and pieces have from 2 groups to a quarter of all, by the logarithm equally likely.

    Args:
        allowed: Where each group may go, ``[G, D]``.
        traffic: Between groups.
    """

    def __init__(self, allowed: BoolArray, traffic: GroupTraffic) -> None:
        self._allowed = allowed
        self._num_groups, self._num_devices = allowed.shape
        self._choices = [np.flatnonzero(row) for row in allowed]
        self._movable = np.flatnonzero(allowed.sum(axis=1) > 1)
        self._weights = _weights_of_neighbors(traffic, self._num_groups)
        self._neighbors = [list(weights) for weights in self._weights]
        self._moves = (
            self._one,
            self._follow,
            self._exchange,
            self._run,
            self._piece,
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

    def _piece(self, moved: Actions, rng: np.random.Generator) -> None:
        length = self._length(rng)
        piece = {int(rng.integers(self._num_groups))}
        border: list[tuple[int, float]] = [*self._weights[min(piece)].items()]
        while border and len(piece) < length:
            sums = np.cumsum([weight for _, weight in border])
            drawn = int(np.searchsorted(sums, rng.random() * sums[-1], side="right"))
            group, _ = border.pop(min(drawn, len(border) - 1))
            if group not in piece:
                piece.add(group)
                new = self._weights[group].items()
                border += [edge for edge in new if edge[0] not in piece]
        around = [group for group, _ in border if group not in piece]
        if around and rng.random() < _TO_A_NEIGHBOR:
            device = int(moved[around[rng.integers(len(around))]])
        else:
            device = int(rng.integers(self._num_devices))
        self._put(moved, sorted(piece), device)

    def _length(self, rng: np.random.Generator) -> int:
        longest = max(2.0, _LONGEST * self._num_groups)
        return round(float(np.exp(rng.uniform(np.log(2), np.log(longest)))))

    def _put(self, moved: Actions, groups: Sequence[int], device: int) -> None:
        """Put those of the groups on a device that may go there."""
        chosen = np.asarray(groups)
        moved[chosen[self._allowed[chosen, device]]] = device


def _weights_of_neighbors(traffic: GroupTraffic, num_groups: int) -> list[dict[int, float]]:
    """Return for each group those it sends to or receives from, and the transfers' seconds."""
    weights: list[dict[int, float]] = [{} for _ in range(num_groups)]
    edges = traffic.edges
    for source, destination, seconds in zip(
        edges.sources.tolist(),
        edges.destinations.tolist(),
        traffic.transfer_time_s.tolist(),
        strict=True,
    ):
        for group, other in ((source, destination), (destination, source)):
            weights[group][other] = weights[group].get(other, 0.0) + seconds
    return weights
