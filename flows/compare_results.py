"""What ``placer compare`` prints."""

from collections.abc import Sequence

from rich.console import JustifyMethod
from rich.markup import escape
from rich.table import Table

from flows.console import OUT, new_table
from placer.comparison import Comparison
from placer.comparison_table import (
    PLACEMENT_HEADINGS,
    RUN_HEADINGS,
    placement_cells,
    run_cells,
    setting_rows,
)

_COLUMNS = (
    ("run",),
    ("name",),
    ("graph",),
    ("topology",),
    ("method",),
    ("trials",),
    ("best step time", "environment"),
    ("at trial", "after"),
    ("above bound",),
    ("did not run",),
    ("status",),
)
"""Of the terminal's table: which of the headings share a column."""

_BEST = "bold green"
_VALUE_WIDTH = 14
_WHOLE = {"run", "against", "trials", "status", "setting"}
_NUMBERS = {
    "trials",
    "best step time\nenvironment",
    "at trial\nafter",
    "above bound",
    "did not run",
    "compute time moved",
}


def show_comparison(comparison: Comparison, run_id: str) -> None:
    """Print the tables of a comparison, and which run holds it."""
    OUT.print(runs_table(comparison), "")
    for table in settings_tables(comparison, width=OUT.width):
        OUT.print(table, "")
    if not comparison.settings:
        OUT.print("all settings are the same\n")
    placements = [placement_cells(one) for one in comparison.placements]
    OUT.print(_table("placements found", PLACEMENT_HEADINGS, placements), "")
    OUT.print(f"run        {run_id}", soft_wrap=True)
    OUT.print("next       placer ui  (the MLflow page has the figure)", soft_wrap=True)


def runs_table(comparison: Comparison) -> Table:
    """Return the table of the runs, the best in bold.

    Graph and topology are in the title where all runs have the same.
    """
    rows = [dict(zip(RUN_HEADINGS, run_cells(run), strict=True)) for run in comparison.runs]
    shared = [name for name in ("graph", "topology") if len({row[name] for row in rows}) == 1]
    columns = [column for column in _COLUMNS if column[0] not in shared]
    title = " on ".join(rows[0][name] for name in shared)
    cells = [["\n".join(row[name] for name in column) for column in columns] for row in rows]
    styles = [_BEST if run.run_id in comparison.best_runs else "" for run in comparison.runs]
    return _table(title, ["\n".join(column) for column in columns], cells, styles)


def settings_tables(comparison: Comparison, *, width: int) -> list[Table]:
    """Return the table of the settings that differ, in as many parts as the width asks for."""
    rows = setting_rows(comparison)
    at_once = max(1, (width - max((len(row[0]) for row in rows), default=0)) // _VALUE_WIDTH)
    starts = range(0, len(comparison.runs) if rows else 0, at_once)
    return [
        _table(
            "settings that differ",
            ("setting", *(run.short_id for run in comparison.runs[start : start + at_once])),
            [(row[0], *row[1 + start : 1 + start + at_once]) for row in rows],
        )
        for start in starts
    ]


def _table(
    title: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    styles: Sequence[str] | None = None,
) -> Table:
    table = new_table(escape(title))
    for heading in headings:
        justify: JustifyMethod = "right" if heading in _NUMBERS else "left"
        table.add_column(
            escape(heading), overflow="fold", no_wrap=heading in _WHOLE, justify=justify
        )
    for row, row_style in zip(rows, styles or [""] * len(rows), strict=True):
        table.add_row(*map(escape, row), style=row_style)
    return table
