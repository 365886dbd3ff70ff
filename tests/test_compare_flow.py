"""Comparing runs of a real store: which runs, what is kept, and when it is kept anew."""

import contextlib
import json
import os
import platform
import re
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from flows import compare as module
from flows.compare import compare_runs
from flows.compare_results import runs_table, settings_tables
from flows.stages import GROUPING_FILE, PROFILE_FILE, SEARCH_FILE, profile_tags
from placer.benchmark import Cell, Problem
from placer.comparison import Comparison
from placer.environment import Measurement, Outcome
from placer.errors import InvalidValueError, UnknownNameError
from placer.files import save_grouping, save_profile
from placer.grouping import Grouping
from placer.mlflow_store import OpenRun, Store, now
from placer.mlflow_trial_log import MLflowTrialLog
from placer.profile import Profile
from placer.tracking_names import (
    COMPARED_RUNS,
    COMPARISON_ARTIFACTS,
    GRAPH,
    GROUPING_RUN,
    HEARTBEAT,
    HOST,
    PID,
    PROFILE_RUN,
    TAGS,
    TRAINING_RUN,
)
from placer.trials import Trial
from tests.builders import make_profile, make_topology
from tests.flow_store import store

__all__ = ["store"]

pytestmark = pytest.mark.slow

PARAMS = {"seed": 0, "trainer": "reinforce", "policy": {"network": "seq2seq"}}
TIMES_S = (10.0, 8.0, None, 6.0, 7.0)
PLACED = ((0, 0, 0, 0), (0, 0, 1, 1), (0, 0, 0, 1), (0, 1, 1, 0), (0, 0, 1, 0))
GROUPING = Grouping([0, 1, 2, 3])


@pytest.fixture(scope="module")
def profile() -> Profile:
    """Ops of 1, 2, 3 and 4 seconds on two equal devices: no placement is below 5 s."""
    return make_profile([1.0, 2.0, 3.0, 4.0], [], make_topology(2))


@pytest.fixture(scope="module")
def tags(store: Store, profile: Profile) -> dict[str, str]:
    """The tags of runs on the grouped profile."""
    return grouped(store, profile, "four")


def grouped(store: Store, profile: Profile, name: str) -> dict[str, str]:
    """Log a profile and its grouping, a group for each op, as their stages do."""
    found = profile_tags(profile, name)
    save_profile(profile, Path(PROFILE_FILE))
    save_grouping(GROUPING, profile.graph, Path(GROUPING_FILE))
    for stage, artifact, tag in (
        ("profile", PROFILE_FILE, PROFILE_RUN),
        ("group", GROUPING_FILE, GROUPING_RUN),
    ):
        with store.stage(stage, uuid.uuid4().hex, name=stage, params={}, tags=found) as run:
            run.log_file(Path(artifact), artifact)
        found |= {tag: run.run_id}
    return found


def trained(
    store: Store,
    tags: dict[str, str],
    *,
    times_s: Sequence[float | None] = TIMES_S,
    environment: str = "simulated",
    interrupted: bool = False,
    **params: object,
) -> str:
    """Log a training of these step times, a trial every two seconds; return its run."""
    with (
        contextlib.suppress(KeyboardInterrupt),
        store.training(
            uuid.uuid4().hex, name="train four", params=PARAMS | params, tags=tags
        ) as run,
        MLflowTrialLog(store, run.run_id) as log,
    ):
        log.append([trial(n, time_s, environment) for n, time_s in enumerate(times_s)], {})
        if interrupted:
            raise KeyboardInterrupt
    return run.run_id


def trial(number: int, time_s: float | None, environment: str = "simulated") -> Trial:
    outcome = Outcome.OUT_OF_MEMORY if time_s is None else Outcome.OK
    return Trial(
        number=number,
        update=0,
        device_of_group=PLACED[number % len(PLACED)],
        environment=environment,
        measurement=Measurement(outcome=outcome, step_time_s=time_s),
        finished_at_s=1000.0 + 2 * number,
    )


def compared(*run_ids: str, graph: str | None = None, **tags: str) -> dict:
    """Compare, and return the document that was written."""
    path = Path(f"{uuid.uuid4().hex}.json")
    compare_runs(run_ids, graph=graph, tags=tags, json_file=path, figure_file=None)
    return json.loads(path.read_text())


def ids(document: dict) -> list[str]:
    return [run["run_id"] for run in document["runs"]]


