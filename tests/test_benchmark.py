"""Benchmarks as pure functions: cells, tables, figures, suites, the simulator's speed."""

import json
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.cli import main
from flows.suites import check_suite, simulator_profile, suite_sources
from placer.benchmark import (
    BENCHMARK_METHODS,
    BenchmarkRow,
    Cell,
    CellResult,
    Problem,
    benchmark_rows,
    check_methods,
    thinned,
)
from placer.benchmark_figure import aligned, search_curves
from placer.benchmark_table import cell_lines, long_table, markdown_table
from placer.config import BenchmarkSettings
from placer.errors import InvalidValueError, MissingFileError, UnknownNameError
from placer.files import save_profile
from placer.group_ops import group_ops
from placer.heuristics import heuristic_rules
from placer.machine import machine
from placer.paper import paper_step_times_s
from placer.search.methods import METHODS
from placer.simulator_speed import KINDS, measure_speed, thread_counts
from tests.builders import SECOND_PER_BYTE, make_profile, make_topology


def result(method="auto", makespan_s=1.0, *, seed=0, num_trials=10, curve=(), **changes):
    values = {
        "graph": "chain",
        "topology": "pair",
        "num_ops": 4,
        "num_groups": 2,
        "bound_name": "work",
        "bound_s": 0.5,
        "cell": Cell(num_trials, method, seed),
        "makespan_s": makespan_s,
        "device_of_group": None if makespan_s is None else (0, 1),
        "num_evaluations": num_trials,
        "search_s": 0.1,
        "curve": curve,
        **changes,
    }
    return CellResult(**values)


def results(method, *makespans_s, **changes):
    return [result(method, time_s, seed=seed, **changes) for seed, time_s in enumerate(makespans_s)]


def problem(memory_bytes=None) -> Problem:
    """Two chains of two 1 s ops; a transfer takes 10 s."""
    limits = {} if memory_bytes is None else {"memory_bytes": memory_bytes}
    topology = make_topology(2, SECOND_PER_BYTE, **limits)
    tensors = [(0, (1,), 10), (2, (3,), 10)]
    profile = make_profile([1.0] * 4, tensors, topology, memory_bytes=[10] * 4)
    return Problem("chains", profile, group_ops(profile).grouping)


# Searches


def test_a_search_tells_what_it_found_and_what_cannot_be_beaten():
    found = problem().search(Cell(40, "hill-climbing", 1))

    # A chain on each device: 2 s, and no step is shorter than a chain or half of all work.
    assert (found.makespan_s, found.bound_s, found.gap) == (2.0, 2.0, 0.0)
    assert (found.num_ops, found.num_groups) == (4, 4)
    first, second, third, fourth = found.device_of_group
    assert first == second != third == fourth
    assert found.curve[-1] == (found.num_evaluations, 2.0)
    assert found.title.startswith("chains on ")


def test_single_is_the_best_of_each_device_alone():
    found = problem().search(Cell(40, "single", 0))

    # The two devices are alike, so that the second is no evaluation of its own.
    assert (found.makespan_s, found.num_evaluations) == (4.0, 1)
    assert len(set(found.device_of_group)) == 1


def test_a_heuristic_that_does_not_apply_is_a_result_that_says_why():
    found = problem().search(Cell(40, "expert", 0))

    assert (found.makespan_s, found.device_of_group, found.num_evaluations) == (None, None, 0)
    assert found.detail == "the expert needs a graph whose ops name modules, this has none"
    assert found.gap is None


def test_where_nothing_fits_there_is_no_makespan_and_no_curve():
    found = problem(memory_bytes=15).search(Cell(5, "random", 0))

    assert (found.makespan_s, found.curve) == (None, ())
    assert found.num_evaluations == 5


@pytest.mark.parametrize("method", ["auto", "expert"])
def test_a_result_is_read_back_equal_from_json(method):
    found = problem().search(Cell(20, method, 0))

    assert CellResult.of_document(json.loads(json.dumps(found.document()))) == found


