"""The commands about runs that exist: ``placer runs``, ``resume``, ``compare`` and ``trials``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from flows.arguments import JsonFile, Verbose, start
from placer.errors import InvalidValueError

Training = Annotated[str, typer.Argument(metavar="RUN", help="Run id of a training.")]
Graph = Annotated[str | None, typer.Option(help="Only trainings of the graph of this name.")]
Tag = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="NAME=VALUE", help="Only trainings that have this tag."),
]


def runs(
    *,
    graph: Graph = None,
    tag: Tag = None,
    json_file: JsonFile = None,
    verbose: Verbose = False,
) -> None:
    """List the newest trainings: how far each is, and whether its process still runs."""
    start(verbose)
    from flows.runs import list_runs

    list_runs(graph=graph, tags=_named("--tag", tag), json_file=json_file)


def resume(
    run: Training,
    *,
    extend: Annotated[int, typer.Option(metavar="N", help="Add so many trials.")] = 0,
    fork: Annotated[
        bool,
        typer.Option(
            "--fork", help="Go on from the last checkpoint in a new run; the old one stays."
        ),
    ] = False,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of the training, e.g. seed=1 or ppo.clip=0.1. Other than the run's only"
            " with --fork.",
        ),
    ] = None,
    json_file: JsonFile = None,
    verbose: Verbose = False,
) -> None:
    """Go on with a training: one that was interrupted, with more trials, or as a new run."""
    start(verbose)
    from flows.results import show_training
    from flows.resume import resume as flow

    run_id = flow(run, extend=extend, fork=fork, changes=_named("--set", change))
    show_training(run_id, json_file=json_file)


def compare(
    run: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Run ids of trainings, searches of a benchmark, or evaluations, which stand for"
            " their trainings. Placements are compared with the first's.",
        ),
    ] = None,
    *,
    graph: Annotated[
        str | None, typer.Option(help="Also the newest trainings of the graph of this name.")
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="NAME=VALUE", help="Also the newest trainings of this tag."),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Write the figure of the best so far (PNG) here.")
    ] = None,
    json_file: JsonFile = None,
    verbose: Verbose = False,
) -> None:
    """Compare what runs found, their settings and their placements; log it to MLflow."""
    start(verbose)
    from flows.compare import compare_runs

    compare_runs(
        run or (),
        graph=graph,
        tags=_named("--tag", tag),
        json_file=json_file,
        figure_file=figure,
    )


def trials(
    training_run: Training,
    *,
    out: Annotated[Path, typer.Option(help="Write the table here: .parquet or .csv.")],
    verbose: Verbose = False,
) -> None:
    """Export the trials of a training, finished or not, as one file."""
    start(verbose)
    from flows.trials import export_trials

    export_trials(training_run, out)


def _named(option: str, given: Sequence[str] | None) -> dict[str, str]:
    """Return what NAME=VALUE options say."""
    named = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise InvalidValueError(f"{option} takes NAME=VALUE, got {text!r}")
        named[name] = value
    return named
