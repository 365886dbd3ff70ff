"""The benchmark flow: every method on every graph of a suite, at equal evaluations.

The benchmark is one run, and each search a run below it. A search whose inputs, settings and
program did not change is not made again: an interrupted benchmark goes on where it was, and
one that asks for more takes over what is there.
"""

import dataclasses
import functools
import importlib.resources
import itertools
import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect import flow, task

from flows.group import group
from flows.profile import profile
from flows.stages import (
    BENCHMARK,
    BENCHMARK_FILE,
    BENCHMARK_TABLE_FILE,
    SEARCH,
    SEARCH_FILE,
    SEARCHES_FIGURE,
    GroupedInputs,
    read_grouping,
    reused,
    stage_key,
)
from flows.suites import (
    SIMULATOR,
    benchmark_methods,
    check_suite,
    simulator_profile,
    suite_sources,
)
from placer.benchmark import Cell, CellResult, Problem, benchmark_rows, summary
from placer.benchmark_figure import search_curves
from placer.benchmark_table import long_table, markdown_table
from placer.config import BenchmarkSettings
from placer.fingerprint import fingerprint
from placer.group_ops import GroupingConfig, group_ops
from placer.machine import machine, versions
from placer.mlflow_store import OpenRun, Point, Store, now, open_store
from placer.report import seconds
from placer.simulator_speed import measure_speed, thread_counts
from placer.tracking_names import (
    HEARTBEAT,
    KEY,
    PARENT_RUN,
    SEARCH_BEST,
    SEARCH_BOUND,
    SEARCH_DURATION,
    SEARCH_EVALUATIONS,
    SEARCH_GAP,
    SEARCH_MAKESPAN,
    SPEED_PREFIX,
)

_log = logging.getLogger(__name__)


@task(task_run_name="search on the grouping of run {grouping_run}")
def search_graph(benchmark_run: str, grouping_run: str, settings: BenchmarkSettings) -> list[str]:
    """Make all searches of one grouped graph; return the ids of their runs."""
    store = open_store()
    inputs = read_grouping(store, grouping_run)
    problem = Problem(inputs.graph_name, inputs.profile, inputs.grouping)
    searches = _Searches(OpenRun(store, benchmark_run), inputs, problem)
    run_ids: list[str] = []
    for num_trials, method in itertools.product(settings.trials, benchmark_methods(settings)):
        cells = [Cell(num_trials, method, seed) for seed in settings.seeds]
        made = [searches.make(cell) for cell in cells]
        run_ids += [run_id for run_id, _ in made]
        _say([result for _, result in made])
    return run_ids


class _Searches:
    """The searches of one graph: taken from the store where they are there, else made."""

    def __init__(self, benchmark: OpenRun, inputs: GroupedInputs, problem: Problem) -> None:
        self._benchmark = benchmark
        self._store = benchmark.store
        self._inputs = inputs
        self._problem = problem
        own = self._store.finished_children(benchmark.run_id)
        self._own = {run.tags[KEY]: run.run_id for run in own}

    def make(self, cell: Cell) -> tuple[str, CellResult]:
        """Return the run of a search below the benchmark's, and what it found."""
        key = stage_key(SEARCH, self._inputs.content, program_fingerprint(), repr(cell))
        if run_id := self._own.get(key):
            return run_id, read_search(self._store, run_id)
        known = self._store.find_stage(SEARCH, key)
        if known is None:
            result = self._problem.search(cell)
        else:
            result = read_search(self._store, known.run_id)
        return self._log(key, result), result

    def _log(self, key: str, result: CellResult) -> str:
        cell = result.cell
        params = {
            "graph": result.graph,
            "topology": result.topology,
            "method": cell.method,
            "seed": cell.seed,
            "trials": cell.num_trials,
        }
        with self._store.stage(
            SEARCH,
            key,
            name=f"{cell.method} on {result.title}, {cell.num_trials:,}, seed {cell.seed}",
            params=params,
            tags={**self._inputs.tags, PARENT_RUN: self._benchmark.run_id},
        ) as run:
            run.log_points(_points(result))
            run.log_text(json.dumps(result.document()), SEARCH_FILE)
            if result.detail:
                run.describe(result.detail)
        self._benchmark.set_tags({HEARTBEAT: now()})
        return run.run_id


def read_search(store: Store, run_id: str) -> CellResult:
    """Read what a search found."""
    return CellResult.of_document(json.loads(store.download(run_id, SEARCH_FILE).read_text()))


@functools.cache
def program_fingerprint() -> str:
    """Return a name for the program that searches: a changed one searches anew."""
    package = importlib.resources.files("placer")
    files = (path for path in Path(str(package)).rglob("*") if path.suffix in (".py", ".npz"))
    return fingerprint([path.read_bytes() for path in sorted(files)])


def _points(result: CellResult) -> list[Point]:
    at_s = time.time()
    figures = {
        SEARCH_MAKESPAN: result.makespan_s,
        SEARCH_BOUND: result.bound_s,
        SEARCH_GAP: result.gap,
        SEARCH_EVALUATIONS: float(result.num_evaluations),
        SEARCH_DURATION: result.search_s,
    }
    points = [Point(SEARCH_BEST, best_s, evaluation, at_s) for evaluation, best_s in result.curve]
    return points + [Point(n, value, 0, at_s) for n, value in figures.items() if value is not None]


