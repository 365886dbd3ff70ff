"""The paper's policy: an attentional sequence-to-sequence network, in TensorFlow.

Mirhoseini et al. (2017), section 3. An encoder LSTM reads the groups in topological
order. A decoder LSTM takes one step a group: it is fed the embedding of the device chosen
one step before, attends to the encoder's states (additive attention, Bahdanau et al.,
2015), and gives the logits of the devices. As in the authors' later controller
(TensorFlow 1.x, ``grappler/hierarchical_controller.py``) the attention is outside the
recurrence: it joins the decoder's state in front of the output layer.

Encoder and decoder are loops inside one ``tf.function``, so a batch of placements costs
one call for drawing and one for an update. All that differs between calls enters as
tensors: nothing is traced twice for the same batch size.

Array shapes: B placements, G groups, D devices, H hidden units, A attention units,
E units of an embedding, F features.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from placer.errors import InvalidValueError
from placer.features import GroupFeatures
from placer.graph import FloatArray
from placer.policy import Actions, check_state
from placer.policy_gradient import gumbel_noise

Tensor = Any  # TensorFlow has no type stubs.

FORBIDDEN_LOGIT = -1e9
"""Logit of a device that a group must not use: its probability is exactly zero."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Seq2SeqConfig:
    """Sizes and optimiser of the network.

    Attributes:
        hidden_size: Units of each LSTM. The authors' later controller has 512. A quarter
            of that departs from it for speed: on two cores, with the attention likewise
            smaller, 60 to 180 placements a second instead of 10 to 20.
        attention_size: Units of the attention. The later controller has ``hidden_size``.
        embedding_size: Units of the op-type and device embeddings.
        logit_bound: C of ``C · tanh(x / T)``, which keeps every device possible.
        logit_temperature: T of the same.
        entropy_bonus: Weight of the entropy, summed over groups, in the objective. The
            later controller has none; with 0.01 the policy soon settled on one device.
        learning_rate: Of Adam (the optimiser is the paper's).
        gradient_clip_norm: Bound of the gradient's global norm (later controller: 1.0).
        align_decoder: Feed step g of the decoder the encoder's state of group g as well.
            The paper leaves it to the attention to find group g, as False does.
        locality_prior: Initial logit, learned from there for each group, in favour of the
            devices of the group before and of the groups it receives tensors from. With 0
            the policy starts out near uniform, as the paper's, and spends its first
            thousands of trials on placements that cut nearly every edge; with 3 or more
            it hardly leaves a single device.
        jit_compile: Compile with XLA: some seconds once, then up to twice the rate.
    """

    hidden_size: int = 128
    attention_size: int = 64
    embedding_size: int = 32
    logit_bound: float = 5.0
    logit_temperature: float = 10.0
    entropy_bonus: float = 0.05
    learning_rate: float = 0.003
    gradient_clip_norm: float = 1.0
    align_decoder: bool = True
    locality_prior: float = 2.0
    jit_compile: bool = True

    def __post_init__(self) -> None:
        for field in (
            "hidden_size",
            "attention_size",
            "embedding_size",
            "logit_bound",
            "logit_temperature",
            "learning_rate",
            "gradient_clip_norm",
        ):
            if not 0 < getattr(self, field) < np.inf:
                raise InvalidValueError(
                    f"{field} must be positive and finite, got {getattr(self, field)}"
                )
        for field in ("entropy_bonus", "locality_prior"):
            if not 0 <= getattr(self, field) < np.inf:
                raise InvalidValueError(
                    f"{field} must be finite and not negative, got {getattr(self, field)}"
                )


