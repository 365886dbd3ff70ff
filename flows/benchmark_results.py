"""What ``placer benchmark`` prints and writes once its flow is done."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from flows.console import OUT
from flows.stages import BENCHMARK_FILE, SEARCHES_FIGURE
from flows.suites import SIMULATOR
from placer.benchmark import BenchmarkRow
from placer.benchmark_table import (
    bound_text,
    cell_lines,
    gap_text,
    methods_of,
    row_title,
)
from placer.files import atomic_write, write_json
from placer.mlflow_store import open_store

_COLUMN_WIDTH = 17
_KIND_TITLES = {
    "one_device": "all on one device",
    "groups": "every group at random",
    "ops": "every op at random",
}


def show_benchmark(run_id: str, *, json_file: Path | None, figure_file: Path | None) -> None:
    """Print the table of a benchmark; write what was asked for."""
    store = open_store()
    document = json.loads(store.download(run_id, BENCHMARK_FILE).read_text())
    if document["suite"] == SIMULATOR:
        OUT.print(_speed_table(document))
    else:
        rows = [BenchmarkRow.of_document(row) for row in document["rows"]]
        for table in benchmark_tables(rows, width=OUT.width):
            OUT.print(table)
        OUT.print(_summary_table(rows))
    if figure_file is not None:
        atomic_write(figure_file, store.download(run_id, SEARCHES_FIGURE).read_bytes())
    if json_file is not None:
        write_json(document, json_file)
    OUT.print(f"run        {run_id}", soft_wrap=True)
    OUT.print("next       placer ui  (the MLflow page compares the searches)", soft_wrap=True)


def benchmark_tables(rows: Sequence[BenchmarkRow], *, width: int) -> list[Table]:
    """Return the table, its methods on as many tables as the width makes necessary."""
    titles = [row_title(row) for row in rows]
    methods = methods_of(rows)
    label_width = max(map(len, titles), default=0) // 2 + 12
    at_once = max(1, (width - label_width) // _COLUMN_WIDTH)
    parts = [methods[start : start + at_once] for start in range(0, len(methods), at_once)]
    return [_part(rows, titles, part) for part in parts]


def _part(rows: Sequence[BenchmarkRow], titles: Sequence[str], methods: Sequence[str]) -> Table:
    table = _new_table("graph on topology", "evaluations", *methods)
    for row, title in zip(rows, titles, strict=True):
        cells = []
        for method in methods:
            text = "\n".join(cell_lines(row, method))
            cells.append(f"[bold green]{text}[/]" if method in row.best_methods else text)
        table.add_row(title.replace(" on ", "\non "), f"{row.num_trials:,}", *cells)
    return table


def _summary_table(rows: Sequence[BenchmarkRow]) -> Table:
    table = _new_table(
        "graph on topology", "ops → groups", "best", "lower bound", "gap", "found by"
    )
    for row in rows:
        best = row.best_methods
        table.add_row(
            row_title(row),
            f"{row.num_ops:,} → {row.num_groups:,}",
            cell_lines(row, best[0])[0] if best else "–",
            f"{bound_text(row)} ({row.bound_name})",
            gap_text(row.gap),
            ", ".join(best) or "–",
        )
    return table


def _speed_table(document: Mapping[str, Any]) -> Table:
    title = f"{document['graph']} on {document['topology']}: {document['num_ops']:,} ops in"
    table = _new_table("placements", "threads", "a second", "slowest and fastest round")
    table.title = f"{title} {document['num_groups']:,} groups"
    table.title_justify = "left"
    for row in document["rows"]:
        table.add_row(
            _KIND_TITLES[row["kind"]],
            str(row["num_threads"]),
            f"{row['placements_per_s']:,.0f}",
            f"{row['least_per_s']:,.0f} to {row['most_per_s']:,.0f}",
        )
    return table


def _new_table(first: str, *others: str) -> Table:
    table = Table(
        header_style="bold", box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True
    )
    table.add_column(first, no_wrap=True)
    for heading in others:
        table.add_column(heading, justify="right")
    return table
