"""The figure of a benchmark: the best makespan so far against evaluations.

Array shapes: S seeds, X evaluations.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from placer.benchmark import CellResult, Curve, summary
from placer.figures import COLOURS, GREY, style
from placer.graph import FloatArray, IntArray
from placer.report import time_unit
from placer.search.methods import METHODS, SINGLE

_BOUND = "lower bound"
_SINGLE_DEVICE = "single device"


def search_curves(results: Sequence[CellResult]) -> Figure:
    """Draw the searches, a panel a graph on a topology; heuristics are no curves.

    A line is the median of a method's seeds and its band reaches from the least to the most; it
    begins where all of them have a placement that fits. Of several numbers of evaluations the
    largest is drawn. Horizontal lines are the lower bound and the best single device.
    """
    most = max((result.cell.num_trials for result in results), default=0)
    panels: dict[str, list[CellResult]] = {}
    for result in results:
        if result.cell.num_trials == most:
            panels.setdefault(result.title, []).append(result)
    num_columns = min(3, max(1, len(panels)))
    num_rows = max(1, -(-len(panels) // num_columns))
    size = (max(7.5, 4.6 * num_columns), 0.9 + 3.7 * num_rows)
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    for number, (title, found) in enumerate(panels.items()):
        axes = figure.add_subplot(num_rows, num_columns, number + 1)
        _draw(axes, found)
        axes.set_title(title, fontsize=11)
    handles = {
        label: handle
        for axes in figure.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", frameon=False,
                  ncols=4 * num_columns)  # fmt: skip
    return figure


def aligned(curves: Sequence[Curve]) -> tuple[IntArray, FloatArray]:
    """Return the evaluations of all curves, ``[X]``, and each curve there, ``[S, X]``.

    They begin where the last of the curves does, and are none if one is empty. A curve that
    ended stays what it was.
    """
    if not curves or not all(curves):
        return np.empty(0, dtype=np.int64), np.empty((len(curves), 0))
    first = max(curve[0][0] for curve in curves)
    numbers = np.unique([number for curve in curves for number, _ in curve])
    numbers = numbers[numbers >= first]
    rows = []
    for curve in curves:
        at, times_s = np.array(curve).T
        rows.append(times_s[np.searchsorted(at, numbers, side="right") - 1])
    return numbers, np.array(rows)


def _draw(axes: Axes, results: Sequence[CellResult]) -> None:
    curves: dict[str, list[Curve]] = {}
    for result in results:
        if result.cell.method in METHODS:
            curves.setdefault(result.cell.method, []).append(result.curve)
    drawn = {method: aligned(found) for method, found in curves.items()}
    references_s = _references_s(results)
    _, factor = unit = time_unit(results[0].bound_s)
    style(axes)
    for method, (numbers, times_s) in drawn.items():
        if len(numbers):
            place = list(METHODS).index(method)
            colour, dashes = COLOURS[place % len(COLOURS)], "-" if place < len(COLOURS) else "--"
            low, middle, high = np.quantile(times_s, [0, 0.5, 1], axis=0) * factor
            axes.step(numbers, middle, dashes, where="post", color=colour, lw=2, label=method)
            axes.fill_between(numbers, low, high, step="post", color=colour, alpha=0.15, lw=0)
    for dashes, (name, time_s) in zip(("--", ":"), references_s.items(), strict=False):
        axes.axhline(time_s * factor, color=GREY, ls=dashes, lw=1.5, label=name)
    axes.set(xscale="log", xlabel="evaluations", ylabel=f"best makespan ({unit[0]})")
    low_s, high_s = _limits_s(
        [times_s for _, times_s in drawn.values() if times_s.size], references_s
    )
    axes.set_ylim(low_s * factor, high_s * factor)
    bound_s = references_s[_BOUND]
    if bound_s < low_s:
        text = f"{_BOUND} {bound_s * factor:.4g}, further below"
        axes.text(0.02, 0.02, text, transform=axes.transAxes, color=GREY, fontsize=9)


def _references_s(results: Sequence[CellResult]) -> dict[str, float]:
    references_s = {_BOUND: results[0].bound_s}
    singles = [result for result in results if result.cell.method == SINGLE]
    single_s = summary(singles).median_s if singles else None
    return references_s if single_s is None else {**references_s, _SINGLE_DEVICE: single_s}


def _limits_s(
    drawn: Sequence[FloatArray], references_s: Mapping[str, float]
) -> tuple[float, float]:
    """Return the least and largest time to show.

    Neither hopeless beginnings, nor the slowest search, nor a hopeless single device, nor a
    weak bound may flatten the rest. By the logarithm a third of the evaluations is the beginning.
    """
    medians_s = [np.median(times_s, axis=0) for times_s in drawn]
    ends_s = sorted(float(median_s[-1]) for median_s in medians_s)
    shown_s = ends_s[: max(1, len(ends_s) - 1)] or list(references_s.values())
    least_s = min(shown_s)
    early_s = [float(median_s[len(median_s) // 3]) for median_s in medians_s]
    most_s = max([*shown_s, *([float(np.median(early_s))] if early_s else [])])
    shown_s += [time_s for time_s in references_s.values() if time_s < 2 * most_s]
    spread_s = (max(most_s, *shown_s) - least_s) or 0.05 * most_s or 1.0
    low_s = min(shown_s)
    if low_s < least_s - spread_s:
        low_s = least_s - 0.2 * spread_s
    return low_s - 0.08 * spread_s, max(most_s, *shown_s) + 0.15 * spread_s
