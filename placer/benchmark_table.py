"""The table of a benchmark as Markdown, as one line a method, and as the texts of its cells.

Times of one row share one unit and have six digits: searches often differ by less than a
thousandth.
"""

from collections.abc import Mapping, Sequence

import pandas as pd

from placer.benchmark import BenchmarkRow, gap_over
from placer.report import seconds, time_unit


def cell_lines(row: BenchmarkRow, method: str) -> list[str]:
    """Return what a cell says, in the row's unit: the median, the range, the paper's figure.

    The range is left out where all seeds agree, and the paper's figure where it has none.
    """
    _, factor = row_unit(row)
    found = row.methods.get(method)
    lines = [_digits(found.median_s, factor) if found else "–"]
    if found and found.least_s is not None and found.least_s != found.most_s:
        lines.append(f"{_digits(found.least_s, factor)}–{_digits(found.most_s, factor)}")
    if method in row.paper_s:
        time_s = row.paper_s[method]
        lines.append(f"paper {'no memory' if time_s is None else seconds(time_s)}")
    return lines


def row_unit(row: BenchmarkRow) -> tuple[str, float]:
    """Return the unit that suits a row's best time, and what seconds are multiplied by."""
    return time_unit(row.bound_s if row.best_s is None else row.best_s)


def row_title(row: BenchmarkRow) -> str:
    """Return graph, topology and the unit of the row's times."""
    return f"{row.title} ({row_unit(row)[0]})"


def bound_text(row: BenchmarkRow) -> str:
    """Return the lower bound in the row's unit."""
    return _digits(row.bound_s, row_unit(row)[1])


def gap_text(gap: float | None) -> str:
    """Return a gap to the lower bound as a percentage."""
    return "–" if gap is None else f"{gap:.2%}"


def methods_of(rows: Sequence[BenchmarkRow]) -> list[str]:
    """Return the methods of all rows, in their order."""
    return list(dict.fromkeys(method for row in rows for method in row.methods))


def markdown_table(rows: Sequence[BenchmarkRow]) -> str:
    """Return the table in Markdown, the best of each row in bold."""
    methods = methods_of(rows)
    header = ["graph on topology", "evaluations", *methods, "lower bound", "gap of the best"]
    lines = [header, ["---"] + ["---:"] * (len(header) - 1)]
    for row in rows:
        cells = [_markdown_cell(row, method) for method in methods]
        lines.append(
            [row_title(row), f"{row.num_trials:,}", *cells, bound_text(row), gap_text(row.gap)]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def long_table(rows: Sequence[BenchmarkRow]) -> pd.DataFrame:
    """Return one line for each method in each row, for programs and for the tracking page."""
    return pd.DataFrame([_long_line(row, method) for row in rows for method in row.methods])


def _long_line(row: BenchmarkRow, method: str) -> Mapping[str, object]:
    found = row.methods[method]
    return {
        "graph": row.graph,
        "topology": row.topology,
        "evaluations": row.num_trials,
        "method": method,
        "median_s": found.median_s,
        "least_s": found.least_s,
        "most_s": found.most_s,
        "search_s": found.search_s,
        "lower_bound_s": row.bound_s,
        "gap": gap_over(found.median_s, row.bound_s),
        "is_best": method in row.best_methods,
        "paper_s": row.paper_s.get(method),
    }


def _markdown_cell(row: BenchmarkRow, method: str) -> str:
    median, *others = cell_lines(row, method)
    shown = f"**{median}**" if method in row.best_methods else median
    return " ".join([shown, *(f"({other})" for other in others)])


def _digits(time_s: float | None, factor: float) -> str:
    return "–" if time_s is None else f"{time_s * factor:.6g}"
