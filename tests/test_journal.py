"""The journal: whole files that are safe at once, and a full disk that is waited for."""

import itertools
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.errors import MissingFileError, StoreError
from placer.journal import Journal, pauses_s, write_durably
from tests.processes import wait_until
from tests.small_disk import fill, small_disk

__all__ = ["small_disk"]

KILLED_WHILE_IT_WRITES = """
import os, pathlib, signal, sys
from placer.journal import Journal
pathlib.Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
Journal(pathlib.Path(sys.argv[1])).write("trials/0.parquet", b"newer")
"""


def test_pauses_double_from_a_second_to_a_minute() -> None:
    assert list(itertools.islice(pauses_s(), 8)) == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_new_journal_is_empty_and_makes_no_folder(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")

    assert journal.names("trials") == []
    with pytest.raises(MissingFileError, match=r"journal has no 'trials/0.parquet'"):
        journal.read("trials/0.parquet")
    journal.forget("trials/0.parquet")
    journal.remove()
    assert os.listdir(tmp_path) == []


def test_a_file_that_a_kill_left_half_written_is_none(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write("trials/0.parquet", b"whole")

    (tmp_path / "trials" / ".0123456789abcdef.tmp").write_bytes(b"ha")

    assert journal.names("trials") == ["trials/0.parquet"]


def test_tidying_removes_what_a_kill_left_and_nothing_else(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write("trials/0.parquet", b"whole")
    write = subprocess.Popen([sys.executable, "-c", KILLED_WHILE_IT_WRITES, str(tmp_path)])
    assert write.wait() == -signal.SIGKILL
    assert len(os.listdir(tmp_path / "trials")) == 2

    journal.tidy()

    assert os.listdir(tmp_path / "trials") == ["0.parquet"]
    assert journal.read("trials/0.parquet") == b"whole"


NAMES = st.builds("{}/{}".format, st.sampled_from(["trials", "checkpoints"]), st.sampled_from("ab"))
STEPS = st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=20)))


@given(STEPS)
def test_another_reader_finds_what_was_written_and_not_forgotten(
    steps: list[tuple[str, bytes | None]],
) -> None:
    expected: dict[str, bytes] = {}
    folder = Path(tempfile.mkdtemp())
    journal = Journal(folder)

    for name, content in steps:
        if content is None:
            journal.forget(name)
            expected.pop(name, None)
        else:
            journal.write(name, content)
            expected[name] = content

    reader = Journal(folder)
    names = [*reader.names("checkpoints"), *reader.names("trials")]
    found = {name: reader.read(name) for name in names}
    journal.remove()
    assert names == sorted(expected)
    assert found == expected
    assert not folder.exists()


def test_a_full_disk_is_waited_for_and_what_was_there_stays(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal(small_disk / "journal")
    journal.write("trials/0.parquet", b"old")
    filler = fill(small_disk)
    free_bytes = shutil.disk_usage(small_disk).free
    new = bytes(100_000)
    writing = threading.Thread(target=journal.write, args=("trials/0.parquet", new))

    with caplog.at_level(logging.WARNING, "placer"):
        writing.start()
        assert wait_until(lambda: caplog.messages)
        during = journal.read("trials/0.parquet")
        filler.unlink()
        writing.join()

    folder = small_disk / "journal" / "trials"
    assert during == b"old"
    assert journal.read("trials/0.parquet") == new
    assert os.listdir(folder) == ["0.parquet"]
    assert caplog.messages == [
        f"no room in {folder}: 0.parquet needs 100,000 bytes and {free_bytes:,} are free; waiting"
        " until there is room, nothing is lost",
        f"there is room in {folder} again; going on",
    ]


def test_a_folder_that_cannot_be_made_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(StoreError, match=r"cannot write .*file/0: (Not a directory|File exists)"):
        write_durably(tmp_path / "file" / "0", b"x")
