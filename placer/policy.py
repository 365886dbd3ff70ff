"""What a policy is: a distribution over actions that can be sampled and improved.

Array shapes: B placements, G groups.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from placer.errors import InvalidValueError
from placer.graph import FloatArray

Actions = npt.NDArray[np.int32]


class Policy(Protocol):
    """A distribution over the device of each group, with parameters."""

    def sample(self, seed: int, trial_numbers: npt.NDArray[np.int64]) -> Actions:
        """Return one action a group for each trial, ``[B, G]``.

        The draws of a trial depend on the parameters, the seed and its own number alone,
        not on the batch it is drawn in. Only permitted devices are drawn.
        """

    def log_probs(self, actions: Actions) -> FloatArray:
        """Return the log-probability of each chosen device, ``[B, G]``."""

    def update(self, actions: Actions, advantages: FloatArray) -> Mapping[str, float]:
        """Make one gradient step that favours actions of positive advantage.

        Args:
            actions: What was done, ``[B, G]``.
            advantages: Of each placement, ``[B]``; a placement with advantage 0 adds
                nothing but its entropy.

        Returns:
            Metrics of the step: ``entropy``, ``gradient_norm``, ``loss``.
        """

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return all variables of policy and optimiser, by name."""

    def restore(self, state: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Set all variables to what ``state`` returned.

        Raises:
            InvalidValueError: If a name or shape differs.
        """


def check_state(
    state: Mapping[str, npt.NDArray[np.generic]], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Check that a state has the variables of these names and shapes, and no others.

    Raises:
        InvalidValueError: If a name or shape differs.
    """
    if state.keys() != shapes.keys():
        odd = sorted(state.keys() ^ shapes.keys())
        raise InvalidValueError(f"the state is of another policy: it differs in {odd[0]!r}")
    for name, shape in shapes.items():
        if state[name].shape != shape:
            raise InvalidValueError(
                f"the state is of another policy: {name!r} must have shape {shape},"
                f" got {state[name].shape}"
            )


def check_settings(
    config: object, *, positive: Iterable[str] = (), not_negative: Iterable[str] = ()
) -> None:
    """Check that fields of a policy's settings are finite, and positive or not negative.

    Raises:
        InvalidValueError: If one is not; the message names it.
    """
    for field in positive:
        if not 0 < getattr(config, field) < np.inf:
            raise InvalidValueError(
                f"{field} must be positive and finite, got {getattr(config, field)}"
            )
    for field in not_negative:
        if not 0 <= getattr(config, field) < np.inf:
            raise InvalidValueError(
                f"{field} must be finite and not negative, got {getattr(config, field)}"
            )
