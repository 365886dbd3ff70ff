"""Figures of a training, of an evaluation and of experiments, all with one look.

Colours are Okabe and Ito's, which people with any colour vision can tell apart; axes carry
units; text stays legible at thumbnail size.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from placer.graph import FloatArray
from placer.trials import Trial

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#000000")
GREY = "#8a8a8a"


def learning_curve(trials: Sequence[Trial], references_s: dict[str, float]) -> Figure:
    """Draw the best step time so far against trials, with every trial as a dot.

    Args:
        trials: Measured trials, by number.
        references_s: Step times to compare with, by name, in seconds: horizontal lines.
    """
    numbers = np.array([trial.number for trial in trials])
    times_s = np.array([_step_time_or_nan(trial) for trial in trials])
    unit, factor = _time_unit(times_s)
    figure, axes = _canvas()
    if np.isfinite(times_s).any():
        best = np.fmin.accumulate(times_s)
        axes.plot(numbers, times_s * factor, ".", color=GREY, alpha=0.35, ms=4, label="trial")
        axes.plot(numbers, best * factor, color=COLOURS[0], lw=2.5, label="best so far")
    failed = numbers[~np.isfinite(times_s)]
    if failed.size:
        bottom = np.zeros(failed.size)
        transform = axes.get_xaxis_transform()
        label = f"did not run ({failed.size})"
        axes.plot(failed, bottom, "|", color=COLOURS[3], ms=9, transform=transform, label=label)
    for colour, (name, time_s) in zip(COLOURS[1:], references_s.items(), strict=False):
        axes.axhline(time_s * factor, color=colour, ls="--", lw=1.5, label=name)
    axes.set(xlabel="trial", ylabel=f"step time ({unit})", title="Learning curve")
    axes.set_ylim(*_focus(times_s * factor, [time * factor for time in references_s.values()]))
    figure.legend(loc="outside right upper", frameon=False, fontsize=10)
    return figure


def step_times(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draw predicted and measured step times of every method that ran, the best on top.

    Args:
        rows: As ``Evaluation.rows`` returns them.
    """
    ran = [row for row in rows if row["outcome"] == "OK"]
    predicted = np.array([row["makespan_s"] for row in ran], dtype=np.float64)
    measured = np.array([row["step_time_s"] for row in ran], dtype=np.float64)
    unit, factor = _time_unit(predicted)
    figure, axes = _canvas(height=1.2 + 0.5 * len(ran))
    y = np.arange(len(ran))
    real = bool(np.isfinite(measured).any())
    height = 0.38 if real else 0.7
    axes.barh(
        y + height / 2 * real, predicted * factor, height, color=COLOURS[5], label="simulated"
    )
    if real:
        spread = np.array([row["spread_s"] or 0.0 for row in ran]) / 2
        bars = y - height / 2
        axes.barh(bars, measured * factor, height, color=COLOURS[0], label="measured")
        axes.errorbar(
            measured * factor, bars, xerr=spread * factor, fmt="none", ecolor="black", capsize=3
        )
    axes.set_yticks(y, [row["method"] for row in ran])
    axes.invert_yaxis()
    axes.set(xlabel=f"step time ({unit})", title="Step time by method")
    figure.legend(loc="outside upper right", frameon=False, fontsize=10, ncols=2)
    return figure


def device_load(device_names: Sequence[str], busy_s: dict[str, FloatArray]) -> Figure:
    """Draw how long each device computes within a step, for several placements.

    Args:
        device_names: Of the D devices.
        busy_s: Seconds by method, ``[D]`` each.
    """
    longest = np.concatenate([np.asarray(times) for times in busy_s.values()])
    unit, factor = _time_unit(longest)
    figure, axes = _canvas(height=1.4 + 0.5 * len(busy_s))
    left = np.zeros(len(busy_s))
    for device, name in enumerate(device_names):
        width = np.array([times[device] for times in busy_s.values()]) * factor
        colour = COLOURS[device % len(COLOURS)]
        axes.barh(list(busy_s), width, left=left, color=colour, edgecolor="white", label=name)
        left += width
    axes.invert_yaxis()
    axes.set(xlabel=f"compute time of all devices ({unit})", title="Who computes")
    figure.legend(loc="outside upper right", frameon=False, fontsize=10, ncols=5)
    return figure


