"""What the terminal shows: tables that fit, progress that is logged, one line for an error."""

import io
import logging
from typing import Any

import pytest
from rich.console import Console

from flows import console
from flows.console import fail, follow, results_table, show_messages, warn
from flows.process import LOGGERS
from flows.results import paper_lines
from placer.training import Progress
from tests.builders import result_row as row
from tests.command_line import loggers

__all__ = ["loggers"]


def progress(num_trials: int) -> Progress:
    return Progress(
        num_trials=num_trials,
        update=num_trials // 8,
        best=None,
        invalid_share=0.0,
        trials_per_s=100.0,
        metrics={},
    )


def shown(rows: list[dict[str, Any]], *, devices: tuple[str, ...] = ("a", "b")) -> str:
    out = io.StringIO()
    Console(file=out, width=80).print(results_table(rows, devices, title="g on t"))
    return out.getvalue()


def test_a_simulated_table_shows_times_ratios_and_peak_memory():
    text = shown([row("metis")])

    for part in ("metis", "500 ms", "2.0%", "1.250", "–", "1.0 0.0"):
        assert part in text
    assert "measured" not in text


def test_a_measured_table_shows_the_measurement_and_its_spread():
    text = shown([row("metis", step_time_s=0.25, spread_s=0.01)])

    for part in ("500 ms", "250 ms", "10 ms", "spread"):
        assert part in text
    assert "peak" not in text
    assert "bound" not in text


def test_a_measured_speedup_shows_its_interval_in_place_of_the_spread():
    text = shown(
        [
            row(
                "metis",
                step_time_s=0.25,
                spread_s=0.01,
                speedup_over_single=1.21,
                speedup_over_single_interval=[1.153, 1.279],
            )
        ]
    )

    assert "1.21 (1.15–1.28)" in text
    assert "spread" not in text


def test_a_method_that_did_not_run_shows_its_outcome_in_place_of_its_time():
    text = shown([row("metis"), row("single a", outcome="OUT_OF_MEMORY", makespan_s=None)])

    assert "OUT_OF_MEMORY" in text


def test_many_devices_are_named_by_the_first_and_the_last():
    text = shown([row("metis", peak_memory_bytes=[0] * 4)], devices=("d:0", "d:1", "d:2", "d:3"))

    assert "d:0 … d:3" in text


def test_no_line_of_a_table_is_wider_than_the_terminal():
    rows = [row("policy (trial 12345)", step_time_s=0.25, spread_s=0.01)]

    assert max(len(line) for line in shown(rows).splitlines()) <= 80


def test_a_table_with_intervals_fits_a_terminal_and_nothing_is_cut_off():
    intervals = {f"speedup_over_{name}_interval": [0.95, 1.28] for name in ("single", "expert")}
    winner = row("policy (trial 123)", step_time_s=0.25, speedup_over_expert=2.0, **intervals)

    text = shown([winner])

    assert max(len(line) for line in text.splitlines()) <= 80
    assert "2.00 (0.95–1.28)" in text
    assert "…" not in text


def test_every_update_of_a_training_is_passed_on():
    updates = [progress(0), progress(8), progress(16)]

    assert list(follow(iter(updates), num_trials=16)) == updates


def test_progress_is_logged_now_and_then_where_there_is_no_terminal(monkeypatch, caplog):
    times = iter([0.0, 3.0, 11.0, 11.0, 12.0])
    monkeypatch.setattr(console.time, "monotonic", lambda: next(times))

    with caplog.at_level("INFO", logger="flows"):
        list(follow(iter([progress(0), progress(8), progress(16)]), num_trials=16))

    # The clock stands at 3 s after the first update, at 11 s after the second, then at 12 s.
    assert [record.getMessage() for record in caplog.records] == ["train: 8 of 16 trials, best –"]


def test_an_error_is_one_line_whatever_it_says(capsys):
    fail("first\n  second\tthird")

    assert capsys.readouterr().err == "placer: first second third\n"


def test_a_warning_says_that_it_is_one(capsys):
    warn("look out")

    assert capsys.readouterr().err == "placer: warning: look out\n"


@pytest.mark.usefixtures("loggers")
@pytest.mark.parametrize(("verbose", "level"), [(False, logging.INFO), (True, logging.DEBUG)])
def test_placers_own_messages_are_shown_once_and_others_are_not(verbose, level):
    show_messages(verbose=verbose)
    show_messages(verbose=verbose)

    for name in LOGGERS:
        logger = logging.getLogger(name)
        assert len(logger.handlers) == 1
        assert logger.level == level
        assert not logger.propagate


def test_the_papers_step_times_are_shown_for_the_papers_cells():
    lines = paper_lines("nmt-paper", "haswell-2xk80")

    assert lines == [
        "the paper measured: host 10.72 s, one GPU out of memory; on 2 GPUs scotch 14.19 s,"
        " metis 11.54 s, expert 4.99 s, policy 4.04 s"
    ]


@pytest.mark.parametrize(
    ("graph", "topology"),
    [
        ("nmt-small", "haswell-2xk80"),
        ("nmt-paper", "local"),
        ("nmt-paper-batch_size=32", "haswell-2xk80"),
        ("gnmt_training", "haswell-2xk80"),
    ],
)
def test_the_paper_is_not_cited_for_what_it_did_not_measure(graph, topology):
    assert paper_lines(graph, topology) == []
