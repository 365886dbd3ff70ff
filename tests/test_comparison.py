"""What runs found, side by side: figures of lists of trials that one can read off."""

import dataclasses
import json
from collections.abc import Sequence

import pytest

from placer.benchmark import Cell, CellResult
from placer.comparison import (
    Findings,
    RunSummary,
    compare,
    differing_settings,
    search_findings,
    training_findings,
)
from placer.comparison_figure import comparison_curves
from placer.comparison_table import RUN_HEADINGS, markdown_comparison, placement_cells, run_cells
from placer.environment import Measurement, Outcome
from placer.grouping import Grouping
from placer.placement_difference import GroupedProfile
from placer.trials import Trial
from tests.builders import make_profile, make_topology


def trial(number: int, step_time_s: float | None, at_s: float, *, environment="simulated") -> Trial:
    outcome = Outcome.OUT_OF_MEMORY if step_time_s is None else Outcome.OK
    return Trial(
        number=number,
        update=0,
        device_of_group=(number % 2, 1, 0),
        environment=environment,
        measurement=Measurement(outcome=outcome, step_time_s=step_time_s),
        finished_at_s=at_s,
    )


FIVE = [
    trial(0, None, 100.0),
    trial(1, 8.0, 102.0),
    trial(2, 9.0, 103.0),
    trial(3, 6.0, 107.5),
    trial(4, None, 110.0),
]
"""The best, 6 s, is trial 3, 7.5 s after the first; two of five did not run."""


def summary(run_id: str, what: Findings, **changes) -> RunSummary:
    run = RunSummary(
        run_id=run_id,
        name=f"train g on t, {run_id}",
        stage="train",
        status="FINISHED",
        graph="g",
        topology="t",
        graph_fingerprint="1a",
        topology_fingerprint="2b",
        profile_fingerprint="3c",
        grouping="4d",
        method="seq2seq, reinforce",
        params={"seed": "0"},
        bound_s=5.0,
        findings=what,
    )
    return dataclasses.replace(run, **changes)


def found(best_s: float | None, *, placed: Sequence[int] = (0, 1), environment="simulated"):
    return Findings(
        num_trials=1,
        environment=environment,
        best_step_time_s=best_s,
        best_trial=None if best_s is None else 0,
        device_of_group=None if best_s is None else tuple(placed),
        best_by_trial=() if best_s is None else ((0, best_s),),
        best_by_time=() if best_s is None else ((0.0, best_s),),
    )


# What a training found


def test_the_best_of_five_trials_when_it_came_and_how_many_did_not_run():
    findings = training_findings(FIVE)

    assert findings.num_trials == 5
    assert (findings.best_step_time_s, findings.best_trial) == (6.0, 3)
    assert findings.time_to_best_s == 7.5
    assert findings.invalid_share == 0.4
    assert findings.device_of_group == (1, 1, 0)
    assert findings.environment == "simulated"
    assert not findings.is_thinned


def test_the_curves_have_a_point_where_the_best_changes_and_one_at_the_end():
    findings = training_findings(FIVE)

    assert findings.best_by_trial == ((1, 8.0), (3, 6.0), (4, 6.0))
    assert findings.best_by_time == ((2.0, 8.0), (7.5, 6.0), (10.0, 6.0))


def test_wall_time_is_in_the_order_in_which_trials_ended():
    # Trial 1 was measured on a second cluster and ended before trial 0.
    findings = training_findings([trial(0, 5.0, 14.0), trial(1, 4.0, 10.0), trial(2, 6.0, 15.0)])

    assert findings.best_by_trial == ((0, 5.0), (1, 4.0), (2, 4.0))
    assert findings.best_by_time == ((0.0, 4.0), (5.0, 4.0))
    assert findings.time_to_best_s == 0.0


def test_the_earliest_of_equal_trials_is_the_best():
    findings = training_findings([trial(n, 3.0, 10.0 + n) for n in range(5)])

    assert (findings.best_trial, findings.time_to_best_s) == (0, 0.0)


