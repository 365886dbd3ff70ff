"""The train flow: train the policy on a grouped profile, every trial kept."""

import logging

from prefect import flow, task

from flows.console import follow
from flows.process import quiet_start
from flows.stages import TRAIN, read_grouping, reused, stage_key
from placer.config import TrainSettings
from placer.features import group_features
from placer.figures import learning_curve
from placer.grouping import Grouping
from placer.mlflow_store import open_store
from placer.profile import Profile
from placer.reinforce import ReinforceConfig, ReinforceTrainer, failing_step_time_s
from placer.report import seconds
from placer.simulator import SimulatedEnvironment, Simulator
from placer.training import train as run_training
from placer.trial_table import top_placements

_log = logging.getLogger(__name__)


@task(task_run_name="train on the grouping of run {grouping_run}")
def train_policy(grouping_run: str, settings: TrainSettings) -> str:
    """Train, or continue the training of the same settings; return the id of its run."""
    store = open_store()
    inputs = read_grouping(store, grouping_run)
    key = stage_key(TRAIN, inputs.content, settings)
    if run_id := reused(store, TRAIN, key):
        return run_id
    from placer.mlflow_trial_log import MLflowTrialLog

    name = f"train {inputs.graph_name} on {inputs.profile.topology.name}, seed {settings.seed}"
    params = settings.model_dump()
    with (
        store.training(key, name=name, params=params, tags=inputs.tags) as run,
        MLflowTrialLog(store, run.run_id) as log,
    ):
        updates = run_training(
            _trainer(inputs.profile, inputs.grouping, settings),
            SimulatedEnvironment(Simulator(inputs.profile)),
            inputs.grouping,
            log,
            num_trials=settings.trials,
            checkpoint_every=settings.checkpoint_every,
        )
        for progress in follow(updates, num_trials=settings.trials):
            best_s = progress.best_step_time_s
        trials = log.trials()
        names = [device.name for device in inputs.profile.topology.devices]
        log.log_top_placements(top_placements(trials, inputs.grouping, names))
        run.log_figure(learning_curve(trials, {}), "learning_curve.png")
        run.describe(f"Best of {len(trials):,} sampled placements: {seconds(best_s)} a step.")
    _log.info("%s: best of %d placements %s", name, len(trials), seconds(best_s))
    return run.run_id


def _trainer(profile: Profile, grouping: Grouping, settings: TrainSettings) -> ReinforceTrainer:
    with quiet_start():
        from placer.policies.seq2seq import Seq2SeqConfig, Seq2SeqPolicy

    policy = Seq2SeqPolicy(
        group_features(profile, grouping),
        Seq2SeqConfig(**settings.policy.model_dump()),
        seed=settings.seed,
    )
    config = ReinforceConfig(
        failing_step_time_s=settings.failing_step_time_s or failing_step_time_s(profile),
        batch_size=settings.batch_size,
        baseline_decay=settings.baseline_decay,
        runnable_only_after=settings.runnable_only_after,
        seed=settings.seed,
    )
    return ReinforceTrainer(policy, config)


@flow(name="train", flow_run_name="train on the grouping of run {grouping_run}")
def train(grouping_run: str, settings: TrainSettings = TrainSettings()) -> str:
    """Train the policy in the simulation of a grouped profile.

    Args:
        grouping_run: Id of the MLflow run that holds the grouping.
        settings: How to train.

    Returns:
        Id of the MLflow run that holds the training and all its trials.
    """
    return train_policy(grouping_run, settings)
