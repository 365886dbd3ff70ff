"""The train flow: train the policy on a grouped profile, every trial kept.

Trials are measured in the simulation, on the real devices, or first in the one and then on
the other. Whatever measures, the trials are in one table, and a training that was interrupted
goes on where it was.
"""

import datetime
import logging

from prefect import flow, task

from flows.console import follow
from flows.process import quiet_start
from flows.real_devices import leave_gpus_to_workers, real_devices, require_real_devices
from flows.stages import TRAIN, GroupedInputs, read_grouping, reused, stage_key
from placer.config import TrainSettings
from placer.features import group_features
from placer.figures import learning_curve
from placer.mlflow_store import OpenRun, Store, open_store
from placer.profile import Profile
from placer.reinforce import ReinforceConfig, ReinforceTrainer, failing_step_time_s
from placer.report import seconds
from placer.simulator import SimulatedEnvironment, Simulator
from placer.training import train as run_training
from placer.training_summary import training_summary
from placer.trial_table import top_placements
from placer.trials import Trial, TrialLog

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
    if settings.environment != "simulated":
        require_real_devices(store, inputs)
        leave_gpus_to_workers()
    from placer.mlflow_trial_log import MLflowTrialLog

    name = f"train {inputs.graph_name} on {inputs.profile.topology.name}, seed {settings.seed}"
    params = settings.model_dump()
    with (
        store.training(key, name=name, params=params, tags=inputs.tags) as run,
        MLflowTrialLog(store, run.run_id) as log,
    ):
        _train(store, inputs, settings, log)
        trials = log.trials()
        names = [device.name for device in inputs.profile.topology.devices]
        log.log_top_placements(top_placements(trials, inputs.grouping, names))
        _describe(run, trials)
    _log.info("%s: %s", name, training_summary(trials))
    return run.run_id


def _train(store: Store, inputs: GroupedInputs, settings: TrainSettings, log: TrialLog) -> None:
    """Train in the simulation, then on the real devices, as far as each is asked for."""
    trainer = _trainer(inputs, settings)
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
    with real_devices(store, inputs, config) as devices:
        updates = run_training(
            trainer,
            devices.environment,
            inputs.grouping,
            log,
            num_trials=settings.total_trials,
            checkpoint_every=settings.checkpoint_every,
            at_once=1,
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
    run.describe(training_summary(trials))
    environments = dict.fromkeys(trial.environment for trial in trials)
    for environment in environments:
        own = [trial for trial in trials if trial.environment == environment]
        suffix = f"_{environment}" if len(environments) > 1 else ""
        run.log_figure(learning_curve(own, {}), f"learning_curve{suffix}.png")


def _trainer(inputs: GroupedInputs, settings: TrainSettings) -> ReinforceTrainer:
    with quiet_start():
        from placer.policies.seq2seq import Seq2SeqConfig, Seq2SeqPolicy

    policy = Seq2SeqPolicy(
        group_features(inputs.profile, inputs.grouping),
        Seq2SeqConfig(**settings.policy.model_dump()),
        seed=settings.seed,
    )
    failing_s = settings.failing_step_time_s or failing_step_time_s(inputs.profile)
    config = ReinforceConfig(
        failing_step_time_s=failing_s,
        batch_size=settings.batch_size,
        baseline_decay=settings.baseline_decay,
        runnable_only_after=settings.runnable_only_after,
        seed=settings.seed,
    )
    return ReinforceTrainer(policy, config)


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
