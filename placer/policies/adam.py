"""Adam (Kingma and Ba, 2015), with gradient clipping, on arrays by name."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from placer.graph import FloatArray

_DECAYS = (0.9, 0.999)
_EPSILON = 1e-8


class Adam:
    """Climbs along gradients; the variables are changed in place.

    Args:
        variables: What is changed, by name.
        learning_rates: Of each variable, by name.
        largest_norm: A gradient of all variables together that is longer is scaled down to it.
    """

    def __init__(
        self,
        variables: Mapping[str, FloatArray],
        learning_rates: Mapping[str, float],
        *,
        largest_norm: float = np.inf,
    ) -> None:
        self._variables = variables
        self._learning_rates = learning_rates
        self._largest_norm = largest_norm
        self._means = {name: np.zeros_like(value) for name, value in variables.items()}
        self._squares = {name: np.zeros_like(value) for name, value in variables.items()}
        self._num_steps = np.zeros((), dtype=np.int64)

    def climb(self, gradient: Mapping[str, FloatArray], *, scale: float = 1.0) -> float:
        """Make one step along a gradient; return its norm before clipping.

        Args:
            gradient: By the variables, by name.
            scale: Of the learning rates in this step.
        """
        norm = float(np.sqrt(sum(float((part**2).sum()) for part in gradient.values())))
        clipping = min(1.0, self._largest_norm / norm) if norm else 1.0
        self._num_steps += 1
        first, second = _DECAYS
        for name, part in gradient.items():
            clipped = clipping * part
            mean, square = self._means[name], self._squares[name]
            mean += (1 - first) * (clipped - mean)
            square += (1 - second) * (clipped**2 - square)
            unbiased = mean / (1 - first**self._num_steps)
            spread = np.sqrt(square / (1 - second**self._num_steps)) + _EPSILON
            rate = scale * self._learning_rates[name]
            self._variables[name][...] += rate * unbiased / spread
        return norm

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return what is kept between steps, by name; the arrays themselves, not copies."""
        return {
            "adam/num_steps": self._num_steps,
            **{f"adam/mean/{name}": value for name, value in self._means.items()},
            **{f"adam/square/{name}": value for name, value in self._squares.items()},
        }