def test_every_method_of_a_benchmark_can_be_searched_with():
    rules = heuristic_rules(problem().profile, problem().grouping)

    assert set(BENCHMARK_METHODS) - set(METHODS) - {"single", "zero-shot"} == {
        name for name in rules if not name.startswith("single ") and name not in METHODS
    }
    assert BENCHMARK_METHODS[0] == "auto"


def test_an_unknown_method_is_told_with_all_that_are_known():
    with pytest.raises(
        InvalidValueError, match="unknown method 'metys'; known: auto, graph-policy, "
    ):
        check_methods(["auto", "metys"])


# Curves


@given(
    st.lists(st.floats(0.1, 9.0), min_size=1, max_size=500),
    st.integers(0, 20),
)
def test_a_thinned_trajectory_keeps_its_ends_and_only_what_is_in_it(times_s, num_failed):
    trajectory = [None] * num_failed + np.minimum.accumulate(times_s).tolist()

    curve = thinned(trajectory)

    numbers = [number for number, _ in curve]
    assert numbers == sorted(set(numbers))
    assert (numbers[0], numbers[-1]) == (num_failed + 1, len(trajectory))
    assert len(curve) <= 100
    assert all(trajectory[number - 1] == best_s for number, best_s in curve)


def test_a_short_trajectory_is_kept_whole():
    assert thinned([3.0, 2.0, 2.0]) == ((1, 3.0), (2, 2.0), (3, 2.0))


def test_a_trajectory_on_which_nothing_ran_is_no_curve():
    assert thinned([None, None]) == thinned([]) == ()


def test_curves_are_aligned_from_where_all_have_begun_and_go_on_where_they_ended():
    numbers, times_s = aligned([((1, 5.0), (4, 3.0)), ((2, 4.0), (3, 2.0))])

    assert numbers.tolist() == [2, 3, 4]
    assert times_s.tolist() == [[5.0, 5.0, 3.0], [4.0, 2.0, 2.0]]


def test_a_seed_without_a_placement_leaves_its_method_without_a_curve():
    numbers, times_s = aligned([((1, 5.0),), ()])

    assert (numbers.size, times_s.size) == (0, 0)


def test_the_figure_shows_the_median_of_each_search_and_the_references():
    found = [
        *results("auto", 1.0, 1.0, 1.0),
        *results("single", 4.0, 4.0, 4.0),
        *results("auto", 1.0, graph="other"),
    ]
    curves = [((1, 3.0), (10, 1.0)), ((1, 2.0), (10, 1.5)), ((1, 2.5), (10, 2.0)), ()]
    autos = (place for place, one in enumerate(found) if one.cell.method == "auto")
    for place, curve in zip(autos, curves, strict=True):
        found[place] = result(seed=place, curve=curve, graph=found[place].graph)

    figure = search_curves(found)

    first, second = figure.axes
    lines = {line.get_label(): line for line in first.get_lines()}
    assert first.get_title() == "chain on pair"
    assert second.get_title() == "other on pair"
    assert lines["auto"].get_xdata().tolist() == [1, 10]
    # The bound, 0.5 s, decides the unit.
    assert lines["auto"].get_ydata().tolist() == [2500.0, 1500.0]
    assert set(lines["lower bound"].get_ydata()) == {500.0}
    assert set(lines["single device"].get_ydata()) == {4000.0}
    assert (first.get_xscale(), first.get_ylabel()) == ("log", "best makespan (ms)")


def test_a_hopeless_single_device_does_not_flatten_the_curves():
    curve = ((1, 1.02), (10, 1.0))

    (axes,) = search_curves([result(curve=curve), result("single", 9.0)]).axes

    assert axes.get_ylim()[1] < 1200.0


def test_a_bound_that_is_far_below_does_not_flatten_the_curves():
    curve = ((1, 1.02), (10, 1.0))

    (axes,) = search_curves([result(curve=curve), result("single", 1.02)]).axes

    # 500 ms would leave the 20 ms of the curve to 4 % of the axis.
    assert 950.0 < axes.get_ylim()[0] < 1000.0
    assert [text.get_text() for text in axes.texts] == ["lower bound 500, further below"]


