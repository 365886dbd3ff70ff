"""Evaluation: which of all placements tried is the best, and by how much.

Every heuristic and the best learned placements are judged by the same environments. A
placement that several methods found is judged once and credited to the simplest of
them: heuristics come before the policy.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from placer.environment import Environment, Measurement, Outcome
from placer.errors import InfeasibleError
from placer.grouping import Grouping
from placer.placement import Placement
from placer.trials import Trial

SINGLE_DEVICE = "single "
"""How the names of the one-device placements begin; the device's name follows."""

EXPERT = "expert"
"""The name of the hand-made placement."""


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
    """

    results: tuple[Result, ...]

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

    def reference_step_time_s(self, prefix: str) -> float | None:
        """Return the least step time among the methods whose name begins so, if any ran."""
        times = [
            result.decisive.step_time_s
            for result in self.results
            if result.candidate.method.startswith(prefix) and result.decisive.step_time_s
        ]
        return min(times, default=None)

    def rows(self) -> list[dict[str, Any]]:
        """Return one plain dictionary a result, for tables and files."""
        single = self.reference_step_time_s(SINGLE_DEVICE)
        expert = self.reference_step_time_s(EXPERT)
        return [_row(result, single=single, expert=expert) for result in self.results]


def candidates(
    heuristics: Mapping[str, npt.NDArray[np.int32]],
    trials: Sequence[Trial],
    grouping: Grouping,
    *,
    num_learned: int,
) -> list[Candidate]:
    """Return the heuristics and the best distinct learned placements, each placement once.

    Args:
        heuristics: Actions by method, ``[G]`` each.
        trials: Measured trials of a training.
        grouping: Turns actions into placements.
        num_learned: How many of the policy's placements to take at most.
    """
    chosen: dict[Placement, Candidate] = {}
    for method, actions in heuristics.items():
        candidate = _candidate(method, actions.tolist(), grouping)
        chosen.setdefault(candidate.placement, candidate)
    limit = len(chosen) + num_learned
    for trial in sorted(_runnable(trials), key=_step_time_s):
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
) -> Evaluation:
    """Judge the candidates in the simulation and, if there is one, on the real devices.

    Args:
        chosen: At least one candidate.
        simulated: Predicts each step time.
        real: Times those that the prediction says can run.
        rounds: Timed steps of each placement.
    """
    predicted = simulated.measure([candidate.placement for candidate in chosen])
    measured: list[Measurement | None] = [None] * len(chosen)
    if real is not None:
        runnable = [i for i, one in enumerate(predicted) if one.outcome is Outcome.OK]
        timed = real.compare([chosen[i].placement for i in runnable], rounds=rounds)
        for i, measurement in zip(runnable, timed, strict=True):
            measured[i] = measurement
    results = [Result(*parts) for parts in zip(chosen, predicted, measured, strict=True)]
    return Evaluation(tuple(sorted(results, key=_rank)))


def _candidate(method: str, actions: Sequence[int], grouping: Grouping) -> Candidate:
    return Candidate(method, tuple(actions), Placement.from_groups(grouping, actions))


def _runnable(trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.measurement and trial.measurement.step_time_s]


def _step_time_s(trial: Trial) -> tuple[float, int]:
    time_s = trial.measurement.step_time_s if trial.measurement else None
    return (np.inf if time_s is None else time_s, trial.number)


def _rank(result: Result) -> tuple[bool, float]:
    # A placement that was predicted not to run was never tried: it ranks below all that were.
    time_s = result.decisive.step_time_s
    return (time_s is None, np.inf if time_s is None else time_s)


def _row(result: Result, *, single: float | None, expert: float | None) -> dict[str, Any]:
    decisive = result.decisive
    time_s = decisive.step_time_s
    quartiles = np.quantile(decisive.samples_s, [0.25, 0.75]) if decisive.samples_s else None
    return {
        "method": result.candidate.method,
        "outcome": str(decisive.outcome),
        "makespan_s": result.predicted.step_time_s,
        "step_time_s": None if result.measured is None else result.measured.step_time_s,
        "spread_s": None if quartiles is None else float(quartiles[1] - quartiles[0]),
        "speedup_over_single": single / time_s if single and time_s else None,
        "speedup_over_expert": expert / time_s if expert and time_s else None,
        "peak_memory_bytes": list(result.predicted.peak_memory_bytes),
        "detail": decisive.detail,
        "placement": result.candidate.placement.fingerprint,
    }
