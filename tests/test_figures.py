"""Figures show the numbers they were given, with units."""

import numpy as np
import pytest

from placer.environment import Measurement, Outcome
from placer.figures import (
    device_load,
    fidelity_scatter,
    learning_curve,
    loss_curves,
    step_times,
)
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


def fidelity_row(kind: str, predicted: float, measured: float | None) -> dict[str, object]:
    """Return a row of a placement so many times as slow as one device."""
    return {
        "kind": kind,
        "predicted_ratio": predicted,
        "measured_ratio": measured,
        "ratio_interval": None if measured is None else [measured - 0.1, measured + 0.2],
        "drift_corrected_error": None if measured is None else predicted / measured - 1,
    }


def test_each_placement_is_a_dot_of_its_kind_at_its_ratios_to_one_device():
    rows = [fidelity_row("cut", 1.0, 1.5), fidelity_row("random", 2.0, 2.5)]

    axes = fidelity_scatter(rows, error=0.25, spearman=1.0).axes[0]

    dots = {bars.get_label(): bars.lines[0].get_xydata().tolist() for bars in axes.containers}
    assert dots == {"cut": [[1.0, 1.5]], "random": [[2.0, 2.5]]}
    assert axes.get_xlabel() == "simulated step time, relative to one device"
    assert axes.get_ylabel() == "measured, relative to one device beside it"


def test_the_bars_of_a_dot_are_the_interval_of_its_median():
    axes = fidelity_scatter([fidelity_row("cut", 1.0, 1.5)], error=None, spearman=None).axes[0]

    (segments,) = axes.containers[0].lines[2][0].get_segments()

    assert segments[:, 1] == pytest.approx([1.4, 1.7])


def test_the_diagonal_has_a_band_of_ten_per_cent():
    axes = fidelity_scatter([fidelity_row("cut", 1.0, 1.5)], error=None, spearman=None).axes[0]

    ends = line(axes, "equal").get_xydata()
    assert ends[:, 0].tolist() == ends[:, 1].tolist()
    heights = {round(y / x, 6) for x, y in axes.collections[0].get_paths()[0].vertices}
    assert heights == {0.9, 1.1}


def test_the_two_figures_are_in_the_title_and_what_failed_is_not_counted():
    rows = [fidelity_row("cut", 1.0, 1.5), fidelity_row("random", 2.0, None)]

    axes = fidelity_scatter(rows, error=0.0714, spearman=0.9876).axes[0]

    assert axes.get_title() == "1 placements: median error 7.1%, rank correlation 0.988"


def test_ratios_far_apart_are_on_logarithmic_axes():
    near = [fidelity_row("cut", 1.0, 1.0), fidelity_row("cut", 3.0, 3.0)]
    far = [*near, fidelity_row("cut", 9.0, 9.0)]

    scales = [
        fidelity_scatter(rows, error=0, spearman=1).axes[0].get_xscale() for rows in (near, far)
    ]

    assert scales == ["linear", "log"]


def test_logarithmic_axes_have_plain_numbers():
    rows = [fidelity_row("cut", 0.5, 0.5), fidelity_row("cut", 10.0, 10.0)]

    figure = fidelity_scatter(rows, error=0, spearman=1)
    figure.draw_without_rendering()

    # From 0.85 · 0.5 to 1.15 · 10.
    (low, high), ticks = figure.axes[0].get_xlim(), figure.axes[0].get_xticks()
    shown = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    inside = [text for tick, text in zip(ticks, shown, strict=True) if low < tick < high]
    assert inside == ["0.5", "1", "2", "5", "10"]


def test_a_comparison_in_which_nothing_ran_can_still_be_drawn():
    figure = fidelity_scatter([fidelity_row("cut", 1.0, None)], error=None, spearman=None)

    assert figure.axes[0].get_title() == "0 placements: nothing to judge"


def test_losses_are_drawn_against_summed_step_times_and_against_steps():
    losses = {"one": np.array([4.0, 3.0, 2.0]), "split": np.array([4.0, 3.0, 2.0])}
    step_times_s = {"one": np.array([2.0, 2.0, 2.0]), "split": np.array([1.0, 1.0, 2.0])}

    by_time, by_step = loss_curves(losses, step_times_s, target_loss=2.5).axes

    assert line(by_time, "one").get_xydata().tolist() == [[2.0, 4.0], [4.0, 3.0], [6.0, 2.0]]
    assert line(by_time, "split").get_xdata().tolist() == [1.0, 2.0, 4.0]
    assert [one.get_xdata().tolist() for one in by_step.get_lines()[:2]] == [[1, 2, 3]] * 2
    assert by_time.get_xlabel() == "time in steps (s)"


def test_the_target_loss_is_a_horizontal_line_on_both_sides():
    figure = loss_curves({"one": np.array([4.0])}, {"one": np.array([1.0])}, target_loss=2.5)

    assert [set(axes.get_lines()[-1].get_ydata()) for axes in figure.axes] == [{2.5}, {2.5}]
    assert line(figure.axes[0], "target 2.5")


def test_long_trainings_are_drawn_in_minutes():
    figure = loss_curves({"one": np.array([4.0])}, {"one": np.array([600.0])}, target_loss=2.5)

    assert figure.axes[0].get_xlabel() == "time in steps (min)"
    assert line(figure.axes[0], "one").get_xdata().tolist() == [10.0]
