"""A genetic algorithm over placements.

Array shapes: P placements of the population, G groups.
"""

import numpy as np

from placer.graph import FloatArray
from placer.policy import Actions
from placer.search.driver import Strategy
from placer.search.space import SearchSpace

_POPULATION = 32
_ELITE = 2
_CONTESTANTS = 3
_MUTATIONS = 1.0


def genetic_algorithm(space: SearchSpace, starts: Actions, *, seed: int) -> Strategy:
    """Breed placements, generation after generation, without end (Holland, 1975).

    Parents win tournaments of three. A child takes one run of consecutive groups from one
    parent and the rest from the other (two-point crossover in topological order), and then
    makes a number of random moves, one on average. The two best placements survive.

    Args:
        space: The placements.
        starts: Some of the first generation, ``[at least 1, G]``; their neighbours and
            random placements fill it up.
        seed: Of everything.
    """
    rng = np.random.default_rng(seed)
    population = _first_generation(space, space.canonical(starts), rng)
    costs = yield population
    while True:
        elite = np.argsort(costs, kind="stable")[:_ELITE]
        children = np.stack(
            [_child(space, population, costs, rng) for _ in range(_POPULATION - _ELITE)]
        )
        found = yield children
        population = np.concatenate([population[elite], space.canonical(children)])
        costs = np.concatenate([costs[elite], found])


def _first_generation(space: SearchSpace, starts: Actions, rng: np.random.Generator) -> Actions:
    given = starts[:_POPULATION]
    num_random = (_POPULATION - len(given)) // 2
    parents = given[rng.integers(len(given), size=_POPULATION - len(given) - num_random)]
    near = [space.neighbor(parent, rng) for parent in parents]
    return np.concatenate(
        [given, *(row[np.newaxis] for row in near), space.random(rng, num_random)]
    )


def _child(
    space: SearchSpace, population: Actions, costs: FloatArray, rng: np.random.Generator
) -> Actions:
    first, second = (population[_winner(costs, rng)] for _ in range(2))
    begin, end = np.sort(rng.integers(space.num_groups + 1, size=2))
    child: Actions = first.copy()
    child[begin:end] = second[begin:end]
    for _ in range(rng.poisson(_MUTATIONS)):
        child = space.neighbor(child, rng)
    return child


def _winner(costs: FloatArray, rng: np.random.Generator) -> int:
    contestants = rng.integers(len(costs), size=_CONTESTANTS)
    return int(contestants[costs[contestants].argmin()])