def _say(results: Sequence[CellResult]) -> None:
    first, found = results[0], summary(results)
    spread = f" ({seconds(found.least_s)} to {seconds(found.most_s)})"
    why = f"; {first.detail}" if first.detail else ""
    _log.info(
        "%s: %s, %s evaluations: %s%s, %.1f s a search%s",
        first.title,
        first.cell.method,
        f"{max(result.num_evaluations for result in results):,}",
        seconds(found.median_s),
        spread if len(results) > 1 and found.least_s else "",
        found.search_s,
        why,
    )


@task(task_run_name="table of benchmark {benchmark_run}")
def make_table(benchmark_run: str, search_runs: Sequence[str], settings: BenchmarkSettings) -> None:
    """Log the table and the figure of a benchmark."""
    store = open_store()
    run = OpenRun(store, benchmark_run)
    results = [read_search(store, run_id) for run_id in search_runs]
    rows = benchmark_rows(results)
    table = markdown_table(rows)
    document = _document(run, settings) | {
        "methods": benchmark_methods(settings),
        "rows": [row.document() for row in rows],
        "cells": [
            _cell(run_id, result) for run_id, result in zip(search_runs, results, strict=True)
        ],
    }
    run.log_text(json.dumps(document, indent=2), BENCHMARK_FILE)
    run.log_text(table, BENCHMARK_TABLE_FILE)
    run.log_table(long_table(rows), Path(BENCHMARK_TABLE_FILE).with_suffix(".csv").name)
    run.log_figure(search_curves(results), SEARCHES_FIGURE)
    run.describe(table, [SEARCHES_FIGURE])


def _cell(run_id: str, result: CellResult) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "graph": result.graph,
        "topology": result.topology,
        **dataclasses.asdict(result.cell),
        "makespan_s": result.makespan_s,
        "num_evaluations": result.num_evaluations,
        "search_s": result.search_s,
    }


@task(task_run_name="speed of the simulator")
def measure_simulator(settings: BenchmarkSettings) -> str:
    """Time the simulator on one graph; return the id of the run. A measurement is never reused."""
    graph_name, timed = simulator_profile(settings)
    grouping = group_ops(timed, GroupingConfig(max_groups=settings.group.max_groups)).grouping
    store = open_store()
    key = stage_key(BENCHMARK, timed.fingerprint, settings)
    title = f"{graph_name} on {timed.topology.name}"
    params = settings.model_dump(mode="json")
    with store.stage(
        BENCHMARK, key, name=f"speed of the simulator, {title}", params=params, tags={}
    ) as run:
        speeds = measure_speed(timed, grouping, seed=settings.seeds[0])
        most_threads = thread_counts()[-1]
        rates = {(speed.kind, speed.num_threads): speed.placements_per_s for speed in speeds}
        document = _document(run, settings) | {
            "graph": graph_name,
            "topology": timed.topology.name,
            "num_ops": timed.graph.num_ops,
            "num_groups": grouping.num_groups,
            "num_threads": most_threads,
            "placements_per_s": rates["groups", most_threads],
            "rows": [dataclasses.asdict(speed) for speed in speeds],
        }
        run.log_text(json.dumps(document, indent=2), BENCHMARK_FILE)
        for name, threads in (("one_thread", 1), ("all_cores", most_threads)):
            run.log_metrics(
                {f"{SPEED_PREFIX}{kind}/{name}_per_s": rate
                 for (kind, count), rate in rates.items() if count == threads}
            )  # fmt: skip
    return run.run_id


def _document(run: OpenRun, settings: BenchmarkSettings) -> dict[str, Any]:
    return {
        "version": 1,
        "kind": "placer.benchmark",
        "suite": settings.suite,
        "run_id": run.run_id,
        "date": now(),
        "machine": machine(),
        "versions": versions("placer", "tensorflow", "numpy", "numba", "pymetis", "scotchpy64"),
        "trials": settings.trials,
        "seeds": settings.seeds,
        "max_groups": settings.group.max_groups,
    }


@flow(name="benchmark", flow_run_name="benchmark {settings.suite}")
def benchmark(settings: BenchmarkSettings = BenchmarkSettings()) -> str:
    """Compare search methods on a suite of graphs, or time the simulator.

    Args:
        settings: Which suite, which methods, how many evaluations and which seeds.

    Returns:
        Id of the MLflow run that holds the table, above those of the searches.
    """
    check_suite(settings)
    if settings.suite == SIMULATOR:
        return measure_simulator(settings)
    groupings = [group(profile(source), settings.group) for source in suite_sources(settings)]
    store = open_store()
    contents = [read_grouping(store, run_id).content for run_id in groupings]
    key = stage_key(BENCHMARK, settings, program_fingerprint(), *contents)
    if run_id := reused(store, BENCHMARK, key):
        return run_id
    name, params = f"benchmark {settings.suite}", settings.model_dump(mode="json")
    with store.continued(BENCHMARK, key, name=name, params=params, tags={}) as run:
        found = [search_graph(run.run_id, grouping, settings) for grouping in groupings]
        make_table(run.run_id, list(itertools.chain.from_iterable(found)), settings)
    return run.run_id
