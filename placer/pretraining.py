"""Pretraining of the graph policy: one network, trained on many graphs.

A *lesson* is a graph together with the best placement that is known of it, at first that of a short
search: all heuristics, then a climb from the best of them. A step of the training visits a few
lessons. On each it samples placements, and climbs along

* the advantages of the samples among themselves (REINFORCE, Williams, 1992), and
* the log-probability of the best known placement (imitation), which the samples may become.

Imitation fades out. The temperature of the samples falls, so that in the end the network is
trained near its likeliest placement, by which it is judged where nothing may be searched. A
policy that is trained to be sampled may leave it to chance to spread work over devices; its
likeliest placement then spreads nothing.

The gradient of each graph is divided by its length before they are added, so that none drowns
the others.

Array shapes: B placements, G groups.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from placer.generated_graphs import generated_profile
from placer.graph import FloatArray
from placer.group_ops import group_ops
from placer.grouping import Grouping
from placer.heuristics import heuristic_placements
from placer.policies.adam import Adam
from placer.policies.graph_decoder import INPUTS
from placer.policies.graph_model import GraphTerms, gradient_of, new_parameters, sampled
from placer.policies.graph_network import Parameters
from placer.policies.graph_problem import GraphProblem
from placer.policy import Actions
from placer.policy_gradient import gumbel_noise
from placer.profile import Profile
from placer.reinforce import failing_step_time_s
from placer.search.climbing import climb
from placer.search.driver import Strategy, run_search
from placer.search.elite import Elite
from placer.search.learned import advantages
from placer.search.space import SearchSpace
from placer.simulator import SimulatedEnvironment, Simulator

_BATCH_SIZE = 16
_LESSONS_A_STEP = 4
_FIRST_TEMPERATURE = 0.5
_LAST_TEMPERATURE = 0.1
_FIRST_WEIGHTS = {"longer": 4.0, "late": 1.0, "sending": 0.5, "load": 0.3}
_LARGEST_LEARNING_RATE = 5e-4
_LEAST_LEARNING_RATE = 2e-5


def first_parameters(seed: int) -> Parameters:
    """Return variables to begin with: beside neighbours, what ends first counts everywhere."""
    parameters = new_parameters(seed)
    for name, weight in _FIRST_WEIGHTS.items():
        parameters["weights_bias"][INPUTS.index(name)] = weight
    return parameters


class Lesson:
    """A graph, and the best that is known of it.

    Args:
        profile: What is placed.
        grouping: Its groups.
        best: A placement to begin with, ``[G]``.
    """

    def __init__(self, profile: Profile, grouping: Grouping, best: Actions) -> None:
        self.profile, self.grouping = profile, grouping
        self.problem = GraphProblem(profile, grouping)
        self.terms = GraphTerms.zeros(self.problem)
        self._simulator = Simulator(profile)
        self._failing_s = failing_step_time_s(profile)
        self.best = best
        self.best_s = float(self.costs_s(best[np.newaxis])[0])

    def costs_s(self, actions: Actions) -> FloatArray:
        """Return makespans, ``[B]``; those of placements that do not fit are above all others."""
        found = self._simulator.run(actions[:, self.grouping.group_of_op])
        limits = self.profile.topology.memory_bytes
        lacking = np.maximum(found.peak_memory_bytes - limits, 0).sum(axis=1)
        share = lacking / np.maximum(found.peak_memory_bytes.sum(axis=1), 1)
        return np.where(found.fits, found.makespan_s, self._failing_s * (1 + share))

    def sample(
        self, parameters: Mapping[str, FloatArray], seed: int, temperature: float = 1.0
    ) -> tuple[Actions, FloatArray]:
        """Return placements, ``[B, G]``, and their costs, ``[B]``; keep the best."""
        shape = (self.problem.num_groups, self.problem.num_devices)
        noise = gumbel_noise(seed, np.arange(_BATCH_SIZE), shape)
        actions = sampled(parameters, self.problem, self.terms, noise, temperature=temperature)
        costs_s = self.costs_s(actions)
        least = int(costs_s.argmin())
        if costs_s[least] < self.best_s:
            self.best, self.best_s = actions[least].copy(), float(costs_s[least])
        return actions, costs_s

    def greedy_s(self, parameters: Mapping[str, FloatArray]) -> float:
        """Return the cost of the likeliest placement."""
        noise = np.zeros((1, self.problem.num_groups, self.problem.num_devices))
        return float(self.costs_s(sampled(parameters, self.problem, self.terms, noise))[0])


def generated_lesson(
    seed: Sequence[int], families: Sequence[str], *, max_groups: int, num_trials: int
) -> Lesson:
    """Return a lesson on a generated graph.

    Args:
        seed: Of the graph and of the search.
        families: One of which the graph is.
        max_groups: At most, about.
        num_trials: Evaluations of the search.
    """
    rng = np.random.default_rng(seed)
    family = families[int(rng.integers(len(families)))]
    profile = generated_profile(rng, family=family, max_groups=max_groups)
    grouping = group_ops(profile).grouping
    return Lesson(profile, grouping, _searched(profile, grouping, num_trials, rng))


def _searched(
    profile: Profile, grouping: Grouping, num_trials: int, rng: np.random.Generator
) -> Actions:
    """Return the best of all heuristics, and of a climb from the best of them, ``[G]``."""
    space, elite = SearchSpace(profile, grouping), Elite()

    def strategy() -> Strategy:
        known = np.stack(list(heuristic_placements(profile, grouping).values()))
        elite.add(known, (yield known))
        yield from climb(space, elite, num_steps=num_trials, rng=rng)

    environment = SimulatedEnvironment(Simulator(profile))
    run_search(strategy(), space, profile, grouping, environment, num_trials=num_trials)
    return elite.best[1]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a step of the training saw, averaged over its lessons.

    Attributes:
        sampled: Logarithm of the mean cost of samples over the best known.
        imitation: Negative log-probability of the best known placement, for each group, in nats.
        entropy: Of a choice, in nats.
    """

    sampled: float
    imitation: float
    entropy: float


