"""The fidelity flow on real Prefect, MLflow and TensorFlow workers."""

import json

import pytest

from flows.fidelity import fidelity, measure_fidelity
from flows.group import group
from flows.profile import profile
from flows.results import show_fidelity
from placer.config import (
    FidelitySettings,
    MeasureFidelitySettings,
    MeasurementSettings,
    ProfileSettings,
)
from placer.errors import InvalidValueError
from placer.files import save_profile
from placer.tracking_names import FIDELITY_METRICS
from tests.builders import make_profile, make_topology
from tests.flow_store import store

__all__ = ["store"]

pytest_plugins = ["tests.prefect_server"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect")]

TINY_RNNLM = {"batch_size": 2, "layers": 2, "units": 8, "steps": 2, "vocabulary_size": 16}
QUICK = FidelitySettings(count=8, seed=5, measurement=MeasurementSettings(max_timed_steps=6))


@pytest.fixture(scope="module")
def run_id(store) -> str:
    source = ProfileSettings(sizes=TINY_RNNLM, trace_steps=3, calibration_placements=0)
    return measure_fidelity(MeasureFidelitySettings(profile=source, fidelity=QUICK))


@pytest.fixture(scope="module")
def document(store, run_id) -> dict:
    return json.loads(store.download(run_id, "fidelity.json").read_text())


def test_every_placement_is_predicted_and_measured(document):
    assert len(document["rows"]) == document["num_judged"] == 8
    for row in document["rows"]:
        assert row["predicted_s"] > 0
        assert row["measured_s"] > 0
        assert len(row["samples_s"]) == 6
        low, high = row["interval_s"]
        assert low <= row["measured_s"] <= high


def test_every_placement_is_paired_with_the_reference_beside_it(document):
    assert document["predicted_reference_s"] > 0
    for row in document["rows"]:
        assert len(row["reference_samples_s"]) == len(row["samples_s"])
        assert row["reference_s"] > 0
        expected = row["predicted_s"] / document["predicted_reference_s"] / row["measured_ratio"]
        assert row["drift_corrected_error"] == pytest.approx(expected - 1)


def test_what_every_placement_received_is_what_was_simulated(document):
    across = 0
    for row in document["rows"]:
        transfers = row["transfers"]
        assert transfers["in_both"] == transfers["predicted"] == transfers["received"]
        assert transfers["missing"] == transfers["extra"] == []
        across += transfers["predicted"] > 0
    assert across >= 5


def test_the_figures_are_metrics_and_the_plot_is_an_artifact(store, run_id, document):
    metrics = store.connection.client.get_run(run_id).data.metrics

    assert metrics.keys() == FIDELITY_METRICS.keys()
    for name in ("median_absolute_percentage_error", "spearman"):
        assert metrics[f"fidelity/{name}"] == document[name]
        assert metrics[f"fidelity/drift_corrected/{name}"] == document["drift_corrected"][name]
    assert store.download(run_id, "fidelity.png").read_bytes().startswith(b"\x89PNG")


def test_the_document_says_what_was_measured_where_and_when(store, run_id, document):
    tags = store.run(run_id).tags

    assert (document["kind"], document["version"]) == ("placer.fidelity", 1)
    assert document["graph_fingerprint"] == tags["placer.graph_fingerprint"]
    assert document["topology_fingerprint"] == tags["placer.topology_fingerprint"]
    assert document["seed"] == 5
    assert document["host"]
    assert document["date"].endswith("+00:00")
    assert document["versions"].keys() == {"placer", "tensorflow"}


def test_a_measurement_is_never_reused(store, run_id):
    grouping_run = store.run(run_id).tags["placer.grouping_run"]

    again = fidelity(grouping_run, QUICK)

    assert again != run_id
    assert store.run(again).tags["placer.key"] == store.run(run_id).tags["placer.key"]


def test_the_result_is_shown_as_a_table_and_written_as_json(run_id, document, tmp_path, capsys):
    show_fidelity(run_id, json_file=tmp_path / "fidelity.json")

    shown = capsys.readouterr().out
    for row in document["rows"]:
        assert row["name"] in shown
    assert "8 placements judged, median error" in shown
    assert "with the machine's drift taken out" in shown
    assert json.loads((tmp_path / "fidelity.json").read_text()) == document


def test_a_graph_without_a_step_is_refused_before_anything_is_measured(store, tmp_path):
    path = tmp_path / "chain.json"
    save_profile(make_profile([1.0, 1.0], [(0, (1,), 10)], make_topology(2)), path)
    grouping_run = group(profile(ProfileSettings(graph=path)))

    with pytest.raises(InvalidValueError, match="brings no step to run"):
        fidelity(grouping_run)
