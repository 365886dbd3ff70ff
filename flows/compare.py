"""The compare command: what two runs or more found, side by side, kept as a run of its own.

It reads the store and needs no Prefect server. The same runs with the same contents have one
comparison: asked for again, its run is the answer.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from flows.benchmark import read_search
from flows.compare_results import show_comparison
from flows.console import warn
from flows.stages import (
    COMPARE,
    EVALUATE,
    SEARCH,
    TRAIN,
    finished_run,
    read_grouping,
    reused,
    selection,
    stage_key,
)
from placer.bounds import lower_bound
from placer.comparison import (
    Comparison,
    RunSummary,
    compare,
    search_findings,
    training_findings,
)
from placer.comparison_figure import comparison_curves
from placer.comparison_table import markdown_comparison
from placer.errors import InvalidValueError, PlacerError
from placer.files import atomic_write
from placer.fingerprint import fingerprint
from placer.mlflow_store import OpenRun, Store, open_store
from placer.mlflow_trial_log import MLflowTrialLog
from placer.placement_difference import GroupedProfile
from placer.stage_run import StageRun
from placer.tracking_names import (
    COMPARED_RUNS,
    COMPARISON_FIGURE,
    COMPARISON_FILE,
    COMPARISON_TABLE_FILE,
    GRAPH,
    GRAPH_FINGERPRINT,
    GROUPING_RUN,
    STAGE,
    TOPOLOGY,
    TOPOLOGY_FINGERPRINT,
    TRAINING_RUN,
)

_MOST_SELECTED = 20
_MOST_RUNS = 50
_MOST_NOTE = 4900
"""Characters of a text that is shown with a figure: the store takes 5,000 together."""

_log = logging.getLogger(__name__)


def compare_runs(
    run_ids: Sequence[str],
    *,
    graph: str | None,
    tags: Mapping[str, str],
    json_file: Path | None,
    figure_file: Path | None,
) -> None:
    """Compare runs, keep the comparison in the store, print it and write what is asked for.

    Args:
        run_ids: Trainings, searches of a benchmark, and evaluations, which stand for their
            trainings. The first is the one that placements are compared with.
        graph: Also the newest trainings of the graph of this name.
        tags: Also the newest trainings with these tags; of that graph, if it is named.
        json_file: Where to write the whole comparison.
        figure_file: Where to write the figure, a PNG file.

    Raises:
        PlacerError: If there are not two runs to compare, one is not of these stages, or a file
            cannot be written; the message is one line.
    """
    if figure_file is not None and figure_file.suffix != ".png":
        raise InvalidValueError(f"--figure must name a .png file, got {str(figure_file)!r}")
    store = open_store()
    runs = {run.run_id: run for run in (_resolved(store, run_id) for run_id in run_ids)}
    if wanted := selection(graph, tags):
        runs |= {run.run_id: run for run in _selected(store, wanted)}
    if not 2 <= len(runs) <= _MOST_RUNS:
        raise InvalidValueError(
            f"a comparison is of 2 to {_MOST_RUNS} different runs, got {len(runs)}"
            f" ({', '.join(list(runs)[:3]) or 'none'}{' …' if len(runs) > 3 else ''}); an"
            " evaluation counts as its training"
        )
    comparison = _Reader(store).comparison(list(runs.values()))
    run_id = _kept(store, comparison)
    for warning in comparison.warnings:
        warn(f"not comparable: {warning}")
    show_comparison(comparison, run_id)
    for path, artifact in ((json_file, COMPARISON_FILE), (figure_file, COMPARISON_FIGURE)):
        if path is not None:
            atomic_write(path, store.download(run_id, artifact).read_bytes())


def _resolved(store: Store, run_id: str) -> StageRun:
    """Return the run that a given id stands for."""
    run = store.run(run_id)
    stage = run.tags.get(STAGE, "none of Placer's stages")
    if stage == EVALUATE and TRAINING_RUN in run.tags:
        return store.run(run.tags[TRAINING_RUN])
    if stage == SEARCH:
        return finished_run(store, run_id, SEARCH)
    if stage != TRAIN:
        raise InvalidValueError(
            f"run {run_id} is of {stage}, expected a training, a search of a benchmark or an"
            " evaluation"
        )
    return run


def _selected(store: Store, tags: Mapping[str, str]) -> list[StageRun]:
    """Return the newest trainings with these tags, the oldest of them first."""
    found = store.trainings(tags, limit=_MOST_SELECTED + 1)
    shown = ", ".join(f"{name} = {value!r}" for name, value in tags.items())
    if not found:
        raise InvalidValueError(f"no training has {shown}")
    if len(found) > _MOST_SELECTED:
        _log.info("compare: of the trainings with %s the newest %d", shown, _MOST_SELECTED)
    return found[_MOST_SELECTED - 1 :: -1]


class _Reader:
    """Reads runs from the store; what several of them were made from is read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._grouped: dict[str, GroupedProfile | None] = {}
        self._bounds_s: dict[str, float] = {}

    def comparison(self, runs: Sequence[StageRun]) -> Comparison:
        """Return the runs side by side."""
        summaries = [self._summary(run) for run in runs]
        grouped = {
            _grouping_name(known): known for known in self._grouped.values() if known is not None
        }
        return compare(summaries, grouped)

    def _summary(self, run: StageRun) -> RunSummary:
        grouping_run = run.tags.get(GROUPING_RUN, "")
        known = self._grouped_by(grouping_run)
        if run.tags[STAGE] == SEARCH:
            findings = search_findings(read_search(self._store, run.run_id))
            method = run.params.get("method", "–")
        else:
            findings = training_findings(MLflowTrialLog(self._store, run.run_id).trials())
            parts = [run.params.get(name) for name in ("policy.network", "trainer")]
            method = ", ".join(part for part in parts if part) or "–"
        return RunSummary(
            run_id=run.run_id,
            name=run.name,
            stage=run.tags[STAGE],
            status=run.state,
            graph=run.tags.get(GRAPH, "–"),
            topology=run.tags.get(TOPOLOGY, "–"),
            graph_fingerprint=run.tags.get(GRAPH_FINGERPRINT, ""),
            topology_fingerprint=run.tags.get(TOPOLOGY_FINGERPRINT, ""),
            profile_fingerprint="" if known is None else known.profile.fingerprint,
            grouping=grouping_run if known is None else _grouping_name(known),
            method=method,
            params=run.params,
            bound_s=None if known is None else self._bound_s(known),
            findings=findings,
        )

    def _grouped_by(self, grouping_run: str) -> GroupedProfile | None:
        """Return what a grouping run made; None, and say so, if it cannot be read."""
        if grouping_run and grouping_run not in self._grouped:
            try:
                inputs = read_grouping(self._store, grouping_run)
            except PlacerError as error:
                self._grouped[grouping_run] = None
                _log.warning("compare: no bound and no names of groups: %s", error)
            else:
                self._grouped[grouping_run] = GroupedProfile(inputs.profile, inputs.grouping)
        return self._grouped.get(grouping_run)

    def _bound_s(self, known: GroupedProfile) -> float:
        name = fingerprint([known.profile.fingerprint, known.grouping.fingerprint])
        if name not in self._bounds_s:
            self._bounds_s[name] = lower_bound(known.profile, known.grouping).seconds
        return self._bounds_s[name]


