"""Two processes want one training: one has it, the other says so."""

import os
import platform
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

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


def of_two_that_start(store: Store, key: str) -> tuple[list[str], list[str]]:
    """Start a training twice at once; return the run of who has it, and what the other is told.

    Both are threads of one process: to the store they are two that know nothing of each other.
    """
    both_are_done, winners, losers = threading.Barrier(2), [], []

    def start() -> None:
        try:
            with store.training(key, name="t", params={}, tags={}) as run:
                winners.append(run.run_id)
                both_are_done.wait(30)
        except StoreError as error:
            losers.append(str(error))
            both_are_done.wait(30)

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return winners, losers


def check_one_won(store: Store, key: str, winners: list[str], losers: list[str]) -> None:
    assert len(winners) == len(losers) == 1
    assert "a training of these settings is in progress: " in losers[0]
    assert store.run(winners[0]).status == "FINISHED"
    found = store.connection.client.search_runs(
        [store.connection.experiment_id], filter_string=f"tags.`placer.key` = '{key}'"
    )
    assert [run.info.run_id for run in found] == winners


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

    check_one_won(chosen, key, *of_two_that_start(chosen, key))


@pytest.mark.slow
def test_of_two_that_both_see_no_run_yet_one_wins(
    remote_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    find, both_have_looked, looked = Store._find, threading.Barrier(2), set()

    def find_together(*arguments: Any, **options: Any) -> object:
        found = find(*arguments, **options)
        if threading.get_ident() not in looked:
            looked.add(threading.get_ident())
            both_have_looked.wait(30)
        return found

    monkeypatch.setattr(Store, "_find", find_together)
    ended = of_two_that_start(remote_store, "claims together")

    check_one_won(remote_store, "claims together", *ended)
