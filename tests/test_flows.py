"""The flows on real Prefect, MLflow and TensorFlow: every stage's result, and its reuse."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from flows.evaluate import evaluate
from flows.group import group
from flows.optimize import optimize
from flows.profile import profile
from flows.real_devices import real_environment, why_not_real
from flows.results import show_training
from flows.stages import read_grouping, read_profile, read_training
from flows.train import train
from placer.config import (
    EvaluateSettings,
    GroupSettings,
    MeasurementSettings,
    OptimizeSettings,
    PolicySettings,
    ProfileSettings,
    TrainSettings,
)
from placer.environment import Outcome
from placer.errors import InvalidValueError, UnknownNameError
from placer.files import load_placement, save_profile
from placer.generated_graphs import generated_profile
from placer.mlflow_store import Store, open_store
from placer.mlflow_trial_log import MLflowTrialLog
from placer.placement import Placement
from placer.reinforce import failing_step_time_s
from placer.search.methods import AUTO, search
from placer.simulator import SimulatedEnvironment, Simulator, simulate
from placer.tracking_names import EVALUATION_BOUND, EVALUATION_GAP, EVALUATION_METRICS
from tests.builders import SECOND_PER_BYTE, make_profile, make_topology

pytest_plugins = ["tests.prefect_server"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect")]

POLICY = PolicySettings(hidden_size=8, attention_size=4, embedding_size=4, jit_compile=False)
TRAIN = TrainSettings(trials=64, batch_size=8, checkpoint_every=2, policy=POLICY)
STAGED = TRAIN.model_copy(
    update={
        "environment": "staged",
        "trials": 15,  # rounded up to two batches
        "real_trials": 9,
        "measurement": MeasurementSettings(max_timed_steps=6),
    }
)
TINY_RNNLM = {"batch_size": 2, "layers": 2, "units": 8, "steps": 2, "vocabulary_size": 16}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    """An empty folder to work in, with its own embedded store."""
    path = tmp_path_factory.mktemp("flows")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield path


@pytest.fixture(scope="module")
def store(folder) -> Store:
    return open_store()


@pytest.fixture(scope="module")
def settings(folder) -> OptimizeSettings:
    """Two chains of two 1 s ops; each fits one device, and a transfer costs 10 s."""
    tensors = [(0, (1,), 10), (2, (3,), 10)]
    save_profile(
        make_profile([1.0, 1.0, 1.0, 1.0], tensors, make_topology(2, SECOND_PER_BYTE)),
        folder / "chains.json",
    )
    return OptimizeSettings(
        profile=ProfileSettings(graph=folder / "chains.json"),
        train=TRAIN,
        evaluate=EvaluateSettings(num_learned=2, rounds=3),
    )


@pytest.fixture(scope="module")
def run_id(settings) -> str:
    return optimize(settings)


@pytest.fixture(scope="module")
def traced_grouping(folder) -> str:
    """The grouping of a tiny step, profiled on this machine's devices."""
    source = ProfileSettings(sizes=TINY_RNNLM, trace_steps=3, calibration_placements=0)
    return group(profile(source))


def evaluation_of(store: Store, run_id: str) -> dict:
    return json.loads(store.download(run_id, "evaluation.json").read_text())


def test_optimize_finds_that_one_chain_on_each_device_is_best(store, run_id):
    # Both chains at once: 2 s. All on one device: 4 s. A cut chain: 1 + 10 + 1 s.
    document = evaluation_of(store, run_id)

    assert document["best_makespan_s"] == 2.0
    assert document["best_step_time_s"] == 2.0
    assert document["measured"] is False
    assert document["results"][0]["speedup_over_single"] == 2.0


def test_the_evaluation_says_that_no_placement_is_better(store, run_id):
    # A chain takes 2 s wherever it is.
    document = evaluation_of(store, run_id)
    metrics = store.connection.client.get_run(run_id).data.metrics

    assert (document["lower_bound"], document["lower_bound_s"]) == ("critical path", 2.0)
    assert document["gap"] == document["results"][0]["gap"] == 0.0
    assert metrics == {EVALUATION_BOUND: 2.0, EVALUATION_GAP: 0.0}
    assert metrics.keys() == EVALUATION_METRICS.keys()


