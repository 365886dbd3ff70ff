"""ResNet-50 (He et al., 2016): bottleneck blocks with shortcuts, trained with momentum.

The 50-layer network of table 1, its stride on the first convolution of a block, with batch
normalisation after every convolution and before the activation (section 3.4). Convolutions have no
bias: the offset of the normalisation is one. Without weight decay and augmentation.

Units are the blocks as table 1 names them: ``stem``, ``conv2_1`` to ``conv5_3``, ``head``. The
parts of a block are its convolutions, each with its normalisation and activation: ``conv_1`` to
``conv_3``, of which the last adds the shortcut, and ``shortcut`` where that is a projection.

Array shapes: B images in a batch, S pixels high and wide, C channels.
"""

import dataclasses
import re
from collections.abc import Iterator

import tensorflow as tf

from profiling.flattening import InputSpec
from profiling.workloads.optimizers import Momentum
from profiling.workloads.training_step import TrainingStep, check_sizes, variable

_BLOCKS = (3, 4, 6, 3)
"""Of conv2_x to conv5_x (table 1)."""
_WIDTHS = (64, 128, 256, 512)
_EXPANSION = 4
"""Channels of a block's output for each of its 3 × 3 convolution."""

_LEARNING_RATE_OF_AN_IMAGE = 0.1 / 256  # He et al.: 0.1 at a batch of 256; scaled with the batch
_MOMENTUM = 0.9  # He et al., section 3.4
_AVERAGE_DECAY = 0.9
_EPSILON = 1e-5

