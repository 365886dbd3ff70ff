"""The choices of a training, through the real flow: trainers, batches in flight, warm starts."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from flows.group import group
from flows.profile import profile
from flows.stages import read_grouping
from flows.train import train
from placer.config import (
    MeasurementSettings,
    PolicySettings,
    ProfileSettings,
    TrainSettings,
)
from placer.errors import InvalidValueError, UnknownNameError
from placer.features import group_features
from placer.files import save_profile
from placer.heuristics import heuristic_placements
from placer.mlflow_trial_log import MLflowTrialLog
from placer.policies.graph import pretrained
from placer.policies.seq2seq import Seq2SeqConfig, Seq2SeqPolicy
from placer.warm_start import restore_policy
from tests.agents import running_agent
from tests.builders import SECOND_PER_BYTE, make_profile, make_topology
from tests.flow_store import store

__all__ = ["store"]

pytest_plugins = ["tests.prefect_server"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect")]

POLICY = PolicySettings(hidden_size=8, attention_size=4, embedding_size=4, jit_compile=False)
TRAIN = TrainSettings(trials=32, batch_size=8, checkpoint_every=1, policy=POLICY)
TINY_RNNLM = {"batch_size": 2, "layers": 2, "units": 8, "steps": 2, "vocabulary_size": 16}


def grouped(num_chains):
    """So many chains of two ops each, on two devices."""
    tensors = [(2 * chain, (2 * chain + 1,), 1) for chain in range(num_chains)]
    times_s = [1.0] * (2 * num_chains)
    path = Path.cwd() / f"chains{num_chains}.json"
    save_profile(make_profile(times_s, tensors, make_topology(2, SECOND_PER_BYTE)), path)
    return group(profile(ProfileSettings(graph=path)))


@pytest.fixture(scope="module")
def grouping_run(store) -> str:
    return grouped(4)


def changed(**settings):
    return TrainSettings(**TRAIN.model_dump() | settings)


def trials_of(store, run_id):
    with MLflowTrialLog(store, run_id) as log:
        return log.trials()


def actions_of(store, run_id):
    return [trial.device_of_group for trial in trials_of(store, run_id)]


METRIC_OF = {
    "reinforce": "update/importance",
    "ppo": "update/epochs",
    "cross-entropy": "update/elite_reward_mean",
}


@pytest.mark.parametrize("trainer", METRIC_OF)
def test_each_trainer_trains_and_goes_on_where_it_was_stopped(
    store, grouping_run, trainer, monkeypatch
):
    # Two trainings that differ in a setting that changes nothing.
    settings = changed(trainer=trainer, in_flight=2)
    whole = train(grouping_run, settings)
    append = MLflowTrialLog.append

    def fail_late(self, trials, metrics):
        if trials[0].number >= 16:
            raise KeyboardInterrupt
        append(self, trials, metrics)

    same = settings.model_copy(update={"real_trials": 1})
    with monkeypatch.context() as patch:
        patch.setattr(MLflowTrialLog, "append", fail_late)
        with pytest.raises(KeyboardInterrupt):
            train(grouping_run, same)
    run_id = train(grouping_run, same)

    assert actions_of(store, run_id) == actions_of(store, whole)
    assert len(actions_of(store, run_id)) == 32
    assert METRIC_OF[trainer] in store.connection.client.get_run(run_id).data.metrics


def test_a_training_that_starts_from_a_heuristic_samples_what_is_like_it(store, grouping_run):
    inputs = read_grouping(store, grouping_run)
    metis = heuristic_placements(inputs.profile, inputs.grouping)["metis"].tolist()

    run_id = train(grouping_run, changed(warm_start="metis", trials=8))

    actions = actions_of(store, run_id)
    agreement = sum(a == b for row in actions for a, b in zip(row, metis, strict=True))
    assert agreement >= 0.75 * len(actions) * len(metis)


def test_the_best_heuristic_is_a_start_too(store, grouping_run, caplog):
    with caplog.at_level("INFO"):
        train(grouping_run, changed(warm_start="best heuristic", trials=8))

    assert "is the best and is imitated" in caplog.text
    assert "train: imitated 'best heuristic' in " in caplog.text


def test_a_training_may_start_where_another_ended(store, grouping_run):
    first = train(grouping_run, changed(trials=32, seed=5))
    inputs = read_grouping(store, grouping_run)
    features = group_features(inputs.profile, inputs.grouping)
    sizes = POLICY.model_dump(include={f.name for f in dataclasses.fields(Seq2SeqConfig)})
    policy = Seq2SeqPolicy(features, Seq2SeqConfig(**sizes), seed=0)
    restore_policy(policy, MLflowTrialLog(store, first).load_checkpoint(), run_id=first)

    run_id = train(grouping_run, changed(trials=8, warm_start_run=first))

    # The policy is handed on, with the seed and the trial numbers of the new training.
    drawn = policy.sample(0, np.arange(8))
    assert actions_of(store, run_id) == [tuple(row) for row in drawn.tolist()]


def test_a_training_of_another_graph_cannot_be_the_start(store, grouping_run):
    other = train(grouped(5), changed(trials=8))

    with pytest.raises(
        InvalidValueError, match=rf"training {other} cannot be the start: .*must have shape"
    ):
        train(grouping_run, changed(warm_start_run=other))


def test_a_run_of_another_stage_cannot_be_the_start(store, grouping_run):
    with pytest.raises(InvalidValueError, match="is of group, expected stage 'train'"):
        train(grouping_run, changed(warm_start_run=grouping_run))


def test_a_heuristic_that_is_not_there_cannot_be_the_start(store, grouping_run):
    with pytest.raises(UnknownNameError, match="unknown warm start 'metiss'"):
        train(grouping_run, changed(warm_start="metiss"))


def test_real_trials_are_measured_on_two_clusters_at_once(store, tmp_path):
    source = ProfileSettings(sizes=TINY_RNNLM, trace_steps=3, calibration_placements=0)
    traced = group(profile(source))
    settings = {
        "environment": "real",
        "trials": 6,
        "batch_size": 2,
        "in_flight": 2,
        "measurement": MeasurementSettings(max_timed_steps=6),
    }
    with running_agent(0) as first, running_agent(1) as second:
        hosts = tmp_path / "hosts.toml"
        entries = [f'[[hosts]]\naddress = "{agent.address}"\n' for agent in (first, second)]
        hosts.write_text("version = 1\n" + "".join(entries))

        run_id = train(traced, changed(more_clusters=(hosts,), **settings))

    trials = trials_of(store, run_id)
    assert [trial.number for trial in trials] == list(range(6))
    assert all(trial.environment == "real" for trial in trials)
    assert all(trial.measurement.step_time_s for trial in trials)


def test_the_network_is_chosen_by_name(store, grouping_run):
    hierarchical = POLICY.model_dump() | {"network": "hierarchical", "unit_groups": 2}

    run_id = train(grouping_run, changed(policy=hierarchical))

    with MLflowTrialLog(store, run_id) as log:
        arrays = log.load_checkpoint().arrays
    assert arrays["grouper/logits"].shape[1] == 2
    assert len(trials_of(store, run_id)) == TRAIN.trials


def test_the_graph_network_starts_from_what_it_learned_elsewhere(store, grouping_run):
    graph = POLICY.model_dump() | {"network": "graph"}

    run_id = train(grouping_run, changed(policy=graph))

    inputs = read_grouping(store, grouping_run)
    first = pretrained(inputs.profile, inputs.grouping).sample(TRAIN.seed, np.arange(1))
    trials = trials_of(store, run_id)
    assert len(trials) == TRAIN.trials
    assert trials[0].device_of_group == tuple(first[0].tolist())
