"""A policy that is trained once and then places graphs it has never seen.

A small network (``graph_network``) looks at all groups of a graph and says, for each, what counts
when it is placed. A decoder (``graph_decoder``) then places group after group: it schedules
what is placed so far, and weighs what that schedule says of each device. So it is a list scheduler
whose rule depends on the place in the graph, and is learned.

The variables of network and decoder belong to no graph. On a graph that is trained on, each
group also has terms of its own: ``table[g, d]``, added to the score of a device, and
``shift[g, k]``, added to the weights. They start at zero.

Untrained, the policy is about ``placer.policies.locality``: it stays and follows neighbours, and on
devices that differ prefers the faster.

Array shapes: B placements, G groups, D devices, K inputs, M units of the decoder.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from placer.graph import FloatArray
from placer.grouping import Grouping
from placer.policies.adam import Adam
from placer.policies.graph_model import (
    PRETRAINED,
    Gradient,
    GraphTerms,
    gradient_of,
    load_parameters,
    new_parameters,
    sampled,
)
from placer.policies.graph_problem import GraphProblem
from placer.policy import Actions, check_settings, check_state
from placer.policy_gradient import gumbel_noise, reinforce_loss
from placer.profile import Profile


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GraphConfig:
    """How fast the policy learns on one graph.

    Attributes:
        own_learning_rate: Of Adam, for the terms that belong to groups.
        shared_learning_rate: Of Adam, for network and decoder.
        largest_gradient: A longer gradient is scaled down to this norm.
        entropy_bonus: Weight of the entropy, summed over groups, in the objective. It keeps a
            policy that was sure from the beginning from drawing only what it knows.
    """

    own_learning_rate: float = 0.03
    shared_learning_rate: float = 3e-4
    largest_gradient: float = 10.0
    entropy_bonus: float = 0.02

    def __post_init__(self) -> None:
        check_settings(
            self,
            positive=("own_learning_rate", "shared_learning_rate", "largest_gradient"),
            not_negative=("entropy_bonus",),
        )


DEFAULT_CONFIG = GraphConfig()

_SHARED = "shared/"
"""Before the names of the variables that belong to no graph."""


def pretrained(
    profile: Profile, grouping: Grouping, config: GraphConfig = DEFAULT_CONFIG
) -> "GraphPolicy":
    """Return the policy with the variables that come with Placer.

    ``docs/experiments/pretrain_graph_policy.py`` made them.

    Raises:
        InfeasibleError: If a group has no permitted device.
    """
    return GraphPolicy(profile, grouping, config, parameters=load_parameters(PRETRAINED))


def transferred(
    state: Mapping[str, npt.NDArray[np.generic]], profile: Profile, grouping: Grouping
) -> "GraphPolicy":
    """Return the policy with network and decoder as a training on another graph left them.

    Args:
        state: Of the policy of that training; what belongs to its groups is left out.
        profile: What is placed now.
        grouping: Its groups.

    Raises:
        InfeasibleError: If a group has no permitted device.
    """
    parameters = {
        name.removeprefix(_SHARED): np.asarray(value, dtype=np.float64)
        for name, value in state.items()
        if name.startswith(_SHARED)
    }
    return GraphPolicy(profile, grouping, parameters=parameters)


class GraphPolicy:
    """Network, decoder and the terms of one graph; see the module.

    Args:
        profile: What is placed.
        grouping: Its groups.
        config: How fast it learns.
        parameters: Of network and decoder; untrained ones unless given.

    Raises:
        InfeasibleError: If a group has no permitted device.
    """

    def __init__(
        self,
        profile: Profile,
        grouping: Grouping,
        config: GraphConfig = DEFAULT_CONFIG,
        *,
        parameters: Mapping[str, FloatArray] | None = None,
    ) -> None:
        self._problem = GraphProblem(profile, grouping)
        self._config = config
        given = new_parameters() if parameters is None else parameters
        self._parameters = {name: value.copy() for name, value in given.items()}
        self._terms = GraphTerms.zeros(self._problem)
        own = {"table": self._terms.table, "shift": self._terms.shift}
        rates = dict.fromkeys(self._parameters, config.shared_learning_rate)
        self._adam = Adam(
            self._parameters | own,
            rates | dict.fromkeys(own, config.own_learning_rate),
            largest_norm=config.largest_gradient,
        )

    def sample(self, seed: int, trial_numbers: npt.NDArray[np.int64]) -> Actions:
        """Return one action a group for each trial, ``[B, G]``; see ``Policy.sample``."""
        shape = (self._problem.num_groups, self._problem.num_devices)
        noise = gumbel_noise(seed, trial_numbers, shape)
        return sampled(self._parameters, self._problem, self._terms, noise)

    def greedy(self) -> Actions:
        """Return the likeliest device of each group, given those before it, ``[G]``."""
        noise = np.zeros((1, self._problem.num_groups, self._problem.num_devices))
        likeliest: Actions = sampled(self._parameters, self._problem, self._terms, noise)[0]
        return likeliest

    def log_probs(self, actions: Actions) -> FloatArray:
        """Return the log-probability of each chosen device, ``[B, G]``."""
        return self._gradient(actions, np.zeros(len(actions)), 0.0).log_probs

    def update(self, actions: Actions, advantages: FloatArray) -> Mapping[str, float]:
        """Make one step of Adam; see ``Policy.update``.

        The metric ``entropy`` is the mean of a group's, in nats.
        """
        weight = self._config.entropy_bonus
        found = self._gradient(actions, advantages, weight)
        own = {"table": found.terms.table, "shift": found.terms.shift}
        norm = self._adam.climb(found.shared | own)
        bonus = weight * float(found.entropies.sum(axis=1).mean())
        return {
            "loss": reinforce_loss(found.log_probs, advantages) - bonus,
            "entropy": float(found.entropies.mean()),
            "gradient_norm": norm,
        }

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return all variables of policy and optimiser, by name."""
        return {name: variable.copy() for name, variable in self._variables().items()}

    def restore(self, state: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Set all variables to what ``state`` returned.

        Raises:
            InvalidValueError: If a name or shape differs.
        """
        variables = self._variables()
        check_state(state, {name: variable.shape for name, variable in variables.items()})
        for name, variable in variables.items():
            variable[...] = state[name]

    def _gradient(self, actions: Actions, advantages: FloatArray, bonus: float) -> Gradient:
        return gradient_of(
            self._parameters,
            self._problem,
            self._terms,
            actions,
            advantages,
            entropy_bonus=bonus,
        )

    def _variables(self) -> dict[str, npt.NDArray[Any]]:
        return {
            "table": self._terms.table,
            "shift": self._terms.shift,
            **{f"{_SHARED}{name}": value for name, value in self._parameters.items()},
            **self._adam.state(),
        }