def fidelity_scatter(
    rows: Sequence[Mapping[str, Any]], *, error: float | None, spearman: float | None
) -> Figure:
    """Draw measured against predicted step times, a dot a placement, coloured by its kind.

    They are relative to one device, the reference: as simulated, and as measured beside the
    placement. So the drift of the machine's speed is not in the figure. The diagonal is where
    both agree, in a band of ±10 %. Axes are logarithmic where the slowest placement takes
    more than four times as long as the fastest.

    Args:
        rows: As ``Fidelity.document`` has them; those that did not run are left out, and
            those beside which the reference did not.
        error: Median absolute percentage error, the drift taken out, as a fraction; None if
            not defined.
        spearman: Rank correlation, the drift taken out; None if not defined.
    """
    judged = [row for row in rows if row["drift_corrected_error"] is not None]
    ratios = np.array([[row["predicted_ratio"], row["measured_ratio"]] for row in judged])
    figure, axes = _canvas(height=6.0)
    if judged:
        _draw_diagonal(axes, ratios)
    for colour, kind in zip(COLOURS, dict.fromkeys(row["kind"] for row in judged), strict=False):
        of_kind = np.array([row["kind"] == kind for row in judged])
        predicted, measured = ratios[of_kind].T
        low, high = np.array([row["ratio_interval"] for row in judged])[of_kind].T
        bars = np.maximum([measured - low, high - measured], 0)
        axes.errorbar(
            predicted, measured, yerr=bars, fmt="o", color=colour, ms=7, mec="white", mew=0.8,
            capsize=2.5, elinewidth=1.2, label=kind,
        )  # fmt: skip
    figures = [
        f"median error {error:.1%}" if error is not None else "",
        f"rank correlation {spearman:.3f}" if spearman is not None else "",
    ]
    axes.set(
        xlabel="simulated step time, relative to one device",
        ylabel="measured, relative to one device beside it",
        title=f"{len(judged)} placements: {', '.join(filter(None, figures)) or 'nothing to judge'}",
    )
    if judged:
        figure.legend(loc="outside right upper", frameon=False, fontsize=10)
    return figure


def loss_curves(
    losses: Mapping[str, FloatArray], step_times_s: Mapping[str, FloatArray], *, target_loss: float
) -> Figure:
    """Draw the loss of the same training on several placements against time and steps.

    Args:
        losses: After each step, by placement, ``[T]``.
        step_times_s: Seconds of each step, by placement, ``[T]``.
        target_loss: What the trainings are to reach: a horizontal line.
    """
    figure = Figure(figsize=(11, 4.5), dpi=120, layout="constrained")
    by_time, by_step = figure.subplots(1, 2, sharey=True)
    wall_s = {name: np.cumsum(times_s) for name, times_s in step_times_s.items()}
    unit, factor = ("min", 1 / 60) if max(each[-1] for each in wall_s.values()) > 300 else ("s", 1)
    # Curves that coincide are to be seen, all of them: the later ones are thinner.
    widths = np.linspace(5.0, 1.8, max(2, len(losses)))
    for colour, width, (name, values) in zip(COLOURS, widths, losses.items(), strict=False):
        by_time.plot(wall_s[name] * factor, values, color=colour, lw=2.2, label=name)
        by_step.plot(np.arange(1, len(values) + 1), values, color=colour, lw=width)
    for axes in (by_time, by_step):
        style(axes)
        axes.axhline(target_loss, color=GREY, ls="--", lw=1.5)
    by_time.lines[-1].set_label(f"target {target_loss:g}")
    by_time.set(xlabel=f"time in steps ({unit})", ylabel="loss (nat)", title="By time")
    by_step.set(xlabel="step", title="By step")
    figure.legend(loc="outside lower center", frameon=False, fontsize=10, ncols=4)
    return figure


def _draw_diagonal(axes: Axes, ratios: FloatArray) -> None:
    low, high = 0.85 * ratios.min(), 1.15 * ratios.max()
    if ratios.max() > 4 * ratios.min():
        axes.set(xscale="log", yscale="log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.set_minor_formatter(NullFormatter())
    axes.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    ends = np.array([low, high])
    axes.fill_between(ends, 0.9 * ends, 1.1 * ends, color=GREY, alpha=0.15, lw=0, label="±10 %")
    axes.plot(ends, ends, color=GREY, lw=1.2, label="equal")


def _canvas(*, height: float = 4.5) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8, max(height, 2.4)), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    style(axes)
    return figure, axes


def style(axes: Axes) -> None:
    """Give axes the look that all figures share."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="both", color="#e6e6e6", lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=11)
    axes.title.set_fontsize(14)
    axes.xaxis.label.set_fontsize(12)
    axes.yaxis.label.set_fontsize(12)


def _step_time_or_nan(trial: Trial) -> float:
    time_s = trial.measurement.step_time_s if trial.measurement else None
    return float("nan") if time_s is None else time_s


def _time_unit(times_s: FloatArray) -> tuple[str, float]:
    finite = times_s[np.isfinite(times_s)]
    largest = float(finite.max()) if finite.size else 1.0
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if largest * factor >= 1:
            return unit, factor
    return "µs", 1e6


def _focus(times: FloatArray, references: Sequence[float]) -> tuple[float | None, float | None]:
    # A few hopeless trials must not flatten the part of the curve that people came to see.
    finite = times[np.isfinite(times)]
    if not finite.size:
        return None, None
    low = min(float(finite.min()), *references, float("inf"))
    high = max(float(np.quantile(finite, 0.95)), *references, 0.0)
    margin = 0.08 * (high - low) or 0.05 * high or 1.0
    return low - margin, high + margin
