"""Inception-V3 (Szegedy et al., 2016): Keras's own model, trained by plain gradient descent.

Units are the blocks that Keras names by the concatenation that ends them: ``stem``, ``mixed0`` to
``mixed10``, ``head``. The parts of a block are its convolutions, each with its normalisation and
activation, its poolings and its concatenations: ``stem/conv2d_3``, ``mixed0/average_pooling2d``.
"""

import concurrent.futures
import dataclasses
import random
import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from profiling.flattening import InputSpec
from profiling.modules import ModuleRule
from profiling.workloads.training_step import TrainingStep, apply_sgd, check_sizes

# Keras applications' own training default for images and labels of this kind.
_LEARNING_RATE = 0.01


@dataclasses.dataclass(frozen=True, kw_only=True)
class InceptionV3Sizes:
    """Sizes of the images and their batch.

    The defaults are the paper's model and input (Szegedy et al., 2016: 299 × 299, ImageNet's
    1,000 classes) at the batch of 32 that Mirhoseini et al. (2017) place; they also use 128.

    Attributes:
        batch_size: Images in a batch.
        image_size: Height and width of an image; at least 75.
        classes: Different labels.

    Raises:
        InvalidValueError: If a size is not a whole number of at least 1 (75 for images).
    """

    batch_size: int = 32
    image_size: int = 299
    classes: int = 1000

    def __post_init__(self) -> None:
        check_sizes(self, at_least={"image_size": 75})


SIZES = {
    "small": InceptionV3Sizes(batch_size=4, image_size=139, classes=100),
    "paper": InceptionV3Sizes(),
}
"""``small`` steps in about half a second on two cores."""


def build(sizes: InceptionV3Sizes) -> TrainingStep:
    """Return a training step of these sizes, its inputs random pixels and labels."""
    model = _model(sizes)
    variables = [variable.value for variable in model.trainable_variables]

    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            with tf.name_scope("loss/"):
                entropies = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
                loss = tf.reduce_mean(entropies)
        apply_sgd(tape.gradient(loss, variables), variables, learning_rate=_LEARNING_RATE)
        return loss

    images = InputSpec((sizes.batch_size, sizes.image_size, sizes.image_size, 3))
    labels = InputSpec((sizes.batch_size,), "int64", high=sizes.classes)
    return TrainingStep(step, (images, labels), _module_rule(model.layers))


def _model(sizes: InceptionV3Sizes) -> Any:
    # Keras numbers layers on from all that were made before, thread by thread, and seeds their
    # weights by Python's generator: in a thread of its own, and with that generator set and
    # given back, the same sizes make the same model each time.
    state = random.getstate()
    random.seed(0)
    try:
        with concurrent.futures.ThreadPoolExecutor(max_workers=1) as executor:
            return executor.submit(
                tf.keras.applications.InceptionV3,
                weights=None,
                input_shape=(sizes.image_size, sizes.image_size, 3),
                classes=sizes.classes,
                classifier_activation=None,
            ).result()
    finally:
        random.setstate(state)


def module_of_layer(layer_names: Sequence[str]) -> dict[str, str]:
    """Return the module ``block/part`` of each layer.

    Args:
        layer_names: In Keras's order, by depth: a block's layers come before the
            concatenation ``mixedN`` that ends it, and after the one that ends its predecessor.
    """
    modules = {}
    ends = [place for place, name in enumerate(layer_names) if re.fullmatch(r"mixed\d+", name)]
    stem_end = layer_names.index("max_pooling2d_1")
    for place, name in enumerate(layer_names):
        block = next((layer_names[end] for end in ends if place <= end), "head")
        part = re.sub(r"^(batch_normalization|activation)", "conv2d", name)
        modules[name] = f"{'stem' if place <= stem_end else block}/{part}"
    return modules


def _module_rule(layers: Sequence[Any]) -> ModuleRule:
    modules = module_of_layer([layer.name for layer in layers])

    def module_of_op(name: str) -> str:
        # An op of layer x is inception_v3_1/x_1/… (the numbers make scopes unique), its gradient
        # has gradient_tape/ before that, and its variables and their updates are x/….
        called = re.search(r"inception_v3_\d+/(\w+)_\d+/", name)
        layer = called.group(1) if called else name.split("/", maxsplit=1)[0]
        return "head/loss" if layer == "loss" else modules.get(layer, "")

    return module_of_op
