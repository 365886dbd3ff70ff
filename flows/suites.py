"""Suites of a benchmark: which graphs on which topologies, and whether all of it is there."""

from pathlib import Path
from typing import get_args

from placer.benchmark import BENCHMARK_METHODS, check_methods
from placer.config import BenchmarkSettings, ProfileSettings, WorkloadName
from placer.errors import InvalidValueError, MissingFileError, UnknownNameError
from placer.files import load_graph_file, load_topology
from placer.paper import PAPER, PAPER_GPUS
from placer.profile import Profile
from placer.simulator_speed import training_step_of_10000_ops

MIRHOSEINI, MSR, SIMULATOR = "mirhoseini2017", "msr", "simulator"
EQUAL_DEVICES = "4xequal"
"""The packaged topology that results on published graphs are compared on."""

_LATER_MACHINE = "4xa100-nvlink"
"""Where the workloads that the paper did not have are placed as well."""


def check_suite(settings: BenchmarkSettings) -> None:
    """Check that all names are known and all files are there and can be used.

    Raises:
        PlacerError: If one is not; the message is one line.
    """
    check_methods(benchmark_methods(settings))
    if settings.suite == SIMULATOR:
        simulator_profile(settings)
        return
    for source in suite_sources(settings):
        topology = None if source.topology is None else load_topology(source.topology)
        if source.graph is not None:
            load_graph_file(source.graph).profile(topology)


def benchmark_methods(settings: BenchmarkSettings) -> tuple[str, ...]:
    """Return the methods that are asked for, each once."""
    return tuple(dict.fromkeys(settings.methods)) or BENCHMARK_METHODS


def suite_sources(settings: BenchmarkSettings) -> list[ProfileSettings]:
    """Return what is to be profiled: one for each graph and topology, in the table's order.

    Raises:
        InvalidValueError: If there is no such suite, or no graph in its folder.
        MissingFileError: If its folder is not there.
        UnknownNameError: If the suite has no graph of a name.
    """
    if settings.suite == MIRHOSEINI:
        sources = _workloads(settings.topology)
    elif settings.suite == MSR:
        sources = _folder(settings.folder, settings.topology or EQUAL_DEVICES)
    elif Path(settings.suite).is_dir():
        sources = _folder(Path(settings.suite), settings.topology)
    else:
        raise InvalidValueError(
            f"unknown suite {settings.suite!r}; known: {MIRHOSEINI}, {MSR}, {SIMULATOR}, or a"
            " folder of graph files"
        )
    known = [_short_name(source) for source in sources]
    for name in settings.graphs:
        if name not in known:
            raise UnknownNameError(f"graph of suite {settings.suite!r}:", name, set(known))
    return [s for s in sources if not settings.graphs or _short_name(s) in settings.graphs]


def simulator_profile(settings: BenchmarkSettings) -> tuple[str, Profile]:
    """Return name and profile of the graph whose simulation is timed.

    Raises:
        PlacerError: If more than one is named, or a file cannot be used.
    """
    topology = None if settings.topology is None else load_topology(settings.topology)
    if not settings.graphs:
        return "generated", training_step_of_10000_ops(topology or load_topology(EQUAL_DEVICES))
    if len(settings.graphs) > 1:
        raise InvalidValueError(
            f"suite {SIMULATOR!r} takes one graph file, got {len(settings.graphs)}"
        )
    path = Path(settings.graphs[0])
    source = load_graph_file(path)
    if topology is None and source.topology is None:
        topology = load_topology(EQUAL_DEVICES)
    return path.stem, source.profile(topology)


def _workloads(topology: str | None) -> list[ProfileSettings]:
    """Return the built-in workloads at paper size, the paper's own ones first."""
    names = sorted(get_args(WorkloadName), key=lambda name: name not in PAPER)
    sources = []
    for name in names:
        machines = [*PAPER_GPUS, *([] if name in PAPER else [_LATER_MACHINE])]
        for machine in [topology] if topology else machines:
            sources.append(ProfileSettings(workload=name, size="paper", topology=machine))
    return sources


def _folder(folder: Path, topology: str | None) -> list[ProfileSettings]:
    if not folder.is_dir():
        raise MissingFileError(
            f"the graphs of suite {MSR!r} are not there: no folder {folder}; name one (--folder)"
        )
    graphs = sorted(folder.glob("*.json"))
    if not graphs:
        raise InvalidValueError(f"folder {folder} has no graph file (*.json)")
    return [ProfileSettings(graph=graph, topology=topology) for graph in graphs]


def _short_name(source: ProfileSettings) -> str:
    return source.graph_name.removesuffix("-paper")
