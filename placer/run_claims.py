"""Claims: a training is worked on by one process at a time.

Beside an embedded store a claim is a lock on a file, which the system takes back when the
process ends, however it ends. A tracking server has nothing like it: there a claim is a tag with
a name of its own. Whoever set it last has it, and finds that out by reading it again after a
while. Two processes could both have it only if one of them needed longer than that between
looking whether the run is free and setting the tag.
"""

import contextlib
import fcntl
import os
import platform
from collections.abc import Iterator
from pathlib import Path

from placer.errors import StoreError

LOCKS_FOLDER = "locks"
"""Beside the database of an embedded store."""

SETTLING_S = 2.0
"""After so many seconds the last claim by tag is the one that counts."""


@contextlib.contextmanager
def locked(folder: Path, key: str) -> Iterator[None]:
    """Hold the lock of a key inside the block.

    Args:
        folder: Of the locks; made if it is absent.
        key: Names the file.

    Raises:
        StoreError: If another process holds it, or the file cannot be written.
    """
    path = folder / f"{key}.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise StoreError(f"{in_progress(holder)} ({path})") from error
        file.seek(0)
        file.truncate()
        file.write(this_process())
        file.flush()
        yield


def in_progress(holder: str) -> str:
    """Say that somebody else works on a training."""
    return f"a training of these settings is in progress: {holder}; wait for it or stop it"


def this_process() -> str:
    """Return what others are told of this process."""
    return f"process {os.getpid()} on {platform.node()}"