@pytest.fixture(scope="module")
def first(store: Store, tags: dict[str, str]) -> str:
    """Its best: 6 s in trial 3, placed 0 1 1 0."""
    return trained(store, tags)


@pytest.fixture(scope="module")
def second(store: Store, tags: dict[str, str]) -> str:
    """Its best: 7 s in trial 1, placed 0 0 1 1."""
    return trained(store, tags, times_s=(None, 7.0, 9.0, None, None), seed=1, trainer="ppo")


@pytest.fixture(scope="module")
def document(store: Store, first: str, second: str) -> dict:
    return compared(first, second)


def test_two_trainings_are_compared(document: dict, first: str, second: str) -> None:
    one, other = document["runs"]

    assert ids(document) == [first, second]
    assert one["findings"]["best_step_time_s"] == 6.0
    assert (one["findings"]["best_trial"], one["findings"]["time_to_best_s"]) == (3, 6.0)
    assert one["findings"]["invalid_share"] == 0.2
    assert other["findings"]["best_step_time_s"] == 7.0
    assert (other["findings"]["best_trial"], other["findings"]["time_to_best_s"]) == (1, 2.0)
    assert other["findings"]["invalid_share"] == 0.6
    assert [one["method"], other["method"]] == ["seq2seq, reinforce", "seq2seq, ppo"]
    # 10 s of work on two devices.
    assert [one["bound_s"], one["gap"], other["gap"]] == pytest.approx([5.0, 0.2, 0.4])
    assert document["best_runs"] == [first]
    assert document["warnings"] == []


def test_settings_and_placements_that_differ_are_told(document: dict) -> None:
    assert document["settings"] == {"seed": ["0", "1"], "trainer": ["reinforce", "ppo"]}
    # 0 0 1 1 against 0 1 1 0: b and d moved (6 of 10 s); with names exchanged a and c (4 s).
    (placements,) = document["placements"]
    assert placements["moved_share"] == 0.5
    assert placements["difference"]["moved_time_share"] == pytest.approx(0.4)
    assert placements["difference"]["largest_moved"] == ["c", "a"]


def test_a_comparison_is_a_run_of_its_own(
    store: Store, document: dict, first: str, second: str
) -> None:
    run = store.run(document["run_id"])

    assert run.name == "compare 2 runs of four"
    assert run.status == "FINISHED"
    assert run.tags["placer.stage"] == "compare"
    assert run.tags[COMPARED_RUNS] == f"{first} {second}"
    assert run.tags[GRAPH] == "four"
    assert {tag for tag in run.tags if not tag.startswith("mlflow.")} < TAGS.keys()
    assert set(store.artifacts.names(run.run_id, ".")) == COMPARISON_ARTIFACTS.keys()
    table = store.download(run.run_id, "comparison.md").read_text()
    note = f"{table}\n\n![best_so_far](get-artifact?path=best_so_far.png&run_uuid={run.run_id})"
    assert run.tags["mlflow.note.content"] == note
    assert "**6 s**" in table


def test_the_same_runs_unchanged_have_one_comparison(
    document: dict, first: str, second: str
) -> None:
    assert compared(first, second) == document
    assert compared(first, first, second)["run_id"] == document["run_id"]
    # Placements are compared with another run.
    assert compared(second, first)["run_id"] != document["run_id"]


def test_a_training_that_went_on_is_compared_anew(
    store: Store, tags: dict[str, str], first: str
) -> None:
    unfinished = trained(store, tags, interrupted=True)
    before = compared(first, unfinished)

    MLflowTrialLog(store, unfinished).append([trial(5, 5.5)], {})
    after = compared(first, unfinished)

    assert before["runs"][1]["status"] == "INTERRUPTED"
    assert before["run_id"] != after["run_id"]
    assert after["runs"][1]["findings"]["best_step_time_s"] == 5.5


