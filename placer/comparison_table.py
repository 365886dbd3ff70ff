"""The tables of a comparison: their texts, for the terminal and as Markdown.

Step times have six digits: runs often differ by less than a thousandth.
"""

from collections.abc import Sequence

from placer.comparison import ComparedPlacements, Comparison, RunSummary, short_id
from placer.environment import REAL
from placer.report import percent, seconds, time_unit

RUN_HEADINGS = (
    "run",
    "name",
    "graph",
    "topology",
    "method",
    "trials",
    "best step time",
    "environment",
    "at trial",
    "after",
    "above bound",
    "did not run",
    "status",
)

PLACEMENT_HEADINGS = ("run", "against", "groups moved", "compute time moved", "largest that moved")


def run_cells(run: RunSummary) -> tuple[str, ...]:
    """Return a run's texts under ``RUN_HEADINGS``."""
    found = run.findings
    at = "–" if found.best_trial is None else f"{found.best_trial:,}"
    if found.is_thinned and found.best_trial is not None:
        at = f"≤ {at}"
    return (
        run.short_id,
        run.name,
        run.graph,
        run.topology,
        run.method,
        f"{found.num_trials:,}",
        _step_time(found.best_step_time_s),
        "real devices" if found.environment == REAL else found.environment or "–",
        at,
        seconds(found.time_to_best_s),
        percent(run.gap),
        percent(found.invalid_share),
        run.status,
    )


def setting_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return the settings that differ: the name, then each run's value."""
    return [
        (name, *("–" if value is None else value for value in values))
        for name, values in comparison.settings.items()
    ]


def placement_cells(placements: ComparedPlacements) -> tuple[str, ...]:
    """Return the texts of two compared placements under ``PLACEMENT_HEADINGS``."""
    runs = (short_id(placements.second), short_id(placements.first))
    difference = placements.difference
    if difference is None:
        return (*runs, "–", "–", f"not compared: {placements.reason}")
    moved = f"{percent(difference.moved_share)} ({difference.num_moved} of {difference.num_groups})"
    largest = ", ".join(difference.largest_moved) or "–"
    return (*runs, moved, percent(difference.moved_time_share), largest)


def markdown_comparison(comparison: Comparison) -> str:
    """Return the comparison in Markdown: the runs, the best in bold, and what differs."""
    rows = [
        [f"**{cell}**" if run.run_id in comparison.best_runs else cell for cell in run_cells(run)]
        for run in comparison.runs
    ]
    ids = [run.short_id for run in comparison.runs]
    parts = [_markdown_table(RUN_HEADINGS, rows)]
    parts += [f"Not comparable: {warning}." for warning in comparison.warnings]
    parts.append("## Settings that differ")
    settings = setting_rows(comparison)
    parts.append(_markdown_table(("setting", *ids), settings) if settings else "None.")
    parts.append("## Placements found")
    placements = [placement_cells(one) for one in comparison.placements]
    parts.append(_markdown_table(PLACEMENT_HEADINGS, placements))
    return "\n\n".join(parts) + "\n"


def _step_time(time_s: float | None) -> str:
    if time_s is None:
        return "–"
    unit, factor = time_unit(time_s)
    return f"{time_s * factor:.6g} {unit}"


def _markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines
    )
