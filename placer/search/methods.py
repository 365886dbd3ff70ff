"""All ways to search, by name.

Array shapes: G groups.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import numpy as np

from placer.environment import Environment
from placer.errors import UnknownNameError
from placer.grouping import Grouping
from placer.heuristics import heuristic_placements, heuristic_rules, single_device
from placer.heuristics.permitted import accelerators
from placer.policies.graph import GraphPolicy, pretrained
from placer.policies.locality import LocalityConfig, LocalityPolicy, placed_neighbors
from placer.policy import Actions
from placer.profile import Profile
from placer.search.climbing import hill_climbing, race
from placer.search.driver import SearchResult, Strategy, run_search
from placer.search.elite import Elite
from placer.search.genetic import genetic_algorithm
from placer.search.learned import BATCH_SIZE, policy_search
from placer.search.local import annealing, random_search
from placer.search.memetic import take_turns
from placer.search.space import SearchSpace

AUTO = "auto"
"""The default: everything together, within the evaluations that are given."""

SINGLE = "single"
"""Each device alone, one evaluation each."""

ZERO_SHOT = "zero-shot"
"""What the policy that was trained on other graphs does at first, one evaluation."""

_FIRST_CUTS = 8
_STAY = 0.4
_RACED = 0.2


@dataclasses.dataclass(frozen=True)
class SearchProblem:
    """What is searched, and with how many evaluations.

    Attributes:
        profile: What is placed.
        grouping: Its groups.
        num_trials: Evaluations, by which schedules are laid out.
        seed: All randomness derives from it.
    """

    profile: Profile
    grouping: Grouping
    num_trials: int
    seed: int = 0

    @functools.cached_property
    def space(self) -> SearchSpace:
        """The permitted placements."""
        return SearchSpace(self.profile, self.grouping)

    @functools.cached_property
    def heuristics(self) -> dict[str, Actions]:
        """The placements of all heuristics that apply, ``[G]`` each, by name."""
        return heuristic_placements(self.profile, self.grouping, seed=self.seed)

    @property
    def one_device(self) -> Actions:
        """All groups on the first accelerator, where local search begins, ``[G]``."""
        first = int(accelerators(self.profile.topology)[0])
        return single_device(self.profile, self.grouping, first)

    @property
    def single_devices(self) -> Actions:
        """All groups on each device in turn, ``[D, G]``."""
        devices = range(self.profile.topology.num_devices)
        return np.stack([single_device(self.profile, self.grouping, d) for d in devices])

    @functools.cached_property
    def pretrained(self) -> GraphPolicy:
        """The policy that was trained on other graphs."""
        return pretrained(self.profile, self.grouping)

    def policy(self, preferred: int) -> LocalityPolicy:
        """Return a fresh policy with a bias towards a device.

        Its prior is so strong that a first placement has about ``_FIRST_CUTS`` places where it
        goes to another device, however many groups there are.
        """
        neighbors = placed_neighbors(self.profile, self.grouping)
        others = max(1, self.space.num_devices - 1)
        odds = others * max(1.0, self.space.num_groups / _FIRST_CUTS - 1)
        prior = float(np.log(1 + odds))
        config = LocalityConfig(stay=_STAY * prior, pull=(1 - _STAY) * prior)
        return LocalityPolicy(neighbors, self.space.allowed, config, preferred=preferred)


def search(
    method: str,
    profile: Profile,
    grouping: Grouping,
    environment: Environment,
    *,
    num_trials: int,
    seed: int = 0,
) -> SearchResult:
    """Search by a method of this name; heuristics are methods of one evaluation.

    Raises:
        UnknownNameError: If there is no such method.
        InvalidValueError: If ``num_trials`` is not positive.
        InfeasibleError: If a group has no permitted device, or the heuristic does not apply.
    """
    problem = SearchProblem(profile, grouping, num_trials, seed)
    rules = heuristic_rules(profile, grouping, seed=seed)
    if method in METHODS:
        strategy = METHODS[method](problem)
    elif method == SINGLE:
        strategy = _fixed(problem.single_devices)
    elif method == ZERO_SHOT:
        strategy = _fixed(problem.pretrained.greedy()[np.newaxis])
    elif method in rules:
        strategy = _fixed(rules[method]()[np.newaxis])
    else:
        raise UnknownNameError("search method", method, [*METHODS, SINGLE, ZERO_SHOT, *rules])
    return run_search(
        strategy, problem.space, profile, grouping, environment, num_trials=num_trials
    )


def _fixed(actions: Actions) -> Strategy:
    yield actions


def _genetic(problem: SearchProblem) -> Strategy:
    return genetic_algorithm(problem.space, problem.one_device[np.newaxis], seed=problem.seed)


def _policy(problem: SearchProblem) -> Strategy:
    preferred = int(problem.one_device[0])
    return policy_search(problem.policy(preferred), problem.space, Elite(), seed=problem.seed)


def _graph_policy(problem: SearchProblem) -> Strategy:
    return policy_search(problem.pretrained, problem.space, Elite(), seed=problem.seed)


def _auto(problem: SearchProblem) -> Strategy:
    """Everything together.

    First what costs an evaluation each: all heuristics, and what a policy that was trained on other
    graphs would do. Then a race from the best of these, and then the policy, which
    learns from all that was found, and a climber take turns.
    """
    space, elite, policy = problem.space, Elite(), problem.pretrained
    sampled = policy.sample(problem.seed, np.arange(BATCH_SIZE))
    known = np.stack([*problem.heuristics.values(), policy.greedy(), *sampled])
    elite.add(space.canonical(known), (yield known))
    rng = np.random.default_rng([problem.seed, 2])
    yield from race(space, elite, num_steps=int(_RACED * problem.num_trials), rng=rng)
    yield from take_turns(policy, space, elite, seed=problem.seed, rng=rng)


METHODS: Mapping[str, Callable[[SearchProblem], Strategy]] = {
    AUTO: _auto,
    "graph-policy": _graph_policy,
    "hill-climbing": lambda problem: hill_climbing(
        problem.space, problem.one_device, seed=problem.seed
    ),
    "annealing": lambda problem: annealing(
        problem.space, problem.one_device, num_trials=problem.num_trials, seed=problem.seed
    ),
    "genetic": _genetic,
    "policy": _policy,
    "random": lambda problem: random_search(problem.space, seed=problem.seed),
}
"""Strategies by name, beside the heuristics."""