def test_real_trials_have_the_last_word_and_the_curve_starts_anew():
    staged = [
        trial(0, 4.0, 0.0),
        trial(1, 2.0, 1.0),
        trial(2, 9.0, 5.0, environment="real"),
        trial(3, None, 6.0, environment="real"),
        trial(4, 8.0, 9.0, environment="real"),
    ]

    findings = training_findings(staged)

    assert (findings.environment, findings.best_step_time_s, findings.best_trial) == ("real", 8, 4)
    assert findings.best_by_trial == ((0, 4.0), (1, 2.0), (2, 9.0), (4, 8.0))
    assert findings.invalid_share == 0.2


def test_a_training_in_which_nothing_ran_has_no_best():
    findings = training_findings([trial(0, None, 1.0), trial(1, None, 2.0)])

    assert findings == Findings(num_trials=2, environment="simulated", invalid_share=1.0)


def test_a_training_without_trials_has_found_nothing():
    assert training_findings([]) == Findings(num_trials=0)


# What a search found


def cell_result(makespan_s: float | None) -> CellResult:
    return CellResult(
        graph="g",
        topology="t",
        num_ops=3,
        num_groups=2,
        bound_name="work",
        bound_s=2.0,
        cell=Cell(50, "annealing", 0),
        makespan_s=makespan_s,
        device_of_group=None if makespan_s is None else (0, 1),
        num_evaluations=50,
        search_s=12.5,
        curve=() if makespan_s is None else ((1, 4.0), (7, 3.0), (50, 3.0)),
    )


def test_a_search_is_counted_in_evaluations_and_timed_as_a_whole():
    findings = search_findings(cell_result(3.0))

    # Evaluation 7 is trial 6, as trials count from 0.
    assert (findings.best_step_time_s, findings.best_trial) == (3.0, 6)
    assert findings.best_by_trial == ((0, 4.0), (6, 3.0), (49, 3.0))
    assert findings.best_by_time == ((12.5, 3.0),)
    assert (findings.time_to_best_s, findings.invalid_share) == (None, None)
    assert findings.num_trials == 50


def test_the_trial_of_a_search_is_shown_as_the_latest_that_it_can_be():
    run = summary("s", search_findings(cell_result(3.0)), stage="search")

    assert dict(zip(RUN_HEADINGS, run_cells(run), strict=True))["at trial"] == "≤ 6"


def test_a_search_that_found_nothing_has_no_best():
    assert search_findings(cell_result(None)).best_step_time_s is None
    assert search_findings(cell_result(None)).best_by_time == ()


# Side by side


def test_the_gap_is_of_simulated_step_times_alone():
    assert summary("a", found(6.0)).gap == pytest.approx(0.2)
    assert summary("a", found(6.0, environment="real")).gap is None
    assert summary("a", found(6.0), bound_s=None).gap is None
    assert summary("a", found(None)).gap is None


def test_only_settings_that_differ_are_told():
    runs = [
        summary("a", found(1.0), params={"seed": "0", "trainer": "ppo", "in_flight": "1"}),
        summary("b", found(1.0), params={"seed": "1", "trainer": "ppo"}),
    ]

    # A setting that an older training does not know differs.
    assert differing_settings(runs) == {"seed": ("0", "1"), "in_flight": ("1", None)}


def test_what_a_search_has_no_setting_for_is_no_difference():
    runs = [
        summary("a", found(1.0), params={"seed": "0", "trainer": "ppo", "trials": "5"}),
        summary("b", found(1.0), params={"seed": "0", "trials": "7"}, stage="search"),
    ]

    assert differing_settings(runs) == {"trials": ("5", "7")}


