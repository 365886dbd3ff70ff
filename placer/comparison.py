"""Runs side by side: what each found, when, and in what their settings and placements differ.

A run is a training or a search of a benchmark. Step times are compared only where they mean
the same: of one graph with the same op times, on one topology, in one environment. Where they
do not, the comparison says so and names no winner. Settings are compared where the runs of a
stage have them; placements of the same groups are compared with those of the first run.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from placer.benchmark import CellResult, gap_over
from placer.environment import REAL
from placer.placement_difference import GroupedProfile, PlacementDifference, placement_difference
from placer.ranking import fastest, step_time_s
from placer.trials import Trial

Steps = tuple[tuple[float, float], ...]
"""A curve: the best step time in seconds from each place on, and at the end of the run."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What one run found.

    Attributes:
        num_trials: Placements that were tried.
        environment: That of the best trial; of the last one if none ran, empty if there is none.
        best_step_time_s: In that environment; None if no trial ran.
        best_trial: Its number, from 0.
        is_thinned: Whether that is only the latest that it can be: a search keeps its curve at
            about 100 evaluations.
        time_to_best_s: Wall time from the run's first trial to its best, pauses included; None
            if not known.
        invalid_share: Share of the measured trials that did not run; None if not known.
        device_of_group: The best placement, ``[G]``.
        best_by_trial: The best so far by trial number.
        best_by_time: The best so far by seconds since the first trial; of a search its end alone.
    """

    num_trials: int
    environment: str = ""
    best_step_time_s: float | None = None
    best_trial: int | None = None
    is_thinned: bool = False
    time_to_best_s: float | None = None
    invalid_share: float | None = None
    device_of_group: tuple[int, ...] | None = None
    best_by_trial: Steps = ()
    best_by_time: Steps = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run, where it stands, and what it found.

    Attributes:
        run_id: MLflow's id.
        name: For people.
        stage: ``train`` or ``search``.
        status: RUNNING, FINISHED, FAILED or INTERRUPTED, see ``placer.stage_run``.
        graph: How people call the graph.
        topology: How people call the topology.
        graph_fingerprint: Empty if not known, as the next three.
        topology_fingerprint: Of devices and links.
        profile_fingerprint: Of graph, op times and topology.
        grouping: Equal for runs that placed the same groups.
        method: The search method, or the policy network and the trainer.
        params: Settings, as text.
        bound_s: Makespan that no placement of these groups is below; None if not known.
        findings: What it found.
    """

    run_id: str
    name: str
    stage: str
    status: str
    graph: str
    topology: str
    graph_fingerprint: str = ""
    topology_fingerprint: str = ""
    profile_fingerprint: str = ""
    grouping: str = ""
    method: str
    params: Mapping[str, str]
    bound_s: float | None = None
    findings: Findings

    @property
    def short_id(self) -> str:
        """The first digits of the run's id."""
        return short_id(self.run_id)

    @property
    def gap(self) -> float | None:
        """How far the best is above the bound, as a share of it; None for measured times."""
        if self.bound_s is None or self.findings.environment == REAL:
            return None
        return gap_over(self.findings.best_step_time_s, self.bound_s)

    def document(self) -> dict[str, Any]:
        """Return it as plain values, for a file."""
        return {**dataclasses.asdict(self), "params": dict(self.params), "gap": self.gap}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPlacements:
    """The best placements of two runs.

    Attributes:
        first: Id of the run that is compared with.
        second: Id of the other.
        difference: None if they cannot be compared.
        reason: Why not; empty if they can.
    """

    first: str
    second: str
    difference: PlacementDifference | None = None
    reason: str = ""

    def document(self) -> dict[str, Any]:
        """Return it as plain values, for a file."""
        share = None if self.difference is None else self.difference.moved_share
        return {**dataclasses.asdict(self), "moved_share": share}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Runs side by side.

    Attributes:
        runs: In the order asked for; the first is what placements are compared with.
        settings: Values that differ, by setting, one a run; None where a run has no such setting.
        placements: Each run's best against that of the first.
        warnings: Why step times are not comparable, a line each.
    """

    runs: tuple[RunSummary, ...]
    settings: Mapping[str, tuple[str | None, ...]]
    placements: tuple[ComparedPlacements, ...]
    warnings: tuple[str, ...]

    @property
    def best_runs(self) -> tuple[str, ...]:
        """Ids of the runs with the least step time; none if they are not comparable."""
        times_s = {run.run_id: run.findings.best_step_time_s for run in self.runs}
        least_s = min((time_s for time_s in times_s.values() if time_s is not None), default=None)
        if self.warnings or least_s is None:
            return ()
        return tuple(run_id for run_id, time_s in times_s.items() if time_s == least_s)

    def document(self) -> dict[str, Any]:
        """Return it as plain values, for a file."""
        return {
            "runs": [run.document() for run in self.runs],
            "best_runs": list(self.best_runs),
            "settings": {name: list(values) for name, values in self.settings.items()},
            "placements": [placements.document() for placements in self.placements],
            "warnings": list(self.warnings),
        }


def short_id(run_id: str) -> str:
    """Return the first digits of a run's id, which tell the runs of a table apart."""
    return run_id[:8]