class Pretraining:
    """Trains variables, in place, on lessons.

    Args:
        parameters: Of network and decoder.
        lessons: The graphs.
        num_steps: How many steps will be made; the learning rate falls over them.
        imitation: Weight of the imitation beside the advantages; it falls to zero.
        seed: Of the choice of lessons and of the samples.
    """

    def __init__(
        self,
        parameters: Parameters,
        lessons: Sequence[Lesson],
        *,
        num_steps: int,
        imitation: float,
        seed: int,
    ) -> None:
        self._parameters = parameters
        self._lessons = lessons
        self._num_steps = num_steps
        self._imitation = imitation
        self._rng = np.random.default_rng(seed)
        self._adam = Adam(parameters, dict.fromkeys(parameters, _LARGEST_LEARNING_RATE))
        self._num_done = 0

    def step(self) -> Progress:
        """Visit a few lessons and make one step of Adam."""
        total = {name: np.zeros_like(value) for name, value in self._parameters.items()}
        seen: list[Progress] = []
        for number in self._rng.integers(len(self._lessons), size=_LESSONS_A_STEP):
            gradient, progress = self._visit(self._lessons[number])
            norm = float(np.sqrt(sum(float((part**2).sum()) for part in gradient.values())))
            for name, part in gradient.items():
                total[name] += part / max(norm, 1e-12)
            seen.append(progress)
        done = self._num_done / self._num_steps
        least = _LEAST_LEARNING_RATE / _LARGEST_LEARNING_RATE
        self._adam.climb(total, scale=least + (1 - least) * (1 + np.cos(np.pi * done)) / 2)
        self._num_done += 1
        return Progress(
            sampled=float(np.mean([p.sampled for p in seen])),
            imitation=float(np.mean([p.imitation for p in seen])),
            entropy=float(np.mean([p.entropy for p in seen])),
        )

    def _visit(self, lesson: Lesson) -> tuple[Parameters, Progress]:
        done = self._num_done / self._num_steps
        temperature = _FIRST_TEMPERATURE * (_LAST_TEMPERATURE / _FIRST_TEMPERATURE) ** done
        seed = int(self._rng.integers(2**62))
        actions, costs_s = lesson.sample(self._parameters, seed, temperature)
        known = np.concatenate([actions, lesson.best[np.newaxis]])
        imitation = self._imitation * (1 - done) * len(actions)
        weights = np.append(advantages(costs_s), imitation)
        found = gradient_of(
            self._parameters,
            lesson.problem,
            lesson.terms,
            known,
            weights,
            temperature=temperature,
        )
        return found.shared, Progress(
            sampled=float(np.log(costs_s.mean() / lesson.best_s)),
            imitation=float(-found.log_probs[-1].mean()),
            entropy=float(found.entropies[:-1].mean()),
        )
