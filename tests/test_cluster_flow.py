"""All stages on a cluster of two hosts: agents of this host, reached as if they were of others."""

import json

import pytest

from flows.evaluate import evaluate
from flows.group import group
from flows.profile import profile
from flows.train import train
from placer.config import (
    EvaluateSettings,
    MeasurementSettings,
    ProfileSettings,
    TrainSettings,
)
from placer.mlflow_store import open_store
from placer.mlflow_trial_log import MLflowTrialLog
from tests.agents import running_agent

pytest_plugins = ["tests.prefect_server"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect")]

TINY_RNNLM = {"batch_size": 2, "layers": 2, "units": 8, "steps": 2, "vocabulary_size": 16}


@pytest.fixture
def hosts_file(tmp_path):
    with running_agent(0) as first, running_agent(1) as second:
        entries = [f'[[hosts]]\naddress = "{agent.address}"\n' for agent in (first, second)]
        path = tmp_path / "hosts.toml"
        path.write_text("version = 1\n" + "".join(entries))
        yield path


def test_a_cluster_is_profiled_trained_on_and_has_the_last_word(hosts_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    source = ProfileSettings(
        sizes=TINY_RNNLM, trace_steps=3, calibration_placements=0, cluster=hosts_file
    )
    settings = TrainSettings(
        environment="real",
        trials=4,
        batch_size=2,
        measurement=MeasurementSettings(max_timed_steps=6),
    )

    profile_run = profile(source)
    hosts_file.rename(tmp_path / "elsewhere.toml")  # the run keeps what it needs
    training_run = train(group(profile_run), settings)
    evaluation_run = evaluate(training_run, EvaluateSettings(rounds=6, num_learned=1))

    store = open_store()
    with MLflowTrialLog(store, training_run) as log:
        trials = log.trials()
    assert [trial.environment for trial in trials] == ["real"] * 4
    assert all(trial.measurement.step_time_s for trial in trials)
    rows = json.loads(store.download(evaluation_run, "evaluation.json").read_text())["results"]
    assert all(row["step_time_s"] > 0 for row in rows if row["outcome"] == "OK")
