"""Transformer (Vaswani et al., 2017): translation by attention alone, encoder and decoder.

The model of section 3: each sub-layer's output is ``LayerNorm(x + Sublayer(x))``, positions are
sinusoids, and one table serves both embeddings and, transposed, the last projection (section
3.4). Trained by Adam on labels that are smoothed (section 5), without dropout; sentences of a batch
are equally long, so that nothing is padded. The learning rate is that at the end of the
warm-up.

Units are ``embedding``, ``encoder_L``, ``decoder_L`` and ``softmax``. A layer has one part for each
matrix: ``self_query``, ``self_key``, ``self_value`` and ``self_output``, the same with ``cross_``
in the decoder, and ``inner`` and ``outer`` of the feed-forward network; the last of each sub-layer
has its sum and normalisation. ``self_attention`` and ``cross_attention`` are without a matrix.

Array shapes: B pairs of sentences in a batch, T words of a sentence (S of the one attended to),
H units, A heads, F inner units, V words of the vocabulary.
"""

import dataclasses
import re

import numpy as np
import tensorflow as tf

from placer.errors import InvalidValueError
from placer.graph import FloatArray
from profiling.flattening import InputSpec
from profiling.workloads.optimizers import Adam
from profiling.workloads.training_step import TrainingStep, check_sizes, variable

_WARM_UP_STEPS = 4000  # section 5.3
_BETAS = (0.9, 0.98)  # section 5.3
_EPSILON = 1e-9  # section 5.3
_LABEL_SMOOTHING = 0.1  # section 5.4
_NORM_EPSILON = 1e-6
_FORBIDDEN = -1e9
"""Added to the score of a word that may not be looked at."""

