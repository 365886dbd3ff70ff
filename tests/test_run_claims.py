"""Two processes want one training: one has it, the other says so."""

import os
import platform
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from placer.errors import StoreError
from placer.mlflow_store import Store
from placer.run_claims import locked
from tests.tracking import remote_store, server_uri, store, store_root

__all__ = ["remote_store", "server_uri", "store", "store_root"]

HOLD = """
import sys
from pathlib import Path
from placer.run_claims import locked
with locked(Path(sys.argv[1]), "key"):
    print("held", flush=True)
    input()
"""


def test_a_lock_is_one_process_s_and_the_other_is_told_whose(tmp_path: Path) -> None:
    with (
        locked(tmp_path, "key"),
        pytest.raises(StoreError, match=f"in progress: process {os.getpid()} on") as refused,
        locked(tmp_path, "key"),
    ):
        pass

    assert "\n" not in str(refused.value)
    with locked(tmp_path, "key"), locked(tmp_path, "another key"):
        pass


def test_the_lock_of_a_process_that_is_killed_is_free_again(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StoreError, match=f"process {holder.pid} on {platform.node()}"):
            locked(tmp_path, "key").__enter__()

        holder.kill()
        holder.wait()

    with locked(tmp_path, "key"):
        pass


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(StoreError, match=r"cannot write .*file"):
        locked(tmp_path / "file", "key").__enter__()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["store", "remote_store"])
@pytest.mark.parametrize("is_new", [True, False])
def test_of_two_that_start_at_once_one_wins(
    name: str, is_new: bool, request: pytest.FixtureRequest
) -> None:
    chosen: Store = request.getfixturevalue(name)
    key = f"claims {name} {is_new}"
    if not is_new:
        with pytest.raises(RuntimeError), chosen.training(key, name="t", params={}, tags={}):
            raise RuntimeError
    both_ended, winners, losers = threading.Barrier(2), [], []

    def start() -> None:
        # Threads of one process: to the store they are two that know nothing of each other.
        try:
            with chosen.training(key, name="t", params={}, tags={}) as run:
                winners.append(run.run_id)
                both_ended.wait(30)
        except StoreError as error:
            losers.append(str(error))
            both_ended.wait(30)

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
        time.sleep(0.1)  # on a server, well within the time that a claim takes to settle
    for thread in threads:
        thread.join()

    assert len(winners) == len(losers) == 1
    assert "in progress: process" in losers[0]
    assert chosen.run(winners[0]).status == "FINISHED"
    found = chosen.connection.client.search_runs(
        [chosen.connection.experiment_id], filter_string=f"tags.`placer.key` = '{key}'"
    )
    assert [run.info.run_id for run in found] == winners
