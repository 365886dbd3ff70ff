"""The page of a store: it answers, shows the runs, and is gone afterwards."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from flows.ui import serve_page
from placer.errors import InvalidValueError, StoreError
from placer.mlflow_connection import Connection
from placer.mlflow_store import Store, open_store
from tests.tracking import answers, free_port, remote_store, server_uri, store, store_root

__all__ = ["remote_store", "server_uri", "store", "store_root"]

pytestmark = pytest.mark.slow


def fetch(url: str, body: dict[str, object] | None = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(  # noqa: S310
        url, data, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
        content: bytes = response.read()
    return content


def processes_of_group(group: int) -> list[str]:
    """Return the processes of a group that still run; zombies do not."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(status.parent.name)
    return found


def test_the_page_shows_the_runs_and_their_artifacts_and_ends_with_its_children(
    store: Store,
) -> None:
    with store.stage("profile", "ui", name="profile for the page", params={}, tags={}) as run:
        run.log_text("rank\n1\n", "top_placements.csv")

    with serve_page(store) as page:
        assert page.process is not None
        server = page.url.partition("/#/")[0]
        group = page.process.pid
        search = {"experiment_ids": [store.connection.experiment_id]}
        runs = fetch(f"{server}/api/2.0/mlflow/runs/search", search)
        table = fetch(f"{server}/get-artifact?path=top_placements.csv&run_uuid={run.run_id}")
        html = fetch(page.url)
        assert processes_of_group(group) != []

    assert b"profile for the page" in runs
    assert table == b"rank\n1\n"
    assert b"<html" in html
    assert urllib.parse.urlsplit(server).hostname == "127.0.0.1"
    assert page.url.endswith("/#/experiments/1/runs?workflowType=machine_learning")
    assert page.process.poll() is not None
    assert processes_of_group(group) == []
    assert not answers(f"{server}/health")


def test_a_store_that_is_a_server_has_its_own_page(remote_store: Store) -> None:
    with serve_page(remote_store) as page:
        page.wait()

    assert page.process is None
    assert page.url.startswith(f"{remote_store.uri}/#/experiments/")


def test_a_port_that_is_taken_is_named(store: Store) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]

        with (
            pytest.raises(InvalidValueError, match=f"port {port} cannot be used"),
            serve_page(store, port),
        ):
            pass


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_cannot_be_is_named(store: Store, port: int) -> None:
    with (
        pytest.raises(InvalidValueError, match=f"from 0 to 65535, got {port}"),
        serve_page(store, port),
    ):
        pass


def test_a_server_that_does_not_come_up_is_told_in_one_line(store: Store) -> None:
    client, experiment_id = store.connection.client, store.connection.experiment_id
    unusable = Store(Connection("nonsense://nowhere", client, experiment_id))

    with pytest.raises(StoreError, match="did not come up at") as error, serve_page(unusable):
        pass

    assert "\n" not in str(error.value)


SERVE = """
import pathlib, sys
from flows.ui import serve_page
from placer.mlflow_store import open_store

with serve_page(open_store(pathlib.Path(sys.argv[1])), int(sys.argv[2])) as page:
    print(page.process.pid, flush=True)
    page.wait()
"""


def test_a_page_that_is_terminated_leaves_no_process(store_root: Path) -> None:
    open_store(store_root)
    command = [sys.executable, "-c", SERVE, str(store_root), str(free_port())]
    serving = subprocess.Popen(
        command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True
    )
    assert serving.stdout is not None
    group = int(serving.stdout.readline())

    os.kill(serving.pid, signal.SIGTERM)
    serving.wait()
    serving.stdout.close()

    # What SIGKILL ends is gone a moment later, also for the kernel.
    while processes_of_group(group):
        time.sleep(0.05)
    assert serving.returncode == 128 + signal.SIGTERM
