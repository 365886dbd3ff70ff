"""Strategies that train a policy: by its own samples, and by the best placements so far.

Array shapes: B placements, E elite placements, G groups.
"""

import math

import numpy as np

from placer.graph import FloatArray
from placer.policy import Actions, Policy
from placer.search.driver import Strategy
from placer.search.space import SearchSpace

BATCH_SIZE = 16
_ELITE = 4
_IMITATION = 0.3
_LARGEST_ADVANTAGE = 3.0


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


def policy_search(
    policy: Policy, space: SearchSpace, elite: Elite, *, seed: int, refined: int = 0
) -> Strategy:
    """Sample a policy and train it by what was found, without end.

    Each update climbs along the advantages of a batch, its median cost the baseline, and
    imitates the best placements so far with a constant advantage (self-imitation, Oh et al.,
    2018). With ``refined`` above 0, a hill climber goes on from the best of all after each batch,
    and what it finds is imitated (a memetic algorithm, Moscato, 1989).

    Args:
        policy: What is trained.
        space: The placements.
        elite: What is known already; goes on to hold the best.
        seed: Of samples and neighbours.
        refined: Steps of the climber after each batch.
    """
    rng = np.random.default_rng([seed, 1])
    number = 0
    while True:
        sampled = policy.sample(seed, np.arange(number, number + BATCH_SIZE))
        number += BATCH_SIZE
        actions = space.canonical(sampled)
        costs = yield actions
        elite.add(actions, costs)
        if refined:
            yield from climb(space, elite, num_steps=refined, rng=rng)
        members = elite.actions
        imitation = np.full(len(members), _IMITATION * BATCH_SIZE / len(members))
        policy.update(
            np.concatenate([actions, members]), np.concatenate([advantages(costs), imitation])
        )


def advantages(costs: FloatArray) -> FloatArray:
    """Return how far each cost lies below the median, in root mean squares of that, ``[B]``.

    At most 3 to either side: a placement that cannot run must not drown all others.
    """
    differences = np.median(costs) - costs
    spread = float(np.sqrt(np.mean(differences**2)))
    if spread == 0:
        return np.zeros_like(costs)
    return np.clip(differences / spread, -_LARGEST_ADVANTAGE, _LARGEST_ADVANTAGE)


def climb(
    space: SearchSpace, elite: Elite, *, num_steps: int, rng: np.random.Generator
) -> Strategy:
    """Go from the best placement to neighbours that are no worse, and keep what is found.

    Args:
        space: The placements.
        elite: Of at least one placement; goes on to hold the best.
        num_steps: How many neighbours are proposed.
        rng: Of the neighbours.
    """
    cost, current = elite.best
    for _ in range(num_steps):
        proposed = space.canonical(space.neighbor(current, rng)[np.newaxis])
        costs = yield proposed
        elite.add(proposed, costs)
        if costs[0] <= cost:
            cost, current = float(costs[0]), proposed[0]


def race(space: SearchSpace, elite: Elite, *, num_steps: int, rng: np.random.Generator) -> Strategy:
    """Climb from each of the best placements, and drop the slower half again and again.

    Where a climb ends depends on where it begins more than on its length, and the best
    beginning is not always that of the best end (successive halving, Karnin et al., 2013).

    Args:
        space: The placements.
        elite: Where to begin; goes on to hold the best.
        num_steps: How many neighbours are proposed in all, about.
        rng: Of the neighbours.
    """
    climbers = elite.apart()
    num_rounds = max(1, math.ceil(math.log2(len(climbers))))
    while len(climbers) > 1:
        share = num_steps // (num_rounds * len(climbers))
        for climber in climbers:
            yield from climb(space, climber, num_steps=share, rng=rng)
        climbers.sort(key=lambda climber: climber.best[0])
        for climber in climbers:
            cost, actions = climber.best
            elite.add(actions[np.newaxis], np.array([cost]))
        del climbers[(len(climbers) + 1) // 2 :]
