"""The report says the answer first, and holds all that it shows."""

import re
from typing import Any

import pytest
from matplotlib.figure import Figure

from placer.bounds import Bound
from placer.report import Report, answer, bound_sentence, gibibytes, seconds, speedup
from tests.builders import result_row as row


def report(
    rows: list[dict[str, Any]],
    figures: dict[str, Figure] | None = None,
    bound: Bound | None = None,
) -> Report:
    return Report(
        graph="rnnlm-small",
        topology="local",
        rows=rows,
        device_names=["cpu:0", "cpu:1"],
        figures=figures or {},
        facts={"seed": "7", "graph fingerprint": "0123"},
        bound=bound,
    )


@pytest.mark.parametrize(
    ("time_s", "text"),
    [
        (None, "–"),
        (0.0, "0 s"),
        (2.5, "2.5 s"),
        (0.0123456, "12.35 ms"),
        (0.000025, "25 µs"),
        (3e-9, "3 ns"),
        (1234.5, "1,234 s"),
    ],
)
def test_a_time_is_shown_with_the_unit_that_suits_it(time_s, text):
    assert seconds(time_s) == text


def test_a_size_is_shown_in_gibibytes():
    assert gibibytes(3 * 2**29) == "1.50 GiB"


def test_the_answer_names_winner_time_and_gains():
    rows = [row("policy (trial 9)", speedup_over_expert=2.0)]

    text = answer("rnnlm-small", "local", rows)

    assert text == (
        "rnnlm-small on local: 500 ms a step (simulated), found by policy (trial 9);"
        " 1.25 × as fast as the best single device and 2.00 × as fast as the expert."
    )


def test_the_answer_prefers_the_measured_time():
    text = answer("g", "local", [row("metis", step_time_s=0.75)])

    assert "750 ms a step (measured)" in text


def test_the_answer_admits_that_one_device_is_best():
    text = answer("g", "t", [row("single gpu:0", speedup_over_single=1.0)])

    assert text.endswith("found by single gpu:0; nothing tried beats one device.")


def test_the_expert_is_not_compared_with_itself():
    text = answer("g", "t", [row("expert", speedup_over_expert=1.0)])

    assert "as fast as the expert" not in text
    assert "1.25 × as fast as the best single device" in text


def test_the_answer_says_how_sure_each_measured_gain_is():
    best = row(
        "policy (trial 9)",
        step_time_s=0.4,
        speedup_over_single=1.21,
        speedup_over_single_interval=[1.153, 1.279],
        speedup_over_expert=1.05,
        speedup_over_expert_interval=[0.98, 1.1],
    )

    text = answer("g", "local", [best])

    assert text == (
        "g on local: 400 ms a step (measured), found by policy (trial 9);"
        " 1.21 × as fast as the best single device (95 % interval 1.15 to 1.28)"
        " and 1.05 × as fast as the expert (95 % interval 0.98 to 1.10)."
    )


def test_the_answer_admits_that_a_gain_cannot_be_told_from_none():
    best = row(
        "metis",
        step_time_s=0.4,
        speedup_over_single=1.02,
        speedup_over_single_interval=[0.97, 1.06],
        speedup_over_expert=3.0,
    )

    text = answer("g", "local", [best])

    assert text == (
        "g on local: 400 ms a step (measured), found by metis; no measurable win:"
        " 1.02 × as fast as the best single device (95 % interval 0.97 to 1.06)."
    )


def test_a_single_device_that_won_is_best_whatever_the_intervals_say():
    best = row("single a", step_time_s=0.4, speedup_over_single_interval=[1.0, 1.0])

    assert answer("g", "t", [best]).endswith("nothing tried beats one device.")


def test_there_may_be_nothing_to_compare_the_winner_with():
    text = answer("g", "t", [row("metis", speedup_over_single=None)])

    assert text == "g on t: 500 ms a step (simulated), found by metis."


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"speedup_over_single": None}, "–"),
        ({"speedup_over_single": 1.25}, "1.250"),
        # Evaluations of before intervals were kept, and those that have none.
        ({"speedup_over_single": 1.25, "speedup_over_single_interval": None}, "1.250"),
        (
            {"speedup_over_single": 1.25, "speedup_over_single_interval": [1.1, 1.304]},
            "1.25 (1.10–1.30)",
        ),
    ],
)
def test_a_speedup_is_shown_with_the_interval_it_has(changes, text):
    assert speedup(row("metis", **changes), "speedup_over_single") == text


def test_the_page_shows_the_interval_of_a_speedup_and_says_what_it_is():
    measured = row("metis", step_time_s=0.4, speedup_over_single_interval=[1.153, 1.279])

    page = report([measured]).html()

    assert "<td>1.25 (1.15–1.28)</td>" in page
    assert "95 % interval" in page
    assert "95 % interval" not in report([row("metis")]).html()


def test_the_page_shows_every_method_and_every_fact():
    page = report([row("policy (trial 9)"), row("single cpu:0"), row("metis")]).html()

    for text in ("policy (trial 9)", "single cpu:0", "metis", "graph fingerprint", "0123"):
        assert text in page


def test_the_page_needs_no_network():
    figure = Figure()
    figure.add_subplot().plot([0, 1])

    page = report([row("metis")], {"Learning curve": figure}).html()

    assert "data:image/png;base64,iVBOR" in page
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)
    assert "<script" not in page


def test_measured_columns_appear_only_where_something_was_measured():
    simulated = report([row("metis")]).html()
    measured = report([row("metis", step_time_s=0.4, spread_s=0.01)]).html()

    assert "<th>measured</th>" not in simulated
    assert "<th>measured</th>" in measured
    assert "400 ms" in measured


def test_the_bound_is_told_with_its_name_and_the_distance_to_it():
    bound = Bound("cut", 0.4)

    assert bound_sentence(bound, 0.25) == (
        "no placement takes less than 400 ms (cut), this one is 25.0% above"
    )
    assert bound_sentence(bound, None) == "no placement takes less than 400 ms (cut)"


def test_the_bound_is_said_to_be_none_of_measured_step_times():
    text = bound_sentence(Bound("work", 0.4), 0.25, measured=True)

    assert text == (
        "simulated, no placement takes less than 400 ms (work), this one is 25.0% above;"
        " measured step times have no bound"
    )


def test_the_page_shows_the_bound_and_how_far_each_row_is_above_it():
    rows = [row("metis", gap=0.125), row("single a", gap=None)]
    page = report(rows, bound=Bound("work", 0.4)).html()

    assert (
        "Lower bound: no placement takes less than 400 ms (work), this one is 12.5% above." in page
    )
    assert "<td>12.5%</td>" in page
    assert "Lower bound" not in report(rows).html()


def test_text_from_outside_cannot_become_markup():
    page = report([row("metis", detail='"><b>x</b>'), row("<i>m</i>")]).html()

    assert "<b>x</b>" not in page
    assert "&lt;i&gt;m&lt;/i&gt;" in page


def test_a_method_that_did_not_run_shows_dashes_and_its_outcome():
    page = report([row("metis"), row("single a", outcome="OUT_OF_MEMORY", makespan_s=None)]).html()

    assert "OUT_OF_MEMORY" in page
    assert "<td>–</td>" in page