def test_the_fastest_of_comparable_runs_is_the_best_and_so_is_its_equal():
    runs = [
        summary(name, found(time_s)) for name, time_s in zip("abcd", (3, 2, None, 2), strict=True)
    ]

    comparison = compare(runs, {})

    assert comparison.warnings == ()
    assert comparison.best_runs == ("b", "d")


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"findings": found(1.0, environment="real")}, "of different environments"),
        ({"graph_fingerprint": "9"}, "of different graphs"),
        ({"topology_fingerprint": "9"}, "of different topologies"),
        ({"profile_fingerprint": "9"}, "op times behind the simulated step times differ"),
    ],
)
def test_step_times_that_mean_different_things_are_not_ranked(changes, warning):
    comparison = compare([summary("a", found(2.0)), summary("b", found(1.0), **changes)], {})

    assert len(comparison.warnings) == 1
    assert warning in comparison.warnings[0]
    assert "a" in comparison.warnings[0]
    assert comparison.best_runs == ()


def test_measured_step_times_do_not_depend_on_the_profile():
    real = found(2.0, environment="real")
    runs = [summary("a", real), summary("b", real, profile_fingerprint="9")]

    assert compare(runs, {}).warnings == ()


def test_a_run_in_which_nothing_ran_has_no_environment_to_differ_in():
    runs = [summary("a", found(2.0, environment="real")), summary("b", found(None))]

    assert compare(runs, {}).best_runs == ("a",)


def test_each_placement_is_compared_with_that_of_the_first_run():
    grouped = GroupedProfile(make_profile([1, 3], [], make_topology(2)), Grouping([0, 1]))
    runs = [
        summary("a", found(4.0, placed=(0, 0))),
        summary("b", found(3.0, placed=(1, 1))),
        summary("c", found(2.0, placed=(0, 1))),
    ]

    placements = compare(runs, {"4d": grouped}).placements

    assert [(one.first, one.second) for one in placements] == [("a", "b"), ("a", "c")]
    # b is a with the names exchanged. In c one op moved; by another name the shorter one, a.
    assert [one.difference.num_moved for one in placements] == [0, 1]
    assert placements[1].difference.moved_time_share == 0.25
    assert placement_cells(placements[1]) == ("c", "a", "50.0% (1 of 2)", "25.0%", "a")


def test_without_a_profile_devices_keep_their_names():
    runs = [
        summary("a", found(4.0, placed=(0, 0))),
        summary("b", found(3.0, placed=(1, 1))),
    ]

    (placements,) = compare(runs, {}).placements

    assert placements.difference.num_moved == 2
    assert placements.difference.moved_time_share is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"grouping": "other"}, "they placed other groups, or on other devices"),
        ({"grouping": ""}, "their groups are not known"),
        ({"findings": found(None)}, "no placement ran"),
    ],
)
def test_placements_of_other_groups_are_not_compared_and_it_says_why(changes, reason):
    runs = [summary("a", found(2.0)), summary("b", found(1.0), **changes)]

    (placements,) = compare(runs, {}).placements

    assert placements.difference is None
    assert placements.reason == reason
    assert placement_cells(placements)[-1] == f"not compared: {reason}"


def test_the_document_is_plain_json_and_says_what_is_best():
    runs = [summary("a", training_findings(FIVE)), summary("b", found(7.0, placed=(0, 1, 0)))]

    document = json.loads(json.dumps(compare(runs, {}).document(), allow_nan=False))

    assert document["best_runs"] == ["a"]
    assert document["runs"][0]["gap"] == pytest.approx(0.2)
    assert document["runs"][0]["findings"]["time_to_best_s"] == 7.5
    # (1, 1, 0) against (0, 1, 0).
    assert document["placements"][0]["moved_share"] == pytest.approx(1 / 3)


# Tables


def test_a_row_tells_all_of_a_run():
    cells = dict(zip(RUN_HEADINGS, run_cells(summary("a", training_findings(FIVE))), strict=True))

    assert cells == {
        "run": "a",
        "name": "train g on t, a",
        "graph": "g",
        "topology": "t",
        "method": "seq2seq, reinforce",
        "trials": "5",
        "best step time": "6 s",
        "environment": "simulated",
        "at trial": "3",
        "after": "7.5 s",
        "above bound": "20.0%",
        "did not run": "40.0%",
        "status": "FINISHED",
    }


