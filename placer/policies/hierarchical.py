"""A hierarchical policy: a learned grouper, and a placer of its groups, trained end to end.

Mirhoseini et al. (2018), "A hierarchical model for device placement": a feed-forward
network, the grouper, gives each unit a distribution over K groups; a sequence model with
attention, the placer, reads what the groups consist of and gives each a device in turn.
A unit is a group of the grouping that is placed, see ``placer.policies.first_groups``.

The paper draws a group for every unit and follows the gradient of both draws. Here the
groups of units are never drawn. Each group has a *leader*, a unit that always belongs to
it. The placer places the leaders, one after the other, and every other unit goes to the
device of one of its groups:

    p(devices) = Π_k p(d_k | d_1 … d_{k-1}) · Π_u Σ_k p(k | u) · [d_k = device of u]

with d_k the device of leader k, and u over all other units. So the probability of the
devices alone is exact, summed over all groupings, and its gradient has no noise from
drawing one. A share ``STRAY`` of each unit is spread over all devices, so that each stays
possible, and devices that are not permitted to the unit are left out of the sum.

The placer sees soft groups: the means of its units' features and the traffic between
groups, each unit counting by its p(k | u). So a gradient flows from the placer into the
grouper as well. In place of the paper's LSTMs the placer has attention alone (Vaswani et
al., 2017; for placement Zhou et al., 2019): group k looks at all groups and at the devices
of those placed before it, so that given actions are followed without a loop. As in
the other policies a learned prior favours the device of the group before, and those of
placed neighbours.

Array shapes: B placements, G units, K groups of units, D devices, H hidden units,
A attention units, E units of an embedding, V op types, F features, R rows of groups.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from placer.graph import FloatArray
from placer.policies.first_groups import FirstGroups, Units, first_groups
from placer.policies.tensorflow_policy import (
    FORBIDDEN_LOGIT,
    Tensor,
    TensorFlowPolicy,
    glorot_uniform,
)
from placer.policy import check_settings

STRAY = 1e-4
"""Share of each unit that is spread evenly over all devices."""

_LOGIT_SCALE = 30.0
"""Logits of one unit or one group are learned this much faster than matrices: Adam moves
each variable alike, and a matrix of a network moves many logits together."""

_NEAR = 0.5
"""Share of a straying unit that goes to the groups of its neighbours; the rest to any."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HierarchicalConfig:
    """Sizes, prior and optimiser of the two networks.

    Attributes:
        unit_groups: Groups of units at most, K (the paper: 256, for graphs of up to 80,000
            ops); each has a leader, and the others follow.
        hidden_size: Units of the grouper's hidden layer (the paper: 64) and of the
            placer's (the paper: 512).
        attention_size: Units of the attention.
        embedding_size: Units of the op-type embedding.
        logit_bound: C of ``C · tanh(x / T)``, the placer network's share of a logit.
        logit_temperature: T of the same.
        entropy_bonus: Weight of the entropy, summed over units, in the objective. With
            0.02 the last placements of GNMT were better, but one training in twelve settled
            on one device.
        learning_rate: Of Adam.
        gradient_clip_norm: Bound of the gradient's global norm (the paper: 1.0).
        locality_prior: Initial logit, learned from there for each group, in favour of the
            device of the group before and of those of its placed neighbours. With 0 there is
            no prior at all: the grouper too starts out near uniform.
        strays: Units that a first placement expects outside of their first groups.
        jit_compile: Compile with XLA.
    """

    unit_groups: int = 48
    hidden_size: int = 128
    attention_size: int = 64
    embedding_size: int = 32
    logit_bound: float = 5.0
    logit_temperature: float = 10.0
    entropy_bonus: float = 0.05
    learning_rate: float = 0.003
    gradient_clip_norm: float = 1.0
    locality_prior: float = 2.0
    strays: float = 4.0
    jit_compile: bool = True

    def __post_init__(self) -> None:
        check_settings(
            self,
            positive=(
                "unit_groups",
                "hidden_size",
                "attention_size",
                "embedding_size",
                "logit_bound",
                "logit_temperature",
                "learning_rate",
                "gradient_clip_norm",
                "strays",
            ),
            not_negative=("entropy_bonus", "locality_prior"),
        )


class _Rows(NamedTuple):
    """What the logits of some groups depend on beside the devices placed before them.

    Attributes:
        seen: The hidden layer before its activation, as far as no device enters, ``[R, H]``.
        attention: To the groups placed before, ``[R, K]``; the rest of 1 is on later ones.
        neighbors: Share of each group placed before in the traffic with those, ``[R, K]``.
        fixed: Logits that no device changes; those of forbidden devices, ``[R, D]``.
        stay: Logit of the device of the group before, ``[R, 1]``.
        pull: Logit of a device that all neighbours share, ``[R, 1]``.
    """

    seen: Tensor
    attention: Tensor
    neighbors: Tensor
    fixed: Tensor
    stay: Tensor
    pull: Tensor


