"""Strategies that train a policy: by its own samples, and by the best placements so far.

Array shapes: B placements.
"""

import itertools

import numpy as np

from placer.graph import FloatArray
from placer.policy import Policy
from placer.search.driver import Strategy
from placer.search.elite import Elite
from placer.search.space import SearchSpace

BATCH_SIZE = 16
_IMITATION = 0.3
_LARGEST_ADVANTAGE = 3.0


def policy_search(policy: Policy, space: SearchSpace, elite: Elite, *, seed: int) -> Strategy:
    """Sample a policy and train it by what was found, without end; see :func:`policy_batch`.

    Args:
        policy: What is trained.
        space: The placements.
        elite: What is known already; goes on to hold the best.
        seed: Of the samples.
    """
    for first in itertools.count(step=BATCH_SIZE):
        yield from policy_batch(policy, space, elite, seed=seed, first=first)


def policy_batch(
    policy: Policy, space: SearchSpace, elite: Elite, *, seed: int, first: int
) -> Strategy:
    """Sample one batch and make one update by it.

    The update climbs along the advantages of the batch, its median cost the baseline, and
    imitates the best placements so far with a constant advantage (self-imitation, Oh et al.,
    2018).

    Args:
        policy: What is trained.
        space: The placements.
        elite: What is known already; goes on to hold the best.
        seed: Of the samples.
        first: Number of the first sample.
    """
    actions = space.canonical(policy.sample(seed, np.arange(first, first + BATCH_SIZE)))
    costs = yield actions
    elite.add(actions, costs)
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