def training_findings(trials: Sequence[Trial]) -> Findings:
    """Return what a training found so far.

    Args:
        trials: All trials that were kept, by number.
    """
    if not trials:
        return Findings(num_trials=0)
    started_s = min(trial.finished_at_s for trial in trials)
    best = fastest(trials)
    measured = [trial.measurement for trial in trials if trial.measurement is not None]
    failed = sum(measurement.step_time_s is None for measurement in measured)
    by_time = sorted(trials, key=lambda trial: (trial.finished_at_s, trial.number))
    return Findings(
        num_trials=len(trials),
        environment=(best or trials[-1]).environment,
        best_step_time_s=step_time_s(best),
        best_trial=None if best is None else best.number,
        time_to_best_s=None if best is None else best.finished_at_s - started_s,
        invalid_share=failed / len(measured) if measured else None,
        device_of_group=None if best is None else best.device_of_group,
        best_by_trial=_steps(trials, lambda trial: trial.number),
        best_by_time=_steps(by_time, lambda trial: trial.finished_at_s - started_s),
    )


def search_findings(result: CellResult) -> Findings:
    """Return what a search of a benchmark found."""
    best_s = result.makespan_s
    at = next((evaluation for evaluation, time_s in result.curve if time_s == best_s), None)
    return Findings(
        num_trials=result.num_evaluations,
        environment="simulated",
        best_step_time_s=best_s,
        best_trial=None if at is None else at - 1,
        is_thinned=True,
        device_of_group=result.device_of_group,
        best_by_trial=tuple((evaluation - 1, time_s) for evaluation, time_s in result.curve),
        best_by_time=() if best_s is None else ((result.search_s, best_s),),
    )


def compare(runs: Sequence[RunSummary], grouped: Mapping[str, GroupedProfile]) -> Comparison:
    """Return the runs side by side.

    Args:
        runs: Two or more.
        grouped: What was placed, by ``RunSummary.grouping``, as far as it is known.
    """
    return Comparison(
        runs=tuple(runs),
        settings=differing_settings(runs),
        placements=tuple(_compared(runs[0], run, grouped) for run in runs[1:]),
        warnings=tuple(_warnings(runs)),
    )


def differing_settings(runs: Sequence[RunSummary]) -> dict[str, tuple[str | None, ...]]:
    """Return the values of each setting that differs between the runs, by name.

    A setting that all runs of a stage lack is none of that stage, and no difference.
    """
    names = dict.fromkeys(name for run in runs for name in run.params)
    settings = {}
    for name in names:
        stages = {run.stage for run in runs if name in run.params}
        if len({run.params.get(name) for run in runs if run.stage in stages}) > 1:
            settings[name] = tuple(run.params.get(name) for run in runs)
    return settings


def _steps(trials: Sequence[Trial], place: Callable[[Trial], float]) -> Steps:
    """Return where the best so far changes, trials taken in this order, and where they end."""
    best: Trial | None = None
    points: list[tuple[float, float]] = []
    for trial in trials:
        better = fastest([best, trial])
        if better is not best and (time_s := step_time_s(better)) is not None:
            points.append((place(trial), time_s))
        best = better
    if points and points[-1][0] < (end := place(trials[-1])):
        points.append((end, points[-1][1]))
    return tuple(points)


def _compared(
    first: RunSummary, second: RunSummary, grouped: Mapping[str, GroupedProfile]
) -> ComparedPlacements:
    placed, other = first.findings.device_of_group, second.findings.device_of_group
    reason, difference = "", None
    if placed is None or other is None:
        reason = "no placement ran"
    elif not first.grouping or not second.grouping:
        reason = "their groups are not known"
    elif first.grouping != second.grouping:
        reason = "they placed other groups, or on other devices"
    else:
        difference = placement_difference(placed, other, grouped.get(first.grouping))
    return ComparedPlacements(
        first=first.run_id, second=second.run_id, difference=difference, reason=reason
    )


def _warnings(runs: Sequence[RunSummary]) -> list[str]:
    ran = [run for run in runs if run.findings.best_step_time_s is not None]
    environments = _by(ran, lambda run: run.findings.environment)
    warnings = []
    if len(environments) > 1:
        shown = "; ".join(
            f"{'measured on the real devices' if name == REAL else name}: {', '.join(ids)}"
            for name, ids in environments.items()
        )
        warnings.append(f"the best step times are of different environments ({shown})")
    graphs = _by(runs, lambda run: run.graph_fingerprint)
    topologies = _by(runs, lambda run: run.topology_fingerprint)
    for what, found in (("graphs", graphs), ("topologies", topologies)):
        if len(found) > 1:
            shown = "; ".join(f"{name}: {', '.join(ids)}" for name, ids in found.items())
            warnings.append(f"the runs are of different {what} (fingerprint {shown})")
    simulated = [run for run in ran if run.findings.environment != REAL]
    profiles = _by(simulated, lambda run: run.profile_fingerprint)
    if len(profiles) > 1 and len(graphs) < 2 and len(topologies) < 2:
        shown = "; ".join(", ".join(ids) for ids in profiles.values())
        warnings.append(f"the op times behind the simulated step times differ ({shown})")
    return warnings


def _by(runs: Sequence[RunSummary], key: Callable[[RunSummary], str]) -> dict[str, tuple[str, ...]]:
    """Return the short ids of the runs by what they have; what is not known is left out."""
    known = sorted((run for run in runs if key(run)), key=key)
    return {
        name: tuple(run.short_id for run in found)
        for name, found in itertools.groupby(known, key=key)
    }
