"""Stores that go away: a server stopped, killed and started again, a full disk, eight at once.

Each test has the real thing: MLflow's server as a process, a small disk that is filled.
"""

import contextlib
import dataclasses
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from placer.errors import StoreError
from placer.mlflow_store import Store, open_store
from placer.mlflow_trial_log import MLflowTrialLog
from placer.trials import Checkpoint
from tests import appending_process
from tests.processes import wait_until
from tests.small_disk import fill, small_disk
from tests.tracking import free_port, mlflow_process, trial_of, trials_of

__all__ = ["small_disk"]

pytestmark = pytest.mark.slow


@dataclasses.dataclass
class Server:
    """An MLflow server that can be stopped and started again."""

    folder: Path
    port: int = dataclasses.field(default_factory=free_port)
    _running: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)
    _pid: int = 0

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._pid = self._running.enter_context(mlflow_process(self.folder, self.port)).pid

    def stop(self) -> None:
        self._running.close()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Let the server accept connections, and not answer, inside the block."""
        os.killpg(self._pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self._pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that is running before each test and after it."""
    server = Server(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def store(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    monkeypatch.setenv("PLACER_JOURNAL", str(tmp_path / "journal"))
    return open_store()


def new_log(store: Store) -> MLflowTrialLog:
    with store.stage("train", "key", name="outage", params={}, tags={}) as run:
        return MLflowTrialLog(store, run.run_id)


def curve(store: Store, run_id: str, metric: str = "trial/step_time_s") -> list[tuple[int, float]]:
    history = store.connection.client.get_metric_history(run_id, metric)
    return sorted((point.step, point.value) for point in history)


def curve_of(num_trials: int) -> list[tuple[int, float]]:
    return [(number, 2.0 - number / 1024) for number in range(num_trials)]


def checkpoint_of(update: int) -> Checkpoint:
    arrays = {"kernel": np.full(10_000, update)}
    return Checkpoint(update=update, num_trials=0, arrays=arrays, scalars={})


def journal_files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def last_written_s(folder: Path) -> float:
    """Return when the newest file was written; files may come and go meanwhile."""
    try:
        return max(path.stat().st_mtime for path in folder.glob("*.parquet"))
    except (FileNotFoundError, ValueError):
        return 0.0


def test_a_training_goes_on_without_its_server_and_hands_over_when_it_is_back(
    server: Server, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = new_log(store)
    kept_in = tmp_path / "journal" / log.run_id

    with caplog.at_level(logging.WARNING, "placer"), log:
        log.append(trials_of(range(8)), {})
        log.save_checkpoint(checkpoint_of(0))
        # The tag comes last: what was written before it is known to be there.
        assert wait_until(lambda: "placer.checkpoint" in store.run(log.run_id).tags)
        server.stop()
        for number in range(8, 600):
            log.append([trial_of(number)], {})
        for update in (1, 2, 3):
            log.save_checkpoint(checkpoint_of(update))
        assert wait_until(lambda: caplog.messages)
        during = log.trials()
        files = journal_files(kept_in)
        server.start()

    away, closing, back = caplog.messages
    names = store.artifacts.names(log.run_id, "checkpoints")
    checkpoint = MLflowTrialLog(store, log.run_id).load_checkpoint()
    assert during == trials_of(range(600))
    # The first shard ends with the trial that fills it: 8, and then one at a time.
    assert [name for name in files if "trials" in name] == [
        f"trials/{first:08d}.parquet" for first in (0, 256, 512)
    ]
    assert len([name for name in files if "checkpoints" in name]) == 2
    assert away.startswith(f"tracking store {server.uri} does not answer (")
    assert away.endswith(f"trials are kept in {kept_in}")
    assert closing.endswith(f"592 trials are kept in {kept_in}; waiting for the store")
    assert back == f"tracking store {server.uri} answers again; 592 trials handed over"
    assert not kept_in.exists()
    assert MLflowTrialLog(store, log.run_id).trials() == trials_of(range(600))
    assert curve(store, log.run_id) == curve_of(600)
    assert checkpoint is not None
    assert checkpoint.update == 3
    assert store.run(log.run_id).tags["placer.checkpoint"] == names[-1]
    assert store.run(log.run_id).tags["placer.logged_trials"] == "600"


def test_what_is_left_in_a_journal_is_handed_over_when_the_training_goes_on(
    server: Server, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, given_up = new_log(store), new_log(store)
    monkeypatch.setattr("placer.mlflow_trial_log.PATIENCE_S", 0.5)
    given_up.append(trials_of(range(4)), {})
    command = [sys.executable, "-m", "tests.appending_process", killed.run_id]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[1])
    assert wait_until(lambda: curve(store, killed.run_id))

    # One training is killed while the server is away, the other waits for it in vain.
    server.stop()
    shards = tmp_path / "journal" / killed.run_id / "trials"
    stopped_s = time.time()
    assert wait_until(lambda: last_written_s(shards) > stopped_s)
    process.kill()
    process.wait()
    given_up.append(trials_of(range(4, 300)), {"baseline": 0.5})
    given_up.save_checkpoint(checkpoint_of(7))
    with pytest.raises(StoreError) as caught:
        given_up.close()
    server.start()

    kept = MLflowTrialLog(store, killed.run_id).trials()
    in_store = len(curve(store, killed.run_id))
    assert len(kept) > in_store
    assert kept == trials_of(range(len(kept)))
    with MLflowTrialLog(store, killed.run_id) as again:
        again.append(trials_of(range(len(kept), len(kept) + 4)), {})
    assert curve(store, killed.run_id) == curve_of(len(kept) + 4)
    assert str(caught.value).startswith(f"tracking store {server.uri} ")
    assert str(caught.value).endswith(
        f" trials are kept in {tmp_path / 'journal' / given_up.run_id}: the same command goes on"
        " once the store answers"
    )
    found = MLflowTrialLog(store, given_up.run_id).load_checkpoint()
    assert found is not None
    assert found.update == 7
    with MLflowTrialLog(store, given_up.run_id):
        pass
    assert journal_files(tmp_path / "journal") == []
    assert MLflowTrialLog(store, given_up.run_id).trials() == trials_of(range(300))
    assert curve(store, given_up.run_id) == curve_of(300)
    assert curve(store, given_up.run_id, "update/baseline") == [(74, 0.5)]
    assert len(store.artifacts.names(given_up.run_id, "checkpoints")) == 1


def test_a_server_that_does_not_get_on_keeps_nobody_waiting(server: Server, store: Store) -> None:
    log = new_log(store)

    with log, server.frozen():  # would never return if any of it waited for an answer
        for number in range(450):  # more points than are kept for a while
            log.append([trial_of(number)], {})
        log.save_checkpoint(checkpoint_of(1))

    assert MLflowTrialLog(store, log.run_id).trials() == trials_of(range(450))
    assert curve(store, log.run_id) == curve_of(450)


def test_a_training_waits_for_room_on_a_full_disk_and_loses_nothing(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Database, shards and checkpoints are all on the disk that is full.
    store = open_store(small_disk / "mlruns")
    log = new_log(store)
    log.append(trials_of(range(4)), {})

    def train() -> None:
        with log:
            log.append(trials_of(range(4, 8)), {"baseline": 0.5})
            log.save_checkpoint(checkpoint_of(2))

    training = threading.Thread(target=train)
    with caplog.at_level(logging.WARNING, "placer"):
        filler = fill(small_disk)
        training.start()
        assert wait_until(lambda: any("no room in" in message for message in caplog.messages))
        filler.unlink()
        training.join()

    again = MLflowTrialLog(store, log.run_id)
    checkpoint = again.load_checkpoint()
    assert again.trials() == trials_of(range(8))
    assert curve(store, log.run_id) == curve_of(8)
    assert curve(store, log.run_id, "update/baseline") == [(1, 0.5)]
    assert checkpoint is not None
    assert checkpoint.update == 2


def test_eight_trainings_at_once_share_one_database(tmp_path: Path) -> None:
    # One process imports MLflow, and the eight begin as copies of it.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.appending_process"])
    keys = [f"key {number}" for number in range(8)]

    with context.Pool(8) as pool:
        arguments = [(tmp_path, key, 40) for key in keys]
        runs = pool.starmap(appending_process.train, arguments, chunksize=1)

    store = open_store(tmp_path)
    assert len(set(runs)) == 8
    for run_id, key in zip(runs, keys, strict=True):
        run = store.run(run_id)
        assert (run.status, run.name, run.params["trials"]) == ("FINISHED", key, "40")
        assert MLflowTrialLog(store, run_id).trials() == trials_of(range(40))
        assert curve(store, run_id) == curve_of(40)
        assert curve(store, run_id, "update/baseline") == [
            (update, 4.0 * update) for update in range(10)
        ]
