"""Figures show the numbers they were given, with units."""

import numpy as np
import pytest

from placer.environment import Measurement, Outcome
from placer.figures import device_load, learning_curve, step_times
from placer.trials import Trial


def trial(number: int, step_time_s: float | None) -> Trial:
    if step_time_s is None:
        measurement = Measurement(outcome=Outcome.OUT_OF_MEMORY)
    else:
        measurement = Measurement(outcome=Outcome.OK, step_time_s=step_time_s)
    return Trial(number=number, update=0, device_of_group=(0,), measurement=measurement)


def row(method: str, makespan_s: float, step_time_s: float | None = None) -> dict[str, object]:
    return {
        "method": method,
        "outcome": "OK",
        "makespan_s": makespan_s,
        "step_time_s": step_time_s,
        "spread_s": None if step_time_s is None else 0.02,
    }


def line(axes, label):
    return next(one for one in axes.get_lines() if one.get_label() == label)


def test_the_curve_of_the_best_never_rises_and_skips_failures():
    trials = [trial(0, 3.0), trial(1, None), trial(2, 2.0), trial(3, 4.0)]

    axes = learning_curve(trials, {}).axes[0]

    assert line(axes, "best so far").get_ydata().tolist() == [3.0, 3.0, 2.0, 2.0]


def test_failed_trials_are_counted_in_the_legend():
    axes = learning_curve([trial(0, None), trial(1, 2.0), trial(2, None)], {}).axes[0]

    assert line(axes, "did not run (2)").get_xdata().tolist() == [0, 2]


def test_a_training_in_which_nothing_ran_can_still_be_drawn():
    axes = learning_curve([trial(0, None)], {}).axes[0]

    assert [one.get_label() for one in axes.get_lines()] == ["did not run (1)"]


def test_references_are_drawn_as_horizontal_lines():
    axes = learning_curve([trial(0, 3.0)], {"single cpu:0": 2.5}).axes[0]

    assert set(line(axes, "single cpu:0").get_ydata()) == {2.5}


@pytest.mark.parametrize(
    ("time_s", "unit", "shown"), [(2.0, "s", 2.0), (0.002, "ms", 2.0), (2e-6, "µs", 2.0)]
)
def test_the_axis_has_the_unit_that_suits_the_times(time_s, unit, shown):
    axes = learning_curve([trial(0, time_s)], {}).axes[0]

    assert axes.get_ylabel() == f"step time ({unit})"
    assert line(axes, "best so far").get_ydata()[0] == pytest.approx(shown)


def test_hopeless_trials_do_not_flatten_the_curve():
    trials = [trial(number, 1.0 + 0.001 * number) for number in range(99)] + [trial(99, 500.0)]

    axes = learning_curve(trials, {}).axes[0]

    assert axes.get_ylim()[1] < 2.0


def test_bars_show_simulated_and_measured_times_best_on_top():
    figure = step_times([row("metis", 1.0, 1.1), row("single a", 2.0, 2.2)])
    axes = figure.axes[0]

    widths = [bar.get_width() for bar in axes.patches]

    assert widths == pytest.approx([1.0, 2.0, 1.1, 2.2])
    assert [text.get_text() for text in axes.get_yticklabels()] == ["metis", "single a"]
    assert axes.yaxis_inverted()


def test_without_measurements_only_simulated_bars_are_drawn():
    figure = step_times([row("metis", 1.0)])

    assert [bar.get_width() for bar in figure.axes[0].patches] == [1.0]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["simulated"]


def test_methods_that_did_not_run_have_no_bar():
    failed = {**row("single a", 1.0), "outcome": "OUT_OF_MEMORY", "makespan_s": None}

    axes = step_times([row("metis", 1.0), failed]).axes[0]

    assert [text.get_text() for text in axes.get_yticklabels()] == ["metis"]


def test_the_load_of_devices_is_stacked():
    figure = device_load(["a", "b"], {"metis": np.array([1.0, 2.0])})
    first, second = figure.axes[0].patches

    assert (first.get_x(), first.get_width()) == (0.0, 1.0)
    assert (second.get_x(), second.get_width()) == (1.0, 2.0)
