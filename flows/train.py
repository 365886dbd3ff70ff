"""The train flow: train the policy on a grouped profile, every trial kept.

Trials are measured in the simulation, on the real devices, or first in the one and then on
the other. Whatever measures, the trials are in one table, and a training that was interrupted
goes on where it was.
"""

import datetime
import json
import logging
from typing import Any

from prefect import flow, task

from flows.console import follow
from flows.process import quiet_start
from flows.real_devices import (
    further_environments,
    leave_gpus_to_workers,
    real_devices,
    require_real_devices,
)
from flows.stages import (
    TRAIN,
    GroupedInputs,
    finished_run,
    read_grouping,
    reused,
    stage_key,
    versions,
)
from placer.batch_trainer import BatchTrainer
from placer.config import TrainSettings
from placer.cross_entropy import CrossEntropyConfig, CrossEntropyTrainer
from placer.figures import learning_curve
from placer.mlflow_inputs import log_graph
from placer.mlflow_store import OpenRun, Store, open_store
from placer.policies.by_name import GRAPH, policy_by_name
from placer.policy import Policy
from placer.ppo import PpoConfig, PpoTrainer
from placer.profile import Profile
from placer.reinforce import ReinforceConfig, ReinforceTrainer, failing_step_time_s
from placer.report import seconds
from placer.simulator import SimulatedEnvironment, Simulator
from placer.tracking_names import TRAINING_SETTINGS_FILE
from placer.training import train as run_training
from placer.training_summary import training_summary
from placer.trial_table import top_placements
from placer.trials import Trial, TrialLog
from placer.warm_start import imitate, placement_to_imitate, restore_policy

_LEAST_STEPS = 10
"""Of a measured placement: one that checks devices, three at least to settle, six timed."""

_log = logging.getLogger(__name__)


@task(task_run_name="train on the grouping of run {grouping_run}")
def train_policy(grouping_run: str, settings: TrainSettings) -> str:
    """Train, or continue the training of the same settings; return the id of its run."""
    store = open_store()
    inputs = read_grouping(store, grouping_run)
    key = stage_key(TRAIN, inputs.content, settings)
    if run_id := reused(store, TRAIN, key):
        return run_id
    require_devices(store, inputs, settings)
    name = training_name(inputs, settings)
    with store.training(key, name=name, params=settings.model_dump(), tags=inputs.tags) as run:
        keep_settings(run, settings)
        conduct(store, run, inputs, settings)
    return run.run_id


def training_name(inputs: GroupedInputs, settings: TrainSettings) -> str:
    """Return how people call a training."""
    return f"train {inputs.graph_name} on {inputs.profile.topology.name}, seed {settings.seed}"


def require_devices(store: Store, inputs: GroupedInputs, settings: TrainSettings) -> None:
    """See that the real devices are there if a training needs them, and leave them to workers."""
    if settings.environment != "simulated":
        require_real_devices(store, inputs)
        leave_gpus_to_workers()


def keep_settings(run: OpenRun, settings: TrainSettings) -> None:
    """Keep what a training is begun with, for whoever goes on with it."""
    document = {
        "version": 1,
        "kind": "placer.training",
        "versions": versions(),
        "settings": settings.model_dump(mode="json"),
    }
    run.log_text(json.dumps(document, indent=2), TRAINING_SETTINGS_FILE)


def conduct(store: Store, run: OpenRun, inputs: GroupedInputs, settings: TrainSettings) -> None:
    """Train in an open run from where its log ends, and show there what was found."""
    from placer.mlflow_registry import register_policy
    from placer.mlflow_trial_log import MLflowTrialLog

    log_graph(run, inputs.graph_name, inputs.profile)
    with MLflowTrialLog(store, run.run_id) as log:
        _train(store, inputs, settings, log)
        trials = log.trials()
        names = [device.name for device in inputs.profile.topology.devices]
        log.log_top_placements(top_placements(trials, inputs.grouping, names))
        _describe(run, trials)
        checkpoint = log.load_checkpoint()
    champion = register_policy(store, run.run_id, inputs, settings, trials, checkpoint)
    _log.info("%s: %s", training_name(inputs, settings), training_summary(trials))
    if champion is not None:
        _log.info("train: its policy is the champion now, %s", champion)


def _train(store: Store, inputs: GroupedInputs, settings: TrainSettings, log: TrialLog) -> None:
    """Train in the simulation, then on the real devices, as far as each is asked for."""
    trainer = _trainer(store, inputs, settings)
    if settings.simulated_trials:
        updates = run_training(
            trainer,
            SimulatedEnvironment(Simulator(inputs.profile)),
            inputs.grouping,
            log,
            num_trials=settings.simulated_trials,
            checkpoint_every=settings.checkpoint_every,
        )
        for _ in follow(updates, num_trials=settings.total_trials):
            pass
    num_real = settings.total_trials - max(settings.simulated_trials, len(log.trials()))
    if num_real <= 0:
        return
    with quiet_start():
        from profiling.real_environment import MeasurementConfig

    _log.info("train: %s", _announcement(inputs.profile, num_real))
    config = MeasurementConfig(**settings.measurement.model_dump())
    with (
        real_devices(store, inputs, config) as devices,
        further_environments(devices, inputs.profile, settings.more_clusters, config) as further,
    ):
        updates = run_training(
            trainer,
            devices.environment,
            inputs.grouping,
            log,
            num_trials=settings.total_trials,
            checkpoint_every=settings.checkpoint_every,
            at_once=1,
            also_on=further,
        )
        for _ in follow(updates, num_trials=settings.total_trials):
            pass