class Seq2SeqPolicy:
    """The paper's encoder and decoder over the groups of one profile.

    Args:
        features: What is seen of each group.
        config: Sizes and optimiser.
        seed: Seed of the initial parameters.
    """

    def __init__(self, features: GroupFeatures, config: Seq2SeqConfig, *, seed: int) -> None:
        self.config = config
        self.num_groups = features.num_groups
        self.num_devices = features.num_devices
        self._type_shares = tf.constant(features.type_shares, tf.float32)
        self._other_features = tf.constant(_other_features(features), tf.float32)
        self._shares = tf.constant(_incoming_shares(features), tf.float32)
        self._mask = tf.constant(np.where(features.allowed, 0.0, FORBIDDEN_LOGIT), tf.float32)
        self._variables = self._initial_variables(np.random.default_rng(seed))
        self._optimizer = tf.keras.optimizers.Adam(
            config.learning_rate, global_clipnorm=config.gradient_clip_norm, name="adam"
        )
        self._optimizer.build(list(self._variables.values()))
        compiled = {"jit_compile": config.jit_compile}
        self._sample = tf.function(self._sampled_actions, **compiled)
        self._log_probs = tf.function(self._log_probs_of_actions, **compiled)
        self._update = tf.function(self._updated, **compiled)

    def sample(self, seed: int, trial_numbers: npt.NDArray[np.int64]) -> Actions:
        """Return one action a group for each trial, ``[B, G]``; see ``Policy.sample``."""
        noise = gumbel_noise(seed, trial_numbers, (self.num_groups, self.num_devices))
        return np.asarray(self._sample(tf.constant(noise, tf.float32)), dtype=np.int32)

    def log_probs(self, actions: Actions) -> FloatArray:
        """Return the log-probability of each chosen device, ``[B, G]``."""
        return np.asarray(self._log_probs(self._checked(actions)), dtype=np.float64)

    def update(self, actions: Actions, advantages: FloatArray) -> Mapping[str, float]:
        """Make one step of Adam; see ``Policy.update``.

        The metric ``entropy`` is the mean of a group's, in nats.
        """
        metrics = self._update(self._checked(actions), tf.constant(advantages, tf.float32))
        return {name: float(value) for name, value in metrics.items()}

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return all variables of policy and optimiser, by name."""
        return {
            name: np.array(variable.numpy()) for name, variable in self._all_variables().items()
        }

    def restore(self, state: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Set all variables to what ``state`` returned.

        Raises:
            InvalidValueError: If a name or shape differs.
        """
        variables = self._all_variables()
        check_state(state, {name: tuple(each.shape) for name, each in variables.items()})
        for name, variable in variables.items():
            variable.assign(state[name])

    def _checked(self, actions: Actions) -> Tensor:
        if actions.ndim != 2 or actions.shape[1] != self.num_groups:
            raise InvalidValueError(
                f"actions must have shape [B, {self.num_groups}], got {actions.shape}"
            )
        return tf.constant(actions, tf.int32)

    def _all_variables(self) -> dict[str, Tensor]:
        return self._variables | {slot.path: slot for slot in self._optimizer.variables}

    def _initial_variables(self, rng: np.random.Generator) -> dict[str, Tensor]:
        config, hidden = self.config, self.config.hidden_size
        inputs = config.embedding_size + int(self._other_features.shape[1])
        matrices = {
            "type_embedding": (int(self._type_shares.shape[1]), config.embedding_size),
            "encoder/input": (inputs, 4 * hidden),
            "encoder/recurrent": (hidden, 4 * hidden),
            # The last row is fed to the first step, which has no device before it.
            "device_embedding": (self.num_devices + 1, config.embedding_size),
            "decoder/input": (config.embedding_size, 4 * hidden),
            "decoder/recurrent": (hidden, 4 * hidden),
            "attention/key": (hidden, config.attention_size),
            "attention/query": (hidden, config.attention_size),
            "attention/score": (config.attention_size, 1),
            "output": (2 * hidden, self.num_devices),
        }
        if config.align_decoder:
            matrices["decoder/aligned"] = (hidden, 4 * hidden)
        values = {name: _glorot_uniform(rng, shape) for name, shape in matrices.items()}
        for lstm in ("encoder", "decoder"):
            # Gates are in the order input, forget, output, candidate; the forget gate
            # starts open, as in the later controller.
            values[f"{lstm}/bias"] = np.repeat([0.0, 1.0, 0.0, 0.0], hidden)
        for name in ("locality/previous", "locality/producers"):
            values[name] = np.full(self.num_groups, config.locality_prior)
        return {
            name: tf.Variable(value, dtype=tf.float32, name=name) for name, value in values.items()
        }

    def _encode(self) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the encoder's state at each group, ``[G, H]``, and its last cell and state."""
        variables = self._variables
        types = self._type_shares @ variables["type_embedding"]
        features = tf.concat([types, self._other_features], axis=1)
        inputs = features @ variables["encoder/input"] + variables["encoder/bias"]
        cell = tf.zeros([1, self.config.hidden_size])
        state = tf.zeros([1, self.config.hidden_size])
        states = tf.TensorArray(tf.float32, self.num_groups, element_shape=state.shape)
        for group in tf.range(self.num_groups):
            gates = inputs[group] + state @ variables["encoder/recurrent"]
            cell, state = _lstm(gates, cell)
            states = states.write(group, state)
        return states.concat(), (cell, state)

    def _decode(
        self, batch: int, choose: Callable[[Tensor, Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the devices chosen, ``[B, G]``, and all log-probabilities, ``[G, B, D]``.

        Args:
            batch: B.
            choose: From a group and the log-probability of its devices, ``[B, D]``, to the
                devices that the next step is fed, ``[B]``.
        """
        memory, (cell, state) = self._encode()
        cell, state = tf.repeat(cell, batch, axis=0), tf.repeat(state, batch, axis=0)
        keys = memory @ self._variables["attention/key"]
        device_inputs = self._variables["device_embedding"] @ self._variables["decoder/input"]
        step_inputs = self._step_inputs(memory)
        groups = tf.range(self.num_groups)
        chosen = tf.fill([batch, self.num_groups], -1)
        device = tf.fill([batch], self.num_devices)
        log_probs = tf.TensorArray(
            tf.float32, self.num_groups, element_shape=[batch, self.num_devices]
        )
        for group in groups:
            previous = tf.one_hot(device, self.num_devices + 1)
            gates = previous @ device_inputs + step_inputs[group]
            gates += state @ self._variables["decoder/recurrent"]
            cell, state = _lstm(gates, cell)
            logits = self._logits(state, memory, keys) + self._mask[group]
            logits += self._locality(group, previous, chosen)
            log_prob = tf.nn.log_softmax(logits)
            device = choose(group, log_prob)
            chosen = tf.where(groups == group, device[:, None], chosen)
            log_probs = log_probs.write(group, log_prob)
        return chosen, log_probs.stack()

    def _step_inputs(self, memory: Tensor) -> Tensor:
        """Return what each decoder step is fed beside the previous device, ``[G, 4H]``."""
        inputs = tf.repeat(self._variables["decoder/bias"][None], self.num_groups, axis=0)
        if self.config.align_decoder:
            inputs += memory @ self._variables["decoder/aligned"]
        return inputs

    def _logits(self, state: Tensor, memory: Tensor, keys: Tensor) -> Tensor:
        """Return the network's logits at one decoder step, ``[B, D]``."""
        variables, config = self._variables, self.config
        query = state @ variables["attention/query"]
        scores = additive_scores(query, keys, variables["attention/score"])
        context = tf.nn.softmax(scores) @ memory
        outputs = tf.concat([state, context], axis=1) @ variables["output"]
        return config.logit_bound * tf.tanh(outputs / config.logit_temperature)

    def _locality(self, group: Tensor, previous: Tensor, chosen: Tensor) -> Tensor:
        """Return the logits in favour of devices of nearby groups, ``[B, D]``.

        Args:
            group: The group whose device is to be chosen.
            previous: Device of the group before, one-hot, ``[B, D + 1]``.
            chosen: Device of each group so far, -1 where not chosen yet, ``[B, G]``.
        """
        near = tf.one_hot(chosen, self.num_devices)
        votes = tf.tensordot(near, self._shares[group], [[1], [0]])
        stay = self._variables["locality/previous"][group] * previous[:, : self.num_devices]
        return stay + self._variables["locality/producers"][group] * votes

    def _sampled_actions(self, noise: Tensor) -> Tensor:
        def draw(group: Tensor, log_prob: Tensor) -> Tensor:
            return tf.argmax(log_prob + noise[:, group], axis=1, output_type=tf.int32)

        return self._decode(noise.shape[0], draw)[0]

    def _log_probs_of_actions(self, actions: Tensor) -> Tensor:
        return tf.transpose(self._chosen_log_probs(actions)[0])

    def _chosen_log_probs(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probability of each choice and each step's entropy, ``[G, B]``."""
        _, log_probs = self._decode(actions.shape[0], lambda group, _: actions[:, group])
        choices = tf.one_hot(tf.transpose(actions), self.num_devices)
        chosen = tf.reduce_sum(log_probs * choices, axis=-1)
        return chosen, -tf.reduce_sum(tf.exp(log_probs) * log_probs, axis=-1)

    def _updated(self, actions: Tensor, advantages: Tensor) -> dict[str, Tensor]:
        variables = list(self._variables.values())
        with tf.GradientTape() as tape:
            log_probs, entropies = self._chosen_log_probs(actions)
            bonus = self.config.entropy_bonus * tf.reduce_sum(entropies, axis=0)
            gains = advantages * tf.reduce_sum(log_probs, axis=0) + bonus
            loss = -tf.reduce_mean(gains)
        gradients = tape.gradient(loss, variables)
        self._optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {
            "loss": loss,
            "entropy": tf.reduce_mean(entropies),
            "gradient_norm": tf.linalg.global_norm(gradients),
        }


def _additive_scores(query: Tensor, keys: Tensor, score: Tensor) -> tuple[Tensor, Any]:
    """Return ``score · tanh(query + key)`` for each query and key, ``[B, G]``.

    The backward pass computes the ``[B, G, A]`` of tanh again: to keep it for each of the
    G decoder steps would take gigabytes.

    Args:
        query: ``[B, A]``.
        keys: ``[G, A]``.
        score: ``[A, 1]``.
    """

    def gradient(upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = tf.tanh(query[:, None] + keys[None])
        slope = upstream[:, :, None] * (1 - hidden * hidden) * score[:, 0]
        score_gradient = tf.reduce_sum(upstream[:, :, None] * hidden, axis=[0, 1])
        return tf.reduce_sum(slope, axis=1), tf.reduce_sum(slope, axis=0), score_gradient[:, None]

    return tf.tensordot(tf.tanh(query[:, None] + keys[None]), score[:, 0], 1), gradient


additive_scores = tf.custom_gradient(_additive_scores)


def _lstm(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Return the next cell and state (Hochreiter and Schmidhuber, 1997), ``[B, H]`` each."""
    enter, forget, leave, candidate = tf.split(gates, 4, axis=1)
    cell = tf.sigmoid(forget) * cell + tf.sigmoid(enter) * tf.tanh(candidate)
    return cell, tf.sigmoid(leave) * tf.tanh(cell)


def _glorot_uniform(rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
    """Draw as Glorot and Bengio (2010), as in the later controller."""
    bound = np.sqrt(6 / sum(shape))
    return np.asarray(rng.uniform(-bound, bound, shape))


def _other_features(features: GroupFeatures) -> FloatArray:
    """Return what is fed beside the types: output shapes, adjacency to and from, ``[G, F]``."""
    # Divided by the largest, so that no column outweighs the others from the start.
    shapes = features.output_shapes / max(float(features.output_shapes.max()), 1.0)
    return np.concatenate([shapes, features.adjacent, features.adjacent.T], axis=1)


def _incoming_shares(features: GroupFeatures) -> FloatArray:
    """Return each producer's share of what a group receives, ``[consumer, producer]``."""
    # A control edge, of zero bytes, still asks for the same device: hence the 1.
    received = np.where(features.adjacent, 1 + features.traffic_bytes, 0.0).T
    return np.asarray(received / np.maximum(received.sum(axis=1, keepdims=True), 1.0))