def test_step_times_that_differ_by_a_thousandth_look_different():
    shown = [run_cells(summary("a", found(time_s)))[6] for time_s in (0.348043, 0.348044)]

    assert shown == ["348.043 ms", "348.044 ms"]


def test_what_is_not_known_is_a_dash():
    cells = dict(zip(RUN_HEADINGS, run_cells(summary("a", Findings(num_trials=0))), strict=True))

    names = ("best step time", "environment", "at trial", "after", "above bound", "did not run")
    assert [cells[name] for name in names] == ["–"] * 6


def test_the_markdown_has_the_best_in_bold_and_keeps_its_columns():
    runs = [
        summary("a", found(3.0), params={"graph": "x|y"}),
        summary("b", found(2.0), params={"graph": "z"}),
    ]

    text = markdown_comparison(compare(runs, {}))

    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert "**2 s**" in lines[3]
    assert "**" not in lines[2]
    assert "| graph | x&#124;y | z |" in lines
    assert {line.count("|") for line in lines[:4]} == {len(RUN_HEADINGS) + 1}


def test_the_markdown_says_what_is_not_comparable():
    runs = [summary("a", found(3.0)), summary("b", found(2.0, environment="real"))]

    text = markdown_comparison(compare(runs, {}))

    assert "Not comparable: the best step times are of different environments" in text
    assert "measured on the real devices: b" in text


# The figure


def line(axes, number: int) -> list[list[float]]:
    """Return the points of the n-th run's steps."""
    steps = [one for one in axes.get_lines() if one.get_drawstyle() == "steps-post"]
    return steps[number].get_xydata().tolist()


def test_every_run_is_a_line_against_trials_and_against_wall_time():
    runs = [summary("a", training_findings(FIVE)), summary("b", search_findings(cell_result(3.0)))]

    by_trial, by_time = comparison_curves(runs).axes

    assert line(by_trial, 0) == [[1, 8], [3, 6], [4, 6]]
    assert line(by_trial, 1) == [[0, 4], [6, 3], [49, 3]]
    assert line(by_time, 0) == [[2, 8], [7.5, 6], [10, 6]]
    assert line(by_time, 1) == [[12.5, 3]]
    assert by_trial.get_ylabel() == "best step time (s)"
    assert by_time.get_xlabel() == "time since the first trial (s)"


def test_times_are_in_units_that_suit_them():
    late = [trial(0, 0.004, 0.0), trial(1, 0.002, 600.0)]

    by_trial, by_time = comparison_curves([summary("a", training_findings(late))]).axes

    assert by_trial.get_ylabel() == "best step time (ms)"
    assert by_time.get_xlabel() == "time since the first trial (min)"
    assert line(by_time, 0) == [[0, 4], [10, 2]]


def test_a_hopeless_beginning_does_not_flatten_the_curves():
    times_s = [500.0, *[1.0 + 0.01 * (99 - number) for number in range(1, 100)]]
    trials = [trial(number, time_s, number) for number, time_s in enumerate(times_s)]

    by_trial, _ = comparison_curves([summary("a", training_findings(trials))]).axes

    # From the tenth trial on: 1.9 to 1.0.
    low, high = by_trial.get_ylim()
    assert low < 1.0
    assert 1.9 < high < 2.1


def test_runs_in_which_nothing_ran_are_in_the_legend_alone():
    figure = comparison_curves([summary("a", found(None)), summary("b", found(None))])

    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    common = "seq2seq, reinforce (nothing ran)"
    assert labels == [f"{name}  train g on t, {name}, {common}" for name in "ab"]
    assert not [one for one in figure.axes[0].get_lines() if len(one.get_xdata())]


def test_no_two_of_twenty_lines_look_alike():
    runs = [summary(str(number), found(1.0)) for number in range(20)]

    axes = comparison_curves(runs).axes[0]

    looks = {
        (one.get_color(), one.get_linestyle())
        for one in axes.get_lines()
        if one.get_label()[0] != "_"
    }
    assert len(looks) == 20
