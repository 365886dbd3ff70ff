"""What the terminal shows: stage messages, a progress bar, and the table of results."""

import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from flows.process import LOGGERS
from placer.report import percent, seconds, speedup
from placer.training import Progress as TrainingProgress

_log = logging.getLogger(__name__)
_LOG_INTERVAL_S = 10.0

_PIPED_WIDTH = 120

OUT = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPED_WIDTH)
ERR = Console(stderr=True, highlight=False)


class _ConsoleHandler(logging.Handler):
    """Writes messages through rich, so that they do not tear a progress bar apart."""

    def emit(self, record: logging.LogRecord) -> None:
        ERR.print(self.format(record), soft_wrap=True, markup=False)


def show_messages(*, verbose: bool) -> None:
    """Send the messages of Placer's own loggers to stderr, one line each."""
    handler = _ConsoleHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s  %(message)s", datefmt="%H:%M:%S"))
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(logging.DEBUG if verbose else logging.INFO)


def follow(updates: Iterable[TrainingProgress], *, num_trials: int) -> Iterator[TrainingProgress]:
    """Yield the updates of a training and show how far it is.

    A terminal gets a bar; anything else gets a line in the log every ten seconds.
    """
    if not ERR.is_terminal:
        yield from _log_progress(updates, num_trials=num_trials)
        return
    columns = (
        TextColumn("train"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("best {task.fields[best]}"),
        TextColumn("{task.fields[rate]:.3g} trials/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=ERR, transient=True) as bar:
        task = bar.add_task("train", total=num_trials, best="–", rate=0.0)
        for update in updates:
            bar.update(
                task,
                completed=update.num_trials,
                best=seconds(update.best_step_time_s),
                rate=update.trials_per_s,
            )
            yield update


def _log_progress(
    updates: Iterable[TrainingProgress], *, num_trials: int
) -> Iterator[TrainingProgress]:
    spoken_at_s = time.monotonic()
    for update in updates:
        if time.monotonic() - spoken_at_s > _LOG_INTERVAL_S:
            spoken_at_s = time.monotonic()
            best = seconds(update.best_step_time_s)
            _log.info("train: %d of %d trials, best %s", update.num_trials, num_trials, best)
        yield update


def new_table(title: str | None = None) -> Table:
    """Return a table without rows, in the look of all tables here."""
    return Table(
        title=title,
        title_justify="left",
        header_style="bold",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )


def results_table(
    rows: Sequence[Mapping[str, Any]], device_names: Sequence[str], *, title: str
) -> Table:
    """Return the table of an evaluation, the best method first.

    A method that did not run shows its outcome in place of its time. A measured speed-up shows
    its interval of 95 %, or else the spread of the step time is shown. Where nothing was measured,
    the distance to the lower bound is shown, and peak memory: there it decides what can run.
    """
    measured = any(row["step_time_s"] is not None for row in rows)
    has_spread = measured and not any(row.get("speedup_over_single_interval") for row in rows)
    table = new_table(title)
    table.add_column("found by", no_wrap=True)
    headings = ["simulated", "measured" if measured else "above\nbound"]
    headings += ["± spread"] if has_spread else []
    headings += ["× one\ndevice", "× the\nexpert"]
    if not measured:
        headings.append(f"peak GiB on\n{_brief(device_names)}")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for rank, row in enumerate(rows):
        simulated = seconds(row["makespan_s"])
        cells = [row["method"], simulated if row["outcome"] == "OK" else row["outcome"]]
        cells.append(seconds(row["step_time_s"]) if measured else percent(row.get("gap")))
        if has_spread:
            cells.append(seconds(row["spread_s"]))
        cells += [speedup(row, "speedup_over_single"), speedup(row, "speedup_over_expert")]
        if not measured:
            cells.append(" ".join(f"{size / 2**30:.1f}" for size in row["peak_memory_bytes"]))
        table.add_row(*cells, style="bold green" if rank == 0 else None)
    return table


def fail(message: str) -> None:
    """Say in one line on stderr what was wrong."""
    sys.stderr.write(f"placer: {' '.join(message.split())}\n")


def warn(message: str) -> None:
    """Say in one line on stderr what the user should know."""
    fail(f"warning: {message}")


def _brief(names: Sequence[str]) -> str:
    return " ".join(names) if len(names) < 3 else f"{names[0]} … {names[-1]}"
