"""The command ``placer benchmark``: many searches compared, or the simulator's speed."""

from pathlib import Path
from typing import Annotated

import typer

from flows.arguments import JsonFile, MaxGroups, Verbose, checked, start
from placer.config import BenchmarkSettings, GroupSettings
from placer.errors import InvalidValueError

_DEFAULT = BenchmarkSettings()


def benchmark(  # noqa: PLR0913 - a suite, methods, and two files
    *,
    suite: Annotated[
        str,
        typer.Option(
            metavar="SUITE|FOLDER",
            help="'mirhoseini2017' (the paper's workloads on its machines), 'msr' (published"
            " graphs), 'simulator' (its speed), or a folder of graph files.",
        ),
    ] = _DEFAULT.suite,
    folder: Annotated[
        Path, typer.Option(help="Where suite 'msr' has its graphs.")
    ] = _DEFAULT.folder,
    graph: Annotated[
        str,
        typer.Option(
            metavar="NAME,…|FILE",
            help="Only these graphs of the suite; for suite 'simulator' a graph file. Default: all,"
            " and a generated step of 10,000 ops.",
        ),
    ] = "",
    topology: Annotated[
        str | None,
        typer.Option(help="A packaged name or a TOML file. Default: the suite's own."),
    ] = None,
    max_groups: MaxGroups = GroupSettings().max_groups,
    methods: Annotated[
        str,
        typer.Option(metavar="NAME,…", help="Search methods and heuristics. Default: all."),
    ] = "",
    trials: Annotated[
        str,
        typer.Option(metavar="N[,M…]", help="Placements to evaluate; a row for each number."),
    ] = ",".join(map(str, _DEFAULT.trials)),
    seeds: Annotated[
        str, typer.Option(metavar="N[,M…]", help="One search of each method for each.")
    ] = ",".join(map(str, _DEFAULT.seeds)),
    figure: Annotated[
        Path | None,
        typer.Option(help="Write the figure (PNG) here: best makespan against evaluations."),
    ] = None,
    json_file: JsonFile = None,
    verbose: Verbose = False,
) -> None:
    """Compare search methods at equal evaluations on a suite of graphs; log it to MLflow."""
    settings = checked(
        BenchmarkSettings,
        suite=suite,
        folder=folder,
        graphs=_names(graph),
        topology=topology,
        methods=_names(methods),
        trials=_numbers("trials", trials),
        seeds=_numbers("seeds", seeds),
        group=checked(GroupSettings, max_groups=max_groups),
    )
    if figure is not None and figure.suffix != ".png":
        raise InvalidValueError(f"--figure must name a .png file, got {str(figure)!r}")
    # Bad files and names are told at once, before any server starts.
    from flows.suites import SIMULATOR, check_suite

    check_suite(settings)
    if figure is not None and settings.suite == SIMULATOR:
        raise InvalidValueError("--figure: suite 'simulator' has a table and no figure")
    start(verbose)
    from flows.benchmark import benchmark as flow
    from flows.benchmark_results import show_benchmark

    show_benchmark(flow(settings), json_file=json_file, figure_file=figure)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))


def _numbers(option: str, text: str) -> tuple[int, ...]:
    numbers = _names(text)
    for number in numbers:
        if not number.isdecimal():
            raise InvalidValueError(f"--{option} takes whole numbers, got {number!r}")
    return tuple(dict.fromkeys(int(number) for number in numbers))
