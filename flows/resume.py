"""The resume flow: a training goes on, with more trials, or as a new run from its checkpoint."""

import dataclasses
import json
import logging
from collections.abc import Mapping
from typing import Any

from prefect import flow, task

from flows.arguments import checked
from flows.stages import TRAIN, read_grouping, reused, stage_key, stage_run, versions
from flows.train import conduct, keep_settings, require_devices, trainer_config, training_name
from placer.config import TrainSettings
from placer.errors import FileFormatError, InvalidValueError, MissingFileError
from placer.mlflow_store import Store, open_store
from placer.mlflow_trial_log import MLflowTrialLog
from placer.setting_changes import differing, with_changes
from placer.stage_run import StageRun
from placer.tracking_names import (
    EXTENDED_TO,
    FORKED_FROM,
    GROUPING_RUN,
    KEY,
    PARENT_RUN,
    TRAINING_SETTINGS_FILE,
)
from placer.trials import Checkpoint

_OF_THE_CHECKPOINT = ("policy", "trainer", "batch_size", "in_flight")
"""Settings, or groups of them, that say what a checkpoint holds."""

_log = logging.getLogger(__name__)


@flow(name="resume", flow_run_name="resume training {run_id}")
def resume(
    run_id: str, extend: int = 0, fork: bool = False, changes: Mapping[str, str] | None = None
) -> str:
    """Go on with a training: one that was interrupted, with more trials, or as a new run.

    Args:
        run_id: Id of the MLflow run that holds the training.
        extend: Trials to add to those that it was to have; of a staged training real ones.
        fork: Leave that run as it is, and go on from its last checkpoint in a new one.
        changes: Settings by dotted name. Other than those of the run only in a fork.

    Returns:
        Id of the MLflow run that holds the training and all its trials.
    """
    return resume_training(run_id, extend, fork, dict(changes or {}))


@task(task_run_name="resume training {run_id}")
def resume_training(run_id: str, extend: int, fork: bool, changes: Mapping[str, str]) -> str:
    """Go on with a training, or with a copy of it; return the id of the run that has it."""
    if extend < 0:
        raise InvalidValueError(f"--extend must be 0 or more trials, got {extend}")
    store = open_store()
    run = stage_run(store, run_id, TRAIN)
    begun = _Begun.read(store, run)
    wanted = checked(TrainSettings, **with_changes(begun.settings, changes))
    if fork:
        return _forked(store, run, begun, _extended(wanted, extend))
    begun.check_same(run_id, wanted)
    settings = _extended(begun.settings, extend)
    if run.status == "FINISHED" and not extend:
        _log.info("resume: run %s is finished; --extend N adds trials", run_id)
        return run_id
    return _continued(store, run, settings)


@dataclasses.dataclass(frozen=True)
class _Begun:
    """What a training was begun with.

    Attributes:
        settings: Its own.
        versions: Of what its result depends on, by name.
    """

    settings: TrainSettings
    versions: Mapping[str, str]

    @classmethod
    def read(cls, store: Store, run: StageRun) -> "_Begun":
        try:
            text = store.download(run.run_id, TRAINING_SETTINGS_FILE).read_text()
        except MissingFileError as error:
            raise InvalidValueError(
                f"run {run.run_id} has no {TRAINING_SETTINGS_FILE}: it was begun by an earlier"
                " Placer, or ended before it began; start it again by the command that began it"
            ) from error
        try:
            document = json.loads(text)
            settings, known = document["settings"], document["versions"]
        except (ValueError, KeyError, TypeError) as error:
            raise FileFormatError(
                f"{TRAINING_SETTINGS_FILE} of run {run.run_id} is damaged: {error}"
            ) from error
        return cls(checked(TrainSettings, **settings), known)

    def check_same(self, run_id: str, wanted: TrainSettings) -> None:
        """Check that nothing differs from what the training was begun with.

        Raises:
            InvalidValueError: If something does; the message names it.
        """
        differences: dict[str, tuple[Any, Any]] = dict(differing(self.settings, wanted))
        here = versions()
        differences |= {
            name: (version, here[name])
            for name, version in self.versions.items()
            if here.get(name) != version
        }
        if differences:
            shown = ", ".join(
                f"{name} = {theirs}, not {ours}" for name, (theirs, ours) in differences.items()
            )
            raise InvalidValueError(
                f"run {run_id} was begun with {shown}; --fork goes on so in a new run"
            )


