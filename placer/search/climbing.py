"""Hill climbing: alone, from the best placement known, and as a race of several.

Array shapes: G groups.
"""

import math
import sys

import numpy as np

from placer.policy import Actions
from placer.search.driver import Strategy
from placer.search.elite import Elite
from placer.search.space import SearchSpace


def hill_climbing(space: SearchSpace, start: Actions, *, seed: int) -> Strategy:
    """Go from a placement to random neighbours that are no worse, without end.

    Args:
        space: The placements.
        start: Where to begin, ``[G]``.
        seed: Of the neighbours.
    """
    rng = np.random.default_rng(seed)
    elite = Elite(1)
    first = space.canonical(start[np.newaxis])
    elite.add(first, (yield first))
    yield from climb(space, elite, num_steps=sys.maxsize, rng=rng)


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
