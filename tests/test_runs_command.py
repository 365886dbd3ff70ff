"""``placer runs``: the newest trainings, and those whose process died."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.runs import list_runs
from placer.errors import InvalidValueError
from placer.mlflow_store import OpenRun, Store, now, open_store
from placer.mlflow_trial_log import MLflowTrialLog
from placer.run_claims import locked
from placer.tracking_names import GRAPH, HEARTBEAT, HOST, PID
from tests.command_line import Answer, assert_one_line, loggers, placer
from tests.tracking import ok, trial_of

__all__ = ["loggers", "placer"]

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty folder to work in, with its own embedded store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return open_store()


@pytest.fixture
def dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def trained(store: Store, key: str, *, graph: str = "chains") -> str:
    params = {"trials": 8}
    with (
        store.training(key, name=f"train {key}", params=params, tags={GRAPH: graph}) as run,
        MLflowTrialLog(store, run.run_id) as log,
    ):
        log.append([trial_of(0, ok(3.0)), trial_of(1, ok(2.0))], {"loss": 0.5})
    return run.run_id


def left_running(store: Store, run_id: str, pid: int, *, host: str | None = None) -> None:
    """Leave a run as a process that was killed, or still runs, leaves it."""
    store.connection.client.update_run(run_id, status="RUNNING")
    tags = {PID: str(pid), HOST: host or platform.node(), HEARTBEAT: now()}
    OpenRun(store, run_id).set_tags(tags)


def listed(**selection: Any) -> list[dict[str, Any]]:
    list_runs(**{"graph": None, "tags": {}, **selection}, json_file=Path("runs.json"))
    rows: list[dict[str, Any]] = json.loads(Path("runs.json").read_text())["runs"]
    return rows


def test_trainings_are_listed_the_newest_first_with_what_they_found(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = trained(store, "a"), trained(store, "b")

    rows = listed()

    assert [row["run_id"] for row in rows] == [second, first]
    assert rows[0] | {"heartbeat": ""} == {
        "run_id": second,
        "name": "train b",
        "graph": "chains",
        "topology": None,
        "state": "FINISHED",
        "num_trials": 2,
        "trials_wanted": 8,
        "best_step_time_s": 2.0,
        "heartbeat": "",
        "reason": None,
    }
    assert second in capsys.readouterr().out


def test_a_training_whose_process_died_is_interrupted_here_and_on_the_page(
    store: Store, dead_pid: int
) -> None:
    dead, alive, elsewhere = (trained(store, key) for key in "abc")
    left_running(store, dead, dead_pid)
    left_running(store, alive, os.getppid())
    left_running(store, elsewhere, dead_pid, host="another host")

    states = {row["run_id"]: (row["state"], row["reason"]) for row in listed()}

    host = platform.node()
    reason = f"interrupted: process {dead_pid} on {host} is gone; `placer resume {dead}` goes on"
    assert states == {
        dead: ("INTERRUPTED", reason),
        alive: ("RUNNING", None),
        elsewhere: ("RUNNING", None),
    }
    assert store.run(dead).status == "KILLED"
    assert store.run(elsewhere).status == "RUNNING"


def test_a_training_that_somebody_is_about_to_go_on_with_is_left_alone(
    store: Store, dead_pid: int
) -> None:
    run_id = trained(store, "a")
    left_running(store, run_id, dead_pid)

    with locked(Path("mlruns/locks"), "a"):
        store.mark_interrupted()

    assert store.run(run_id).status == "RUNNING"


def test_a_selection_is_by_graph_and_tag(store: Store) -> None:
    trained(store, "a")
    other = trained(store, "b", graph="rings")

    assert [row["run_id"] for row in listed(graph="rings")] == [other]
    assert [row["run_id"] for row in listed(tags={"placer.key": "b"})] == [other]
    assert listed(graph="lines") == []


def test_a_tag_that_cannot_be_asked_for_is_named(store: Store) -> None:
    with pytest.raises(InvalidValueError, match="cannot search for tag"):
        listed(tags={"a`b": "c"})


def test_an_empty_store_says_what_makes_a_training(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert listed() == []
    assert "`placer optimize` makes one" in capsys.readouterr().out


# On the command line


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("compare",), "a comparison is of 2 to 50 different runs, got 0 (none)"),
        (("compare", "abc", "def"), "unknown run 'abc'"),
        (("compare", "--tag", "graph"), "--tag takes NAME=VALUE, got 'graph'"),
        (("compare", "--graph", "chains"), "no training has placer.graph = 'chains'"),
        (("runs", "--tag", "=x"), "--tag takes NAME=VALUE, got '=x'"),
        (("resume", "abc", "--set", "seed"), "--set takes NAME=VALUE, got 'seed'"),
        (("trials", "abc", "--out", "t.csv"), "unknown run 'abc'"),
    ],
)
def test_bad_input_is_one_line(
    store: Store, placer: Callable[..., Answer], arguments: tuple[str, ...], text: str
) -> None:
    assert_one_line(placer(*arguments), text)