def test_of_several_numbers_of_evaluations_the_largest_is_drawn():
    few = result(num_trials=2, curve=((2, 3.0),))
    many = result(num_trials=9, curve=((9, 2.0),))

    (axes,) = search_curves([few, many]).axes

    drawn = {line.get_label(): line.get_xdata() for line in axes.get_lines()}
    assert drawn["auto"].tolist() == [9]


# Tables


def test_a_row_has_the_median_of_each_method_and_marks_the_best():
    found = [*results("auto", 1.0, 3.0, 2.0), *results("metis", 2.5, 2.5, 2.5)]

    (row,) = benchmark_rows(found)

    auto, metis = row.methods["auto"], row.methods["metis"]
    assert (auto.median_s, auto.least_s, auto.most_s, auto.num_seeds) == (2.0, 1.0, 3.0, 3)
    assert (metis.median_s, metis.least_s, metis.most_s) == (2.5, 2.5, 2.5)
    assert (row.best_s, row.best_methods) == (2.0, ["auto"])
    assert row.gap == 3.0  # 2.0 s over a bound of 0.5 s


def test_methods_that_are_level_are_all_best():
    (row,) = benchmark_rows([result("auto", 1.0), result("heft", 1.0), result("single", 2.0)])

    assert row.best_methods == ["auto", "heft"]


def test_a_seed_that_found_nothing_counts_as_the_slowest():
    (row,) = benchmark_rows([*results("auto", None, 1.0, 2.0), *results("policy", 9.0, None, None)])

    auto, policy = row.methods["auto"], row.methods["policy"]
    assert (auto.median_s, auto.least_s, auto.most_s) == (2.0, 1.0, None)
    assert (policy.median_s, policy.least_s, policy.most_s) == (None, 9.0, None)
    assert row.best_methods == ["auto"]


def test_where_nothing_was_found_nothing_is_best():
    (row,) = benchmark_rows([result("auto", None)])

    assert (row.best_s, row.best_methods, row.gap) == (None, [], None)
    assert cell_lines(row, "auto") == ["–"]


def test_each_graph_topology_and_number_of_evaluations_is_a_row_in_the_order_of_the_results():
    found = [
        result(num_trials=10),
        result(num_trials=20),
        result(graph="other"),
        result(topology="four"),
    ]

    rows = benchmark_rows(found)

    assert [(row.graph, row.topology, row.num_trials) for row in rows] == [
        ("chain", "pair", 10), ("chain", "pair", 20), ("other", "pair", 10), ("chain", "four", 10),
    ]  # fmt: skip


@given(st.lists(st.one_of(st.none(), st.floats(0.1, 9.0)), min_size=1, max_size=9))
def test_a_median_lies_between_least_and_most(times_s):
    (row,) = benchmark_rows(results("auto", *times_s))

    found = row.methods["auto"]
    ran = [time_s for time_s in times_s if time_s is not None]
    assert found.least_s == min(ran, default=None)
    assert (found.most_s is None) == (len(ran) < len(times_s))
    if len(ran) == len(times_s):
        assert found.median_s == statistics.median(ran)
        assert found.least_s <= found.median_s <= found.most_s
    elif found.median_s is not None:
        assert len(ran) > len(times_s) / 2


def test_a_row_is_read_back_equal_from_json():
    rows = benchmark_rows([*results("auto", None, 1.0, 2.0), *results("metis", 3.0, 3.0, 3.0)])

    documents = json.loads(json.dumps([row.document() for row in rows]))

    assert [BenchmarkRow.of_document(document) for document in documents] == rows
    assert documents[0]["methods"]["metis"]["gap"] == 5.0


def test_the_markdown_table_shows_range_mark_bound_and_gap():
    rows = benchmark_rows(
        [
            *results("auto", 0.61, 0.625, 0.75, num_trials=2000),
            *results("single", 1.25, 1.25, 1.25, num_trials=2000),
        ]
    )

    assert markdown_table(rows) == (
        "| graph on topology | evaluations | auto | single | lower bound | gap of the best |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: |\n"
        "| chain on pair (ms) | 2,000 | **625** (610–750) | 1250 | 500 | 25.00% |\n"
    )


