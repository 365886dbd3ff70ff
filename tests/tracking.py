"""Measured trials, and the real stores that the tracking tests share."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from placer.environment import Measurement, Outcome
from placer.mlflow_store import Store, open_store
from placer.trials import Trial

BATCH = 4


def ok(step_time_s: float) -> Measurement:
    return Measurement(outcome=Outcome.OK, step_time_s=step_time_s, peak_memory_bytes=(7, 2**40))


def too_large() -> Measurement:
    return Measurement(outcome=Outcome.OUT_OF_MEMORY, detail="gpu:0: 5 of 4 bytes")


def trial_of(number: int, measurement: Measurement | None = None) -> Trial:
    """Return trial ``number`` of batches of four, finished ``number`` ms after second 1,000."""
    return Trial(
        number=number,
        update=number // BATCH,
        device_of_group=(number % 2, 1, 0),
        environment="simulated",
        measurement=measurement or ok(2.0 - number / 1024),
        finished_at_s=1000 + number / 1000,
    )


def trials_of(numbers: Sequence[int]) -> list[Trial]:
    return [trial_of(number) for number in numbers]


@pytest.fixture(scope="session")
def store_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose name needs care in a URI."""
    return tmp_path_factory.mktemp("tracking") / "with space, 100% #1"


@pytest.fixture(scope="session")
def store(store_root: Path) -> Store:
    """An embedded store for the session; each test uses a key of its own."""
    return open_store(store_root)


@pytest.fixture(scope="session")
def server_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real MLflow server that keeps artifacts itself."""
    folder = tmp_path_factory.mktemp("server")
    with mlflow_server(folder, free_port()) as uri:
        yield uri


@pytest.fixture(scope="session")
def remote_store(server_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """The store behind the server, with journals in a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLACER_JOURNAL", str(tmp_path_factory.mktemp("journal")))
        with patch.context() as only_now:
            only_now.setenv("MLFLOW_TRACKING_URI", server_uri)
            store = open_store()
        yield store


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def mlflow_server(folder: Path, port: int) -> Iterator[str]:
    with mlflow_process(folder, port):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def mlflow_process(folder: Path, port: int) -> Iterator["subprocess.Popen[bytes]"]:
    """A server of a process group of its own, which answers; what it kept there it has again."""
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{folder}/server.db"]
    command += ["--artifacts-destination", str(folder / "kept")]
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        while not answers(f"http://127.0.0.1:{port}/health"):
            assert process.poll() is None, (folder / "server.log").read_text()
            time.sleep(0.2)
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
