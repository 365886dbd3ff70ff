"""Optimisers that remember: the fused updates of TensorFlow, and the variables they keep.

What an optimiser remembers of a variable lies beside it. One op updates both, so that all
share a device, and a model takes two or three times the memory of its weights.
"""

from collections.abc import Sequence

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import variable_accessed

from profiling.workloads.training_step import variable


class Momentum:
    """Gradient descent with momentum (Polyak, 1964), one velocity for each variable."""

    def __init__(
        self, variables: Sequence[tf.Variable], *, learning_rate: float, momentum: float
    ) -> None:
        """Make the velocities, zero before the first step."""
        self._variables = list(variables)
        self._velocities = [_beside(made, "velocity") for made in variables]
        self._learning_rate, self._momentum = learning_rate, momentum

    def apply(self, gradients: Sequence[tf.Tensor]) -> None:
        """Add one update for each variable."""
        for made, velocity, gradient in zip(
            self._variables, self._velocities, gradients, strict=True
        ):
            variable_accessed(velocity)
            with tf.name_scope(f"{_name(made)}/update/"):
                tf.raw_ops.ResourceApplyMomentum(
                    var=made.handle,
                    accum=velocity.handle,
                    lr=self._learning_rate,
                    grad=gradient,
                    momentum=self._momentum,
                )


class Adam:
    """Adam (Kingma and Ba, 2015) long after its first step.

    The corrections for the start, ``1 - beta^t``, are 1 then, so that no count of steps is
    shared by all updates.
    """

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        *,
        learning_rate: float,
        betas: tuple[float, float],
        epsilon: float,
    ) -> None:
        """Make both moments of each variable, zero before the first step."""
        self._variables = list(variables)
        self._means = [_beside(made, "mean") for made in variables]
        self._squares = [_beside(made, "square") for made in variables]
        self._learning_rate, self._betas, self._epsilon = learning_rate, betas, epsilon

    def apply(self, gradients: Sequence[tf.Tensor | tf.IndexedSlices]) -> None:
        """Add one update for each variable, of all its rows."""
        for made, mean, square, gradient in zip(
            self._variables, self._means, self._squares, gradients, strict=True
        ):
            variable_accessed(mean)
            variable_accessed(square)
            with tf.name_scope(f"{_name(made)}/update/"):
                tf.raw_ops.ResourceApplyAdam(
                    var=made.handle,
                    m=mean.handle,
                    v=square.handle,
                    beta1_power=0.0,
                    beta2_power=0.0,
                    lr=self._learning_rate,
                    beta1=self._betas[0],
                    beta2=self._betas[1],
                    epsilon=self._epsilon,
                    grad=tf.convert_to_tensor(gradient),
                )


def _beside(made: tf.Variable, what: str) -> tf.Variable:
    return variable(f"{_name(made)}/{what}", *made.shape, starts_from=0.0)


def _name(made: tf.Variable) -> str:
    name: str = made.name.split(":")[0]
    return name