def test_the_placement_it_hands_back_has_the_makespan_it_promises(store, run_id):
    inputs = read_training(store, evaluation_of(store, run_id)["run_id"])

    placement = load_placement(
        store.download(run_id, "placement.json"), inputs.profile.graph, inputs.profile.topology
    )

    assert simulate(inputs.profile, placement).makespan_s == 2.0


def test_every_method_is_judged(store, run_id):
    methods = [row["method"] for row in evaluation_of(store, run_id)["results"]]

    assert {"single gpu:0", "single gpu:1"} <= set(methods)
    assert len(set(methods)) == len(methods)


def test_the_evaluation_keeps_report_and_figures_as_artifacts(store, run_id):
    names = set(store.artifacts.names(run_id, "."))

    assert {
        "placement.json", "evaluation.json", "report.html",
        "learning_curve.png", "step_time_by_method.png", "compute_time_by_device.png",
    } <= names  # fmt: skip
    assert store.download(run_id, "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert "2 s a step" in store.download(run_id, "report.html").read_text()


def test_every_sampled_placement_is_kept_with_its_step_time(store, run_id):
    training = evaluation_of(store, run_id)["run_id"]
    inputs = read_training(store, training)

    trials = MLflowTrialLog(store, training).trials()

    assert [trial.number for trial in trials] == list(range(64))
    for trial in trials:
        placement = Placement.from_groups(inputs.grouping, trial.device_of_group)
        assert trial.measurement is not None
        assert trial.measurement.step_time_s == simulate(inputs.profile, placement).makespan_s
        assert trial.environment == "simulated"


def test_the_same_settings_are_not_run_again(settings, run_id, caplog):
    with caplog.at_level("INFO", logger="flows"):
        again = optimize(settings)

    assert again == run_id
    for stage in ("profile", "group", "train", "evaluate"):
        assert f"{stage}: inputs are unchanged, reused run" in caplog.text


def test_another_seed_is_another_training_of_the_same_grouping(settings, store, run_id):
    first = evaluation_of(store, run_id)["run_id"]
    grouping_run = store.run(first).tags["placer.grouping_run"]

    other = train(grouping_run, settings.train.model_copy(update={"seed": 1}))

    assert other != first
    assert store.run(other).tags["placer.grouping_run"] == grouping_run


def test_a_changed_graph_file_is_profiled_again(folder, settings):
    path = folder / "changed.json"
    tensors = [(0, (1,), 10), (2, (3,), 10)]
    topology = make_topology(2, SECOND_PER_BYTE)
    save_profile(make_profile([1.0, 1.0, 1.0, 1.0], tensors, topology), path)
    first = profile(ProfileSettings(graph=path))

    save_profile(make_profile([1.0, 1.0, 1.0, 5.0], tensors, topology), path)
    second = profile(ProfileSettings(graph=path))

    assert first != second
    assert read_profile(open_store(), second).profile.compute_time_s[3, 0] == 5.0


def test_a_training_that_was_interrupted_goes_on_where_it_was(settings, store, run_id, monkeypatch):
    grouping_run = store.run(evaluation_of(store, run_id)["run_id"]).tags["placer.grouping_run"]
    changed = settings.train.model_copy(update={"seed": 2})
    uninterrupted = train(grouping_run, settings.train.model_copy(update={"seed": 3}))
    append = MLflowTrialLog.append

    def fail_late(self, trials, metrics):
        if trials[0].number >= 40:
            raise KeyboardInterrupt
        append(self, trials, metrics)

    with monkeypatch.context() as patch:
        patch.setattr(MLflowTrialLog, "append", fail_late)
        with pytest.raises(KeyboardInterrupt):
            train(grouping_run, changed)
    finished = train(grouping_run, changed)

    trials = MLflowTrialLog(store, finished).trials()
    assert [trial.number for trial in trials] == list(range(64))
    assert store.run(finished).status == "FINISHED"
    assert finished != uninterrupted
    killed = trials[:40]
    assert max(trial.finished_at_s for trial in killed) < min(t.finished_at_s for t in trials[40:])


def test_an_evaluation_hands_back_what_the_search_finds_where_nothing_else_does(folder, store):
    step = generated_profile(np.random.default_rng(1), family="recurrent")
    save_profile(step, folder / "recurrent.json")
    grouping_run = group(profile(ProfileSettings(graph=folder / "recurrent.json")))
    training_run = train(grouping_run, TRAIN.model_copy(update={"trials": 8}))
    chosen = EvaluateSettings(num_learned=0, search_trials=300)
    inputs = read_training(store, training_run)
    environment = SimulatedEnvironment(Simulator(inputs.profile))

    document = evaluation_of(store, evaluate(training_run, chosen))
    without = evaluation_of(
        store, evaluate(training_run, chosen.model_copy(update={"search_trials": 0}))
    )

    found = search(AUTO, inputs.profile, inputs.grouping, environment, num_trials=300)
    assert document["method"] == "search"
    assert document["best_makespan_s"] == found.best_step_time_s
    assert document["best_makespan_s"] < without["best_makespan_s"]
    assert "search" not in [row["method"] for row in without["results"]]


def test_a_run_of_another_stage_is_refused_by_name(store, run_id):
    with pytest.raises(InvalidValueError, match=r"is of evaluate, expected stage 'profile'"):
        group(run_id)


def test_a_run_that_is_not_there_is_refused_by_name(folder):
    with pytest.raises(UnknownNameError, match="'0123abcd'"):
        evaluate("0123abcd")


def test_a_captured_step_is_profiled_grouped_trained_and_measured_on_the_real_devices(store):
    chosen = OptimizeSettings(
        profile=ProfileSettings(sizes=TINY_RNNLM, trace_steps=3, calibration_placements=2),
        group=GroupSettings(),
        train=TRAIN.model_copy(update={"trials": 16}),
        evaluate=EvaluateSettings(num_learned=1, rounds=3),
    )

    document = evaluation_of(store, optimize(chosen))

    assert document["measured"] is True
    assert document["best_step_time_s"] > 0
    ran = [row for row in document["results"] if row["outcome"] == Outcome.OK]
    assert {"single cpu:0", "single cpu:1", "expert"} <= {row["method"] for row in ran}
    assert all(row["step_time_s"] > 0 and row["makespan_s"] > 0 for row in ran)
    assert document["num_groups"] < document["num_ops"]


def test_the_failing_signal_of_a_traced_profile_is_twice_the_measured_step(store, traced_grouping):
    profile = read_grouping(store, traced_grouping).profile

    step_time_s = float(profile.provenance.facts["step_time_s"])
    assert failing_step_time_s(profile) == pytest.approx(2 * step_time_s, rel=1e-3)


def test_a_staged_training_goes_on_in_the_middle_of_its_real_part(
    store, traced_grouping, monkeypatch
):
    append = MLflowTrialLog.append

    def fail_late(self, trials, metrics):
        append(self, trials, metrics)
        if trials[-1].number == 18:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MLflowTrialLog, "append", fail_late)
        with pytest.raises(KeyboardInterrupt):
            train(traced_grouping, STAGED)
    run_id = train(traced_grouping, STAGED)

    trials = MLflowTrialLog(store, run_id).trials()
    assert [trial.number for trial in trials] == list(range(25))
    assert [trial.environment for trial in trials] == ["simulated"] * 16 + ["real"] * 9
    killed = [trial.finished_at_s for trial in trials[16:19]]
    assert killed == sorted(set(killed))  # kept one by one
    assert max(killed) < min(trial.finished_at_s for trial in trials[19:])
    ran = [trial.measurement for trial in trials[16:] if trial.measurement.samples_s]
    assert all(found.step_time_s > 0 and len(found.samples_s) == 6 for found in ran)
    assert len(ran) >= 1
    assert tf.config.get_visible_devices("GPU") == []


