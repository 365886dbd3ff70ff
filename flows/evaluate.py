"""The evaluate flow: judge the learned placements beside every heuristic, and pick one."""

import importlib.metadata
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from prefect import flow, task

from flows.real_devices import real_environment
from flows.stages import (
    EVALUATE,
    EVALUATION_FILE,
    PLACEMENT_FILE,
    REPORT_FILE,
    GroupedInputs,
    read_training,
    reused,
    stage_key,
)
from placer.bounds import lower_bound
from placer.config import EvaluateSettings
from placer.environment import REAL, Environment
from placer.evaluation import SEARCHED, Evaluation, candidates
from placer.evaluation import evaluate as judge
from placer.figures import device_load, learning_curve, step_times
from placer.files import save_placement, write_json
from placer.heuristics import heuristic_placements
from placer.mlflow_inputs import log_graph
from placer.mlflow_store import OpenRun, open_store
from placer.policy import Actions
from placer.profile import CALIBRATION_PLACEMENTS
from placer.report import Report
from placer.search.methods import AUTO, search
from placer.simulator import SimulatedEnvironment, Simulator
from placer.tracking_names import EVALUATION_BOUND, EVALUATION_GAP, METHOD, TRAINING_RUN
from placer.trials import Trial


@task(task_run_name="evaluate the training of run {training_run}")
def evaluate_training(training_run: str, settings: EvaluateSettings) -> str:
    """Judge a training's best placements; return the id of the stage's run."""
    store = open_store()
    inputs = read_training(store, training_run)
    key = stage_key(EVALUATE, inputs.content, settings)
    if run_id := reused(store, EVALUATE, key):
        return run_id
    from placer.mlflow_trial_log import MLflowTrialLog

    trials = MLflowTrialLog(store, training_run).trials()
    simulator = Simulator(inputs.profile)
    environment = SimulatedEnvironment(simulator)
    untrained = heuristic_placements(inputs.profile, inputs.grouping)
    untrained |= _searched(inputs, environment, settings.search_trials)
    chosen = candidates(untrained, trials, inputs.grouping, num_learned=settings.num_learned)
    bound = lower_bound(inputs.profile, inputs.grouping)
    with real_environment(store, inputs) as real:
        evaluation = judge(chosen, environment, real, rounds=settings.rounds, bound=bound)
    method = evaluation.best.candidate.method
    name = f"evaluate {inputs.graph_name} on {inputs.profile.topology.name}"
    tags = {**inputs.tags, METHOD: method}
    params = settings.model_dump()
    with store.stage(EVALUATE, key, name=name, params=params, tags=tags) as run:
        log_graph(run, inputs.graph_name, inputs.profile)
        _log_evaluation(run, inputs, evaluation, _figures(evaluation, trials, simulator))
    return run.run_id


def _searched(
    inputs: GroupedInputs, environment: Environment, num_trials: int
) -> dict[str, Actions]:
    """Return the placement that the search finds, ``[G]``, by its method; none if none fits."""
    if num_trials == 0:
        return {}
    found = search(AUTO, inputs.profile, inputs.grouping, environment, num_trials=num_trials)
    if found.device_of_group is None:
        return {}
    return {SEARCHED: np.array(found.device_of_group, dtype=np.int32)}


def _figures(
    evaluation: Evaluation, trials: list[Trial], simulator: Simulator
) -> dict[str, Figure]:
    rows = evaluation.rows()
    busy_s = {
        result.candidate.method: np.array(simulator.schedule(result.candidate.placement).busy_s)
        for result in evaluation.results
        if result.predicted.step_time_s is not None
    }
    devices = [device.name for device in simulator.profile.topology.devices]
    return {
        "Step time by method": step_times(rows),
        "Learning curve": _learning_curve(rows, trials),
        "Compute time by device": device_load(devices, busy_s),
    }


