"""A policy and a climber in turns, more turns for whoever gains more."""

import dataclasses
import math

import numpy as np

from placer.policy import Policy
from placer.search.climbing import climb
from placer.search.driver import Strategy
from placer.search.elite import Elite
from placer.search.learned import BATCH_SIZE, policy_batch
from placer.search.space import SearchSpace

_DECAY = 0.9
_LEAST_SHARE = 0.2
_IDLE_SHARE = 0.25


def take_turns(
    policy: Policy, space: SearchSpace, elite: Elite, *, seed: int, rng: np.random.Generator
) -> Strategy:
    """Let a policy and a climber go on from the best in turns, without end.

    The climber starts from whatever is best, and the policy imitates what the climber finds (a
    memetic algorithm, Moscato, 1989). A turn is a batch of evaluations. Whose it is is drawn by
    what each has gained by its turns lately (adaptive operator selection, Fialho et al., 2010):
    on some graphs the policy finds almost everything, on others the climber.

    Args:
        policy: What is trained.
        space: The placements.
        elite: Of at least one placement; goes on to hold the best.
        seed: Of the samples.
        rng: Of turns and neighbours.
    """
    learner, climber = Gains(), Gains()
    first = 0
    while True:
        before_s, _ = elite.best
        if rng.random() < share_of_turns(learner, climber):
            taking = learner
            yield from policy_batch(policy, space, elite, seed=seed, first=first)
            first += BATCH_SIZE
        else:
            taking = climber
            yield from climb(space, elite, num_steps=BATCH_SIZE, rng=rng)
        for one in (learner, climber):
            one.forget()
        taking.add(before_s, elite.best[0])


@dataclasses.dataclass(slots=True)
class Gains:
    """What somebody's turns have gained, the later ones counting more.

    Attributes:
        gained: Sum of the logarithms of how many times faster the best became.
        num_turns: Weighted like ``gained``.
    """

    gained: float = 0.0
    num_turns: float = 0.0

    @property
    def rate(self) -> float:
        """Gain of a turn; 0 before the first."""
        return self.gained / self.num_turns if self.num_turns else 0.0

    def forget(self) -> None:
        """Let all turns so far count less."""
        self.gained *= _DECAY
        self.num_turns *= _DECAY

    def add(self, before_s: float, after_s: float) -> None:
        """Count a turn after which the best cost is ``after_s``."""
        if after_s > 0:  # a step of no time cannot gain
            self.gained += math.log(before_s / after_s)
        self.num_turns += 1


def share_of_turns(learner: Gains, climber: Gains) -> float:
    """Return the probability that the next turn is the learner's.

    It is the learner's share of the gains, but never below a fifth nor above four fifths, so that
    nobody is forgotten. If nobody gains anything it is a quarter.
    """
    gains = learner.rate + climber.rate
    if gains == 0:
        return _IDLE_SHARE
    return min(max(learner.rate / gains, _LEAST_SHARE), 1 - _LEAST_SHARE)
