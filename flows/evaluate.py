"""The evaluate flow: judge the learned placements beside every heuristic, and pick one."""

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from prefect import flow, task

from flows.stages import (
    EVALUATE,
    EVALUATION_FILE,
    PLACEMENT_FILE,
    REPORT_FILE,
    Inputs,
    reused,
    stage_key,
)
from placer.config import LOCAL, EvaluateSettings
from placer.evaluation import (
    EXPERT,
    SINGLE_DEVICE,
    Evaluation,
    InterleavedEnvironment,
    candidates,
)
from placer.evaluation import evaluate as judge
from placer.figures import device_load, learning_curve, step_times
from placer.files import atomic_write, save_placement, write_json
from placer.heuristics import heuristic_placements
from placer.mlflow_store import Store, open_store
from placer.report import Report, answer
from placer.simulator import SimulatedEnvironment, Simulator
from placer.trials import Trial

_log = logging.getLogger(__name__)


@task(task_run_name="evaluate {training_run}")
def evaluate_training(training_run: str, settings: EvaluateSettings) -> str:
    """Judge a training's best placements; return the id of the stage's run."""
    from placer.mlflow_trial_log import MLflowTrialLog

    store = open_store()
    inputs = Inputs.of_training(store, training_run)
    key = stage_key(EVALUATE, inputs.fingerprint, settings)
    if run_id := reused(store, EVALUATE, key):
        return run_id
    trials = MLflowTrialLog(store, training_run).trials()
    heuristics = heuristic_placements(inputs.profile, inputs.grouping)
    chosen = candidates(heuristics, trials, inputs.grouping, num_learned=settings.num_learned)
    simulator = Simulator(inputs.profile)
    with _real_environment(store, inputs) as real:
        evaluation = judge(chosen, SimulatedEnvironment(simulator), real, rounds=settings.rounds)
    name = f"evaluate {inputs.graph_name} on {inputs.profile.topology.name}"
    with store.stage(
        EVALUATE, key, name=name, params=settings.model_dump(), tags=inputs.tags
    ) as run:
        _log_results(run, inputs, evaluation, trials, simulator)
    return run.run_id
