"""A small policy that knows one thing: neighbours belong together, unless shown otherwise.

The device of a group is drawn from the softmax of

    logit[d] = C · tanh((table[g, d] + stay[g] · [d is the previous group's device]
                         + pull[g] · share of group g's placed neighbours on d) / C)

with the groups in topological order. A neighbour counts by one plus the time in which its
tensors are sent, relative to the mean of all. Everything is learned: the table from zero, but for a
bias towards one device, ``stay`` and ``pull`` from values above zero, so that the first
placements are already runs of consecutive groups with few cut edges. It has no hidden layer and
is compiled: a batch is drawn or learned from in about a millisecond.

Array shapes: B placements, G groups, D devices, E pairs of neighbours.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from placer.compiled import compiled
from placer.errors import InvalidValueError
from placer.graph import BoolArray, FloatArray
from placer.grouping import Grouping
from placer.policies.adam import Adam
from placer.policy import Actions, check_settings, check_state
from placer.policy_gradient import gumbel_noise, reinforce_loss
from placer.profile import Profile
from placer.traffic import group_traffic

_compiled = compiled(error_model="numpy")


class _Model(NamedTuple):
    """Everything that probabilities depend on; see ``PlacedNeighbors`` and ``LocalityConfig``."""

    table: FloatArray
    stay: FloatArray
    pull: FloatArray
    first: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int64]
    shares: FloatArray
    allowed: BoolArray
    bound: float


class _Followed(NamedTuple):
    """What is known of given actions: of each choice, ``[B, G]``, and the gradients."""

    log_probs: FloatArray
    entropies: FloatArray
    table: FloatArray
    stay: FloatArray
    pull: FloatArray


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LocalityConfig:
    """Where the policy starts, and how fast it learns.

    Attributes:
        stay: Initial logit of the previous group's device.
        pull: Initial logit of a device that all placed neighbours share.
        bias: Initial logit of the preferred device.
        logit_bound: C of ``C · tanh(x / C)``.
        learning_rate: Of Adam (Kingma and Ba, 2015).
        entropy_bonus: Weight of the entropy, summed over groups, in the objective.
    """

    stay: float = 2.0
    pull: float = 3.0
    bias: float = 1.0
    logit_bound: float = 10.0
    learning_rate: float = 0.1
    entropy_bonus: float = 0.0

    def __post_init__(self) -> None:
        check_settings(
            self,
            positive=("logit_bound", "learning_rate"),
            not_negative=("stay", "pull", "bias", "entropy_bonus"),
        )


@dataclasses.dataclass(frozen=True, eq=False)
class PlacedNeighbors:
    """For each group its neighbours of a lower number, and how much each counts.

    Attributes:
        first: Where each group's neighbours start in the two below, ``[G + 1]``.
        groups: The neighbours, ``[E]``.
        shares: Of all the group's placed neighbours, ``[E]``; they sum to 1 for each group.
    """

    first: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int64]
    shares: FloatArray


def placed_neighbors(profile: Profile, grouping: Grouping) -> PlacedNeighbors:
    """Return the neighbours of each group that are placed before it."""
    traffic = group_traffic(profile, grouping)
    edges = traffic.edges
    mean_s = float(traffic.transfer_time_s.mean()) if edges.sources.size else 0.0
    weights = 1 + traffic.transfer_time_s / (mean_s or 1.0)
    later = np.maximum(edges.sources, edges.destinations)
    earlier = np.minimum(edges.sources, edges.destinations)
    pairs, pair_of_edge = np.unique(later * grouping.num_groups + earlier, return_inverse=True)
    weight_of_pair = np.bincount(pair_of_edge, weights, minlength=len(pairs))
    later, earlier = np.divmod(pairs, grouping.num_groups)
    total = np.bincount(later, weight_of_pair, minlength=grouping.num_groups)
    first = np.searchsorted(later, np.arange(grouping.num_groups + 1))
    return PlacedNeighbors(first, earlier, weight_of_pair / total[later])


class LocalityPolicy:
    """Table, previous device and placed neighbours, in numpy; see the module.

    Args:
        neighbors: Of each group.
        allowed: Where each group may go, ``[G, D]``.
        config: Where it starts, and how fast it learns.
        preferred: Device that has the bias.
    """

    def __init__(
        self,
        neighbors: PlacedNeighbors,
        allowed: BoolArray,
        config: LocalityConfig = LocalityConfig(),
        *,
        preferred: int = 0,
    ) -> None:
        num_groups, num_devices = allowed.shape
        self._neighbors = neighbors
        self._allowed = allowed
        self._config = config
        table = np.zeros((num_groups, num_devices))
        table[:, preferred] = config.bias
        self._parameters = {
            "table": table,
            "stay": np.full(num_groups, float(config.stay)),
            "pull": np.full(num_groups, float(config.pull)),
        }
        self._adam = Adam(self._parameters, dict.fromkeys(self._parameters, config.learning_rate))

    def sample(self, seed: int, trial_numbers: npt.NDArray[np.int64]) -> Actions:
        """Return one action a group for each trial, ``[B, G]``; see ``Policy.sample``."""
        noise = gumbel_noise(seed, trial_numbers, self._allowed.shape)
        actions = np.empty(noise.shape[:2], dtype=np.int32)
        _draw(self._model(), noise, actions)
        return actions

    def greedy(self) -> Actions:
        """Return the likeliest device of each group, given those before it, ``[G]``."""
        actions = np.empty((1, len(self._allowed)), dtype=np.int32)
        _draw(self._model(), np.zeros((1, *self._allowed.shape)), actions)
        likeliest: Actions = actions[0]
        return likeliest

    def log_probs(self, actions: Actions) -> FloatArray:
        """Return the log-probability of each chosen device, ``[B, G]``."""
        return self._followed(actions, np.zeros(len(actions)), 0.0).log_probs

    def update(self, actions: Actions, advantages: FloatArray) -> Mapping[str, float]:
        """Make one step of Adam; see ``Policy.update``.

        The metric ``entropy`` is the mean of a group's, in nats.
        """
        weight = self._config.entropy_bonus
        followed = self._followed(actions, np.asarray(advantages, dtype=np.float64), weight)
        gradients = {name: getattr(followed, name) for name in self._parameters}
        norm = self._adam.climb(gradients)
        bonus = weight * float(followed.entropies.sum(axis=1).mean())
        return {
            "loss": reinforce_loss(followed.log_probs, advantages) - bonus,
            "entropy": float(followed.entropies.mean()),
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

    def _variables(self) -> dict[str, npt.NDArray[Any]]:
        return {**self._parameters, **self._adam.state()}

    def _model(self) -> _Model:
        return _Model(
            **self._parameters,
            first=self._neighbors.first,
            groups=self._neighbors.groups,
            shares=self._neighbors.shares,
            allowed=self._allowed,
            bound=self._config.logit_bound,
        )

    def _followed(
        self, actions: Actions, advantages: FloatArray, entropy_bonus: float
    ) -> _Followed:
        if actions.ndim != 2 or actions.shape[1] != len(self._allowed):
            raise InvalidValueError(
                f"actions must have shape [B, {len(self._allowed)}], got {actions.shape}"
            )
        followed = _Followed(
            log_probs=np.empty(actions.shape),
            entropies=np.empty(actions.shape),
            **{name: np.zeros_like(value) for name, value in self._parameters.items()},
        )
        actions = np.ascontiguousarray(actions, dtype=np.int32)
        _follow(self._model(), actions, advantages, entropy_bonus, followed)
        return followed


@_compiled
def _fill_logits(
    model: _Model, chosen: Actions, group: int, near: FloatArray, logits: FloatArray
) -> None:
    """Fill the shares of placed neighbours on each device and the logits, ``[D]`` each."""
    near[:] = 0
    for at in range(model.first[group], model.first[group + 1]):
        near[chosen[model.groups[at]]] += model.shares[at]
    for device in range(logits.size):
        raw = model.table[group, device] + model.pull[group] * near[device]
        if group > 0 and chosen[group - 1] == device:
            raw += model.stay[group]
        is_allowed = model.allowed[group, device]
        logits[device] = model.bound * np.tanh(raw / model.bound) if is_allowed else -np.inf


@_compiled
def _draw(model: _Model, noise: FloatArray, actions: Actions) -> None:
    """Fill ``actions``, ``[B, G]``: the device of the largest sum of logit and noise."""
    near, logits = np.empty(model.table.shape[1]), np.empty(model.table.shape[1])
    for trial in range(actions.shape[0]):
        for group in range(actions.shape[1]):
            _fill_logits(model, actions[trial], group, near, logits)
            actions[trial, group] = np.argmax(logits + noise[trial, group])


@_compiled
def _follow(
    model: _Model, actions: Actions, advantages: FloatArray, entropy_bonus: float, out: _Followed
) -> None:
    """Fill log-probabilities and entropies, and add up the gradients.

    They are those of the mean over B of ``advantage · Σ_g log p + entropy_bonus · Σ_g entropy``.
    """
    near, logits = np.empty(model.table.shape[1]), np.empty(model.table.shape[1])
    for trial in range(actions.shape[0]):
        for group in range(actions.shape[1]):
            chosen = actions[trial, group]
            _fill_logits(model, actions[trial], group, near, logits)
            top = np.max(logits)
            norm = top + np.log(np.sum(np.exp(logits - top)))
            entropy = 0.0
            for device in range(logits.size):
                if model.allowed[group, device]:
                    entropy -= np.exp(logits[device] - norm) * (logits[device] - norm)
            out.log_probs[trial, group] = logits[chosen] - norm
            out.entropies[trial, group] = entropy
            for device in range(logits.size):
                if not model.allowed[group, device]:
                    continue
                log_prob = logits[device] - norm
                prob = np.exp(log_prob)
                slope = advantages[trial] * ((chosen == device) - prob)
                slope -= entropy_bonus * prob * (log_prob + entropy)
                slope *= (1 - (logits[device] / model.bound) ** 2) / actions.shape[0]
                out.table[group, device] += slope
                out.pull[group] += slope * near[device]
                if group > 0 and actions[trial, group - 1] == device:
                    out.stay[group] += slope
