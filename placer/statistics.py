"""What can be said of step times that differ from one step to the next.

Step times are not normal: most lie close together, and some are far too long because
something else ran. So the median speaks for them, and what is said about it assumes no
distribution. Intervals hold what they are of with a given confidence over repetitions of
the whole measurement; they know nothing of a machine that is slower on another day.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.stats

from placer.errors import InvalidValueError

CONFIDENCE = 0.95
"""Of the intervals, where nothing else is asked for."""

_RESAMPLES = 9999
_SETTLED_STEPS = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """The numbers from ``low`` to ``high``, both included.

    Attributes:
        low: Not above ``high``.
        high: Finite, like ``low``.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not -math.inf < self.low <= self.high < math.inf:
            raise InvalidValueError(
                f"an interval goes from low to high, both finite, got {self.low} to {self.high}"
            )

    def __contains__(self, value: float) -> bool:
        """Return whether the value lies in the interval."""
        return self.low <= value <= self.high


def samples_needed(confidence: float = CONFIDENCE) -> int:
    """Return how many samples an interval of their median needs at this confidence.

    All of n samples lie on one side of the true median with probability 2·(1/2)ⁿ. Unless
    that is at most ``1 - confidence``, not even the range of the samples is an interval.

    Raises:
        InvalidValueError: If the confidence is not between 0 and 1.
    """
    _check_confidence(confidence)
    return max(2, math.ceil(1 - math.log2(1 - confidence) - 1e-9))


def median_interval(samples: npt.ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """Return an interval that holds the true median, whatever the distribution is.

    Its ends are samples: the order statistics between which the binomial distribution puts
    the median with at least this confidence (Conover, *Practical Nonparametric Statistics*,
    1999, chapter 3).

    Args:
        samples: At least one, ``[n]``; independent and alike.
        confidence: Between 0 and 1. Fewer than ``samples_needed`` samples have no interval
            of this confidence; their range is returned, whose confidence is 1 - 2·(1/2)ⁿ.

    Raises:
        InvalidValueError: If there is no sample, or the confidence is not between 0 and 1.
    """
    _check_confidence(confidence)
    values = np.asarray(samples, dtype=np.float64)
    if values.size == 0:
        raise InvalidValueError("the median of no samples has no interval")
    # A pair of numbers, whatever its stubs say.
    found: Any = scipy.stats.quantile_test(values, p=0.5).confidence_interval(confidence)
    if math.isnan(found.low) or math.isnan(found.high):
        return Interval(float(values.min()), float(values.max()))
    return Interval(float(found.low), float(found.high))


def relative_half_width(samples: npt.ArrayLike, confidence: float = CONFIDENCE) -> float:
    """Return half the width of the median's interval as a share of the median.

    Args:
        samples: At least one, positive, ``[n]``.
        confidence: As in ``median_interval``.
    """
    interval = median_interval(samples, confidence)
    return (
        (interval.high - interval.low) / 2 / float(np.median(np.asarray(samples, dtype=np.float64)))
    )


def ratio_interval(
    numerator: npt.ArrayLike,
    denominator: npt.ArrayLike,
    *,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Interval:
    """Return a bootstrap interval of the ratio of two medians of paired samples.

    Rounds are drawn with replacement, each with its sample of either series, so that what
    hit both series of a round alike does not widen the interval (Efron and Tibshirani, *An
    Introduction to the Bootstrap*, 1993, chapter 13: percentiles). It is computed in
    logarithms: swapping the series gives the inverse interval.

    Args:
        numerator: Positive, ``[n]``: one sample a round.
        denominator: Positive, ``[n]``: of the same rounds, in the same order.
        confidence: Between 0 and 1.
        seed: Of the drawing.

    Raises:
        InvalidValueError: If the lengths differ, there are fewer rounds than
            ``samples_needed``, or a sample is not positive and finite.
    """
    series = [np.asarray(samples, dtype=np.float64) for samples in (numerator, denominator)]
    if series[0].shape != series[1].shape:
        raise InvalidValueError(
            f"paired series have equally many samples, got {series[0].size} and {series[1].size}"
        )
    if series[0].size < (needed := samples_needed(confidence)):
        raise InvalidValueError(
            f"an interval of confidence {confidence:g} needs {needed} rounds, got {series[0].size}"
        )
    if not all(np.all((samples > 0) & (samples < np.inf)) for samples in series):
        raise InvalidValueError("a ratio is of positive and finite samples")
    found = scipy.stats.bootstrap(
        series,
        _log_ratio_of_medians,
        paired=True,
        vectorized=True,
        n_resamples=_RESAMPLES,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(math.exp(found.low), math.exp(found.high))


def has_settled(times_s: Sequence[float], *, tolerance: float = 0.05) -> bool:
    """Return whether the first steps' slowness is over.

    First steps are slow (memory is allocated, kernels and connections are made) and become
    faster; noise of 5 to 10 % makes two equal times in a row no sign of the end. A step that is
    faster than the record by more than ``tolerance`` is a new record. Times have settled once
    three steps in a row made none: a slow step does not matter then, since what is over is the
    improvement. Small gains add up to a new record, as they are compared with the old one.

    Args:
        times_s: Of all steps so far, the oldest first.
        tolerance: Between 0 and 1.
    """
    record_s, since = math.inf, 0
    for time_s in times_s:
        if time_s < record_s * (1 - tolerance):
            record_s, since = time_s, 0
        else:
            since += 1
    return since >= _SETTLED_STEPS


def paired_ratios(numerator: Sequence[float], denominator: Sequence[float]) -> tuple[float, ...]:
    """Return the ratio of two series in each round, ``[n]``.

    Args:
        numerator: One sample a round, ``[n]``.
        denominator: Positive, of the same rounds, ``[n]``.
    """
    return tuple(above / below for above, below in zip(numerator, denominator, strict=True))


def balanced_order(count: int, round_number: int) -> list[int]:
    """Return in which order ``count`` contenders take their turns in a round.

    A Williams design (*Aust. J. Sci. Res.* A 2, 1949): over ``count`` rounds, or twice as many
    if ``count`` is odd, each contender is at each place equally often, and follows each
    other one equally often. What one leaves behind (warm caches, garbage) is shared out evenly.

    Args:
        count: Contenders; they are called 0 to ``count - 1``.
        round_number: From 0.
    """
    zigzag = [place // 2 if place % 2 == 0 else count - 1 - place // 2 for place in range(count)]
    order = [(first + round_number) % count for first in zigzag]
    is_mirrored = count % 2 == 1 and round_number // count % 2 == 1
    return order[::-1] if is_mirrored else order


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise InvalidValueError(f"confidence must be between 0 and 1, got {confidence}")


def _log_ratio_of_medians(
    numerator: npt.NDArray[np.float64], denominator: npt.NDArray[np.float64], axis: int
) -> npt.NDArray[np.float64]:
    medians = np.median(numerator, axis=axis), np.median(denominator, axis=axis)
    return np.asarray(np.log(medians[0]) - np.log(medians[1]))