def _extended(settings: TrainSettings, num_trials: int) -> TrainSettings:
    """Return settings with so many more trials, on the real devices if they are the last stage."""
    name = "real_trials" if settings.environment == "staged" else "trials"
    return checked(
        TrainSettings, **settings.model_dump() | {name: getattr(settings, name) + num_trials}
    )


def _continued(store: Store, run: StageRun, settings: TrainSettings) -> str:
    grouping_run = run.tags[GROUPING_RUN]
    inputs = read_grouping(store, grouping_run)
    tags = {KEY: stage_key(TRAIN, inputs.content, settings)}
    numbers = ("trials", "real_trials")
    if any(run.params.get(name) != str(getattr(settings, name)) for name in numbers):
        tags[EXTENDED_TO] = str(settings.total_trials)
    require_devices(store, inputs, settings)
    with store.reopened(run.run_id) as opened:
        keep_settings(opened, settings)
        opened.set_tags(tags)
        conduct(store, opened, inputs, settings)
    return run.run_id


def _forked(store: Store, run: StageRun, begun: _Begun, settings: TrainSettings) -> str:
    for name, (theirs, ours) in differing(begun.settings, settings).items():
        if name.split(".")[0] in _OF_THE_CHECKPOINT:
            raise InvalidValueError(
                f"a fork keeps {name} = {theirs} of its run, whose checkpoint it takes over, got"
                f" {ours}"
            )
    parent = MLflowTrialLog(store, run.run_id)
    checkpoint = parent.load_checkpoint()
    if checkpoint is None:
        raise InvalidValueError(f"run {run.run_id} has no checkpoint yet to go on from")
    if checkpoint.num_trials >= settings.total_trials:
        raise InvalidValueError(
            f"a fork from trial {checkpoint.num_trials:,} of run {run.run_id} to trial"
            f" {settings.total_trials:,} has nothing to do; --extend N adds trials"
        )
    inputs = read_grouping(store, run.tags[GROUPING_RUN])
    key = stage_key(TRAIN, inputs.content, settings, run.run_id, str(checkpoint.update))
    tags = {**inputs.tags, FORKED_FROM: run.run_id, PARENT_RUN: run.run_id}
    if run_id := reused(store, TRAIN, key):
        return run_id
    require_devices(store, inputs, settings)
    name = f"{training_name(inputs, settings)}, from update {checkpoint.update}"
    with store.training(key, name=name, params=settings.model_dump(), tags=tags) as fork:
        config = dataclasses.asdict(trainer_config(inputs.profile, settings))
        _copy(parent, MLflowTrialLog(store, fork.run_id), checkpoint, config)
        # Only a whole copy has settings, and can be resumed.
        keep_settings(fork, settings)
        conduct(store, fork, inputs, settings)
    return fork.run_id


def _copy(
    parent: MLflowTrialLog,
    fork: MLflowTrialLog,
    checkpoint: Checkpoint,
    config: Mapping[str, Any],
) -> None:
    """Give a fork its parent's trials up to a checkpoint, and that with the trainer's new config.

    What an earlier try has copied is left as it is.
    """
    with fork:
        if fork.load_checkpoint() is not None:
            return
        for trials, metrics in parent.updates():
            if trials[0].number < checkpoint.num_trials:
                fork.append(trials, metrics)
        scalars = {**checkpoint.scalars, "config": config}
        fork.save_checkpoint(dataclasses.replace(checkpoint, scalars=scalars))
