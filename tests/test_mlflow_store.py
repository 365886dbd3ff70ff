"""The tracking store: made whole or not at all, runs found by key, errors in one line."""

import contextlib
import datetime
import http.server
import itertools
import os
import platform
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from placer.errors import MissingFileError, StoreError, UnknownNameError
from placer.mlflow_store import Store, open_store
from tests.tracking import free_port, remote_store, server_uri, store, store_root

__all__ = ["remote_store", "server_uri", "store", "store_root"]

pytestmark = pytest.mark.slow

KEYS = (f"store {number}" for number in itertools.count())


class Terminated(BaseException):
    """What Prefect raises on SIGTERM is no Exception either."""


@pytest.fixture
def key() -> str:
    return next(KEYS)


@pytest.fixture(params=["embedded", "server"])
def either_store(request: pytest.FixtureRequest) -> Store:
    name = "store" if request.param == "embedded" else "remote_store"
    found: Store = request.getfixturevalue(name)
    return found


def finished(store: Store, stage: str, key: str) -> str:
    with store.stage(stage, key, name=f"{stage} it", params={}, tags={}) as run:
        return run.run_id


# Making the embedded store


def clean_environment() -> dict[str, str]:
    ours = ("MLFLOW_", "PYTEST_", "DO_NOT_TRACK")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def python(statement: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", statement, *arguments],
        cwd=Path(__file__).parents[1],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


OPEN = "import pathlib, sys; from placer.mlflow_store import open_store; "


def test_processes_that_make_one_store_at_once_agree_and_say_nothing(tmp_path: Path) -> None:
    statement = OPEN + (
        "store = open_store(pathlib.Path(sys.argv[1]));"
        "store.stage('profile', sys.argv[2], name='n', params={}, tags={}).__enter__()"
    )

    processes = [python(statement, str(tmp_path / "mlruns"), name) for name in ("a", "b")]
    outputs = [process.communicate() for process in processes]

    assert [process.returncode for process in processes] == [0, 0]
    assert outputs == [("", ""), ("", "")]
    runs = open_store(tmp_path / "mlruns").connection.client.search_runs(["1"])
    assert {run.data.tags["placer.key"] for run in runs} == {"a", "b"}


def test_telemetry_is_off_unless_the_user_says_otherwise() -> None:
    statement = (
        "import placer.mlflow_store; from mlflow.telemetry.client import get_telemetry_client;"
        "print(get_telemetry_client())"
    )

    output, _ = python(statement).communicate()

    assert output == "None\n"


def test_a_new_store_is_a_database_in_wal_mode_with_its_artifacts_beside_it(
    store: Store, store_root: Path
) -> None:
    experiment = store.connection.client.get_experiment(store.connection.experiment_id)

    with sqlite3.connect(store_root / "mlflow.db") as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert experiment.name == "placer"
    assert experiment.artifact_location == (store_root / "artifacts").as_uri()
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"


def test_what_a_killed_creation_left_is_replaced(tmp_path: Path) -> None:
    draft = tmp_path / ".mlflow.db.draft"
    draft.write_bytes(b"half a database")

    made = open_store(tmp_path)

    assert not draft.exists()
    assert made.find_stage("profile", "none") is None


def test_a_tracking_uri_of_a_file_is_an_embedded_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///elsewhere/runs.db")

    made = open_store()
    finished(made, "profile", key)

    assert (tmp_path / "elsewhere" / "runs.db").is_file()
    assert not (tmp_path / "mlruns").exists()
    assert open_store().find_stage("profile", key) is not None


# Stores that cannot be used


def refused(monkeypatch: pytest.MonkeyPatch, uri: str) -> str:
    """Return the one line that opening this tracking URI ends in."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(StoreError) as error:
        open_store()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_server_that_is_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"http://127.0.0.1:{free_port()}"

    message = refused(monkeypatch, uri)

    assert message.startswith(f"tracking store {uri} does not answer (")
    assert "unset MLFLOW_TRACKING_URI" in message


@pytest.fixture(params=[404, 503])
def other_server(request: pytest.FixtureRequest) -> Iterator[tuple[int, str]]:
    """A server of something else, which has one answer to everything."""

    class OneAnswer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(request.param)

        do_POST = do_GET  # noqa: N815 - the library's name

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), OneAnswer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield request.param, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_server_of_something_else_is_named(
    monkeypatch: pytest.MonkeyPatch, other_server: tuple[int, str]
) -> None:
    status, uri = other_server

    message = refused(monkeypatch, uri)

    assert message.startswith(f"tracking store {uri}")
    assert str(status) in message


@pytest.mark.parametrize(
    "uri", ["nonsense://x", "sqlite://", "sqlite:///", "file:///tmp/none", "http://", "http://[x"]
)
def test_an_impossible_uri_is_named(monkeypatch: pytest.MonkeyPatch, uri: str) -> None:
    assert refused(monkeypatch, uri).startswith(f"tracking store {uri}")


def test_a_password_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"http://me:secret@127.0.0.1:{free_port()}"

    message = refused(monkeypatch, uri)

    assert "http://me:***@127.0.0.1" in message
    assert "secret" not in message


def test_a_database_server_without_its_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    message = refused(monkeypatch, "postgresql+pg8000://me:secret@127.0.0.1/runs")

    assert "pg8000" in message
    assert "secret" not in message


@pytest.mark.parametrize("content", [b"", b"no database at all" * 100])
def test_a_file_that_is_no_tracking_store_is_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mlflow.db").write_bytes(content)

    with pytest.raises(StoreError, match=f"{tmp_path}/mlflow.db cannot be used: "):
        open_store(tmp_path)

    assert (tmp_path / "mlflow.db").read_bytes() == content


def test_a_database_of_another_schema_asks_for_that_mlflow(
    store_root: Path, tmp_path: Path
) -> None:
    open_store(store_root)
    with (
        sqlite3.connect(store_root / "mlflow.db") as original,
        sqlite3.connect(tmp_path / "mlflow.db") as database,
    ):
        original.backup(database)
        database.execute("UPDATE alembic_version SET version_num = 'ffffffffffff'")

    with pytest.raises(StoreError, match="made by another version of MLflow than") as error:
        open_store(tmp_path)

    assert "\n" not in str(error.value)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(StoreError, match=f"cannot write {tmp_path}/file/mlruns/mlflow.db: "):
        open_store(tmp_path / "file" / "mlruns")


AS_NOBODY = "import os; os.setgroups([]); os.setgid(65534); os.setuid(65534);"


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can become somebody else")
@pytest.mark.parametrize("is_made", [False, True])
def test_a_read_only_folder_is_named_and_stays_as_it_is(store_root: Path, is_made: bool) -> None:
    root = store_root if is_made else store_root.parent / "empty"
    if is_made:
        open_store(root)
    root.mkdir(exist_ok=True)
    before = sorted(path.name for path in root.iterdir())
    statement = (
        "import pathlib, sys; from placer.mlflow_store import open_store\n"
        "from placer.errors import StoreError\n"
        f"{AS_NOBODY}\n"
        "try: open_store(pathlib.Path(sys.argv[1]))\n"
        "except StoreError as error: print(error)"
    )
    for parent in [root, *root.parents][:-2]:
        if parent.stat().st_uid == os.getuid() and parent != Path("/tmp"):  # noqa: S108
            parent.chmod(0o755)

    output, errors = python(statement, str(root)).communicate()

    assert errors == ""
    assert output.count("\n") == 1
    assert str(root / "mlflow.db") in output
    assert sorted(path.name for path in root.iterdir()) == before


# Stages


def test_a_stage_is_found_by_its_key_once_it_is_finished(either_store: Store, key: str) -> None:
    assert either_store.find_stage("profile", key) is None

    run_id = finished(either_store, "profile", key)

    found = either_store.find_stage("profile", key)
    assert found is not None
    assert (found.run_id, found.name, found.status) == (run_id, "profile it", "FINISHED")
    assert either_store.find_stage("group", key) is None
    assert either_store.find_stage("profile", f"{key} other") is None


def test_of_finished_stages_the_last_is_found(store: Store, key: str) -> None:
    finished(store, "profile", key)
    last = finished(store, "profile", key)

    found = store.find_stage("profile", key)

    assert found is not None
    assert found.run_id == last


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("too\nbad"), "FAILED"),
        (KeyboardInterrupt(), "KILLED"),
        (SystemExit(1), "KILLED"),
        (Terminated("SIGTERM"), "KILLED"),
    ],
)
def test_a_stage_that_ends_early_says_why_and_is_not_reused(
    store: Store, key: str, error: BaseException, status: str
) -> None:
    with (
        pytest.raises(type(error)),
        store.stage("profile", key, name="n", params={}, tags={}) as run,
    ):
        raise error

    ended = store.run(run.run_id)
    assert ended.status == status
    assert ended.tags["placer.error"].startswith(type(error).__name__)
    assert "\n" not in ended.tags["placer.error"]
    assert store.find_stage("profile", key) is None


def test_settings_tags_and_description_are_kept(either_store: Store, key: str) -> None:
    params = {"trials": 10, "graph": None, "sizes": {"batch_size": 2}, "long": "x" * 7000}
    with either_store.stage("train", key, name="n", params=params, tags={"graph": "g"}) as run:
        run.set_tags({"topology": "t"})
        run.describe("**best**")
        run.log_metrics({"speedup": 2.0})

    found = either_store.run(run.run_id)
    assert found.params == {
        "trials": "10",
        "graph": "None",
        "sizes.batch_size": "2",
        "long": "x" * 6000,
    }
    assert {"graph": "g", "topology": "t", "placer.stage": "train"}.items() <= found.tags.items()
    assert found.tags["mlflow.note.content"] == "**best**"
    metrics = either_store.connection.client.get_run(run.run_id).data.metrics
    assert metrics == {"speedup": 2.0}


def test_a_description_shows_figures_of_its_run(store: Store, key: str) -> None:
    with store.stage("train", key, name="described", params={}, tags={}) as run:
        run.describe("**best**", ["learning curve.png"])

    image = f"![learning curve](get-artifact?path=learning%20curve.png&run_uuid={run.run_id})"
    assert store.run(run.run_id).tags["mlflow.note.content"] == f"**best**\n\n{image}"


def test_an_unknown_run_is_named_with_the_nearest(either_store: Store, key: str) -> None:
    run_id = finished(either_store, "profile", key)
    mistaken = run_id[:-1] + ("0" if run_id[-1] != "0" else "1")

    with pytest.raises(
        UnknownNameError, match=f"unknown run '{mistaken}'; did you mean '{run_id}'"
    ):
        either_store.run(mistaken)
    with pytest.raises(UnknownNameError, match="unknown run 'no such'"):
        either_store.download("no such", "profile.json")


# Artifacts


def test_artifacts_come_back_as_they_were(either_store: Store, key: str, tmp_path: Path) -> None:
    (tmp_path / "out" / "step").mkdir(parents=True)
    (tmp_path / "out" / "profile.json").write_text("{}")
    (tmp_path / "out" / "step" / "graph.pb").write_bytes(bytes(range(256)))
    with either_store.stage("profile", key, name="n", params={}, tags={}) as run:
        run.log_folder(tmp_path / "out")
        run.log_file(tmp_path / "out" / "profile.json", "copies/again.json")
        run.log_text("# Größe", "notes.md")
        run.log_table(pd.DataFrame({"a": [1.5], "b": ["x"]}), "table.csv")

    def content(artifact: str) -> bytes:
        return either_store.download(run.run_id, artifact).read_bytes()

    assert content("profile.json") == content("copies/again.json") == b"{}"
    assert content("step/graph.pb") == bytes(range(256))
    assert content("notes.md").decode() == "# Größe"
    assert content("table.csv") == b"a,b\n1.5,x\n"
    folder = either_store.download(run.run_id, "step")
    assert [path.name for path in folder.iterdir()] == ["graph.pb"]


def test_artifacts_are_listed_and_deleted(either_store: Store, key: str) -> None:
    artifacts = either_store.artifacts
    run_id = finished(either_store, "profile", key)
    for name in ("b/2.txt", "b/1.txt", "a.txt"):
        artifacts.write(run_id, name, b"x")

    artifacts.delete(run_id, "b/2.txt")

    assert artifacts.names(run_id, ".") == ["a.txt", "b"]
    assert artifacts.names(run_id, "b") == ["b/1.txt"]
    assert artifacts.names(run_id, "none") == []


def test_a_rewritten_artifact_is_read_anew(either_store: Store, key: str) -> None:
    run_id = finished(either_store, "profile", key)
    either_store.artifacts.write(run_id, "a.txt", b"old")
    either_store.download(run_id, "a.txt")

    either_store.artifacts.write(run_id, "a.txt", b"new")

    assert either_store.download(run_id, "a.txt").read_bytes() == b"new"


def test_a_missing_artifact_is_named(either_store: Store, key: str) -> None:
    run_id = finished(either_store, "profile", key)

    for artifact in ("profile.json", "step/graph.pb"):
        with pytest.raises(MissingFileError, match=f"run {run_id} has no artifact '{artifact}'"):
            either_store.download(run_id, artifact)


@pytest.mark.parametrize(("name", "start"), [("f.png", b"\x89PNG"), ("f.svg", b"<?xml")])
def test_a_figure_is_kept_in_the_format_of_its_name(
    store: Store, key: str, name: str, start: bytes
) -> None:
    figure = Figure()
    figure.subplots().plot(np.arange(3))

    with store.stage("train", key, name="n", params={}, tags={}) as run:
        run.log_figure(figure, name)

    assert store.download(run.run_id, name).read_bytes().startswith(start)


# Trainings


def test_a_training_is_continued_until_it_is_finished(either_store: Store, key: str) -> None:
    def start() -> str:
        with either_store.training(key, name="t", params={"a": 1}, tags={}) as run:
            return run.run_id

    def start_and_fail() -> str:
        with (
            contextlib.suppress(RuntimeError),
            either_store.training(key, name="t", params={"a": 1}, tags={}) as run,
        ):
            assert either_store.run(run.run_id).status == "RUNNING"
            raise RuntimeError("power cut")
        return run.run_id

    first = start_and_fail()
    found = either_store.find_training(key)

    assert found is not None
    assert found.run_id == first
    assert found.tags["placer.error"] == "RuntimeError: power cut"
    assert start() == first
    assert "placer.error" not in either_store.run(first).tags
    assert either_store.find_training(key) is None
    reused = either_store.find_stage("train", key)
    assert reused is not None
    assert reused.run_id == first
    assert start() != first


def seconds_ago(silence_s: float) -> str:
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=silence_s)
    return then.isoformat(timespec="seconds")


def left_running(store: Store, key: str, host: str, pid: int, silence_s: float) -> str:
    """Leave a training as a process on that host would have, had it last written then."""
    with store.training(key, name="t", params={}, tags={}) as run:
        tags = {"placer.host": host, "placer.pid": str(pid)}
        run.set_tags({**tags, "placer.heartbeat": seconds_ago(silence_s)})
    store.connection.client.update_run(run.run_id, status="RUNNING")
    return run.run_id


@pytest.fixture
def other_process() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


def test_a_training_in_progress_is_not_taken_over(
    store: Store, key: str, other_process: "subprocess.Popen[bytes]"
) -> None:
    run_id = left_running(store, key, platform.node(), other_process.pid, silence_s=1)

    with (
        pytest.raises(
            StoreError, match=f"run {run_id}: .* in progress: process {other_process.pid} on"
        ),
        store.training(key, name="t", params={}, tags={}),
    ):
        pass

    assert store.run(run_id).status == "RUNNING"


def test_a_training_in_progress_on_another_host_is_not_taken_over(store: Store, key: str) -> None:
    left_running(store, key, "elsewhere", 1, silence_s=1)

    with (
        pytest.raises(StoreError, match="in progress: process 1 on elsewhere"),
        store.training(key, name="t", params={}, tags={}),
    ):
        pass


def test_a_training_whose_process_is_gone_is_taken_over(
    store: Store, key: str, other_process: "subprocess.Popen[bytes]"
) -> None:
    run_id = left_running(store, key, platform.node(), other_process.pid, silence_s=1)
    other_process.kill()  # dead, though its parent (this test) has not collected it
    os.waitid(os.P_PID, other_process.pid, os.WEXITED | os.WNOWAIT)

    with store.training(key, name="t", params={}, tags={}) as run:
        assert run.run_id == run_id


def test_a_training_silent_for_long_is_taken_over(store: Store, key: str) -> None:
    run_id = left_running(store, key, "elsewhere", 1, silence_s=3600)

    with store.training(key, name="t", params={}, tags={}) as run:
        assert run.run_id == run_id

    tags = store.run(run_id).tags
    assert (tags["placer.host"], tags["placer.pid"]) == (platform.node(), str(os.getpid()))
