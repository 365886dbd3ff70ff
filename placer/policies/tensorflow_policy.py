"""What all policies in TensorFlow share: variables, optimiser, compiled calls, state.

A policy says how a batch is drawn and what the log-probabilities of given actions are. Both
are compiled as ``tf.function``, as is the update, which follows their gradient. All that
differs between calls enters as tensors: nothing is traced twice for the same batch size.

Array shapes: B placements, G groups, D devices.
"""

import abc
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.framework import config as tf_config

from placer.errors import InvalidValueError
from placer.graph import FloatArray
from placer.policy import Actions, check_state
from placer.policy_gradient import gumbel_noise

Tensor = Any  # TensorFlow has no type stubs.

FORBIDDEN_LOGIT = -1e9
"""Logit of a device that a group must not use: its probability is exactly zero."""


@contextlib.contextmanager
def deterministic_ops() -> Iterator[None]:
    """Let ops have the same result each time, to the last bit, inside the block.

    A training that is resumed must end as one that was not. TensorFlow's switch is the process's,
    and it changes graphs that are captured meanwhile; its public part cannot be turned back.
    """
    before = tf_config.is_op_determinism_enabled()
    tf_config.enable_op_determinism()
    try:
        yield
    finally:
        if not before:
            tf_config.disable_op_determinism()


class TensorFlowPolicy(abc.ABC):
    """A policy whose log-probabilities are differentiable in TensorFlow.

    Args:
        initial: Initial value of each variable, by name.
        num_groups: G.
        num_devices: D.
        learning_rate: Of Adam (Kingma and Ba, 2015).
        gradient_clip_norm: Bound of the gradient's global norm.
        entropy_bonus: Weight of the entropy, summed over groups, in the objective.
        jit_compile: Compile with XLA.
    """

    def __init__(
        self,
        initial: Mapping[str, FloatArray],
        *,
        num_groups: int,
        num_devices: int,
        learning_rate: float,
        gradient_clip_norm: float,
        entropy_bonus: float,
        jit_compile: bool,
    ) -> None:
        self.num_groups = num_groups
        self.num_devices = num_devices
        self._entropy_bonus = entropy_bonus
        self._variables = {
            name: tf.Variable(value, dtype=tf.float32, name=name) for name, value in initial.items()
        }
        self._optimizer = tf.keras.optimizers.Adam(
            learning_rate, global_clipnorm=gradient_clip_norm, name="adam"
        )
        self._optimizer.build(list(self._variables.values()))
        self._sample = tf.function(self._sampled_actions, jit_compile=jit_compile)
        self._log_probs = tf.function(self._chosen_log_probs, jit_compile=jit_compile)
        self._update = tf.function(self._updated, jit_compile=jit_compile)

    @abc.abstractmethod
    def _sampled_actions(self, noise: Tensor) -> Tensor:
        """Return the devices that Gumbel noise, ``[B, G, D]``, draws, ``[B, G]``.

        Without noise they are the likeliest, each given what it depends on.
        """

    @abc.abstractmethod
    def _chosen_log_probs(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probability and the entropy of each choice, ``[B, G]`` each."""

    def sample(self, seed: int, trial_numbers: npt.NDArray[np.int64]) -> Actions:
        """Return one action a group for each trial, ``[B, G]``; see ``Policy.sample``."""
        noise = gumbel_noise(seed, trial_numbers, (self.num_groups, self.num_devices))
        with deterministic_ops():
            return np.asarray(self._sample(tf.constant(noise, tf.float32)), dtype=np.int32)

    def greedy(self) -> Actions:
        """Return the likeliest device of each group, given those it depends on, ``[G]``."""
        silence = tf.zeros([1, self.num_groups, self.num_devices])
        with deterministic_ops():
            return np.asarray(self._sample(silence)[0], dtype=np.int32)

    def log_probs(self, actions: Actions) -> FloatArray:
        """Return the log-probability of each chosen device, ``[B, G]``."""
        with deterministic_ops():
            return np.asarray(self._log_probs(self._checked(actions))[0], dtype=np.float64)

    def update(self, actions: Actions, advantages: FloatArray) -> Mapping[str, float]:
        """Make one step of Adam; see ``Policy.update``.

        The metric ``entropy`` is the mean of a group's, in nats.
        """
        with deterministic_ops():
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

    def _updated(self, actions: Tensor, advantages: Tensor) -> dict[str, Tensor]:
        variables = list(self._variables.values())
        with tf.GradientTape() as tape:
            log_probs, entropies = self._chosen_log_probs(actions)
            bonus = self._entropy_bonus * tf.reduce_sum(entropies, axis=1)
            gains = advantages * tf.reduce_sum(log_probs, axis=1) + bonus
            loss = -tf.reduce_mean(gains)
        gradients = tape.gradient(loss, variables)
        self._optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {
            "loss": loss,
            "entropy": tf.reduce_mean(entropies),
            "gradient_norm": tf.linalg.global_norm(gradients),
        }


def glorot_uniform(rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
    """Draw a matrix as Glorot and Bengio (2010), as in the authors' later controller."""
    bound = np.sqrt(6 / sum(shape))
    return np.asarray(rng.uniform(-bound, bound, shape))