def _grouping_name(known: GroupedProfile) -> str:
    """Return a name that runs share if they placed the same groups on the same devices."""
    profile = known.profile
    parts = (profile.graph.fingerprint, profile.topology.fingerprint, known.grouping.fingerprint)
    return fingerprint(parts)


def _kept(store: Store, comparison: Comparison) -> str:
    """Return the run that holds the comparison, a new one if there is none yet."""
    document = comparison.document()
    key = stage_key(COMPARE, json.dumps(document, sort_keys=True))
    if run_id := reused(store, COMPARE, key):
        return run_id
    graphs = dict.fromkeys(run.graph for run in comparison.runs)
    name = f"compare {len(comparison.runs)} runs of {', '.join(graphs)}"
    ids = [run.run_id for run in comparison.runs]
    tags = {**_shared_tags(comparison.runs), COMPARED_RUNS: " ".join(ids)}
    with store.stage(COMPARE, key, name=name, params={}, tags=tags) as run:
        _log_comparison(run, comparison)
    return run.run_id


def _log_comparison(run: OpenRun, comparison: Comparison) -> None:
    head = {"version": 1, "kind": "placer.comparison", "run_id": run.run_id}
    run.log_text(json.dumps({**head, **comparison.document()}, indent=2), COMPARISON_FILE)
    markdown = markdown_comparison(comparison)
    run.log_text(markdown, COMPARISON_TABLE_FILE)
    run.log_figure(comparison_curves(comparison.runs), COMPARISON_FIGURE)
    run.describe(_note(markdown), [COMPARISON_FIGURE])


def _note(markdown: str) -> str:
    """Return as much of a text, in whole lines, as the store takes for a description."""
    if len(markdown) <= _MOST_NOTE:
        return markdown
    rest = f"\n\nThe rest is in {COMPARISON_TABLE_FILE}.\n"
    return markdown[: _MOST_NOTE - len(rest)].rpartition("\n")[0] + rest


def _shared_tags(runs: Sequence[RunSummary]) -> dict[str, str]:
    """Return those of the tags about graph and topology that all runs have alike."""
    values = {
        GRAPH: {run.graph for run in runs},
        TOPOLOGY: {run.topology for run in runs},
        GRAPH_FINGERPRINT: {run.graph_fingerprint for run in runs},
        TOPOLOGY_FINGERPRINT: {run.topology_fingerprint for run in runs},
    }
    return {tag: found.pop() for tag, found in values.items() if len(found) == 1}