class HierarchicalPolicy(TensorFlowPolicy):
    """Grouper and placer over the units of one profile.

    Args:
        units: What is seen of each unit.
        config: Sizes, prior and optimiser.
        seed: Seed of the initial parameters.
    """

    def __init__(self, units: Units, config: HierarchicalConfig, *, seed: int) -> None:
        self.config = config
        features = units.features
        groups = first_groups(units, config.unit_groups)
        near = _near_groups(units, groups)
        led = np.zeros(near.shape)
        led[groups.leader_of_group, np.arange(groups.num_groups)] = 1
        mask = np.where(features.allowed, 0.0, FORBIDDEN_LOGIT)[groups.leader_of_group]
        self._leaders = tf.constant(groups.leader_of_group, tf.int32)
        self._led = tf.constant(led, tf.float32)
        self._is_leader = tf.constant(led.any(axis=1))
        self._type_shares = tf.constant(features.type_shares, tf.float32)
        self._descriptions = tf.constant(_descriptions(units), tf.float32)
        self._near = tf.constant(near, tf.float32)
        self._closeness = tf.constant(units.closeness, tf.float32)
        self._allowed = tf.constant(features.allowed, tf.float32)
        self._mask = tf.constant(mask, tf.float32)
        self._earlier = tf.constant(np.tri(groups.num_groups, k=-1), tf.float32)
        super().__init__(
            self._initial_values(groups, near, np.random.default_rng(seed)),
            num_groups=features.num_groups,
            num_devices=features.num_devices,
            learning_rate=config.learning_rate,
            gradient_clip_norm=config.gradient_clip_norm,
            entropy_bonus=config.entropy_bonus,
            jit_compile=config.jit_compile,
        )

    @property
    def num_unit_groups(self) -> int:
        """Number of groups of units, K."""
        return int(self._leaders.shape[0])

    def memberships(self) -> FloatArray:
        """Return the probability of each group for each unit, ``[G, K]``; a leader's is 1."""
        return np.asarray(self._memberships(), dtype=np.float64)

    def _initial_values(
        self, groups: FirstGroups, near: FloatArray, rng: np.random.Generator
    ) -> dict[str, FloatArray]:
        config, hidden, num_groups = self.config, self.config.hidden_size, groups.num_groups
        num_devices = int(self._mask.shape[1])
        inputs = config.embedding_size + int(self._descriptions.shape[1]) + num_groups
        matrices = {
            "type_embedding": (int(self._type_shares.shape[1]), config.embedding_size),
            "grouper/hidden": (inputs, hidden),
            "grouper/output": (hidden, num_groups),
            "placer/embedding": (inputs, hidden),
            "placer/query": (hidden, config.attention_size),
            "placer/key": (hidden, config.attention_size),
            "placer/value": (hidden, hidden),
            "placer/previous": (num_devices, hidden),
            "placer/placed": (num_devices, hidden),
            "placer/output": (hidden, num_devices),
        }
        values = {name: glorot_uniform(rng, shape) for name, shape in matrices.items()}
        for name in ("grouper/bias", "placer/bias"):
            values[name] = np.zeros(hidden)
        values["grouper/logits"] = np.zeros(near.shape)
        if config.locality_prior:
            # The prior leaves little to the network, which does not know the units yet.
            values["grouper/output"] *= 0.1
            values["grouper/logits"] = _first_logits(groups, near, config.strays) / _LOGIT_SCALE
        values["placer/logits"] = np.zeros((num_groups, num_devices))
        for name in ("placer/stay", "placer/pull"):
            values[name] = np.full((num_groups, 1), config.locality_prior / _LOGIT_SCALE)
        return values

    def _memberships(self) -> Tensor:
        """Return the grouper's p(k | u), ``[G, K]``."""
        variables = self._variables
        types = self._type_shares @ variables["type_embedding"]
        inputs = tf.concat([types, self._descriptions, self._near], axis=1)
        hidden = tf.tanh(inputs @ variables["grouper/hidden"] + variables["grouper/bias"])
        logits = hidden @ variables["grouper/output"]
        logits += _LOGIT_SCALE * variables["grouper/logits"]
        return tf.where(self._is_leader[:, None], self._led, tf.nn.softmax(logits))

    def _read(self, memberships: Tensor) -> _Rows:
        """Return what the placer reads of all groups; R is K."""
        variables = self._variables
        shares = tf.transpose(memberships / tf.reduce_sum(memberships, axis=0))
        types = shares @ (self._type_shares @ variables["type_embedding"])
        traffic = tf.transpose(memberships) @ (self._closeness @ memberships)
        traffic = tf.linalg.set_diag(traffic, tf.zeros([self.num_unit_groups]))
        inputs = tf.concat([types, shares @ self._descriptions, _normalized(traffic)], axis=1)
        groups = tf.tanh(inputs @ variables["placer/embedding"])
        query, key = groups @ variables["placer/query"], groups @ variables["placer/key"]
        scores = query @ tf.transpose(key) / np.sqrt(self.config.attention_size)
        attention = tf.nn.softmax(scores)
        context = attention @ (groups @ variables["placer/value"])
        return _Rows(
            seen=groups + context + variables["placer/bias"],
            attention=attention * self._earlier,
            neighbors=_normalized(traffic * self._earlier),
            fixed=_LOGIT_SCALE * variables["placer/logits"] + self._mask,
            stay=_LOGIT_SCALE * variables["placer/stay"],
            pull=_LOGIT_SCALE * variables["placer/pull"],
        )

    def _leader_logits(self, rows: _Rows, placed: Tensor, previous: Tensor) -> Tensor:
        """Return the placer's logits for the leaders of some groups, ``[B, R, D]``.

        Args:
            rows: Of the groups.
            placed: Devices of all leaders, one-hot; of later ones they do not count, ``[B, K, D]``.
            previous: Device of the leader before each, one-hot, ``[B, R, D]``.
        """
        variables, config = self._variables, self.config
        attended = rows.attention @ placed
        hidden = rows.seen + previous @ variables["placer/previous"]
        hidden = tf.tanh(hidden + attended @ variables["placer/placed"])
        outputs = hidden @ variables["placer/output"]
        logits = config.logit_bound * tf.tanh(outputs / config.logit_temperature)
        return logits + rows.fixed + rows.stay * previous + rows.pull * (rows.neighbors @ placed)

    def _follower_log_probs(self, memberships: Tensor, placed: Tensor) -> Tensor:
        """Return the log-probability of each device of each unit that follows, ``[B, G, D]``.

        Args:
            memberships: Of units in groups, ``[G, K]``.
            placed: Devices of all leaders, one-hot, ``[B, K, D]``.
        """
        shares = (1 - STRAY) * (memberships @ placed) + STRAY / self.num_devices
        shares *= self._allowed
        shares /= tf.reduce_sum(shares, axis=2, keepdims=True)
        return tf.math.log(tf.maximum(shares, np.exp(-64)))

    def _sampled_actions(self, noise: Tensor) -> Tensor:
        memberships = self._memberships()
        rows = self._read(memberships)
        noise_of_leaders = tf.gather(noise, self._leaders, axis=1)
        groups = tf.range(self.num_unit_groups)
        placed = tf.zeros_like(noise_of_leaders)
        previous = tf.zeros_like(noise_of_leaders[:, :1])
        for group in groups:
            row = _Rows(*(each[group][None] for each in rows))
            logits = self._leader_logits(row, placed, previous)
            device = tf.argmax(logits + noise_of_leaders[:, group][:, None], axis=2)
            previous = tf.one_hot(device, self.num_devices)
            placed = tf.where((groups == group)[:, None], previous, placed)
        followers = tf.argmax(self._follower_log_probs(memberships, placed) + noise, axis=2)
        leaders = tf.argmax(self._led @ placed, axis=2)
        return tf.cast(tf.where(self._is_leader, leaders, followers), tf.int32)

    def _chosen_log_probs(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probability and the entropy of each choice, ``[B, G]`` each.

        The entropy of a unit is that given the devices of the leaders before it.
        """
        memberships = self._memberships()
        choices = tf.one_hot(actions, self.num_devices)
        placed = tf.gather(choices, self._leaders, axis=1)
        previous = tf.concat([tf.zeros_like(placed[:, :1]), placed[:, :-1]], axis=1)
        logits = self._leader_logits(self._read(memberships), placed, previous)
        log_probs = tf.where(
            self._is_leader[:, None],
            self._led @ tf.nn.log_softmax(logits),
            self._follower_log_probs(memberships, placed),
        )
        chosen = tf.reduce_sum(log_probs * choices, axis=2)
        return chosen, -tf.reduce_sum(tf.exp(log_probs) * log_probs, axis=2)


def _normalized(traffic: Tensor) -> Tensor:
    """Return each row's shares; none of a row that is zero."""
    return tf.math.divide_no_nan(traffic, tf.reduce_sum(traffic, axis=1, keepdims=True))


def _descriptions(units: Units) -> FloatArray:
    """Return what is fed of each unit beside types and neighbours, ``[G, F]``.

    Output shapes, compute time relative to the mean, place in topological order.
    """
    shapes = units.features.output_shapes
    num_units = len(shapes)
    time = np.log1p(num_units * units.compute_shares)
    place = np.linspace(-1, 1, num_units)
    # Divided by the largest, so that no column outweighs the others from the start.
    return np.column_stack([shapes / max(float(shapes.max()), 1.0), time, place])


def _near_groups(units: Units, groups: FirstGroups) -> FloatArray:
    """Return the share of each first group in a unit's traffic, ``[G, K]``."""
    near = units.closeness @ np.eye(groups.num_groups)[groups.group_of_unit]
    total = near.sum(axis=1, keepdims=True)
    return np.asarray(near / np.where(total > 0, total, 1.0))


def _first_logits(groups: FirstGroups, near: FloatArray, strays: float) -> FloatArray:
    """Return logits by which few units leave their first groups, ``[G, K]``."""
    num_units, num_groups = near.shape
    astray = min(0.5, strays / num_units)
    elsewhere = _NEAR * near + (1 - _NEAR) / num_groups
    own = np.eye(num_groups)[groups.group_of_unit]
    return np.asarray(np.log((1 - astray) * own + astray * elsewhere))
