"""NMT: translation by an LSTM encoder and decoder with attention, unrolled.

The decoder's top state looks at all states of the encoder by the additive score of Bahdanau
et al. (2015), ``v · tanh(W_1 h_s + W_2 h_t)``, and the vector that predicts the word is made of
both as by Luong et al. (2015), equation 5. There is no input feeding. Training is plain gradient
descent with the right words as the decoder's inputs.

Modules: ``layer_0/source_embedding`` and ``layer_0/target_embedding``, ``layer_L/encoder_step_T``
and ``layer_L/decoder_step_T``, and with the last layer ``attention_step_T`` and
``softmax_step_T``; the parts without a step hold variables and what is done once.
"""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from profiling.flattening import InputSpec
from profiling.workloads.lstm import Embedding, LstmLayer, Softmax, module_of_op
from profiling.workloads.training_step import TrainingStep, apply_sgd, check_sizes, variable

_LEARNING_RATE = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class NmtSizes:
    """Sizes of the model and its batch.

    The defaults are the paper's. Units, words and batch are recalled from Mirhoseini et al.
    (2017); its authors call the model "2-layer NMT" in their next paper (2018). The lengths are
    our choice: the steps of RNNLM.

    Attributes:
        layers: Stacked LSTM layers of the encoder, and of the decoder.
        units: Of each layer, and of a word's vector.
        batch_size: Pairs of sentences in a batch.
        source_steps: Words of a source sentence.
        target_steps: Words of a target sentence.
        vocabulary_size: Different words of each language.

    Raises:
        InvalidValueError: If a size is not a whole number of at least 1.
    """

    layers: int = 2
    units: int = 1024
    batch_size: int = 64
    source_steps: int = 40
    target_steps: int = 40
    vocabulary_size: int = 30_000

    def __post_init__(self) -> None:
        check_sizes(self)


SIZES = {
    "small": NmtSizes(
        units=512, batch_size=32, source_steps=12, target_steps=12, vocabulary_size=6000
    ),
    "paper": NmtSizes(),
}
"""``small`` steps in about half a second on two cores."""


class _Attention:
    """Additive attention over the encoder's states."""

    def __init__(self, unit: str, units: int) -> None:
        self._part = f"{unit}/attention"
        self._source_kernel = variable(f"{self._part}/source_kernel", units, units)
        self._target_kernel = variable(f"{self._part}/target_kernel", units, units)
        self._score_kernel = variable(f"{self._part}/score_kernel", units, 1)
        self._output_kernel = variable(f"{self._part}/output_kernel", 2 * units, units)
        self.trainable_variables = [
            self._source_kernel,
            self._target_kernel,
            self._score_kernel,
            self._output_kernel,
        ]

    def attend(self, source: Sequence[tf.Tensor], target: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the vector ``[B, H]`` that predicts each word.

        Args:
            source: The encoder's states, ``[B, H]`` for each of S steps.
            target: The decoder's states, ``[B, H]`` for each step.
        """
        with tf.name_scope(f"{self._part}/"):
            states = tf.stack(source, axis=1)  # [B, S, H]
            keys = tf.tensordot(states, self._source_kernel.read_value(), axes=1)
            query_kernel = self._target_kernel.read_value()
            score_kernel = tf.reshape(self._score_kernel.read_value(), [-1])
            output_kernel = self._output_kernel.read_value()
        vectors = []
        for number, hidden in enumerate(target):
            with tf.name_scope(f"{self._part}_step_{number}/"):
                query = tf.expand_dims(tf.matmul(hidden, query_kernel), 1)  # [B, 1, H]
                scores = tf.reduce_sum(tf.tanh(keys + query) * score_kernel, axis=2)
                shares = tf.expand_dims(tf.nn.softmax(scores), 2)  # [B, S, 1]
                context = tf.reduce_sum(states * shares, axis=1)
                joined = tf.concat([context, hidden], axis=1)
                vectors.append(tf.tanh(tf.matmul(joined, output_kernel)))
        return vectors


def build(sizes: NmtSizes) -> TrainingStep:
    """Return a training step of these sizes, its inputs random words."""
    last = f"layer_{sizes.layers - 1}"
    words, units = sizes.vocabulary_size, sizes.units
    source_embedding = Embedding("layer_0/source_embedding", words, units)
    target_embedding = Embedding("layer_0/target_embedding", words, units)
    encoder, decoder = (
        [
            LstmLayer(f"layer_{number}", f"{side}_step", sizes.batch_size, units)
            for number in range(sizes.layers)
        ]
        for side in ("encoder", "decoder")
    )
    attention = _Attention(last, units)
    softmax = Softmax(last, units, words)
    variables = [source_embedding.table, target_embedding.table]
    for layer in (*encoder, *decoder):
        variables += layer.trainable_variables
    variables += attention.trainable_variables + softmax.trainable_variables

    def step(source: tf.Tensor, target: tf.Tensor, next_target: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            source_states = source_embedding.look_up(source)
            target_states = target_embedding.look_up(target)
            for encoder_layer, decoder_layer in zip(encoder, decoder, strict=True):
                source_states, state = encoder_layer.unroll(source_states)
                target_states, _ = decoder_layer.unroll(target_states, state)
            vectors = attention.attend(source_states, target_states)
            loss = softmax.mean_loss(vectors, next_target)
        apply_sgd(tape.gradient(loss, variables), variables, learning_rate=_LEARNING_RATE)
        return loss

    source_spec = InputSpec((sizes.batch_size, sizes.source_steps), "int64", high=words)
    target_spec = InputSpec((sizes.batch_size, sizes.target_steps), "int64", high=words)
    return TrainingStep(step, (source_spec, target_spec, target_spec), module_of_op)
