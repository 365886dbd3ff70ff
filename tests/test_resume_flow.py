"""Trainings that go on: as they were, with more trials, or as a new run from a checkpoint."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.evaluate import evaluate
from flows.group import group
from flows.profile import profile
from flows.resume import resume
from flows.train import train
from placer.config import EvaluateSettings, PolicySettings, ProfileSettings, TrainSettings
from placer.environment import REAL
from placer.errors import FileFormatError, InvalidValueError, StoreError, UnknownNameError
from placer.files import save_profile
from placer.mlflow_store import Store
from placer.mlflow_trial_log import MLflowTrialLog
from placer.stage_run import INTERRUPTED, StageRun
from placer.trials import Trial
from tests.builders import SECOND_PER_BYTE, make_profile, make_topology
from tests.flow_store import store

__all__ = ["store"]

pytest_plugins = ["tests.prefect_server"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect")]

POLICY = PolicySettings(hidden_size=8, attention_size=4, embedding_size=4, jit_compile=False)
TRAIN = TrainSettings(trials=32, batch_size=8, checkpoint_every=1, policy=POLICY)


@pytest.fixture(scope="module")
def grouping_run(store: Store) -> str:
    """Four chains of two ops each, on two devices."""
    tensors = [(2 * chain, (2 * chain + 1,), 1) for chain in range(4)]
    path = Path.cwd() / "chains.json"
    save_profile(make_profile([1.0] * 8, tensors, make_topology(2, SECOND_PER_BYTE)), path)
    return group(profile(ProfileSettings(graph=path)))


@pytest.fixture(scope="module")
def whole(store: Store, grouping_run: str) -> str:
    """A training of 64 trials that was left alone."""
    return train(grouping_run, changed(trials=64))


def changed(**settings: Any) -> TrainSettings:
    return TrainSettings(**TRAIN.model_dump() | settings)


@contextlib.contextmanager
def struck_by_ctrl_c(*, at_trial: int) -> Iterator[list[str]]:
    """Let Ctrl-C strike when these trials are to be kept; yield the runs that it struck."""
    append = MLflowTrialLog.append

    def strike(self: MLflowTrialLog, trials: list[Trial], metrics: dict[str, float]) -> None:
        if trials[0].number >= at_trial:
            struck.append(self.run_id)
            raise KeyboardInterrupt
        append(self, trials, metrics)

    struck: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MLflowTrialLog, "append", strike)
        with contextlib.suppress(KeyboardInterrupt):
            yield struck


def rows(store: Store, run_id: str) -> list[tuple[Any, ...]]:
    """Return all there is about each trial, but when it was measured."""
    return [
        (trial.number, trial.update, trial.device_of_group, trial.environment, trial.measurement)
        for trial in MLflowTrialLog(store, run_id).trials()
    ]


def curves(store: Store, run_id: str) -> dict[str, list[tuple[int, float]]]:
    client = store.connection.client
    return {
        name: sorted((point.step, point.value) for point in client.get_metric_history(run_id, name))
        for name in client.get_run(run_id).data.metrics
    }


def policy_of(store: Store, run_id: str) -> dict[str, np.ndarray[Any, Any]]:
    checkpoint = MLflowTrialLog(store, run_id).load_checkpoint()
    assert checkpoint is not None
    return dict(checkpoint.arrays)


def assert_same_training(store: Store, run_id: str, other: str) -> None:
    assert rows(store, run_id) == rows(store, other)
    assert curves(store, run_id) == curves(store, other)
    np.testing.assert_equal(policy_of(store, run_id), policy_of(store, other))


def test_a_training_that_was_interrupted_goes_on_by_its_id(
    store: Store, grouping_run: str, whole: str
) -> None:
    settings = changed(trials=64, real_trials=1)  # of no effect here, but another training
    with struck_by_ctrl_c(at_trial=24) as struck:
        train(grouping_run, settings)
    (run_id,) = struck
    state = store.run(run_id).state

    again = resume(run_id)

    assert state == INTERRUPTED
    assert again == run_id
    assert store.run(run_id).state == "FINISHED"
    assert "placer.error" not in store.run(run_id).tags
    assert_same_training(store, run_id, whole)


def test_an_extended_training_is_one_that_was_to_have_as_many_trials(
    store: Store, grouping_run: str, whole: str
) -> None:
    run_id = train(grouping_run, changed(trials=40, real_trials=2))
    judged = evaluate(run_id, EvaluateSettings(search_trials=0))

    assert resume(run_id, extend=24) == run_id

    assert_same_training(store, run_id, whole)
    assert store.run(run_id).tags["placer.extended_to"] == "64"
    assert store.run(run_id).params["trials"] == "40"
    # Who asks for 64 trials of these settings now has them, and an evaluation is of them all.
    assert train(grouping_run, changed(trials=64, real_trials=2)) == run_id
    assert evaluate(run_id, EvaluateSettings(search_trials=0)) != judged


def test_a_finished_training_without_more_trials_is_left_as_it_is(store: Store, whole: str) -> None:
    before = store.run(whole)

    assert resume(whole) == whole

    assert store.run(whole) == before


def test_a_fork_goes_on_from_its_parent_s_checkpoint_and_leaves_it_alone(
    store: Store, grouping_run: str, whole: str
) -> None:
    parent = train(grouping_run, changed(trials=40, real_trials=3))
    before = rows(store, parent)

    fork = resume(parent, extend=24, fork=True)

    run = store.run(fork)
    assert fork != parent
    assert rows(store, parent) == before
    assert (run.tags["placer.forked_from"], run.tags["mlflow.parentRunId"]) == (parent, parent)
    assert run.name.endswith(", seed 0, from update 5")
    assert_same_training(store, fork, whole)
    assert resume(parent, extend=24, fork=True) == fork


def test_a_fork_may_have_other_settings(store: Store, whole: str) -> None:
    fork = resume(whole, extend=16, fork=True, changes={"seed": "7", "baseline_decay": "0.5"})

    ours, theirs = rows(store, fork), rows(store, whole)
    same_seed = resume(whole, extend=16, fork=True)
    assert len(ours) == 80
    assert ours[:64] == theirs
    assert ours[64:] != rows(store, same_seed)[64:]
    assert store.run(fork).params["seed"] == "7"
    assert store.run(fork).params["baseline_decay"] == "0.5"


def test_a_fork_that_was_interrupted_goes_on_like_any_training(store: Store, whole: str) -> None:
    with struck_by_ctrl_c(at_trial=24) as copying:
        resume(whole, extend=32, fork=True)
    with struck_by_ctrl_c(at_trial=72) as training:
        resume(whole, extend=32, fork=True)
    assert copying == training
    (fork,) = training

    assert resume(fork) == fork

    extended = resume(train_copy(store, whole), extend=32)
    assert_same_training(store, fork, extended)


def train_copy(store: Store, run_id: str) -> str:
    """Return another run of the same training."""
    settings = json.loads(store.download(run_id, "settings.json").read_text())["settings"]
    grouping_run = store.run(run_id).tags["placer.grouping_run"]
    return train(grouping_run, TrainSettings(**settings | {"real_trials": 9}))


# What is refused


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"seed": "3"}, "seed = 0, not 3"),
        ({"ppo.clip": "0.1", "trials": "100"}, r"trials = 64, not 100, ppo.clip = 0.2, not 0.1"),
        ({"warm_start": "metis"}, "warm_start = None, not metis"),
    ],
)
def test_settings_other_than_the_run_s_are_refused_by_name(
    store: Store, whole: str, changes: dict[str, str], shown: str
) -> None:
    with pytest.raises(InvalidValueError, match=rf"was begun with {shown}; --fork goes on so in"):
        resume(whole, extend=8, changes=changes)

    assert store.run(whole).state == "FINISHED"


def test_settings_that_are_the_run_s_are_no_difference(store: Store, whole: str) -> None:
    assert resume(whole, changes={"seed": "0", "warm_start": "none", "trainer": "reinforce"}) == (
        whole
    )


def test_another_version_is_refused_by_name(
    store: Store, grouping_run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = train(grouping_run, changed(trials=8))
    path = store.download(run_id, "settings.json")
    document = json.loads(path.read_text())
    document["versions"]["tensorflow"] = "2.20.0"
    path.write_text(json.dumps(document))

    with pytest.raises(InvalidValueError, match=r"begun with tensorflow = 2\.20\.0, not 2\.21"):
        resume(run_id, extend=8)


def test_an_unknown_setting_is_named(whole: str) -> None:
    with pytest.raises(UnknownNameError, match="unknown setting 'sed'"):
        resume(whole, changes={"sed": "3"})


def test_a_value_that_cannot_be_is_named(whole: str) -> None:
    with pytest.raises(InvalidValueError, match=r"batch_size: .*got 'many'"):
        resume(whole, fork=True, changes={"batch_size": "many"})


@pytest.mark.parametrize("name", ["policy.hidden_size", "batch_size", "in_flight"])
def test_a_fork_keeps_what_the_checkpoint_is_made_of(whole: str, name: str) -> None:
    with pytest.raises(InvalidValueError, match=rf"a fork keeps {name} = "):
        resume(whole, extend=8, fork=True, changes={name: "16"})


def test_a_fork_without_anything_to_do_says_so(whole: str) -> None:
    with pytest.raises(InvalidValueError, match="has nothing to do; --extend N adds trials"):
        resume(whole, fork=True)


def test_a_run_that_is_no_training_is_named(grouping_run: str) -> None:
    with pytest.raises(InvalidValueError, match="is of group, expected stage 'train'"):
        resume(grouping_run)


def test_an_unknown_run_is_named(store: Store) -> None:
    with pytest.raises(UnknownNameError, match="unknown run 'abc'"):
        resume("abc")


@pytest.mark.parametrize("text", ["{", '{"version": 1}'])
def test_damaged_settings_are_named(store: Store, grouping_run: str, text: str) -> None:
    run_id = train(grouping_run, changed(trials=8, seed=len(text)))
    store.download(run_id, "settings.json").write_text(text)

    with pytest.raises(FileFormatError, match=rf"settings.json of run {run_id} is damaged"):
        resume(run_id)


def test_a_training_that_another_process_works_on_is_left_to_it(
    store: Store, whole: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StageRun, "is_alive_elsewhere", True)

    with pytest.raises(StoreError, match="a training of these settings is in progress"):
        resume(whole, extend=8)

    assert store.run(whole).status == "FINISHED"


def test_a_simulated_training_may_be_forked_onto_the_real_devices(
    store: Store, tmp_path: Path
) -> None:
    small = {"batch_size": 2, "layers": 2, "units": 8, "steps": 2, "vocabulary_size": 16}
    traced = group(profile(ProfileSettings(sizes=small, trace_steps=3, calibration_placements=0)))
    parent = train(traced, changed(trials=8, batch_size=4))

    changes = {"environment": "staged", "real_trials": "2", "measurement.max_timed_steps": "6"}
    fork = resume(parent, fork=True, changes=changes)

    trials = MLflowTrialLog(store, fork).trials()
    assert [trial.environment == REAL for trial in trials] == [False] * 8 + [True] * 2