def test_the_page_of_a_staged_training_tells_both_parts(store, traced_grouping):
    run_id = train(traced_grouping, STAGED)

    note = store.run(run_id).tags["mlflow.note.content"]
    table = store.download(run_id, "top_placements.csv").read_text()
    names = set(store.artifacts.names(run_id, "."))
    assert "Best of 16 placements in the simulation: " in note
    assert "Best of 9 placements on the real devices: " in note
    assert table.splitlines()[0].startswith("rank,step_time_s,environment,method,trial")
    assert table.splitlines()[1].split(",")[2] == "real"
    assert {"learning_curve_simulated.png", "learning_curve_real.png"} <= names


def test_the_result_of_a_staged_training_names_both_bests(store, traced_grouping, tmp_path, capsys):
    run_id = train(traced_grouping, STAGED)

    show_training(run_id, json_file=tmp_path / "training.json")

    document = json.loads((tmp_path / "training.json").read_text())
    trials = MLflowTrialLog(store, run_id).trials()
    assert (document["num_trials"], document["num_real_trials"]) == (25, 9)
    assert document["best_makespan_s"] == min(t.measurement.step_time_s for t in trials[:16])
    assert document["best_step_time_s"] == trials[document["best_trial"]].measurement.step_time_s
    assert document["best_trial"] >= 16
    assert "on the real devices" in capsys.readouterr().out