def _announcement(profile: Profile, num_trials: int) -> str:
    """Say what the real trials will take, as far as the profile tells."""
    step_s = float(profile.compute_time_s.sum(axis=0).min())
    least = datetime.timedelta(seconds=round(num_trials * _LEAST_STEPS * step_s))
    return (
        f"{num_trials:,} placements on the real devices, {_LEAST_STEPS} or more steps of each;"
        f" at {seconds(step_s)} a step, as on one device, more than {least} hours:minutes:seconds."
        " It can be interrupted: the same command goes on"
    )


def _describe(run: OpenRun, trials: list[Trial]) -> None:
    """Show on the run's page what was found, one learning curve for each environment."""
    environments = dict.fromkeys(trial.environment for trial in trials)
    figures = []
    for environment in environments:
        own = [trial for trial in trials if trial.environment == environment]
        suffix = f"_{environment}" if len(environments) > 1 else ""
        figures.append(f"learning_curve{suffix}.png")
        run.log_figure(learning_curve(own, {}), figures[-1])
    run.describe(training_summary(trials), figures)


def _trainer(store: Store, inputs: GroupedInputs, settings: TrainSettings) -> BatchTrainer:
    policy = _policy(inputs, settings)
    _warm_up(policy, store, inputs, settings)
    config = trainer_config(inputs.profile, settings)
    if isinstance(config, CrossEntropyConfig):
        return CrossEntropyTrainer(policy, config)
    if isinstance(config, PpoConfig):
        return PpoTrainer(policy, config)
    return ReinforceTrainer(policy, config)


def trainer_config(
    profile: Profile, settings: TrainSettings
) -> CrossEntropyConfig | PpoConfig | ReinforceConfig:
    """Return what the trainer of these settings needs to know, which is part of a checkpoint."""
    shared: dict[str, Any] = {
        "failing_step_time_s": settings.failing_step_time_s or failing_step_time_s(profile),
        "batch_size": settings.batch_size,
        "in_flight": settings.in_flight,
        "seed": settings.seed,
    }
    if settings.trainer == "cross-entropy":
        return CrossEntropyConfig(**shared, **settings.cross_entropy.model_dump())
    shared |= {
        "baseline_decay": settings.baseline_decay,
        "runnable_only_after": settings.runnable_only_after,
        # A policy that knows something would learn to repeat whatever it draws first.
        "start_from_failing": settings.policy.network != GRAPH
        and settings.warm_start is None
        and settings.warm_start_run is None,
    }
    if settings.trainer == "ppo":
        return PpoConfig(**shared, **settings.ppo.model_dump())
    return ReinforceConfig(**shared)


def _policy(inputs: GroupedInputs, settings: TrainSettings) -> Policy:
    """Return the network of the settings' name, as it is before the first trial."""
    sizes = settings.policy.model_dump(exclude={"network"})
    with quiet_start():
        return policy_by_name(
            settings.policy.network, inputs.profile, inputs.grouping, sizes, seed=settings.seed
        )


def _warm_up(policy: Policy, store: Store, inputs: GroupedInputs, settings: TrainSettings) -> None:
    """Teach the policy what it is to know before its first trial."""
    if settings.warm_start_run is not None:
        from placer.mlflow_trial_log import MLflowTrialLog

        run_id = finished_run(store, settings.warm_start_run, TRAIN).run_id
        checkpoint = MLflowTrialLog(store, run_id).load_checkpoint()
        restore_policy(policy, checkpoint, run_id=run_id)
    if settings.warm_start is not None:
        actions = placement_to_imitate(
            settings.warm_start,
            inputs.profile,
            inputs.grouping,
            SimulatedEnvironment(Simulator(inputs.profile)),
            seed=settings.seed,
        )
        num_updates = imitate(
            policy,
            actions,
            max_updates=settings.warm_start_updates,
            batch_size=settings.batch_size,
        )
        _log.info("train: imitated %r in %d updates", settings.warm_start, num_updates)


@flow(name="train", flow_run_name="train on the grouping of run {grouping_run}")
def train(grouping_run: str, settings: TrainSettings = TrainSettings()) -> str:
    """Train the policy on a grouped profile: in the simulation, on the real devices, or both.

    Args:
        grouping_run: Id of the MLflow run that holds the grouping.
        settings: How to train, and where sampled placements are measured.

    Returns:
        Id of the MLflow run that holds the training and all its trials.
    """
    return train_policy(grouping_run, settings)
