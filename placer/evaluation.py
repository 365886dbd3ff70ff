"""Evaluation: which of all placements tried is the best, and by how much.

Every heuristic, what the search found and the best learned placements are judged by the same
environments. A placement that several methods found is judged once and credited to the simplest
of them: heuristics come before the search, and the search before the policy.

A speed-up that was measured comes with its interval of 95 %, from the rounds that both
placements were timed in. Where it includes 1, there is no win to speak of. The winner was
chosen from these very rounds, so that its interval leans to its own side, the more so the more
candidates there were.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from placer.bounds import Bound
from placer.environment import REAL, Environment, Measurement, Outcome
from placer.errors import InfeasibleError
from placer.grouping import Grouping
from placer.placement import Placement
from placer.statistics import ratio_interval, samples_needed
from placer.trials import Trial

SINGLE_DEVICE = "single "
"""How the names of the one-device placements begin; the device's name follows."""

EXPERT = "expert"
"""The name of the hand-made placement."""

SEARCHED = "search"
"""The name of what the search found in the simulation."""


class InterleavedEnvironment(Environment, Protocol):
    """An environment that can time several placements side by side."""

    def compare(self, placements: Sequence[Placement], *, rounds: int) -> list[Measurement]:
        """Return one measurement for each placement, their timed steps interleaved."""


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """A placement worth judging.

    Attributes:
        method: Who found it.
        device_of_group: The action of each group, ``[G]``.
        placement: The same, by op.
    """

    method: str
    device_of_group: tuple[int, ...]
    placement: Placement


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What is known of one candidate.

    Attributes:
        candidate: The placement and who found it.
        predicted: From the simulation.
        measured: From the real devices; None if they are not here.
    """

    candidate: Candidate
    predicted: Measurement
    measured: Measurement | None = None

    @property
    def decisive(self) -> Measurement:
        """The measurement that decides: the real one where there is one."""
        return self.predicted if self.measured is None else self.measured


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """All results, the best first; those that did not run come last.

    Attributes:
        results: At least one.
        bound: Makespan that no placement of the same groups is below; None if not known.
    """

    results: tuple[Result, ...]
    bound: Bound | None = None

    @property
    def best(self) -> Result:
        """The result with the least step time.

        Raises:
            InfeasibleError: If no candidate ran.
        """
        best = self.results[0]
        if best.decisive.outcome is not Outcome.OK:
            raise InfeasibleError(
                f"none of {len(self.results)} placements ran; the first ended"
                f" {best.decisive.outcome}: {best.decisive.detail}"
            )
        return best

    def reference(self, prefix: str) -> Result | None:
        """Return the fastest result among the methods whose name begins so, if any ran."""
        ran = [
            result
            for result in self.results
            if result.candidate.method.startswith(prefix) and result.decisive.step_time_s
        ]
        return min(ran, key=_rank, default=None)

    def rows(self) -> list[dict[str, Any]]:
        """Return one plain dictionary a result, for tables and files."""
        single, expert = self.reference(SINGLE_DEVICE), self.reference(EXPERT)
        return [
            _row(result, single=single, expert=expert) | {"gap": self._gap(result)}
            for result in self.results
        ]

    def _gap(self, result: Result) -> float | None:
        return None if self.bound is None else self.bound.gap(result.predicted.step_time_s)


def candidates(
    untrained: Mapping[str, npt.NDArray[np.int32]],
    trials: Sequence[Trial],
    grouping: Grouping,
    *,
    num_learned: int,
) -> list[Candidate]:
    """Return what heuristics and search found and the best learned placements, each once.

    Trials measured on the real devices come before simulated ones, and what failed there is no
    candidate, however fast a simulation thinks it is.

    Args:
        untrained: Actions by method, ``[G]`` each, the simplest method first.
        trials: Measured trials of a training.
        grouping: Turns actions into placements.
        num_learned: How many of the policy's placements to take at most.
    """
    chosen: dict[Placement, Candidate] = {}
    for method, actions in untrained.items():
        candidate = _candidate(method, actions.tolist(), grouping)
        chosen.setdefault(candidate.placement, candidate)
    limit = len(chosen) + num_learned
    for trial in sorted(_runnable(trials), key=_trust_then_step_time):
        if len(chosen) == limit:
            break
        candidate = _candidate(f"policy (trial {trial.number})", trial.device_of_group, grouping)
        chosen.setdefault(candidate.placement, candidate)
    return list(chosen.values())


def evaluate(
    chosen: Sequence[Candidate],
    simulated: Environment,
    real: InterleavedEnvironment | None = None,
    *,
    rounds: int = 10,
    bound: Bound | None = None,
) -> Evaluation:
    """Judge the candidates in the simulation and, if there is one, on the real devices.

    Args:
        chosen: At least one candidate.
        simulated: Predicts each step time.
        real: Times those that the prediction says can run.
        rounds: Timed steps of each placement.
        bound: Makespan that no placement of the candidates' groups is below.
    """
    predicted = simulated.measure([candidate.placement for candidate in chosen])
    measured: list[Measurement | None] = [None] * len(chosen)
    if real is not None:
        runnable = [i for i, one in enumerate(predicted) if one.outcome is Outcome.OK]
        timed = real.compare([chosen[i].placement for i in runnable], rounds=rounds)
        for i, measurement in zip(runnable, timed, strict=True):
            measured[i] = measurement
    results = [Result(*parts) for parts in zip(chosen, predicted, measured, strict=True)]
    return Evaluation(tuple(sorted(results, key=_rank)), bound)


def _candidate(method: str, actions: Sequence[int], grouping: Grouping) -> Candidate:
    return Candidate(method, tuple(actions), Placement.from_groups(grouping, actions))


def _runnable(trials: Sequence[Trial]) -> list[Trial]:
    really = [trial for trial in trials if trial.environment == REAL and trial.measurement]
    ran = {trial.device_of_group for trial in really if _step_time_s(trial) < np.inf}
    failed = {trial.device_of_group for trial in really} - ran
    return [
        trial
        for trial in trials
        if _step_time_s(trial) < np.inf and trial.device_of_group not in failed
    ]


def _trust_then_step_time(trial: Trial) -> tuple[bool, float, int]:
    return (trial.environment != REAL, _step_time_s(trial), trial.number)


def _step_time_s(trial: Trial) -> float:
    time_s = trial.measurement.step_time_s if trial.measurement else None
    return np.inf if time_s is None else time_s


def _rank(result: Result) -> tuple[bool, float]:
    # A placement that was predicted not to run was never tried: it ranks below all that were.
    time_s = result.decisive.step_time_s
    return (time_s is None, np.inf if time_s is None else time_s)


def _row(result: Result, *, single: Result | None, expert: Result | None) -> dict[str, Any]:
    decisive = result.decisive
    quartiles = np.quantile(decisive.samples_s, [0.25, 0.75]) if decisive.samples_s else None
    return {
        "method": result.candidate.method,
        "outcome": str(decisive.outcome),
        "makespan_s": result.predicted.step_time_s,
        "step_time_s": None if result.measured is None else result.measured.step_time_s,
        "spread_s": None if quartiles is None else float(quartiles[1] - quartiles[0]),
        "speedup_over_single": _speedup(result, single),
        "speedup_over_single_interval": _speedup_interval(result, single),
        "speedup_over_expert": _speedup(result, expert),
        "speedup_over_expert_interval": _speedup_interval(result, expert),
        "peak_memory_bytes": list(result.predicted.peak_memory_bytes),
        "detail": decisive.detail,
        "placement": result.candidate.placement.fingerprint,
    }


def _speedup(result: Result, reference: Result | None) -> float | None:
    time_s = result.decisive.step_time_s
    reference_s = None if reference is None else reference.decisive.step_time_s
    return reference_s / time_s if reference_s and time_s else None


def _speedup_interval(result: Result, reference: Result | None) -> list[float] | None:
    """Return low and high, if both were timed in the same rounds, and in enough of them."""
    if reference is None or reference.measured is None or result.measured is None:
        return None
    samples_s, reference_s = result.measured.samples_s, reference.measured.samples_s
    if len(samples_s) != len(reference_s) or len(samples_s) < samples_needed():
        return None
    interval = ratio_interval(reference_s, samples_s)
    return [interval.low, interval.high]
