"""The figure of a comparison: the best step time so far against trials and against wall time."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from placer.comparison import RunSummary, Steps
from placer.environment import REAL
from placer.figures import COLOURS, style
from placer.report import time_unit

_DASHES = ("-", "--", ":", "-.")


def comparison_curves(runs: Sequence[RunSummary]) -> Figure:
    """Draw the best so far of every run, a line each, on two panels.

    Wall time is counted from a run's first trial. A search keeps only its whole duration, so that
    by wall time it is a dot. A run in which nothing ran is in the legend alone.
    """
    figure = Figure(figsize=(11, 4.3 + 0.22 * -(-len(runs) // 2)), dpi=120, layout="constrained")
    by_trial, by_time = figure.subplots(1, 2, sharey=True)
    bests_s = [run.findings.best_step_time_s for run in runs]
    unit, factor = time_unit(max((time_s for time_s in bests_s if time_s is not None), default=1.0))
    wall_unit, wall_factor = _wall_unit([run.findings.best_by_time for run in runs])
    for number, run in enumerate(runs):
        colour = COLOURS[number % len(COLOURS)]
        dashes = _DASHES[number // len(COLOURS) % len(_DASHES)]
        found = run.findings
        _draw(by_trial, found.best_by_trial, (1.0, factor), colour, dashes)
        _draw(by_time, found.best_by_time, (wall_factor, factor), colour, dashes)
        by_trial.plot([], [], dashes, color=colour, lw=2.2, label=_label(run))
    for axes in (by_trial, by_time):
        style(axes)
    by_trial.set(xlabel="trial", ylabel=f"best step time ({unit})", title="By trials")
    by_time.set(xlabel=f"time since the first trial ({wall_unit})", title="By wall time")
    if limits_s := _limits_s([run.findings.best_by_trial for run in runs]):
        by_trial.set_ylim(limits_s[0] * factor, limits_s[1] * factor)
    figure.legend(loc="outside lower center", frameon=False, fontsize=9, ncols=2)
    return figure


def _draw(axes: Axes, steps: Steps, factors: tuple[float, float], colour: str, dashes: str) -> None:
    if not steps:
        return
    places = [place * factors[0] for place, _ in steps]
    times = [time_s * factors[1] for _, time_s in steps]
    axes.step(places, times, dashes, where="post", color=colour, lw=2.2)
    axes.plot(places[-1], times[-1], "o", color=colour, ms=5)


def _label(run: RunSummary) -> str:
    method = "" if run.method in run.name else f", {run.method}"
    label = f"{run.short_id}  {run.name}{method}"
    if run.findings.best_step_time_s is None:
        return f"{label} (nothing ran)"
    return f"{label} (real devices)" if run.findings.environment == REAL else label


def _wall_unit(curves: Sequence[Steps]) -> tuple[str, float]:
    longest_s = max((steps[-1][0] for steps in curves if steps), default=0.0)
    if longest_s > 7200:
        return "h", 1 / 3600
    return ("min", 1 / 60) if longest_s > 300 else ("s", 1.0)


def _limits_s(curves: Sequence[Steps]) -> tuple[float, float] | None:
    """Return the least and largest step time to show; None if nothing ran.

    The first tenth of a run may be hopeless and must not flatten the rest.
    """
    shown_s = [
        time_s
        for steps in curves
        for place, time_s in [*steps, *_at_a_tenth(steps)]
        if place >= 0.1 * steps[-1][0]
    ]
    if not shown_s:
        return None
    low_s, high_s = min(shown_s), max(shown_s)
    margin_s = 0.08 * (high_s - low_s) or 0.05 * high_s or 1.0
    return low_s - margin_s, high_s + margin_s


def _at_a_tenth(steps: Steps) -> Steps:
    """Return the point of a curve at a tenth of its length, if it has begun there."""
    if not steps:
        return ()
    tenth = 0.1 * steps[-1][0]
    begun = [time_s for place, time_s in steps if place <= tenth]
    return ((tenth, begun[-1]),) if begun else ()
