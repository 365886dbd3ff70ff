"""The MLflow page of the tracking store, on loopback, the light way.

One worker without MLflow's job queue: with its defaults the server takes five times as
long to start and to hold in memory, for features that nothing here uses.
"""

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from placer.errors import InvalidValueError, StoreError
from placer.mlflow_store import Store

HOST = "127.0.0.1"

_START_LIMIT_S = 120.0
_STOP_LIMIT_S = 10.0


@dataclasses.dataclass(frozen=True)
class Page:
    """A page that answers.

    Attributes:
        url: Address of the list of all runs.
        process: The server that was started for it; None if the store is a server
            itself and has its own page.
    """

    url: str
    process: "subprocess.Popen[bytes] | None"

    def wait(self) -> None:
        """Wait until the server ends; return at once if none was started."""
        if self.process is not None:
            self.process.wait()


@contextlib.contextmanager
def serve_page(store: Store, port: int = 0) -> Iterator[Page]:
    """Serve the page of a store for as long as the block lasts.

    Nothing is started for a store that is a server. A SIGTERM inside the block ends the
    server, too; so the block belongs in the main thread.

    Args:
        store: Whose runs to show.
        port: On loopback; 0 lets the system choose a free one.

    Raises:
        InvalidValueError: If there is no such port, or it is taken.
        StoreError: If the server does not come up; its last words are in the message.
    """
    if store.uri.startswith(("http://", "https://")):
        yield Page(_runs_url(store.uri.rstrip("/"), store), None)
        return
    port = _free_port(port)
    url = f"http://{HOST}:{port}"
    before = signal.signal(signal.SIGTERM, _exit)
    try:
        with tempfile.TemporaryFile() as output, _server(store, port, output) as process:
            _wait_until_healthy(url, process, output)
            yield Page(_runs_url(url, store), process)
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _server(store: Store, port: int, output: IO[bytes]) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port)]
    environment = {
        **os.environ,
        # A command line is for all to read, and a URI may hold a password.
        "MLFLOW_BACKEND_STORE_URI": store.uri,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    environment.pop("MLFLOW_TRACKING_URI", None)
    process = subprocess.Popen(
        [*command, "--workers", "1"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd=Path(sys.prefix),  # where no project of the user's can shadow a module
        start_new_session=True,  # so that its children can be ended with it
    )
    try:
        yield process
    finally:
        _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_LIMIT_S)


def _wait_until_healthy(url: str, process: "subprocess.Popen[bytes]", output: IO[bytes]) -> None:
    limit_s = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < limit_s:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2):  # noqa: S310
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    output.seek(0)
    lines = output.read().decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
    raise StoreError(f"the MLflow page did not come up at {url}: {last}")


def _runs_url(server: str, store: Store) -> str:
    # The page opens in its mode for language models, unless it is told otherwise.
    experiment = store.connection.experiment_id
    return f"{server}/#/experiments/{experiment}/runs?workflowType=machine_learning"


def _free_port(port: int) -> int:
    if not 0 <= port <= 65535:
        raise InvalidValueError(f"port must be from 0 to 65535, got {port}")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise InvalidValueError(
                f"port {port} cannot be used ({error.strerror}); 0 lets the system choose"
            ) from error
        return int(probe.getsockname()[1])


def _exit(number: int, _: types.FrameType | None) -> None:
    sys.exit(128 + number)
