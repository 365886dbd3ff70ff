"""Fidelity: how well the simulation predicts step times that are then measured.

Placements of every kind are predicted and measured. None of them may be among those that the
simulation was calibrated with.

A machine's speed drifts by 10 to 20 % within minutes, which no simulation can know. So each
placement is measured in turns with the same reference, all groups on the first device, and is
judged twice: by its step time, and by its step time relative to that of the reference beside
it, from which the drift is gone.
"""

import collections
import dataclasses
import functools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, Self

import numpy as np
import scipy.stats

from placer.environment import Environment, Measurement, Outcome
from placer.errors import InvalidValueError
from placer.grouping import Grouping
from placer.placement import Placement
from placer.profile import CALIBRATION_PLACEMENTS, Profile
from placer.sampled_placements import ChosenPlacement, Kind, sample_placements
from placer.statistics import Interval, median_interval, paired_ratios


class ComparingEnvironment(Protocol):
    """Measures placements in turns, so that what slows the machine down hits all alike."""

    def compare(self, placements: Sequence[Placement]) -> list[Measurement]:
        """Return one measurement for each placement, in order.

        Sample i of each that ran is of the same round.
        """


@dataclasses.dataclass(frozen=True, slots=True)
class FidelityRow:
    """What was predicted and what was measured for one placement and for the reference.

    Attributes:
        chosen: The placement.
        predicted: From the simulation.
        measured: From the real devices; None if the prediction was that it cannot run, and
            nobody tried.
        predicted_reference: Of the reference, from the simulation.
        measured_reference: Of the reference, in turns with the placement; None if nobody
            tried.

    Raises:
        InvalidValueError: If a time that others are relative to is 0, or if placement and
            reference ran in different numbers of rounds.
    """

    chosen: ChosenPlacement
    predicted: Measurement
    measured: Measurement | None
    predicted_reference: Measurement
    measured_reference: Measurement | None

    def __post_init__(self) -> None:
        name = repr(self.chosen.name)
        if self.step_time_s == 0:
            raise InvalidValueError(f"{name}: a measured step took 0 s")
        if self.predicted_reference.step_time_s == 0:
            raise InvalidValueError(f"{name}: the reference is predicted to take 0 s")
        if self.reference_s is not None and self.step_time_s is not None:
            samples_s, beside_s = self.samples_s, self.reference_samples_s
            if len(samples_s) != len(beside_s):
                raise InvalidValueError(
                    f"{name}: {len(samples_s)} samples are paired with {len(beside_s)} of the"
                    " reference"
                )
            if not all(sample_s > 0 for sample_s in beside_s):
                raise InvalidValueError(f"{name}: a step of the reference took 0 s")

    @property
    def step_time_s(self) -> float | None:
        """The median of the measured steps."""
        return None if self.measured is None else self.measured.step_time_s

    @property
    def samples_s(self) -> tuple[float, ...]:
        """The measured steps, by round."""
        return () if self.measured is None else self.measured.samples_s

    @property
    def reference_s(self) -> float | None:
        """The median of the steps of the reference beside it."""
        return None if self.measured_reference is None else self.measured_reference.step_time_s

    @property
    def reference_samples_s(self) -> tuple[float, ...]:
        """The steps of the reference beside it, by round."""
        return () if self.measured_reference is None else self.measured_reference.samples_s

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured; None unless it ran, in both senses."""
        return _relative_error(self.predicted.step_time_s, self.step_time_s)

    @property
    def interval(self) -> Interval | None:
        """Where the true median is, with 95 % confidence; None without samples."""
        return median_interval(self.samples_s) if self.samples_s else None

    @property
    def predicted_ratio(self) -> float | None:
        """The predicted step time relative to the reference's; None unless both run."""
        predicted_s, beside_s = self.predicted.step_time_s, self.predicted_reference.step_time_s
        return None if predicted_s is None or beside_s is None else predicted_s / beside_s

    @property
    def ratios(self) -> tuple[float, ...]:
        """The measured step times relative to the reference's of the same round."""
        if self.step_time_s is None or self.reference_s is None:
            return ()
        return paired_ratios(self.samples_s, self.reference_samples_s)

    @property
    def measured_ratio(self) -> float | None:
        """The median of the ratios; None without any."""
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def ratio_interval(self) -> Interval | None:
        """Where the true median of the ratios is, with 95 % confidence; None without any."""
        return median_interval(self.ratios) if self.ratios else None

    @property
    def drift_corrected_error(self) -> float | None:
        """The error of the ratio to the reference; None unless both ran, in both senses."""
        return _relative_error(self.predicted_ratio, self.measured_ratio)

    def document(self) -> dict[str, Any]:
        """Return a plain dictionary, for tables and files."""
        decisive = self.predicted if self.measured is None else self.measured
        return {
            "name": self.chosen.name,
            "kind": str(self.chosen.kind),
            "outcome": str(decisive.outcome),
            "predicted_s": self.predicted.step_time_s,
            "measured_s": self.step_time_s,
            "interval_s": _ends(self.interval),
            "error": self.error,
            "reference_s": self.reference_s,
            "predicted_ratio": self.predicted_ratio,
            "measured_ratio": self.measured_ratio,
            "ratio_interval": _ends(self.ratio_interval),
            "drift_corrected_error": self.drift_corrected_error,
            "samples_s": list(decisive.samples_s),
            "reference_samples_s": list(self.reference_samples_s),
            "detail": decisive.detail,
            "placement": self.chosen.placement.fingerprint,
            "device_of_group": list(self.chosen.device_of_group),
        }


