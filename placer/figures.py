"""Figures of a training and of an evaluation, all with one look.

Colours are Okabe and Ito's, which people with any colour vision can tell apart; axes carry
units; text stays legible at thumbnail size.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from placer.graph import FloatArray
from placer.trials import Trial

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#000000")
_GREY = "#8a8a8a"


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
        axes.plot(numbers, times_s * factor, ".", color=_GREY, alpha=0.35, ms=4, label="trial")
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


def _canvas(*, height: float = 4.5) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8, max(height, 2.4)), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="both", color="#e6e6e6", lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=11)
    axes.title.set_fontsize(14)
    axes.xaxis.label.set_fontsize(12)
    axes.yaxis.label.set_fontsize(12)
    return figure, axes


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
