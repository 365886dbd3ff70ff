"""Benchmarks: many searches at equal evaluations, and the table that compares them.

A *cell* is one search: a method with a number of evaluations and a seed, on one *problem*, a
grouped graph on a topology. One evaluation is one placement that is measured, the same for all
methods. A *row* of the table is a problem with a number of evaluations; in it each method has
the median over its seeds. A seed that found no placement that fits counts as slower than all
others, so that a method cannot gain by failing.
"""

import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from placer.bounds import Bound, lower_bound
from placer.errors import InfeasibleError, InvalidValueError
from placer.grouping import Grouping
from placer.heuristics import HEURISTICS
from placer.paper import paper_step_times_s
from placer.profile import Profile
from placer.search.methods import METHODS, SINGLE, ZERO_SHOT, search
from placer.simulator import SimulatedEnvironment, Simulator

BENCHMARK_METHODS = tuple(dict.fromkeys((*METHODS, ZERO_SHOT, SINGLE, *HEURISTICS)))
"""Every method that any graph has: searches first, ``auto`` before all, then heuristics."""

CURVE_POINTS = 100

Curve = tuple[tuple[int, float], ...]
"""The best step time so far, in seconds, after some of the evaluations."""


def check_methods(methods: Sequence[str]) -> None:
    """Check that all names are those of methods that a benchmark can run.

    Raises:
        InvalidValueError: If one is not, or there is none; the message lists those there are.
    """
    known = ", ".join(BENCHMARK_METHODS)
    for method in methods:
        if method not in BENCHMARK_METHODS:
            raise InvalidValueError(f"unknown method {method!r}; known: {known}")
    if not methods:
        raise InvalidValueError(f"no method is named; known: {known}")


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One search of a benchmark.

    Attributes:
        num_trials: Evaluations at most.
        method: One of ``BENCHMARK_METHODS``.
        seed: All randomness derives from it.
    """

    num_trials: int
    method: str
    seed: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """What one search found, and on what.

    Attributes:
        graph: How people call the graph.
        topology: How people call the topology.
        num_ops: Ops of the graph.
        num_groups: Groups that were placed.
        bound_name: Which lower bound it is.
        bound_s: Makespan that no placement is below.
        cell: Which search it was.
        makespan_s: Of the best placement that fits; None if none did.
        device_of_group: That placement, ``[G]``.
        num_evaluations: Placements that were measured.
        search_s: Wall time of the search.
        curve: The best makespan so far.
        detail: Why there is no placement, if the method does not apply.
    """

    graph: str
    topology: str
    num_ops: int
    num_groups: int
    bound_name: str
    bound_s: float
    cell: Cell
    makespan_s: float | None
    device_of_group: tuple[int, ...] | None
    num_evaluations: int
    search_s: float
    curve: Curve
    detail: str = ""

    @property
    def title(self) -> str:
        """Graph and topology, for people."""
        return f"{self.graph} on {self.topology}"

    @property
    def gap(self) -> float | None:
        """How far the makespan is above the bound, as a share of the bound; None if undefined."""
        return gap_over(self.makespan_s, self.bound_s)

    def document(self) -> dict[str, Any]:
        """Return it as plain values, for a file."""
        return dataclasses.asdict(self)

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Self:
        """Return what ``document`` returned, read back from a file."""
        placed = document["device_of_group"]
        own = {
            "cell": Cell(**document["cell"]),
            "device_of_group": None if placed is None else tuple(placed),
            "curve": tuple((evaluation, best_s) for evaluation, best_s in document["curve"]),
        }
        return cls(**{**document, **own})


@dataclasses.dataclass(frozen=True)
class Problem:
    """A grouped graph on a topology, for as many searches as one likes.

    Attributes:
        graph: How people call the graph.
        profile: What is placed.
        grouping: Its groups.
    """

    graph: str
    profile: Profile
    grouping: Grouping

    @functools.cached_property
    def _environment(self) -> SimulatedEnvironment:
        return SimulatedEnvironment(Simulator(self.profile))

    @functools.cached_property
    def _bound(self) -> Bound:
        return lower_bound(self.profile, self.grouping)

    def search(self, cell: Cell) -> CellResult:
        """Run one search; a heuristic that does not apply to the graph is a result, too."""
        bound, environment = self._bound, self._environment
        found, detail = None, ""
        started_s = time.perf_counter()
        try:
            found = search(
                cell.method,
                self.profile,
                self.grouping,
                environment,
                num_trials=cell.num_trials,
                seed=cell.seed,
            )
        except InfeasibleError as error:
            detail = str(error)
        return CellResult(
            graph=self.graph,
            topology=self.profile.topology.name,
            num_ops=self.profile.graph.num_ops,
            num_groups=self.grouping.num_groups,
            bound_name=bound.name,
            bound_s=bound.seconds,
            cell=cell,
            makespan_s=None if found is None else found.best_step_time_s,
            device_of_group=None if found is None else found.device_of_group,
            num_evaluations=0 if found is None else found.num_evaluations,
            search_s=time.perf_counter() - started_s,
            curve=() if found is None else thinned(found.trajectory_s),
            detail=detail,
        )


def thinned(trajectory_s: Sequence[float | None]) -> Curve:
    """Return a trajectory at about 100 of its evaluations, by the logarithm equally spaced.

    The first evaluation that ran and the last of all are among them.

    Args:
        trajectory_s: The best step time after each evaluation; None until one ran.
    """
    count = len(trajectory_s)
    first = next((i for i, best_s in enumerate(trajectory_s) if best_s is not None), count)
    if first == count:
        return ()
    kept = np.rint(np.geomspace(first + 1, count, CURVE_POINTS)).astype(int).tolist()
    times = ((number, trajectory_s[number - 1]) for number in dict.fromkeys(kept))
    return tuple((number, best_s) for number, best_s in times if best_s is not None)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MethodSummary:
    """What a method found in one row, over its seeds.

    Attributes:
        median_s: Median makespan; None if half of the seeds or more found nothing.
        least_s: Least makespan; None if no seed found any.
        most_s: Largest makespan; None if a seed found none.
        search_s: Median wall time of the searches.
        num_seeds: How many seeds it is over.
    """

    median_s: float | None
    least_s: float | None
    most_s: float | None
    search_s: float
    num_seeds: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRow:
    """All methods on one problem with one number of evaluations.

    Attributes:
        graph: How people call the graph.
        topology: How people call the topology.
        num_trials: Evaluations at most.
        num_ops: Ops of the graph.
        num_groups: Groups that were placed.
        bound_name: Which lower bound it is.
        bound_s: Makespan that no placement is below.
        methods: By name, in the order of the benchmark.
        paper_s: The paper's measured step times of this very cell, by method; None where it
            ran out of memory, empty if the paper has no such cell.
    """

    graph: str
    topology: str
    num_trials: int
    num_ops: int
    num_groups: int
    bound_name: str
    bound_s: float
    methods: Mapping[str, MethodSummary]
    paper_s: Mapping[str, float | None]

    @property
    def title(self) -> str:
        """Graph and topology, for people."""
        return f"{self.graph} on {self.topology}"

    @property
    def best_s(self) -> float | None:
        """The least median of all methods; None if none has one."""
        medians = (found.median_s for found in self.methods.values())
        return min((median for median in medians if median is not None), default=None)

    @property
    def best_methods(self) -> list[str]:
        """Those that have that median, in the order of the benchmark."""
        best_s = self.best_s
        if best_s is None:
            return []
        return [name for name, found in self.methods.items() if found.median_s == best_s]

    @property
    def gap(self) -> float | None:
        """How far the best is above the bound, as a share of the bound; None if undefined."""
        return gap_over(self.best_s, self.bound_s)

    def document(self) -> dict[str, Any]:
        """Return it as plain values, for a file."""
        methods = {
            name: {
                **dataclasses.asdict(found),
                "gap": gap_over(found.median_s, self.bound_s),
                "paper_s": self.paper_s.get(name),
            }
            for name, found in self.methods.items()
        }
        return {
            **dataclasses.asdict(self),
            "methods": methods,
            "best_s": self.best_s,
            "best_methods": self.best_methods,
            "gap": self.gap,
        }

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Self:
        """Return what ``document`` returned, read back from a file."""
        names = [field.name for field in dataclasses.fields(MethodSummary)]
        methods = {
            method: MethodSummary(**{name: found[name] for name in names})
            for method, found in document["methods"].items()
        }
        own = {field.name: document[field.name] for field in dataclasses.fields(cls)}
        return cls(**{**own, "methods": methods})


def benchmark_rows(results: Iterable[CellResult]) -> list[BenchmarkRow]:
    """Return the table of many searches; rows and methods stay in the order of the results."""
    by_row: dict[tuple[str, str, int], list[CellResult]] = {}
    for result in results:
        key = (result.graph, result.topology, result.cell.num_trials)
        by_row.setdefault(key, []).append(result)
    return [_row(found) for found in by_row.values()]


def _row(results: Sequence[CellResult]) -> BenchmarkRow:
    first = results[0]
    by_method: dict[str, list[CellResult]] = {}
    for result in results:
        by_method.setdefault(result.cell.method, []).append(result)
    return BenchmarkRow(
        graph=first.graph,
        topology=first.topology,
        num_trials=first.cell.num_trials,
        num_ops=first.num_ops,
        num_groups=first.num_groups,
        bound_name=first.bound_name,
        bound_s=first.bound_s,
        methods={method: summary(found) for method, found in by_method.items()},
        paper_s=paper_step_times_s(first.graph, first.topology),
    )


def summary(results: Sequence[CellResult]) -> MethodSummary:
    """Return what one method found over its seeds, one result each and at least one."""
    times_s = [math.inf if r.makespan_s is None else r.makespan_s for r in results]
    return MethodSummary(
        median_s=_finite(statistics.median(times_s)),
        least_s=_finite(min(times_s)),
        most_s=_finite(max(times_s)),
        search_s=statistics.median(r.search_s for r in results),
        num_seeds=len(results),
    )


def gap_over(time_s: float | None, bound_s: float) -> float | None:
    """Return how far a time is above a bound, as a share of the bound; None if undefined."""
    return None if time_s is None or bound_s <= 0 else time_s / bound_s - 1


def _finite(time_s: float) -> float | None:
    return time_s if math.isfinite(time_s) else None
