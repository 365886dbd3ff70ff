"""What a workload builds: a training step that is ready to be captured."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

from placer.errors import InvalidValueError
from profiling.flattening import InputSpec
from profiling.initial_values import STARTS_FROM, Constant
from profiling.modules import ModuleRule


@dataclasses.dataclass(frozen=True)
class TrainingStep:
    """A training step, its inputs, and how its ops' modules are told.

    Attributes:
        function: Does one step and returns the loss; it keeps its variables alive, and its
            Python loops are to be unrolled.
        inputs: One for each argument of the function.
        module_of_op: Tells the module by an op's name.
    """

    function: Callable[..., tf.Tensor]
    inputs: tuple[InputSpec, ...]
    module_of_op: ModuleRule


def variable(name: str, *shape: int, starts_from: float | None = None) -> tf.Variable:
    """Return a float32 variable that takes no memory: it is there to be traced.

    Args:
        name: Its name, and the name of the op that makes its handle.
        *shape: Of its value.
        starts_from: The number in all its places when a captured step begins; None for
            what is customary.
    """
    made = UninitializedVariable(shape=shape, dtype=tf.float32, name=name, shared_name=name)
    if starts_from is not None:
        setattr(made, STARTS_FROM, Constant(starts_from))
    return made


def check_sizes(config: Any, *, at_least: Mapping[str, int] | None = None) -> None:
    """Check that every field of a workload's sizes is a whole number that is large enough.

    Args:
        config: A dataclass of sizes.
        at_least: The smallest number for a field, where that is not 1.

    Raises:
        InvalidValueError: If one is not; the message names it.
    """
    for field in dataclasses.fields(config):
        size, smallest = getattr(config, field.name), (at_least or {}).get(field.name, 1)
        if not isinstance(size, int) or isinstance(size, bool) or size < smallest:
            raise InvalidValueError(
                f"{field.name} must be a whole number of at least {smallest}, got {size!r}"
            )


def apply_sgd(
    gradients: Sequence[tf.Tensor | tf.IndexedSlices],
    variables: Sequence[tf.Variable],
    *,
    learning_rate: float,
) -> None:
    """Add the ops of plain gradient descent: one update for each variable.

    Plain, because the optimiser is not what is placed: an update lives where its variable
    does. The gradient of an embedding changes the looked-up rows alone.
    """
    for gradient, variable in zip(gradients, variables, strict=True):
        with tf.name_scope(f"{variable.name.split(':')[0]}/update/"):
            if isinstance(gradient, tf.IndexedSlices):
                rows = tf.IndexedSlices(learning_rate * gradient.values, gradient.indices)
                variable.scatter_sub(rows)
            else:
                tf.raw_ops.ResourceApplyGradientDescent(
                    var=variable.handle, alpha=learning_rate, delta=gradient
                )
