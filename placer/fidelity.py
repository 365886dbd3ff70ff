"""Fidelity: how well the simulation predicts step times that are then measured.

Placements of every kind are predicted and measured, from all groups on one device to all at
random: a policy that learns in the simulation meets all of them. None of them may be among
those that the simulation was calibrated with.

Array shapes: G groups, D devices, R rows.
"""

import collections
import dataclasses
import enum
import functools
import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.stats

from placer.environment import Environment, Measurement, Outcome
from placer.errors import InfeasibleError, InvalidValueError
from placer.evaluation import SINGLE_DEVICE
from placer.graph import FloatArray, IntArray
from placer.grouping import Grouping
from placer.heuristics import heuristic_placements, random_placement
from placer.heuristics.permitted import permitted
from placer.placement import Placement
from placer.profile import Profile
from placer.statistics import Interval, median_interval

CALIBRATION_PLACEMENTS = "calibration_placements"
"""Fact of a profile: fingerprints, between spaces, of the placements it was calibrated with."""

_DRAWS_FOR_EACH = 64
_MOVED_SHARES = (0.05, 0.4)


class Kind(enum.StrEnum):
    """How a placement was made; the order is that of the figures' legends."""

    ONE_DEVICE = "one device"
    HEURISTIC = "heuristic"
    CUT = "cut"
    BLOCKS = "blocks"
    MIXTURE = "mixture"
    RANDOM = "random"


@dataclasses.dataclass(frozen=True, slots=True)
class ChosenPlacement:
    """A placement to predict and to measure.

    Attributes:
        name: For people; no other placement of the same choice has it.
        kind: How it was made.
        device_of_group: The action of each group, ``[G]``.
        placement: The same, by op.
    """

    name: str
    kind: Kind
    device_of_group: tuple[int, ...]
    placement: Placement


