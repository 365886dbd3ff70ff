"""The paper's policy: an attentional sequence-to-sequence network, in TensorFlow.

Mirhoseini et al. (2017), section 3. An encoder LSTM reads the groups in topological
order. A decoder LSTM takes one step a group: it is fed the embedding of the device chosen
one step before, attends to the encoder's states (additive attention, Bahdanau et al.,
2015), and gives the logits of the devices. As in the authors' later controller
(TensorFlow 1.x, ``grappler/hierarchical_controller.py``) the attention is outside the
recurrence: it joins the decoder's state in front of the output layer.

Encoder and decoder are loops inside one ``tf.function``, so a batch of placements costs
one call for drawing and one for an update. Where all choices are known, the attention and the
logits of all steps are computed at once, and only the recurrence is a loop.

Array shapes: B placements, G groups, D devices, H hidden units, A attention units,
E units of an embedding, F features, T decoder steps.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from placer.features import GroupFeatures
from placer.graph import FloatArray
from placer.policies.recurrent import additive_scores, lstm_states, lstm_step
from placer.policies.tensorflow_policy import (
    FORBIDDEN_LOGIT,
    Tensor,
    TensorFlowPolicy,
    glorot_uniform,
)
from placer.policy import check_settings


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
        check_settings(
            self,
            positive=(
                "hidden_size",
                "attention_size",
                "embedding_size",
                "logit_bound",
                "logit_temperature",
                "learning_rate",
                "gradient_clip_norm",
            ),
            not_negative=("entropy_bonus", "locality_prior"),
        )


class Seq2SeqPolicy(TensorFlowPolicy):
    """The paper's encoder and decoder over the groups of one profile.

    Args:
        features: What is seen of each group.
        config: Sizes and optimiser.
        seed: Seed of the initial parameters.
    """

    def __init__(self, features: GroupFeatures, config: Seq2SeqConfig, *, seed: int) -> None:
        self.config = config
        self._type_shares = tf.constant(features.type_shares, tf.float32)
        self._other_features = tf.constant(_other_features(features), tf.float32)
        # Of the producers that a group follows; what is not placed yet attracts nobody.
        shares = np.tril(_incoming_shares(features), -1)
        self._earlier_shares = tf.constant(shares, tf.float32)
        self._mask = tf.constant(np.where(features.allowed, 0.0, FORBIDDEN_LOGIT), tf.float32)
        super().__init__(
            self._initial_values(features, np.random.default_rng(seed)),
            num_groups=features.num_groups,
            num_devices=features.num_devices,
            learning_rate=config.learning_rate,
            gradient_clip_norm=config.gradient_clip_norm,
            entropy_bonus=config.entropy_bonus,
            jit_compile=config.jit_compile,
        )

    def _initial_values(
        self, features: GroupFeatures, rng: np.random.Generator
    ) -> dict[str, FloatArray]:
        config, hidden = self.config, self.config.hidden_size
        inputs = config.embedding_size + int(self._other_features.shape[1])
        matrices = {
            "type_embedding": (int(self._type_shares.shape[1]), config.embedding_size),
            "encoder/input": (inputs, 4 * hidden),
            "encoder/recurrent": (hidden, 4 * hidden),
            # The last row is fed to the first step, which has no device before it.
            "device_embedding": (features.num_devices + 1, config.embedding_size),
            "decoder/input": (config.embedding_size, 4 * hidden),
            "decoder/recurrent": (hidden, 4 * hidden),
            "attention/key": (hidden, config.attention_size),
            "attention/query": (hidden, config.attention_size),
            "attention/score": (config.attention_size, 1),
            "output": (2 * hidden, features.num_devices),
        }
        if config.align_decoder:
            matrices["decoder/aligned"] = (hidden, 4 * hidden)
        values = {name: glorot_uniform(rng, shape) for name, shape in matrices.items()}
        for lstm in ("encoder", "decoder"):
            # Gates are in the order input, forget, output, candidate; the forget gate
            # starts open, as in the later controller.
            values[f"{lstm}/bias"] = np.repeat([0.0, 1.0, 0.0, 0.0], hidden)
        for name in ("locality/previous", "locality/producers"):
            values[name] = np.full(features.num_groups, config.locality_prior)
        return values

    def _encode(self) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the encoder's state at each group, ``[G, H]``, and its last cell and state."""
        variables = self._variables
        types = self._type_shares @ variables["type_embedding"]
        features = tf.concat([types, self._other_features], axis=1)
        inputs = features @ variables["encoder/input"] + variables["encoder/bias"]
        zero = tf.zeros([1, self.config.hidden_size])
        recurrent = tf.identity(variables["encoder/recurrent"])
        states, cells = lstm_states(inputs[:, None], recurrent, zero, zero)
        return states[:, 0], (cells[-1], states[-1])

    def _step_inputs(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the decoder's gates are fed beside its state.

        Args:
            memory: The encoder's states, ``[G, H]``.

        Returns:
            For each device of the group before, and for none, ``[D + 1, 4H]``; and for
            each group, ``[G, 4H]``.
        """
        variables = self._variables
        of_groups = tf.repeat(variables["decoder/bias"][None], self.num_groups, axis=0)
        if self.config.align_decoder:
            of_groups += memory @ variables["decoder/aligned"]
        return variables["device_embedding"] @ variables["decoder/input"], of_groups

    def _logits(self, states: Tensor, memory: Tensor, keys: Tensor) -> Tensor:
        """Return the network's logits at some steps of the decoder, ``[T, B, D]``.

        Args:
            states: The decoder's, ``[T, B, H]``.
            memory: The encoder's, ``[G, H]``.
            keys: Of the attention, ``[G, A]``.
        """
        variables, config = self._variables, self.config
        query = states @ variables["attention/query"]
        scores = additive_scores(query, keys, variables["attention/score"][:, 0])
        context = tf.nn.softmax(scores) @ memory
        outputs = tf.concat([states, context], axis=2) @ variables["output"]
        return config.logit_bound * tf.tanh(outputs / config.logit_temperature)

    def _sampled_actions(self, noise: Tensor) -> Tensor:
        batch, num_devices = noise.shape[0], self.num_devices
        memory, (cell, state) = self._encode()
        cell, state = tf.repeat(cell, batch, axis=0), tf.repeat(state, batch, axis=0)
        keys = memory @ self._variables["attention/key"]
        of_devices, of_groups = self._step_inputs(memory)
        votes = tf.zeros([batch, self.num_groups, num_devices])
        device = tf.fill([batch], num_devices)
        chosen = tf.TensorArray(tf.int32, self.num_groups, element_shape=[batch])
        for group in tf.range(self.num_groups):
            before = tf.one_hot(device, num_devices + 1)
            gates = before @ of_devices + of_groups[group]
            gates += state @ self._variables["decoder/recurrent"]
            cell, state = lstm_step(gates, cell)
            logits = self._logits(state[None], memory, keys)[0] + self._mask[group]
            logits += self._variables["locality/previous"][group] * before[:, :num_devices]
            logits += self._variables["locality/producers"][group] * votes[:, group]
            device = tf.argmax(logits + noise[:, group], axis=1, output_type=tf.int32)
            # The groups that receive from this one lean towards its device.
            share = self._earlier_shares[:, group]
            votes += share[:, None] * tf.one_hot(device, num_devices)[:, None]
            chosen = chosen.write(group, device)
        return tf.transpose(chosen.stack())

    def _chosen_log_probs(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probability of each choice and each step's entropy, ``[B, G]``.

        All choices are known, so only the recurrence of the decoder is a loop.
        """
        batch, num_devices = actions.shape[0], self.num_devices
        memory, (cell, state) = self._encode()
        cell, state = tf.repeat(cell, batch, axis=0), tf.repeat(state, batch, axis=0)
        of_devices, of_groups = self._step_inputs(memory)
        before = tf.concat([tf.fill([1, batch], num_devices), tf.transpose(actions)[:-1]], axis=0)
        before = tf.one_hot(before, num_devices + 1)
        recurrent = tf.identity(self._variables["decoder/recurrent"])
        states, _ = lstm_states(before @ of_devices + of_groups[:, None], recurrent, cell, state)
        choices = tf.one_hot(actions, num_devices)
        votes = tf.transpose(self._earlier_shares @ choices, [1, 0, 2])
        logits = self._logits(states, memory, memory @ self._variables["attention/key"])
        logits += self._mask[:, None]
        logits += self._variables["locality/previous"][:, None, None] * before[:, :, :num_devices]
        logits += self._variables["locality/producers"][:, None, None] * votes
        log_probs = tf.transpose(tf.nn.log_softmax(logits), [1, 0, 2])
        chosen = tf.reduce_sum(log_probs * choices, axis=2)
        return chosen, -tf.reduce_sum(tf.exp(log_probs) * log_probs, axis=2)


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