_MODULE = re.compile(r"(?:embedding|(?:en|de)coder_\d+|softmax)/\w+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerSizes:
    """Sizes of the model and its batch.

    The defaults are the base model (table 3) with the shared vocabulary of English and German
    (section 5.1), and as many words in a batch as each of the eight GPUs has of the published
    25,000.

    Attributes:
        layers: Of the encoder, and of the decoder.
        units: Of a word's vector.
        heads: Of each attention; a divisor of ``units``.
        inner_units: Of the feed-forward networks.
        batch_size: Pairs of sentences in a batch.
        source_steps: Words of a source sentence.
        target_steps: Words of a target sentence.
        vocabulary_size: Different words of both languages.

    Raises:
        InvalidValueError: If a size is not a whole number of at least 1, the heads are no
            divisor of the units, or the units are odd.
    """

    layers: int = 6
    units: int = 512
    heads: int = 8
    inner_units: int = 2048
    batch_size: int = 64
    source_steps: int = 48
    target_steps: int = 48
    vocabulary_size: int = 37_000

    def __post_init__(self) -> None:
        check_sizes(self)
        if self.units % self.heads or self.units % 2:
            raise InvalidValueError(
                f"units must be an even multiple of the {self.heads} heads, got {self.units}"
            )


SIZES = {
    "small": TransformerSizes(
        layers=4,
        units=256,
        heads=4,
        inner_units=1024,
        batch_size=32,
        source_steps=32,
        target_steps=32,
        vocabulary_size=6000,
    ),
    "paper": TransformerSizes(),
}
"""``small`` steps in about a second on one core."""


def module_of_op(name: str) -> str:
    """Return the ``unit/part`` in the name of an op, of a gradient or of a folded constant."""
    found = _MODULE.search(name)
    return found.group() if found else ""


class _Projection:
    """Multiplication with a matrix, with a bias where it has one."""

    def __init__(self, part: str, inputs: int, outputs: int, *, has_bias: bool = False) -> None:
        """Make the variables in ``unit/part``."""
        self.part = part
        self._kernel = variable(f"{part}/kernel", inputs, outputs)
        self._bias = variable(f"{part}/bias", outputs) if has_bias else None
        self.trainable_variables = [self._kernel, *([self._bias] if has_bias else [])]

    def __call__(self, vectors: tf.Tensor) -> tf.Tensor:
        """Return the products, ``[B T, outputs]``, of vectors ``[B T, inputs]``."""
        with tf.name_scope(f"{self.part}/"):
            products = tf.matmul(vectors, self._kernel.read_value())
            if self._bias is not None:
                products = tf.nn.bias_add(products, self._bias.read_value())
            return products


class _Residual:
    """``LayerNorm(x + y)`` (Ba et al., 2016), kept with the sub-layer that made y."""

    def __init__(self, part: str, units: int) -> None:
        """Make the variables in ``unit/part``."""
        self._part = part
        self._scale = variable(f"{part}/scale", units, starts_from=1.0)
        self._offset = variable(f"{part}/offset", units)
        self.trainable_variables = [self._scale, self._offset]

    def __call__(self, inputs: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Return the normalised sum, ``[B T, H]``."""
        with tf.name_scope(f"{self._part}/"):
            total = inputs + outputs
            mean, variance = tf.nn.moments(total, axes=[1], keepdims=True)
            normalised = (total - mean) * tf.math.rsqrt(variance + _NORM_EPSILON)
            return normalised * self._scale.read_value() + self._offset.read_value()


class _Attention:
    """Multi-head attention by scaled dot products (sections 3.2.1 and 3.2.2)."""

    def __init__(self, unit: str, name: str, sizes: TransformerSizes) -> None:
        """Make the projections in ``unit``'s parts ``name_…``."""
        units = sizes.units
        self._part = f"{unit}/{name}_attention"
        self._batch_size, self._heads, self._units = sizes.batch_size, sizes.heads, units
        self._query, self._key, self._value, self._output = (
            _Projection(f"{unit}/{name}_{part}", units, units)
            for part in ("query", "key", "value", "output")
        )
        self._residual = _Residual(f"{unit}/{name}_output", units)
        self.trainable_variables = [
            made
            for part in (self._query, self._key, self._value, self._output, self._residual)
            for made in part.trainable_variables
        ]

    def __call__(
        self, vectors: tf.Tensor, others: tf.Tensor, *, only_earlier: bool = False
    ) -> tf.Tensor:
        """Return the normalised sum of vectors and what they see in others, ``[B T, H]``.

        Args:
            vectors: ``[B T, H]``.
            others: ``[B S, H]``.
            only_earlier: No word sees a later one.
        """
        query = self._split(self._query, vectors)
        key, value = self._split(self._key, others), self._split(self._value, others)
        with tf.name_scope(f"{self._part}/"):
            scores = tf.matmul(query, key, transpose_b=True)  # [B, A, T, S]
            scores *= (self._units // self._heads) ** -0.5
            if only_earlier:
                steps = scores.shape[-1]
                scores += np.triu(np.full((steps, steps), _FORBIDDEN, np.float32), k=1)
            seen = tf.transpose(tf.matmul(tf.nn.softmax(scores), value), [0, 2, 1, 3])
            joined = tf.reshape(seen, vectors.shape)
        return self._residual(vectors, self._output(joined))

    def _split(self, projection: _Projection, vectors: tf.Tensor) -> tf.Tensor:
        """Return the projected vectors by head, ``[B, A, T, H / A]``."""
        products = projection(vectors)
        shape = (self._batch_size, -1, self._heads, self._units // self._heads)
        with tf.name_scope(f"{projection.part}/"):
            return tf.transpose(tf.reshape(products, shape), [0, 2, 1, 3])


class _FeedForward:
    """The network of each position (section 3.3)."""

    def __init__(self, unit: str, sizes: TransformerSizes) -> None:
        """Make the variables in ``unit``'s parts ``inner`` and ``outer``."""
        units, inner_units = sizes.units, sizes.inner_units
        self._inner = _Projection(f"{unit}/inner", units, inner_units, has_bias=True)
        self._outer = _Projection(f"{unit}/outer", inner_units, units, has_bias=True)
        self._residual = _Residual(f"{unit}/outer", units)
        self.trainable_variables = [
            made
            for part in (self._inner, self._outer, self._residual)
            for made in part.trainable_variables
        ]

    def __call__(self, vectors: tf.Tensor) -> tf.Tensor:
        """Return the normalised sum of vectors and the network's, ``[B T, H]``."""
        inner = self._inner(vectors)
        with tf.name_scope(f"{self._inner.part}/"):
            inner = tf.nn.relu(inner)
        return self._residual(vectors, self._outer(inner))


class _Table:
    """The vectors of all words: embeddings, and the last projection."""

    def __init__(self, sizes: TransformerSizes) -> None:
        """Make the table ``[V, H]``."""
        self._sizes = sizes
        self._table = variable("embedding/table", sizes.vocabulary_size, sizes.units)
        self.trainable_variables = [self._table]

    def look_up(self, words: tf.Tensor, side: str) -> tf.Tensor:
        """Return the vectors, ``[B T, H]``, of words ``[B, T]`` with their positions."""
        units = self._sizes.units
        with tf.name_scope("embedding/table/"):
            vectors = tf.gather(self._table, words)
        with tf.name_scope(f"embedding/{side}/"):
            vectors = vectors * units**0.5 + positions(words.shape[1], units)
            return tf.reshape(vectors, [-1, units])

    def mean_loss(self, vectors: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
        """Return the cross entropy with smoothed labels in nats, averaged over all words.

        Args:
            vectors: ``[B T, H]``.
            words: The right ones, ``[B, T]``.
        """
        num_words = self._sizes.vocabulary_size
        with tf.name_scope("embedding/table/"):
            table = self._table.read_value()
        with tf.name_scope("softmax/projection/"):
            logits = tf.matmul(vectors, table, transpose_b=True)
        with tf.name_scope("softmax/loss/"):
            other = _LABEL_SMOOTHING / num_words
            labels = tf.one_hot(tf.reshape(words, [-1]), num_words, 1 - _LABEL_SMOOTHING, 0.0)
            entropies = tf.nn.softmax_cross_entropy_with_logits(labels + other, logits)
            return tf.reduce_mean(entropies)


def positions(steps: int, units: int) -> FloatArray:
    """Return the sinusoids of section 3.5, ``[T, H]``: all sines, and then all cosines."""
    angles = np.arange(steps)[:, None] / 10_000 ** (np.arange(0, units, 2) / units)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


class _Layer:
    """A layer of the encoder, or one of the decoder, which attends to the source as well."""

    def __init__(self, unit: str, sizes: TransformerSizes, *, is_decoder: bool) -> None:
        """Make the sub-layers of ``unit``."""
        self._attention = _Attention(unit, "self", sizes)
        self._cross_attention = _Attention(unit, "cross", sizes) if is_decoder else None
        self._feed_forward = _FeedForward(unit, sizes)
        self.trainable_variables = [
            *self._attention.trainable_variables,
            *(self._cross_attention.trainable_variables if self._cross_attention else []),
            *self._feed_forward.trainable_variables,
        ]

    def __call__(self, vectors: tf.Tensor, source: tf.Tensor | None = None) -> tf.Tensor:
        """Return the layer's output, ``[B T, H]``, of vectors and, in the decoder, the source's."""
        only_earlier = self._cross_attention is not None
        vectors = self._attention(vectors, vectors, only_earlier=only_earlier)
        if self._cross_attention is not None:
            vectors = self._cross_attention(vectors, source)
        return self._feed_forward(vectors)


def build(sizes: TransformerSizes) -> TrainingStep:
    """Return a training step of these sizes, its inputs random words."""
    table = _Table(sizes)
    encoder, decoder = (
        [
            _Layer(f"{side}_{number}", sizes, is_decoder=side == "decoder")
            for number in range(sizes.layers)
        ]
        for side in ("encoder", "decoder")
    )
    variables = list(table.trainable_variables)
    for layer in (*encoder, *decoder):
        variables += layer.trainable_variables
    learning_rate = (sizes.units * _WARM_UP_STEPS) ** -0.5  # equation 3 at its highest
    optimizer = Adam(variables, learning_rate=learning_rate, betas=_BETAS, epsilon=_EPSILON)

    def step(source: tf.Tensor, target: tf.Tensor, next_target: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            source_vectors = table.look_up(source, "source")
            target_vectors = table.look_up(target, "target")
            for encoder_layer in encoder:
                source_vectors = encoder_layer(source_vectors)
            for decoder_layer in decoder:
                target_vectors = decoder_layer(target_vectors, source_vectors)
            loss = table.mean_loss(target_vectors, next_target)
        optimizer.apply(tape.gradient(loss, variables))
        return loss

    words = sizes.vocabulary_size
    source_spec = InputSpec((sizes.batch_size, sizes.source_steps), "int64", high=words)
    target_spec = InputSpec((sizes.batch_size, sizes.target_steps), "int64", high=words)
    return TrainingStep(step, (source_spec, target_spec, target_spec), module_of_op)