@dataclasses.dataclass(frozen=True, slots=True)
class Agreement:
    """How well predictions agree with measurements; a figure that is not defined is None.

    Attributes:
        median_absolute_percentage_error: Median of the sizes of (predicted - measured) /
            measured, as a fraction.
        percentile_90_absolute_percentage_error: What nine of ten errors are below.
        spearman: Rank correlation (Spearman, 1904). There is none for fewer than two
            predictions, or where all of one side are equal: there are no ranks then.
    """

    median_absolute_percentage_error: float | None
    percentile_90_absolute_percentage_error: float | None
    spearman: float | None

    @classmethod
    def of(cls, pairs: Iterable[tuple[float | None, float | None]]) -> Self:
        """Return how well pairs (predicted, measured) agree; those that lack one are left out."""
        complete = [pair for pair in pairs if None not in pair]
        if not complete:
            return cls(None, None, None)
        predicted, measured = np.array(complete, dtype=np.float64).T
        sizes = np.abs(predicted - measured) / measured
        has_ranks = len(set(predicted.tolist())) > 1 and len(set(measured.tolist())) > 1
        return cls(
            float(np.median(sizes)),
            float(np.quantile(sizes, 0.9)),
            float(scipy.stats.spearmanr(predicted, measured).statistic) if has_ranks else None,
        )


