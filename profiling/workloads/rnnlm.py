"""RNNLM: a language model of stacked LSTM layers, unrolled, with a softmax at each step.

The model of Zaremba et al. (2014), as in Mirhoseini et al. (2017), section 4.1, trained by
plain gradient descent, without dropout. Modules: ``layer_0/embedding``, ``layer_L/step_T``, and
with the last layer ``softmax_step_T``; variables and their updates are in ``layer_L/
step_variables`` and ``layer_L/softmax``.
"""

import dataclasses

import tensorflow as tf

from profiling.flattening import InputSpec
from profiling.workloads.lstm import Embedding, LstmLayer, Softmax, module_of_op
from profiling.workloads.training_step import TrainingStep, apply_sgd, check_sizes

_LEARNING_RATE = 1.0  # Zaremba et al. (2014), section 4.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class RnnlmSizes:
    """Sizes of the model and its batch.

    The defaults are the paper's. Layers, units, batch and steps are recalled from Mirhoseini
    et al. (2017); the words are those of the Penn Treebank that Zaremba et al. (2014) train on.

    Attributes:
        layers: Stacked LSTM layers.
        units: Of each layer, and of a word's vector.
        batch_size: Sequences in a batch.
        steps: Words of a sequence.
        vocabulary_size: Different words.

    Raises:
        InvalidValueError: If a size is not a whole number of at least 1.
    """

    layers: int = 2
    units: int = 2048
    batch_size: int = 64
    steps: int = 40
    vocabulary_size: int = 10_000

    def __post_init__(self) -> None:
        check_sizes(self)


SIZES = {
    "small": RnnlmSizes(units=512, batch_size=32, steps=20, vocabulary_size=6000),
    "paper": RnnlmSizes(),
}
"""``small`` steps in about half a second on two cores."""


def build(sizes: RnnlmSizes) -> TrainingStep:
    """Return a training step of these sizes, its inputs random words."""
    last = f"layer_{sizes.layers - 1}"
    embedding = Embedding("layer_0/embedding", sizes.vocabulary_size, sizes.units)
    layers = [
        LstmLayer(f"layer_{number}", "step", sizes.batch_size, sizes.units)
        for number in range(sizes.layers)
    ]
    softmax = Softmax(last, sizes.units, sizes.vocabulary_size)
    variables = [embedding.table]
    for layer in layers:
        variables += layer.trainable_variables
    variables += softmax.trainable_variables

    def step(words: tf.Tensor, next_words: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            outputs = embedding.look_up(words)
            for layer in layers:
                outputs, _ = layer.unroll(outputs)
            loss = softmax.mean_loss(outputs, next_words)
        apply_sgd(tape.gradient(loss, variables), variables, learning_rate=_LEARNING_RATE)
        return loss

    words = InputSpec((sizes.batch_size, sizes.steps), "int64", high=sizes.vocabulary_size)
    return TrainingStep(step, (words, words), module_of_op)