_MODULE = re.compile(r"(?:stem|conv\d_\d|head)/\w+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResNet50Sizes:
    """Sizes of the images and their batch.

    The defaults are the published input (224 × 224, ImageNet's 1,000 classes) and the 32 images
    that each of eight GPUs has of the published batch of 256.

    Attributes:
        batch_size: Images in a batch.
        image_size: Height and width of an image; at least 32.
        classes: Different labels.

    Raises:
        InvalidValueError: If a size is not a whole number of at least 1 (32 for images).
    """

    batch_size: int = 32
    image_size: int = 224
    classes: int = 1000

    def __post_init__(self) -> None:
        check_sizes(self, at_least={"image_size": 32})


SIZES = {
    "small": ResNet50Sizes(batch_size=16, image_size=112, classes=100),
    "paper": ResNet50Sizes(),
}
"""``small`` steps in about a second on one core."""


def module_of_op(name: str) -> str:
    """Return the ``block/part`` in the name of an op, of a gradient or of a folded constant."""
    found = _MODULE.search(name)
    return found.group() if found else ""


class _Convolution:
    """A convolution with batch normalisation (Ioffe and Szegedy, 2015)."""

    def __init__(self, part: str, size: int, channels: tuple[int, int], stride: int = 1) -> None:
        """Make the variables in ``block/part``.

        Args:
            part: ``block/part``.
            size: Height and width of the kernel.
            channels: Of its input and of its output.
            stride: Pixels from one place to the next.
        """
        self._part, self._stride = part, stride
        self._kernel = variable(f"{part}/kernel", size, size, *channels)
        self._scale = variable(f"{part}/scale", channels[1], starts_from=1.0)
        self._offset = variable(f"{part}/offset", channels[1], starts_from=0.0)
        self._mean = variable(f"{part}/moving_mean", channels[1], starts_from=0.0)
        self._variance = variable(f"{part}/moving_variance", channels[1], starts_from=1.0)
        self.trainable_variables = [self._kernel, self._scale, self._offset]

    def __call__(
        self, images: tf.Tensor, *, shortcut: tf.Tensor | None = None, activate: bool = True
    ) -> tf.Tensor:
        """Return the activated output, ``[B, S, S, C]``.

        Args:
            images: ``[B, S, S, C]``.
            shortcut: Added before the activation.
            activate: False leaves the output as it is.
        """
        with tf.name_scope(f"{self._part}/"):
            kernel = self._kernel.read_value()
            convolved = tf.nn.conv2d(images, kernel, strides=self._stride, padding="SAME")
            output, mean, variance = tf.compat.v1.nn.fused_batch_norm(
                convolved, self._scale.read_value(), self._offset.read_value(), epsilon=_EPSILON
            )
            for average, now in ((self._mean, mean), (self._variance, variance)):
                average.assign_sub((1 - _AVERAGE_DECAY) * (average.read_value() - now))
            if shortcut is not None:
                output += shortcut
            return tf.nn.relu(output) if activate else output


class _Block:
    """A bottleneck: 1 × 1, 3 × 3 and 1 × 1 convolutions, and a shortcut around them."""

    def __init__(self, unit: str, channels: int, width: int, stride: int) -> None:
        """Make the convolutions of ``unit``.

        Args:
            unit: ``convN_M``.
            channels: Of the input.
            width: Channels of the two first convolutions.
            stride: Of the first convolution and the shortcut.
        """
        wide = _EXPANSION * width
        self._body = [
            _Convolution(f"{unit}/conv_1", 1, (channels, width), stride),
            _Convolution(f"{unit}/conv_2", 3, (width, width)),
            _Convolution(f"{unit}/conv_3", 1, (width, wide)),
        ]
        self._projection = (
            None
            if channels == wide
            else _Convolution(f"{unit}/shortcut", 1, (channels, wide), stride)
        )

    @property
    def convolutions(self) -> list[_Convolution]:
        """All of them."""
        return self._body + ([self._projection] if self._projection else [])

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        """Return the block's output, ``[B, S, S, C]``."""
        first, second, last = self._body
        shortcut = self._projection(images, activate=False) if self._projection else images
        return last(second(first(images)), shortcut=shortcut)


def _blocks() -> Iterator[_Block]:
    channels = _WIDTHS[0]
    for stage, (count, width) in enumerate(zip(_BLOCKS, _WIDTHS, strict=True), start=2):
        for number in range(1, count + 1):
            stride = 2 if number == 1 and stage > 2 else 1
            yield _Block(f"conv{stage}_{number}", channels, width, stride)
            channels = _EXPANSION * width


def build(sizes: ResNet50Sizes) -> TrainingStep:
    """Return a training step of these sizes, its inputs random pixels and labels."""
    stem = _Convolution("stem/conv", 7, (3, _WIDTHS[0]), 2)
    blocks = list(_blocks())
    kernel = variable("head/classifier/kernel", _EXPANSION * _WIDTHS[-1], sizes.classes)
    bias = variable("head/classifier/bias", sizes.classes)
    convolutions = [stem, *(one for block in blocks for one in block.convolutions)]
    variables = [made for one in convolutions for made in one.trainable_variables]
    variables += [kernel, bias]
    learning_rate = sizes.batch_size * _LEARNING_RATE_OF_AN_IMAGE
    optimizer = Momentum(variables, learning_rate=learning_rate, momentum=_MOMENTUM)

    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            features = stem(images)
            with tf.name_scope("stem/pool/"):
                features = tf.nn.max_pool2d(features, ksize=3, strides=2, padding="SAME")
            for block in blocks:
                features = block(features)
            with tf.name_scope("head/classifier/"):
                pooled = tf.reduce_mean(features, axis=(1, 2))
                logits = tf.nn.bias_add(tf.matmul(pooled, kernel.read_value()), bias.read_value())
            with tf.name_scope("head/loss/"):
                entropies = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
                loss = tf.reduce_mean(entropies)
        optimizer.apply(tape.gradient(loss, variables))
        return loss

    images = InputSpec((sizes.batch_size, sizes.image_size, sizes.image_size, 3))
    labels = InputSpec((sizes.batch_size,), "int64", high=sizes.classes)
    return TrainingStep(step, (images, labels), module_of_op)