@dataclasses.dataclass(frozen=True)
class Fidelity:
    """How well predictions match measurements, over all placements that ran.

    Placements that failed are in no figure.

    Attributes:
        rows: At least one, in the order in which they were measured.

    Raises:
        InvalidValueError: If there is no row, two have the same name, or the reference was
            predicted to take different times.
    """

    rows: tuple[FidelityRow, ...]

    def __post_init__(self) -> None:
        counts = collections.Counter(row.chosen.name for row in self.rows)
        if not counts:
            raise InvalidValueError("fidelity is of at least one placement, got none")
        name, count = counts.most_common(1)[0]
        if count > 1:
            raise InvalidValueError(f"two placements are called {name!r}")
        predicted_s = {row.predicted_reference.step_time_s for row in self.rows}
        if len(predicted_s) > 1:
            raise InvalidValueError(
                f"all rows have one reference, but its predicted times are {predicted_s}"
            )

    @functools.cached_property
    def judged(self) -> tuple[FidelityRow, ...]:
        """The rows that were predicted to run, and ran."""
        return tuple(row for row in self.rows if row.error is not None)

    @property
    def failed(self) -> tuple[FidelityRow, ...]:
        """The other rows."""
        return tuple(row for row in self.rows if row.error is None)

    @functools.cached_property
    def agreement(self) -> Agreement:
        """Of predicted with measured step times."""
        return Agreement.of((row.predicted.step_time_s, row.step_time_s) for row in self.judged)

    @functools.cached_property
    def drift_corrected(self) -> Agreement:
        """Of predicted with measured ratios to the reference, where that ran as well."""
        return Agreement.of((row.predicted_ratio, row.measured_ratio) for row in self.judged)

    @property
    def median_error_by_kind(self) -> dict[str, float]:
        """Signed median error of each kind: above zero where predictions are too slow."""
        errors: Mapping[Kind, list[float]] = {kind: [] for kind in Kind}
        for row in self.judged:
            if row.error is not None:
                errors[row.chosen.kind].append(row.error)
        return {
            str(kind): statistics.median(of_kind) for kind, of_kind in errors.items() if of_kind
        }

    def answer(self, graph: str, topology: str) -> str:
        """Return the result in one sentence.

        Args:
            graph: How people call the graph.
            topology: How people call the topology.
        """
        raw, corrected = self.agreement, self.drift_corrected
        error, spearman = raw.median_absolute_percentage_error, raw.spearman
        without_drift = corrected.median_absolute_percentage_error
        figures = [f"{len(self.judged)} placements judged"]
        if error is not None:
            figures.append(f"median error {error:.1%}")
        if without_drift is not None:
            figures[-1] += f" ({without_drift:.1%} with the machine's drift taken out)"
        if spearman is not None:
            figures.append(f"rank correlation {spearman:.3f}")
            if corrected.spearman is not None:
                figures[-1] += f" ({corrected.spearman:.3f})"
        if self.failed:
            figures.append(f"{len(self.failed)} failed")
        return f"{graph} on {topology}, simulated against measured: {', '.join(figures)}."

    def document(self) -> dict[str, Any]:
        """Return all figures and rows as a plain dictionary, for files."""
        return {
            **dataclasses.asdict(self.agreement),
            "drift_corrected": dataclasses.asdict(self.drift_corrected),
            "predicted_reference_s": self.rows[0].predicted_reference.step_time_s,
            "median_error_by_kind": self.median_error_by_kind,
            "num_judged": len(self.judged),
            "num_failed": len(self.failed),
            "rows": [row.document() for row in self.rows],
        }


def fidelity_placements(
    profile: Profile, grouping: Grouping, count: int, *, seed: int = 0
) -> list[ChosenPlacement]:
    """Return placements of all kinds that the profile was not calibrated with.

    Args and errors are those of ``placer.sampled_placements.sample_placements``.
    """
    calibrated_with = set(profile.provenance.facts.get(CALIBRATION_PLACEMENTS, "").split())
    return sample_placements(profile, grouping, count, exclude=calibrated_with, seed=seed)


def measured_rows(
    chosen: Sequence[ChosenPlacement],
    reference: Placement,
    simulated: Environment,
    real: ComparingEnvironment,
    *,
    seed: int = 0,
) -> Iterator[FidelityRow]:
    """Predict all placements, then measure each in turns with the reference.

    They are measured in a shuffled order, so that a machine that grows slower does not hit
    one kind of placement alone. What was predicted not to run is not tried, and comes first;
    if that is the reference, each placement is measured alone.

    Args:
        chosen: What to measure; the reference may be among them.
        reference: What to measure beside each.
        simulated: Predicts.
        real: Measures.
        seed: Of the order.

    Yields:
        Each row, as soon as it is measured.
    """
    *predicted, of_reference = simulated.measure([*(each.placement for each in chosen), reference])
    runnable = [i for i, one in enumerate(predicted) if one.outcome is Outcome.OK]
    for i in sorted(set(range(len(chosen))) - set(runnable)):
        yield FidelityRow(chosen[i], predicted[i], None, of_reference, None)
    beside = [reference] if of_reference.outcome is Outcome.OK else []
    for i in np.random.default_rng(seed).permutation(runnable).astype(int).tolist():
        measured, *others = real.compare([chosen[i].placement, *beside])
        yield FidelityRow(
            chosen[i], predicted[i], measured, of_reference, others[0] if others else None
        )


def _relative_error(predicted: float | None, measured: float | None) -> float | None:
    if predicted is None or measured is None:
        return None
    return (predicted - measured) / measured


def _ends(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [interval.low, interval.high]
