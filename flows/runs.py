"""The runs command: the newest trainings, how far each is, and in what state."""

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from flows.console import OUT, new_table
from flows.stages import selection
from placer.files import write_json
from placer.mlflow_store import open_store
from placer.report import seconds
from placer.stage_run import INTERRUPTED, StageRun
from placer.tracking_names import (
    BEST_STEP_TIME,
    ERROR,
    EXTENDED_TO,
    GRAPH,
    HEARTBEAT,
    LOGGED_TRIALS,
    TOPOLOGY,
)

_MOST_LISTED = 50


def list_runs(*, graph: str | None, tags: Mapping[str, str], json_file: Path | None) -> None:
    """Print the newest trainings, at most 50, the newest first.

    A training whose process died is marked as KILLED in the store.

    Args:
        graph: Only of the graph of this name.
        tags: Only those that have all these tags.
        json_file: Where to write the same as JSON.

    Raises:
        PlacerError: If the store does not answer, or cannot be asked for a tag.
    """
    store = open_store()
    store.mark_interrupted()
    wanted = selection(graph, tags)
    rows = [_row(run) for run in store.trainings(wanted, limit=_MOST_LISTED)]
    if json_file is not None:
        write_json({"runs": rows}, json_file)
    if not rows:
        OUT.print("no training yet; `placer optimize` makes one" if not wanted else "no training")
        return
    OUT.print(_table(rows))
    if any(row["state"] == INTERRUPTED for row in rows):
        OUT.print("next       placer resume RUN  (goes on with one that was interrupted)")


def _row(run: StageRun) -> dict[str, Any]:
    wanted = run.tags.get(EXTENDED_TO, run.params.get("trials"))
    return {
        "run_id": run.run_id,
        "name": run.name,
        "graph": run.tags.get(GRAPH),
        "topology": run.tags.get(TOPOLOGY),
        "state": run.state,
        "num_trials": int(run.tags.get(LOGGED_TRIALS, "0")),
        "trials_wanted": None if wanted is None else int(wanted),
        "best_step_time_s": run.metrics.get(BEST_STEP_TIME),
        "heartbeat": run.tags.get(HEARTBEAT),
        "reason": run.tags.get(ERROR),
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = new_table()
    table.add_column("run", no_wrap=True)
    table.add_column("name")
    table.add_column("state", no_wrap=True)
    for heading in ("trials", "best"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("last heard of", no_wrap=True)
    for row in rows:
        table.add_row(
            row["run_id"],
            escape(row["name"]),
            row["state"],
            f"{row['num_trials']:,}",
            seconds(row["best_step_time_s"]),
            _ago(row["heartbeat"]),
            style="yellow" if row["state"] == INTERRUPTED else None,
        )
    return table


def _ago(time: str | None) -> str:
    """Return how long ago a time was."""
    if time is None:
        return "–"
    age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(time)
    age_s = max(0, int(age.total_seconds()))
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if age_s >= length_s:
            return f"{age_s // length_s} {unit} ago"
    return f"{age_s} s ago"
