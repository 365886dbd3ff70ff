"""The benchmark flow on real Prefect and MLflow: one run above, one below for each search."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows import benchmark as module
from flows.benchmark import benchmark
from flows.benchmark_results import benchmark_tables, show_benchmark
from placer.benchmark import BENCHMARK_METHODS, BenchmarkRow, Problem
from placer.config import BenchmarkSettings
from placer.errors import InvalidValueError
from placer.files import save_profile
from placer.mlflow_store import Store, open_store
from placer.tracking_names import PARENT_RUN, SEARCH_METRICS, SPEED_METRICS, TAGS
from tests.builders import SECOND_PER_BYTE, make_profile, make_topology

pytest_plugins = ["tests.prefect_server"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect")]

METHODS = ("hill-climbing", "single", "expert")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    """A folder with two graphs, in which to work: two chains, and two ops apart."""
    path = tmp_path_factory.mktemp("benchmark")
    (path / "graphs").mkdir()
    topology = make_topology(2, SECOND_PER_BYTE)
    tensors = [(0, (1,), 10), (2, (3,), 10)]
    save_profile(make_profile([1.0] * 4, tensors, topology), path / "graphs" / "chains.json")
    save_profile(make_profile([2.0, 2.0], [], topology), path / "graphs" / "pair.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield path


@pytest.fixture(scope="module")
def store(folder) -> Store:
    return open_store()


@pytest.fixture(scope="module")
def settings(folder) -> BenchmarkSettings:
    return BenchmarkSettings(
        suite=str(folder / "graphs"), methods=METHODS, trials=(30,), seeds=(0, 1)
    )


@pytest.fixture(scope="module")
def interrupted_after(settings) -> int:
    """Searches that were made before somebody interrupted the benchmark."""
    made = 0

    def search(problem: Problem, cell):
        nonlocal made
        if made == 7:
            raise KeyboardInterrupt
        made += 1
        return original(problem, cell)

    original = Problem.search
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Problem, "search", search)
        with pytest.raises(KeyboardInterrupt):
            benchmark(settings)
    return made


@pytest.fixture(scope="module")
def searches(settings, interrupted_after) -> list:
    """What the benchmark searched when it was started again."""
    cells = []

    def search(problem: Problem, cell):
        cells.append((problem.graph, cell))
        return original(problem, cell)

    original = Problem.search
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Problem, "search", search)
        cells.append(benchmark(settings))
    return cells


@pytest.fixture(scope="module")
def run_id(searches) -> str:
    return searches[-1]


@pytest.fixture(scope="module")
def document(store, run_id) -> dict:
    return json.loads(store.download(run_id, "benchmark.json").read_text())


def of_stage(store: Store, stage: str) -> list:
    return store.connection.client.search_runs(
        [store.connection.experiment_id], filter_string=f"tags.`placer.stage` = '{stage}'"
    )


def test_an_interrupted_benchmark_goes_on_in_the_same_run(store, searches, interrupted_after):
    # 2 graphs x 3 methods x 2 seeds, of which 7 were there.
    assert len(searches) - 1 == 12 - interrupted_after == 5
    assert len(of_stage(store, "search")) == 12
    assert [run.info.status for run in of_stage(store, "benchmark")][-1] == "FINISHED"


def test_every_search_is_a_run_below_that_of_the_benchmark(store, run_id, document):
    children = store.finished_children(run_id)

    assert len(children) == 12
    assert {run.tags[PARENT_RUN] for run in children} == {run_id}
    assert {cell["run_id"] for cell in document["cells"]} == {run.run_id for run in children}
    (one,) = [
        run
        for run in children
        if run.params["graph"] == "pair"
        and run.params["method"] == "hill-climbing"
        and run.params["seed"] == "1"
    ]
    assert one.params["trials"] == "30"
    assert {tag for tag in one.tags if not tag.startswith("mlflow.")} <= TAGS.keys()
    assert one.tags["placer.graph"] == "pair"


def test_a_search_has_its_curve_and_its_figures_as_metrics(store, document):
    (cell,) = [
        cell
        for cell in document["cells"]
        if (cell["graph"], cell["method"], cell["seed"]) == ("pair", "hill-climbing", 0)
    ]
    run = store.connection.client.get_run(cell["run_id"])
    curve = store.connection.client.get_metric_history(cell["run_id"], "search/best_step_time_s")

    # One device: 4 s; a device each: 2 s, which is half of the work: it cannot be beaten.
    assert run.data.metrics.keys() == SEARCH_METRICS.keys()
    assert (run.data.metrics["search/makespan_s"], run.data.metrics["search/gap"]) == (2.0, 0.0)
    assert [(point.step, point.value) for point in curve] == [(1, 4.0), (2, 2.0)]
    assert run.data.metrics["search/evaluations"] == cell["num_evaluations"] == 2


def test_a_method_that_does_not_apply_has_no_makespan_and_says_why(store, document):
    (run_ids,) = [[cell["run_id"] for cell in document["cells"] if cell["method"] == "expert"]]

    for run_id in run_ids:
        run = store.connection.client.get_run(run_id)
        assert "search/makespan_s" not in run.data.metrics
        assert "needs a graph whose ops name modules" in run.data.tags["mlflow.note.content"]


def test_the_table_is_an_artifact_in_every_form(store, run_id, document):
    rows = [BenchmarkRow.of_document(row) for row in document["rows"]]

    assert [(row.graph, row.best_s, row.gap) for row in rows] == [
        ("chains", 2.0, 0.0), ("pair", 2.0, 0.0),
    ]  # fmt: skip
    assert rows[0].best_methods == ["hill-climbing"]
    assert rows[0].methods["single"].median_s == 4.0
    assert rows[0].methods["expert"].median_s is None
    assert "| pair on " in store.download(run_id, "table.md").read_text()
    assert store.download(run_id, "table.csv").read_text().startswith("graph,topology,")
    assert store.download(run_id, "best_so_far.png").read_bytes().startswith(b"\x89PNG")


def test_the_document_says_how_where_and_when(document, settings):
    assert (document["kind"], document["version"]) == ("placer.benchmark", 1)
    assert document["methods"] == list(METHODS)
    assert (document["trials"], document["seeds"]) == ([30], [0, 1])
    assert document["machine"]["cores"] >= 1
    assert {"python", "placer", "numpy"} <= document["versions"].keys()
    assert document["date"].endswith("+00:00")


def test_a_finished_benchmark_is_not_made_again(store, settings, run_id):
    assert benchmark(settings) == run_id
    assert len(of_stage(store, "search")) == 12


def test_a_larger_benchmark_takes_over_what_is_there(store, settings, run_id, monkeypatch):
    made = []
    original = Problem.search
    monkeypatch.setattr(
        Problem, "search", lambda problem, cell: made.append(cell) or original(problem, cell)
    )

    larger = benchmark(settings.model_copy(update={"methods": (*METHODS, "metis")}))

    assert larger != run_id
    assert [cell.method for cell in made] == ["metis"] * 4
    assert len(store.finished_children(larger)) == 16
    assert len(store.finished_children(run_id)) == 12


def test_a_changed_program_searches_anew(store, settings, run_id, monkeypatch):
    monkeypatch.setattr(module, "program_fingerprint", lambda: "another")

    again = benchmark(settings.model_copy(update={"graphs": ("pair",)}))

    children = store.finished_children(again)
    keys = {run.tags["placer.key"] for run in store.finished_children(run_id)}
    assert len(children) == 6
    assert keys.isdisjoint({run.tags["placer.key"] for run in children})


def test_the_result_is_shown_and_written(store, run_id, document, tmp_path, capsys):
    show_benchmark(run_id, json_file=tmp_path / "table.json", figure_file=tmp_path / "curves.png")

    shown = capsys.readouterr().out
    for text in ("chains on", "pair on", "hill-climbing", "single", "0.00%", run_id):
        assert text in shown
    assert json.loads((tmp_path / "table.json").read_text()) == document
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_that_is_wider_than_the_terminal_continues_below(document):
    row = BenchmarkRow.of_document(document["rows"][0])
    wide = dataclasses.replace(row, methods=dict.fromkeys(BENCHMARK_METHODS, row.methods["single"]))

    tables = benchmark_tables([wide], width=120)

    assert len(tables) > 1
    headings = [str(column.header) for table in tables for column in table.columns[2:]]
    assert headings == list(BENCHMARK_METHODS)


def test_the_simulators_speed_is_measured_anew_each_time(store, folder, tmp_path, capsys):
    settings = BenchmarkSettings(
        suite="simulator", graphs=(str(folder / "graphs" / "chains.json"),), seeds=(3,)
    )

    first, second = benchmark(settings), benchmark(settings)

    metrics = store.connection.client.get_run(second).data.metrics
    show_benchmark(second, json_file=tmp_path / "speed.json", figure_file=None)
    written = json.loads((tmp_path / "speed.json").read_text())
    assert first != second
    assert metrics.keys() == SPEED_METRICS.keys()
    assert written["placements_per_s"] == metrics["simulator/groups/all_cores_per_s"]
    assert (written["num_ops"], written["seeds"]) == (4, [3])
    assert "every group at random" in capsys.readouterr().out


def test_an_unknown_method_is_refused_before_anything_runs(store, settings):
    before = len(of_stage(store, "benchmark"))

    with pytest.raises(InvalidValueError, match="unknown method 'metys'"):
        benchmark(settings.model_copy(update={"methods": ("metys",)}))

    assert len(of_stage(store, "benchmark")) == before