@dataclasses.dataclass(frozen=True, slots=True)
class FidelityRow:
    """What was predicted and what was measured for one placement.

    Attributes:
        chosen: The placement.
        predicted: From the simulation.
        measured: From the real devices; None if the prediction was that it cannot run, and
            nobody tried.

    Raises:
        InvalidValueError: If a measured step took no time: there is no error relative to it.
    """

    chosen: ChosenPlacement
    predicted: Measurement
    measured: Measurement | None

    def __post_init__(self) -> None:
        if self.measured is not None and self.measured.step_time_s == 0:
            raise InvalidValueError(f"{self.chosen.name!r}: a measured step took 0 s")

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured; None unless it ran, in both senses."""
        predicted_s, measured_s = self.predicted.step_time_s, self.step_time_s
        if predicted_s is None or measured_s is None:
            return None
        return (predicted_s - measured_s) / measured_s

    @property
    def step_time_s(self) -> float | None:
        """The median of the measured steps."""
        return None if self.measured is None else self.measured.step_time_s

    @property
    def interval(self) -> Interval | None:
        """Where the true median is, with 95 % confidence; None without samples."""
        if self.measured is None or not self.measured.samples_s:
            return None
        return median_interval(self.measured.samples_s)

    def document(self) -> dict[str, Any]:
        """Return a plain dictionary, for tables and files."""
        decisive = self.predicted if self.measured is None else self.measured
        interval = self.interval
        return {
            "name": self.chosen.name,
            "kind": str(self.chosen.kind),
            "outcome": str(decisive.outcome),
            "predicted_s": self.predicted.step_time_s,
            "measured_s": self.step_time_s,
            "interval_s": None if interval is None else [interval.low, interval.high],
            "error": self.error,
            "samples_s": list(decisive.samples_s),
            "detail": decisive.detail,
            "placement": self.chosen.placement.fingerprint,
            "device_of_group": list(self.chosen.device_of_group),
        }


@dataclasses.dataclass(frozen=True)
class Fidelity:
    """How well predictions match measurements, over all placements that ran.

    A figure is None where it is not defined. Placements that failed are in no figure.

    Attributes:
        rows: At least one, in the order in which they were measured.

    Raises:
        InvalidValueError: If there is no row, or two have the same name.
    """

    rows: tuple[FidelityRow, ...]

    def __post_init__(self) -> None:
        counts = collections.Counter(row.chosen.name for row in self.rows)
        if not counts:
            raise InvalidValueError("fidelity is of at least one placement, got none")
        name, count = counts.most_common(1)[0]
        if count > 1:
            raise InvalidValueError(f"two placements are called {name!r}")

    @functools.cached_property
    def judged(self) -> tuple[FidelityRow, ...]:
        """The rows that were predicted to run, and ran."""
        return tuple(row for row in self.rows if row.error is not None)

    @property
    def failed(self) -> tuple[FidelityRow, ...]:
        """The other rows."""
        return tuple(row for row in self.rows if row.error is None)

    @functools.cached_property
    def errors(self) -> FloatArray:
        """(predicted - measured) / measured of the judged rows, ``[R]``."""
        return np.array([row.error for row in self.judged], dtype=np.float64)

    @property
    def median_absolute_percentage_error(self) -> float | None:
        """Median of the sizes of the errors, as a fraction; None without rows."""
        return float(np.median(np.abs(self.errors))) if self.judged else None

    @property
    def percentile_90_absolute_percentage_error(self) -> float | None:
        """What nine of ten errors are below, as a fraction; None without rows."""
        return float(np.quantile(np.abs(self.errors), 0.9)) if self.judged else None

    @property
    def spearman(self) -> float | None:
        """Rank correlation of predicted with measured times (Spearman, 1904).

        None for fewer than two rows, and where all predictions or all measurements are equal:
        there are no ranks then.
        """
        times_s = np.array([[row.predicted.step_time_s, row.step_time_s] for row in self.judged])
        predicted_s, measured_s = times_s.astype(np.float64).reshape(-1, 2).T
        if len(set(predicted_s)) < 2 or len(set(measured_s)) < 2:
            return None
        return float(scipy.stats.spearmanr(predicted_s, measured_s).statistic)

    @property
    def median_error_by_kind(self) -> dict[str, float]:
        """Signed median error of each kind: above zero where predictions are too slow."""
        errors: Mapping[Kind, list[float]] = {kind: [] for kind in Kind}
        for row, error in zip(self.judged, self.errors.tolist(), strict=True):
            errors[row.chosen.kind].append(error)
        return {
            str(kind): statistics.median(of_kind) for kind, of_kind in errors.items() if of_kind
        }

    def answer(self, graph: str, topology: str) -> str:
        """Return the result in one sentence.

        Args:
            graph: How people call the graph.
            topology: How people call the topology.
        """
        error, spearman = self.median_absolute_percentage_error, self.spearman
        figures = [f"{len(self.judged)} placements judged"]
        if error is not None:
            figures.append(f"median error {error:.1%}")
        if spearman is not None:
            figures.append(f"rank correlation {spearman:.3f}")
        if self.failed:
            figures.append(f"{len(self.failed)} failed")
        return f"{graph} on {topology}, simulated against measured: {', '.join(figures)}."

    def document(self) -> dict[str, Any]:
        """Return all figures and rows as a plain dictionary, for files."""
        return {
            "median_absolute_percentage_error": self.median_absolute_percentage_error,
            "percentile_90_absolute_percentage_error": (
                self.percentile_90_absolute_percentage_error
            ),
            "spearman": self.spearman,
            "median_error_by_kind": self.median_error_by_kind,
            "num_judged": len(self.judged),
            "num_failed": len(self.failed),
            "rows": [row.document() for row in self.rows],
        }


def measured_rows(
    chosen: Sequence[ChosenPlacement], simulated: Environment, real: Environment, *, seed: int = 0
) -> Iterator[FidelityRow]:
    """Predict all placements, then measure them one after the other.

    They are measured in a shuffled order, so that a machine that grows slower does not hit
    one kind of placement alone. What was predicted not to run is not tried, and comes first.

    Args:
        chosen: What to measure.
        simulated: Predicts.
        real: Measures.
        seed: Of the order.

    Yields:
        Each row, as soon as it is measured.
    """
    predicted = simulated.measure([each.placement for each in chosen])
    runnable = [i for i, one in enumerate(predicted) if one.outcome is Outcome.OK]
    for i in sorted(set(range(len(chosen))) - set(runnable)):
        yield FidelityRow(chosen[i], predicted[i], None)
    for i in np.random.default_rng(seed).permutation(runnable).astype(int).tolist():
        (measured,) = real.measure([chosen[i].placement])
        yield FidelityRow(chosen[i], predicted[i], measured)


def fidelity_placements(
    profile: Profile, grouping: Grouping, count: int, *, seed: int = 0
) -> list[ChosenPlacement]:
    """Return distinct placements of all kinds, on permitted devices alone.

    The kinds take turns until there are enough; those of which there are few (one device,
    heuristics) drop out. Placements that the profile was calibrated with are left out.

    Args:
        profile: Of at least two devices.
        grouping: Of its ops.
        count: How many placements.
        seed: All randomness derives from it.

    Raises:
        InvalidValueError: If ``count`` is not positive, or there is only one device.
        InfeasibleError: If there are not as many distinct placements.
    """
    if count < 1:
        raise InvalidValueError(f"count must be at least 1, got {count}")
    if profile.topology.num_devices < 2:
        raise InvalidValueError(
            f"topology {profile.topology.name!r} has one device: there is nothing to choose"
        )
    excluded = set(profile.provenance.facts.get(CALIBRATION_PLACEMENTS, "").split())
    chosen: dict[Placement, ChosenPlacement] = {}
    for drawn in itertools.zip_longest(*_Families(profile, grouping, seed).all(count)):
        for kind, name, actions in filter(None, drawn):
            placement = Placement.from_groups(grouping, actions)
            if placement in chosen or placement.fingerprint in excluded:
                continue
            chosen[placement] = ChosenPlacement(name, kind, tuple(actions.tolist()), placement)
            if len(chosen) == count:
                return list(chosen.values())
    raise InfeasibleError(
        f"{count} placements are wanted, but only {len(chosen)} distinct ones were found of"
        f" {grouping.num_groups} groups on {profile.topology.num_devices} devices"
    )


_Draws = Iterator[tuple[Kind, str, npt.NDArray[np.integer]]]


class _Families:
    """Draws placements of each kind: their kind, their name, and the actions, ``[G]``."""

    def __init__(self, profile: Profile, grouping: Grouping, seed: int) -> None:
        self._profile, self._grouping, self._seed = profile, grouping, seed
        self._rules = heuristic_placements(profile, grouping, seed=seed)
        first_op = np.full(grouping.num_groups, profile.graph.num_ops)
        np.minimum.at(first_op, grouping.group_of_op, profile.graph.topological_index)
        self._place_of_group = first_op.argsort().argsort()

    def all(self, count: int) -> list[_Draws]:
        """Return a family for each kind, with enough draws for ``count`` distinct placements."""
        endless = (self._cuts(), self._blocks(), self._mixtures())
        return [
            self._singles(),
            self._heuristics(),
            *(itertools.islice(family, count) for family in endless),
            itertools.islice(self._random(), _DRAWS_FOR_EACH * count),
        ]

    def _singles(self) -> _Draws:
        for name, actions in self._rules.items():
            if name.startswith(SINGLE_DEVICE):
                yield Kind.ONE_DEVICE, name, actions

    def _heuristics(self) -> _Draws:
        for name, actions in self._rules.items():
            if not name.startswith(SINGLE_DEVICE) and name != Kind.RANDOM:
                yield Kind.HEURISTIC, name, actions

    def _cuts(self) -> _Draws:
        """The groups in topological order, cut into one part for each device."""
        num_devices = self._profile.topology.num_devices
        shares = (self._place_of_group + 0.5) / self._grouping.num_groups
        for number in itertools.count(1):
            generator = self._generator(Kind.CUT, number)
            bounds = np.sort(generator.uniform(0.05, 0.95, num_devices - 1))
            parts = np.searchsorted(bounds, shares)
            points = ", ".join(f"{bound:.0%}" for bound in bounds)
            yield self._draw(Kind.CUT, number, f"at {points}", generator, parts)

    def _blocks(self) -> _Draws:
        """Runs of groups in topological order, dealt to the devices in turn."""
        num_devices = self._profile.topology.num_devices
        longest = max(2.0, self._grouping.num_groups / num_devices)
        for number in itertools.count(1):
            generator = self._generator(Kind.BLOCKS, number)
            # From 2 up, as many short ones as long ones: evenly distributed in logarithms.
            length = round(float(np.exp(generator.uniform(np.log(2), np.log(longest)))))
            parts = self._place_of_group // length % num_devices
            yield self._draw(Kind.BLOCKS, number, f"of {length} groups", generator, parts)

    def _mixtures(self) -> _Draws:
        """A placement with sense, and a share of its groups on some other device."""
        singles = [name for name in self._rules if name.startswith(SINGLE_DEVICE)]
        sensible = [name for name in ("expert", "metis") if name in self._rules]
        num_groups, num_devices = self._grouping.num_groups, self._profile.topology.num_devices
        for number in itertools.count(1):
            generator = self._generator(Kind.MIXTURE, number)
            base = [*sensible, str(generator.choice(singles))][number % (len(sensible) + 1)]
            share = generator.uniform(*_MOVED_SHARES)
            moved = generator.choice(num_groups, max(1, round(share * num_groups)), replace=False)
            wanted = self._rules[base].astype(np.int64)
            wanted[moved] += generator.integers(1, num_devices, len(moved))
            actions = permitted(self._profile, self._grouping, wanted % num_devices)
            yield Kind.MIXTURE, f"mixture {number}: {base}, {share:.0%} moved", actions

    def _random(self) -> _Draws:
        for number in itertools.count(1):
            seed = int(self._generator(Kind.RANDOM, number).integers(2**31))
            actions = random_placement(self._profile, self._grouping, seed=seed)
            yield Kind.RANDOM, f"random {number}", actions

    def _draw(
        self,
        kind: Kind,
        number: int,
        what: str,
        generator: np.random.Generator,
        part_of_group: IntArray,
    ) -> tuple[Kind, str, npt.NDArray[np.integer]]:
        """Return the placement that gives each part a device, in a random order of devices."""
        devices = generator.permutation(self._profile.topology.num_devices)
        actions = permitted(self._profile, self._grouping, devices[part_of_group])
        return kind, f"{kind} {number}: {what}", actions

    def _generator(self, kind: Kind, number: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, list(Kind).index(kind), number])