def test_a_cell_of_the_paper_stands_beside_its_figures():
    found = [
        result(name, 2.0, graph="rnnlm-paper", topology="haswell-2xk80")
        for name in ("auto", "single", "metis", "policy")
    ]

    (row,) = benchmark_rows(found)

    assert cell_lines(row, "single") == ["2", "paper 1.57 s"]
    assert cell_lines(row, "metis") == ["2", "paper 11.94 s"]
    assert cell_lines(row, "policy") == ["2", "paper 1.57 s"]
    assert cell_lines(row, "auto") == ["2"]
    assert row.document()["methods"]["metis"]["paper_s"] == 11.94


def test_the_paper_has_figures_for_its_own_cells_alone():
    nmt = paper_step_times_s("nmt-paper", "haswell-4xk80")

    assert nmt == {"single": None, "scotch": 11.23, "metis": 11.78, "expert": 4.73, "policy": 3.92}
    assert paper_step_times_s("nmt-small", "haswell-4xk80") == {}
    assert paper_step_times_s("nmt-paper", "1xp100") == {}
    assert paper_step_times_s("gnmt_training", "haswell-4xk80") == {}


def test_the_long_table_has_a_line_for_each_method_of_each_row():
    rows = benchmark_rows(
        [result("auto", 1.0), result("metis", 2.0), result("auto", 3.0, graph="b")]
    )

    table = long_table(rows)

    assert table["method"].tolist() == ["auto", "metis", "auto"]
    assert table["gap"].tolist() == [1.0, 3.0, 5.0]
    assert table["is_best"].tolist() == [True, False, True]


# Suites


@pytest.fixture
def folder(tmp_path) -> Path:
    """Two graph files that bring their own topology."""
    for name in ("b", "a"):
        topology = make_topology(2)
        save_profile(make_profile([1.0, 1.0], [(0, (1,), 10)], topology), tmp_path / f"{name}.json")
    return tmp_path


def test_a_folder_is_a_suite_of_its_graph_files(folder):
    sources = suite_sources(BenchmarkSettings(suite=str(folder)))

    assert [(source.graph.name, source.topology) for source in sources] == [
        ("a.json", None), ("b.json", None),
    ]  # fmt: skip
    check_suite(BenchmarkSettings(suite=str(folder)))


def test_the_published_graphs_are_placed_on_four_equal_devices(folder):
    settings = BenchmarkSettings(suite="msr", folder=folder, graphs=("b",))

    (source,) = suite_sources(settings)

    assert (source.graph.name, source.topology) == ("b.json", "4xequal")


def test_a_suite_whose_folder_is_absent_says_so(tmp_path):
    with pytest.raises(MissingFileError, match=r"suite 'msr' are not there: no folder .*/none"):
        suite_sources(BenchmarkSettings(suite="msr", folder=tmp_path / "none"))


def test_a_folder_without_graphs_is_refused(tmp_path):
    with pytest.raises(InvalidValueError, match="has no graph file"):
        suite_sources(BenchmarkSettings(suite=str(tmp_path)))


def test_the_papers_suite_has_its_models_on_its_machines_and_later_ones_on_later_ones_too():
    settings = BenchmarkSettings(suite="mirhoseini2017")

    cells = [(source.workload, source.topology) for source in suite_sources(settings)]

    for workload in ("rnnlm", "nmt", "inception_v3"):
        own = [topology for name, topology in cells if name == workload]
        assert own == ["haswell-2xk80", "haswell-4xk80"]
    assert {source.size for source in suite_sources(settings)} == {"paper"}
    for name in {name for name, _ in cells} - {"rnnlm", "nmt", "inception_v3"}:
        assert (name, "4xa100-nvlink") in cells


def test_single_graphs_of_a_suite_are_chosen_by_name():
    settings = BenchmarkSettings(suite="mirhoseini2017", graphs=("nmt",), topology="haswell-1xk80")

    (source,) = suite_sources(settings)

    assert (source.graph_name, source.topology) == ("nmt-paper", "haswell-1xk80")


