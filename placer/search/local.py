"""Strategies without a memory of more than one placement: random search and annealing.

Array shapes: G groups.
"""

import itertools

import numpy as np

from placer.policy import Actions
from placer.search.driver import Strategy
from placer.search.space import SearchSpace

_BATCH = 32
_HOT = 0.03
_COLD = 0.0005


def random_search(space: SearchSpace, *, seed: int) -> Strategy:
    """Propose placements with every permitted device equally likely, without end."""
    rng = np.random.default_rng(seed)
    while True:
        yield space.random(rng, _BATCH)


def annealing(space: SearchSpace, start: Actions, *, num_trials: int, seed: int) -> Strategy:
    """Simulated annealing (Kirkpatrick et al., 1983), without end.

    A neighbour that is slower by a share x of the current step time is accepted with
    probability ``exp(-x / temperature)``. The temperature falls geometrically from 3 % to
    0.05 % over ``num_trials`` proposals; then it does so again, from the best placement found.

    Args:
        space: The placements.
        start: Where to begin, ``[G]``.
        num_trials: Length of one cooling.
        seed: Of neighbours and acceptance.
    """
    rng = np.random.default_rng(seed)
    current = best = start
    (cost,) = yield current[np.newaxis]
    least = cost
    for proposal in itertools.count():
        temperature = _HOT * (_COLD / _HOT) ** (proposal % num_trials / num_trials)
        if proposal and proposal % num_trials == 0:
            current, cost = best, least
        proposed = space.neighbor(current, rng)
        (found,) = yield proposed[np.newaxis]
        if found <= cost or rng.random() < np.exp((cost - found) / (temperature * cost)):
            current, cost = proposed, found
        if found < least:
            best, least = proposed, found
