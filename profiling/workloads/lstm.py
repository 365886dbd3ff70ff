"""What the two LSTM workloads share: embeddings, cells, the softmax, and how ops are named.

Every op is made in a scope called ``layer_L/part``, and every variable too, so that the name of
an op, of its gradient and of an update tells the module. The unit, ``layer_L``, is what an
expert would keep on one device.

Array shapes: B sequences in a batch, H units, V words.
"""

import re
from collections.abc import Sequence

import tensorflow as tf

from profiling.workloads.training_step import variable

_MODULE = re.compile(r"layer_\d+/\w+")

State = tuple[tf.Tensor, tf.Tensor]
"""Hidden state and cell state of one layer, each ``[B, H]``."""


def module_of_op(name: str) -> str:
    """Return the ``layer_L/part`` in the name of an op, of a gradient or of a folded constant."""
    found = _MODULE.search(name)
    return found.group() if found else ""


class Embedding:
    """A table of one vector a word, kept with the first layer."""

    def __init__(self, part: str, vocabulary_size: int, units: int) -> None:
        """Make the table ``[V, H]`` in ``layer_L/part``."""
        self._part = part
        self.table = variable(f"{part}/table", vocabulary_size, units)

    def look_up(self, tokens: tf.Tensor) -> list[tf.Tensor]:
        """Return the vectors ``[B, H]`` of each step for tokens ``[B, T]``."""
        with tf.name_scope(f"{self._part}/"):
            return list(tf.unstack(tf.gather(self.table, tokens), axis=1))


class LstmLayer:
    """One LSTM layer (Hochreiter and Schmidhuber, 1997; with forget gates), unrolled."""

    def __init__(self, unit: str, name: str, batch_size: int, units: int) -> None:
        """Make the variables.

        Args:
            unit: ``layer_L``.
            name: Its steps are parts ``name_0``, ``name_1``, …; its variables are in
                ``name_variables``.
            batch_size: B.
            units: H, of the inputs as well.
        """
        self._unit, self._name = unit, name
        self._part = f"{unit}/{name}_variables"
        self._kernel = variable(f"{self._part}/kernel", 2 * units, 4 * units)
        self._bias = variable(f"{self._part}/bias", 4 * units)
        # A variable, because TensorFlow's optimiser would merge the zeros of all layers in
        # one op, from which every layer's device would fetch its first state.
        self._zeros = variable(f"{self._part}/zeros", units)
        self._shape = (batch_size, units)
        self.trainable_variables = [self._kernel, self._bias]

    def unroll(
        self, inputs: Sequence[tf.Tensor], state: State | None = None
    ) -> tuple[list[tf.Tensor], State]:
        """Return the hidden state after each step, and the whole state after the last.

        Args:
            inputs: ``[B, H]`` for each step.
            state: Before the first step; zeros if None.
        """
        with tf.name_scope(f"{self._part}/"):
            kernel, bias = self._kernel.read_value(), self._bias.read_value()
            if state is None:
                zeros = tf.broadcast_to(self._zeros.read_value(), self._shape)
                state = (zeros, zeros)
        outputs = []
        for number, vectors in enumerate(inputs):
            with tf.name_scope(f"{self._unit}/{self._name}_{number}/"):
                state = _lstm_step(vectors, state, kernel, bias)
            outputs.append(state[0])
        return outputs, state


def _lstm_step(inputs: tf.Tensor, state: State, kernel: tf.Tensor, bias: tf.Tensor) -> State:
    hidden, cell = state
    joined = tf.concat([inputs, hidden], axis=1)
    gates = tf.nn.bias_add(tf.matmul(joined, kernel), bias)
    enter, forget, candidate, leave = tf.split(gates, 4, axis=1)
    cell = tf.sigmoid(forget) * cell + tf.sigmoid(enter) * tf.tanh(candidate)
    return tf.sigmoid(leave) * tf.tanh(cell), cell


class Softmax:
    """The projection to words and its loss, one part for each step."""

    def __init__(self, unit: str, units: int, vocabulary_size: int) -> None:
        """Make the kernel ``[H, V]`` and the bias ``[V]`` in ``unit``'s part ``softmax``."""
        self._part = f"{unit}/softmax"
        self._kernel = variable(f"{self._part}/kernel", units, vocabulary_size)
        self._bias = variable(f"{self._part}/bias", vocabulary_size)
        self.trainable_variables = [self._kernel, self._bias]

    def mean_loss(self, outputs: Sequence[tf.Tensor], words: tf.Tensor) -> tf.Tensor:
        """Return the cross entropy in nats, averaged over all words.

        Args:
            outputs: ``[B, H]`` for each step.
            words: The right ones, ``[B, T]``.
        """
        with tf.name_scope(f"{self._part}/"):
            kernel, bias = self._kernel.read_value(), self._bias.read_value()
            words_of_step = tf.unstack(words, axis=1)
        losses = []
        for number, (hidden, right) in enumerate(zip(outputs, words_of_step, strict=True)):
            with tf.name_scope(f"{self._part}_step_{number}/"):
                logits = tf.nn.bias_add(tf.matmul(hidden, kernel), bias)
                entropies = tf.nn.sparse_softmax_cross_entropy_with_logits(right, logits)
                losses.append(tf.reduce_mean(entropies))
        with tf.name_scope(f"{self._part}/"):
            return tf.add_n(losses) / len(losses)