def test_a_graph_that_the_suite_does_not_have_is_told_with_those_it_has(folder):
    with pytest.raises(UnknownNameError, match=r"graph of suite .* 'c'; known: a, b"):
        suite_sources(BenchmarkSettings(suite=str(folder), graphs=("c",)))


def test_an_unknown_suite_is_told_with_those_that_are_known():
    with pytest.raises(InvalidValueError, match="unknown suite 'mrs'; known: mirhoseini2017, msr"):
        suite_sources(BenchmarkSettings(suite="mrs"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--methods", "auto,metys"], "unknown method 'metys'; known: auto, "),
        (["--trials", "10,ten"], "--trials takes whole numbers, got 'ten'"),
        (["--seeds", ""], "seeds: Tuple should have at least 1 item"),
        (["--trials", "0"], "trials.0: Input should be greater than or equal to 1, got 0"),
        (["--topology", "4xequals"], "did you mean '4xequal'?"),
        (["--figure", "curves.txt"], "--figure must name a .png file, got 'curves.txt'"),
        (["--suite", "mrs"], "unknown suite 'mrs'"),
    ],
)
def test_what_is_wrong_is_told_in_one_line_before_anything_runs(
    options, message, folder, monkeypatch, capsys
):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["placer", "benchmark", "--suite", str(folder), *options])

    with pytest.raises(SystemExit) as ended:
        main()

    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith("placer: ")
    assert message in said
    assert said.count("\n") == 1
    assert not (folder / "mlruns").exists()


# The simulator's speed


def test_every_kind_of_placement_is_timed_on_one_thread_and_on_all():
    chains = problem()

    speeds = measure_speed(chains.profile, chains.grouping, num_rounds=2)

    assert [(speed.kind, speed.num_threads) for speed in speeds] == [
        (kind, threads) for threads in thread_counts() for kind in KINDS
    ]
    for speed in speeds:
        assert 0 < speed.least_per_s <= speed.placements_per_s <= speed.most_per_s


def test_no_round_is_refused():
    chains = problem()

    with pytest.raises(InvalidValueError, match="num_rounds must be at least 1, got 0"):
        measure_speed(chains.profile, chains.grouping, num_rounds=0)


def test_without_a_file_a_step_of_10_000_ops_is_simulated():
    name, profile = simulator_profile(BenchmarkSettings(suite="simulator"))

    graph = profile.graph
    assert (name, profile.topology.name) == ("generated", "4xequal")
    assert (graph.num_ops, group_ops(profile).grouping.num_groups) == (10_000, 250)
    # Of 10 x 500 cells 9 x 500 feed the next layer and 10 x 499 the next time; forward and
    # backward; and each forward op feeds its backward op.
    num_edges = sum(len(tensor.consumers) for tensor in graph.tensors)
    assert num_edges == 2 * (9 * 500 + 10 * 499) + 10 * 500
    # The longest path goes along 10 layers and 500 times, through 509 cells, and all the way back.
    heads = np.zeros(graph.num_ops, dtype=int)
    for op in graph.topological_order:
        heads[list(graph.successors[op])] = np.maximum(
            heads[list(graph.successors[op])], heads[op] + 1
        )
    assert heads.max() + 1 == 2 * 509


def test_a_graph_file_is_simulated_on_its_own_topology(folder):
    path = str(folder / "a.json")

    name, profile = simulator_profile(BenchmarkSettings(suite="simulator", graphs=(path,)))

    assert (name, profile.graph.num_ops, profile.topology.num_devices) == ("a", 2, 2)
    with pytest.raises(InvalidValueError, match="takes one graph file, got 2"):
        simulator_profile(BenchmarkSettings(suite="simulator", graphs=(path, path)))


def test_the_machine_is_named():
    found = machine()

    assert found.keys() == {"host", "system", "cores", "cpu"}
    assert found["cores"] >= 1
    assert found["cpu"]