def test_the_table_is_printed_and_files_are_written(
    first: str, second: str, document: dict, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    json_file, figure_file = tmp_path / "c.json", tmp_path / "c.png"

    compare_runs([first, second], graph=None, tags={}, json_file=json_file, figure_file=figure_file)

    shown = capsys.readouterr().out
    for text in ("four on custom", first[:8], second[:8], "6 s", "40.0%", "seq2seq, ppo", "trainer",
                 "FINISHED", "50.0% (2 of 4)", document["run_id"]):  # fmt: skip
        assert text in shown
    assert json.loads(json_file.read_text()) == document
    assert figure_file.read_bytes().startswith(b"\x89PNG")


def test_an_evaluation_stands_for_its_training(
    store: Store, tags: dict[str, str], first: str, second: str
) -> None:
    judged = {**tags, TRAINING_RUN: second}
    with store.stage("evaluate", uuid.uuid4().hex, name="e", params={}, tags=judged) as evaluation:
        pass

    assert ids(compared(first, evaluation.run_id)) == [first, second]
    with pytest.raises(InvalidValueError, match=f"2 to 50 different runs, got 1 \\({second}\\)"):
        compared(second, evaluation.run_id)


def test_a_search_of_a_benchmark_is_compared_with_a_training(
    store: Store, tags: dict[str, str], profile: Profile, first: str
) -> None:
    result = Problem("four", profile, GROUPING).search(Cell(40, "hill-climbing", 0))
    params = {"method": "hill-climbing", "seed": 0, "trials": 40}
    with store.stage("search", uuid.uuid4().hex, name="s", params=params, tags=tags) as search:
        search.log_text(json.dumps(result.document()), SEARCH_FILE)

    document = compared(first, search.run_id)

    # a and d against b and c: the bound is reached.
    found = document["runs"][1]
    assert (found["findings"]["best_step_time_s"], found["gap"], found["method"]) == (
        5.0, 0.0, "hill-climbing",
    )  # fmt: skip
    assert document["best_runs"] == [search.run_id]
    # The first has 0 1 1 0 as its best, and so has the search, perhaps by other names.
    assert document["placements"][0]["difference"]["num_moved"] == 0
    assert document["settings"] == {}


# Which runs


def test_all_trainings_of_a_graph_are_compared_the_oldest_first(
    store: Store, profile: Profile
) -> None:
    own = grouped(store, profile, "it's mine")
    runs = [trained(store, own, seed=seed) for seed in range(3)]

    assert ids(compared(graph="it's mine")) == runs
    # Those that are named come first.
    assert ids(compared(runs[2], graph="it's mine")) == [runs[2], *runs[:2]]


def test_trainings_are_chosen_by_any_tag(store: Store, tags: dict[str, str], first: str) -> None:
    runs = [trained(store, {**tags, "sweep": "7", "odd": str(n % 2)}) for n in range(4)]

    assert ids(compared(sweep="7")) == runs
    assert ids(compared(graph="four", sweep="7", odd="1")) == [runs[1], runs[3]]


def test_of_many_trainings_the_newest_are_compared(
    store: Store, tags: dict[str, str], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(module, "_MOST_SELECTED", 2)
    runs = [trained(store, {**tags, "many": "yes"}) for _ in range(3)]

    with caplog.at_level("INFO"):
        document = compared(many="yes")

    assert ids(document) == runs[1:]
    assert "of the trainings with many = 'yes' the newest 2" in caplog.text


def test_what_cannot_be_compared_is_refused(store: Store, tags: dict[str, str], first: str) -> None:
    with pytest.raises(InvalidValueError, match="2 to 50 different runs, got 0 \\(none\\)"):
        compared()
    with pytest.raises(InvalidValueError, match="is of profile, expected a training, a search"):
        compared(first, tags[PROFILE_RUN])
    with pytest.raises(UnknownNameError, match="unknown run 'nowhere'"):
        compared(first, "nowhere")
    with pytest.raises(InvalidValueError, match=r"no training has placer\.graph = 'fuor'"):
        compared(first, graph="fuor")
    with pytest.raises(InvalidValueError, match="cannot search for tag"):
        compared(first, **{"a`b": "c"})


def test_a_search_that_did_not_finish_is_refused(store: Store, first: str) -> None:
    with (
        contextlib.suppress(KeyboardInterrupt),
        store.stage("search", uuid.uuid4().hex, name="s", params={}, tags={}) as search,
    ):
        raise KeyboardInterrupt

    with pytest.raises(InvalidValueError, match="'search' is KILLED, not FINISHED"):
        compared(first, search.run_id)


def test_another_figure_format_is_refused_before_anything_is_read() -> None:
    with pytest.raises(InvalidValueError, match=r"--figure must name a .png file, got 'f.pdf'"):
        compare_runs([], graph=None, tags={}, json_file=None, figure_file=Path("f.pdf"))


# Where runs stand


@pytest.fixture(scope="module")
def dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_a_run_whose_process_is_gone_was_interrupted(
    store: Store, tags: dict[str, str], first: str, dead_pid: int
) -> None:
    def still_running(pid: int) -> str:
        run_id = trained(store, tags)
        store.connection.client.update_run(run_id, status="RUNNING")
        OpenRun(store, run_id).set_tags({PID: str(pid), HOST: platform.node(), HEARTBEAT: now()})
        return run_id

    runs = [first, *map(still_running, (dead_pid, os.getppid(), os.getpid()))]

    statuses = [run["status"] for run in compared(*runs)["runs"]]
    assert statuses == ["FINISHED", "INTERRUPTED", "RUNNING", "RUNNING"]


def test_a_warning_says_that_measured_and_simulated_times_are_not_comparable(
    store: Store, tags: dict[str, str], first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    real = trained(store, tags, environment="real")

    document = compared(first, real)

    warning = capsys.readouterr().err
    assert warning.startswith("placer: warning: not comparable: the best step times are of diff")
    assert f"measured on the real devices: {real[:8]}" in warning
    assert [run["gap"] for run in document["runs"]] == [pytest.approx(0.2), None]
    assert document["best_runs"] == []


def test_the_same_groups_from_two_grouping_runs_are_compared(
    store: Store, profile: Profile, first: str
) -> None:
    again = trained(store, grouped(store, profile, "four"))

    (placements,) = compared(first, again)["placements"]

    assert placements["difference"]["num_moved"] == 0


def test_a_grouping_that_cannot_be_read_leaves_out_what_it_tells(
    store: Store, profile: Profile, caplog: pytest.LogCaptureFixture
) -> None:
    own = grouped(store, profile, "lost")
    runs = [trained(store, own), trained(store, own, times_s=(9.0, 8.0))]
    store.artifacts.delete(own[PROFILE_RUN], PROFILE_FILE)

    document = compared(*runs)

    assert f"run {own[PROFILE_RUN]} has no artifact 'profile.json'" in caplog.text
    assert [run["gap"] for run in document["runs"]] == [None, None]
    # 0 0 1 1 against 0 1 1 0, names as they are.
    assert document["placements"][0]["difference"] == {
        "num_groups": 4, "num_moved": 2, "moved_time_share": None, "largest_moved": [],
    }  # fmt: skip


def test_a_training_without_trials_is_a_row_too(
    store: Store, tags: dict[str, str], first: str
) -> None:
    document = compared(first, trained(store, tags, times_s=()))

    assert document["runs"][1]["findings"]["best_step_time_s"] is None
    assert document["placements"][0]["reason"] == "no placement ran"


def test_many_runs_are_described_as_far_as_the_store_takes_it(
    store: Store, tags: dict[str, str]
) -> None:
    runs = [trained(store, tags, times_s=(5.0,), seed=n, note="x" * 200) for n in range(50)]

    run = store.run(compared(*runs)["run_id"])

    note = run.tags["mlflow.note.content"]
    assert "|\n\nThe rest is in comparison.md.\n\n\n![best_so_far]" in note
    assert 4000 < len(note) <= 5000
    assert run.tags[COMPARED_RUNS].split() == runs
    with pytest.raises(InvalidValueError, match="2 to 50 different runs, got 51"):
        compared(*runs, trained(store, tags))


# The terminal


@pytest.fixture
def comparison(store: Store, first: str, second: str) -> Comparison:
    return module._Reader(store).comparison([store.run(first), store.run(second)])


def test_what_all_runs_share_is_in_the_title_and_not_in_a_column(comparison: Comparison) -> None:
    table = runs_table(comparison)

    assert table.title == "four on custom"
    headings = [re.sub(r"\s", " ", str(column.header)) for column in table.columns]
    assert headings == [
        "run", "name", "method", "trials", "best step time environment", "at trial after",
        "above bound", "did not run", "status",
    ]  # fmt: skip
    assert [row.style for row in table.rows] == ["bold green", ""]


def test_settings_of_many_runs_continue_below(comparison: Comparison) -> None:
    parts = settings_tables(comparison, width=7 + 14)

    assert [len(part.columns) for part in parts] == [2, 2]
    assert [part.columns[1].header for part in parts] == [run.short_id for run in comparison.runs]
    assert list(parts[1].columns[1].cells) == ["1", "ppo"]