def _learning_curve(rows: Sequence[Mapping[str, Any]], trials: Sequence[Trial]) -> Figure:
    """Draw the trials of the environment that had the last word, and what else it said."""
    environment = REAL if any(trial.environment == REAL for trial in trials) else "simulated"
    column = "step_time_s" if environment == REAL else "makespan_s"
    references_s = {
        row["method"]: row[column]
        for row in sorted(rows, key=lambda row: row[column] or 0.0)
        if row[column] and not row["method"].startswith("policy")
    }
    own = [trial for trial in trials if trial.environment == environment]
    return learning_curve(own, references_s)


def _log_evaluation(
    run: OpenRun, inputs: GroupedInputs, evaluation: Evaluation, figures: dict[str, Figure]
) -> None:
    profile, best = inputs.profile, evaluation.best
    report = Report(
        graph=inputs.graph_name,
        topology=profile.topology.name,
        rows=evaluation.rows(),
        bound=evaluation.bound,
        device_names=[device.name for device in profile.topology.devices],
        figures=figures,
        facts=_facts(run, inputs),
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        placement = best.candidate.placement
        save_placement(placement, profile.graph, profile.topology, folder / PLACEMENT_FILE)
        write_json(_document(run, inputs, evaluation, report), folder / EVALUATION_FILE)
        run.log_folder(folder)
    run.log_text(report.html(), REPORT_FILE)
    if evaluation.bound is not None:
        found = {EVALUATION_BOUND: evaluation.bound.seconds, EVALUATION_GAP: report.gap}
        run.log_metrics({name: value for name, value in found.items() if value is not None})
    files = {f"{caption.lower().replace(' ', '_')}.png": caption for caption in figures}
    for file, caption in files.items():
        run.log_figure(figures[caption], file)
    run.describe(report.answer(), list(files))


def _document(
    run: OpenRun, inputs: GroupedInputs, evaluation: Evaluation, report: Report
) -> dict[str, Any]:
    best = evaluation.best
    return {
        "version": 1,
        "kind": "placer.evaluation",
        "run_id": inputs.tags[TRAINING_RUN],
        "evaluation_run_id": run.run_id,
        "answer": report.answer(),
        "graph": report.graph,
        "topology": report.topology,
        "devices": report.device_names,
        "num_ops": inputs.profile.graph.num_ops,
        "num_groups": inputs.grouping.num_groups,
        "method": best.candidate.method,
        "best_makespan_s": best.predicted.step_time_s,
        "best_step_time_s": best.decisive.step_time_s,
        "measured": best.measured is not None,
        "outcome": best.decisive.outcome,
        "lower_bound_s": None if report.bound is None else report.bound.seconds,
        "lower_bound": None if report.bound is None else report.bound.name,
        "gap": report.gap,
        "results": report.rows,
    }


def _facts(run: OpenRun, inputs: GroupedInputs) -> dict[str, str]:
    profile = inputs.profile
    provenance = profile.provenance
    origin = (provenance.method, provenance.host, provenance.date)
    return {
        "ops": f"{profile.graph.num_ops:,}",
        "groups": f"{inputs.grouping.num_groups:,}",
        "op times by": " ".join(part for part in origin if part),
        **{
            f"profile: {name}": value
            for name, value in provenance.facts.items()
            if name != CALIBRATION_PLACEMENTS  # too long for people
        },
        "graph fingerprint": profile.graph.fingerprint,
        "topology fingerprint": profile.topology.fingerprint,
        "training run": inputs.tags[TRAINING_RUN],
        "evaluation run": run.run_id,
        **{name: importlib.metadata.version(name) for name in ("placer", "tensorflow")},
    }


@flow(name="evaluate", flow_run_name="evaluate the training of run {training_run}")
def evaluate(training_run: str, settings: EvaluateSettings = EvaluateSettings()) -> str:
    """Judge a training's placements beside the heuristics, on real devices where they are.

    Args:
        training_run: Id of the MLflow run that holds the training.
        settings: How to judge.

    Returns:
        Id of the MLflow run that holds the evaluation and the winning placement.
    """
    return evaluate_training(training_run, settings)
