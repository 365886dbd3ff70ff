"""The best placements that a search knows.

Array shapes: B placements, E elite placements, G groups.
"""

import numpy as np

from placer.graph import FloatArray
from placer.policy import Actions

_ELITE = 4


class Elite:
    """The best distinct placements that a strategy knows the cost of, the best first.

    Args:
        size: How many are kept.
    """

    def __init__(self, size: int = _ELITE) -> None:
        self._size = size
        self._members: list[tuple[float, Actions]] = []

    @property
    def actions(self) -> Actions:
        """The placements, ``[E, G]``."""
        return np.stack([actions for _, actions in self._members])

    @property
    def best(self) -> tuple[float, Actions]:
        """Cost and actions, ``[G]``, of the best."""
        return self._members[0]

    def apart(self) -> list["Elite"]:
        """Return each placement as the first of an elite of its own, the best first."""
        elites = []
        for cost, actions in self._members:
            elite = Elite(self._size)
            elite.add(actions[np.newaxis], np.array([cost]))
            elites.append(elite)
        return elites

    def add(self, actions: Actions, costs: FloatArray) -> bool:
        """Keep those that are among the best; return whether one is the best of all.

        Args:
            actions: ``[B, G]``.
            costs: ``[B]``.
        """
        before = self._members[0][0] if self._members else np.inf
        known = {member.tobytes() for _, member in self._members}
        for row, cost in zip(actions, costs.tolist(), strict=True):
            if row.tobytes() not in known:
                known.add(row.tobytes())
                self._members.append((cost, row.copy()))
        self._members.sort(key=lambda member: member[0])
        del self._members[self._size :]
        return self._members[0][0] < before