def test_a_training_may_measure_every_placement_and_says_what_that_takes(
    store, traced_grouping, caplog
):
    with caplog.at_level("INFO", logger="flows"):
        run_id = train(
            traced_grouping, STAGED.model_copy(update={"environment": "real", "trials": 3})
        )

    trials = MLflowTrialLog(store, run_id).trials()
    assert [trial.environment for trial in trials] == ["real"] * 3
    assert "3 placements on the real devices, 10 or more steps of each" in caplog.text
    assert "more than 0:00:0" in caplog.text
    assert {"learning_curve.png"} <= set(store.artifacts.names(run_id, "."))


def test_a_graph_file_cannot_be_trained_on_the_real_devices(settings, store, run_id):
    grouping_run = store.run(evaluation_of(store, run_id)["run_id"]).tags["placer.grouping_run"]

    with pytest.raises(
        InvalidValueError, match=r"'chains' was read from a file, .* --topology local"
    ):
        train(grouping_run, settings.train.model_copy(update={"environment": "staged"}))


def test_described_devices_cannot_be_trained_on(store):
    grouping_run = group(profile(ProfileSettings(sizes=TINY_RNNLM, topology="haswell-2xk80")))

    with pytest.raises(
        InvalidValueError, match="devices are described, not present: topology 'haswell-2xk80'; "
    ):
        train(grouping_run, STAGED)


def test_where_the_devices_are_not_here_there_is_no_real_environment(store, run_id):
    inputs = read_training(store, evaluation_of(store, run_id)["run_id"])

    with real_environment(store, inputs) as environment:
        found = environment

    assert found is None


def test_the_profile_file_of_a_traced_step_is_judged_in_the_simulation(store, folder):
    # The file names this machine's devices and traced times, but holds no step to run on them.
    # Traced anew: stages of equal content would be reused from the test that has the step.
    traced = profile(ProfileSettings(sizes=TINY_RNNLM, trace_steps=4, calibration_placements=0))
    (folder / "traced.json").write_bytes(store.download(traced, "profile.json").read_bytes())
    chosen = OptimizeSettings(
        profile=ProfileSettings(graph=folder / "traced.json"),
        train=TRAIN.model_copy(update={"trials": 8}),
        evaluate=EvaluateSettings(num_learned=1, rounds=3),
    )

    document = evaluation_of(store, optimize(chosen))

    assert document["measured"] is False
    assert document["topology"] == "local"
    assert document["best_makespan_s"] > 0


def test_a_workload_on_described_devices_is_estimated_and_simulated(store):
    run = profile(ProfileSettings(sizes=TINY_RNNLM, topology="haswell-2xk80"))
    inputs = read_grouping(store, group(run))

    assert inputs.profile.provenance.method == "estimate"
    assert not inputs.profile.costs.measured.any()
    assert [device.name for device in inputs.profile.topology.devices] == [
        "cpu:0", "gpu:0", "gpu:1",
    ]  # fmt: skip


def test_a_workload_on_equal_devices_without_description_is_traced(folder, store):
    (folder / "four.toml").write_text(
        "[uniform]\ndevices = 4\nlatency_s = 25e-6\nbandwidth_bytes_per_s = 7.6e9\n"
    )

    run = profile(
        ProfileSettings(sizes=TINY_RNNLM, topology=str(folder / "four.toml"), trace_steps=3)
    )

    found = read_profile(store, run).profile
    assert found.provenance.method == "trace"
    assert found.topology.num_devices == 4
    assert found.costs.measured.any()
    assert "described, not present: topology 'four'" in str(
        why_not_real(store, read_profile(store, run))
    )
