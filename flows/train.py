"""The train flow: train the policy on a grouped profile, every trial kept."""

import logging

from prefect import flow, task

from flows.console import follow
from flows.stages import TRAIN, Inputs, reused, stage_key
from placer.config import TrainSettings
from placer.features import group_features
from placer.figures import learning_curve
from placer.mlflow_store import open_store
from placer.reinforce import ReinforceConfig, ReinforceTrainer, failing_step_time_s
from placer.report import seconds
from placer.simulator import SimulatedEnvironment, Simulator
from placer.training import train as run_training

_log = logging.getLogger(__name__)


@task(task_run_name="train on {grouping_run}")
def train_policy(grouping_run: str, settings: TrainSettings) -> str:
    """Train, or continue the training of the same settings; return the id of its run."""
    from placer.mlflow_trial_log import MLflowTrialLog
    from placer.policies.seq2seq import Seq2SeqConfig, Seq2SeqPolicy

    store = open_store()
    inputs = Inputs.of_grouping(store, grouping_run)
    key = stage_key(TRAIN, inputs.fingerprint, settings)
    if run_id := reused(store, TRAIN, key):
        return run_id
    profile, grouping = inputs.profile, inputs.grouping
    policy = Seq2SeqPolicy(
        group_features(profile, grouping), Seq2SeqConfig(**settings.policy()), seed=settings.seed
    )
    failing_s = settings.failing_step_time_s or failing_step_time_s(profile)
    trainer = ReinforceTrainer(
        policy, ReinforceConfig(failing_step_time_s=failing_s, **settings.trainer())
    )
    environment = SimulatedEnvironment(Simulator(profile))
    name = f"train {inputs.graph_name} on {profile.topology.name}, seed {settings.seed}"
    with store.training(key, name=name, params=settings.model_dump(), tags=inputs.tags) as run:
        log = MLflowTrialLog(store, run.run_id)
        updates = run_training(
            trainer,
            environment,
            grouping,
            log,
            num_trials=settings.trials,
            checkpoint_every=settings.checkpoint_every,
        )
        for progress in follow(updates, num_trials=settings.trials):
            latest = progress
        run.log_figure(learning_curve(log.trials(), {}), "learning_curve.png")
    _log.info("%s: best %s", name, seconds(latest.best_step_time_s))
    return run.run_id


@flow(name="train", flow_run_name="train on {grouping_run}, seed {settings.seed}")
def train(grouping_run: str, settings: TrainSettings = TrainSettings()) -> str:
    """Train the policy in the simulation of a grouped profile.

    Args:
        grouping_run: Id of the MLflow run that holds the grouping.
        settings: How to train.

    Returns:
        Id of the MLflow run that holds the training and all its trials.
    """
    return train_policy(grouping_run, settings)
