"""The journal of a run: files that are safe on this machine before the store has them.

Where a run's artifacts are a local folder, that folder is its journal, and nothing is written
twice. Otherwise the journal is a folder of its own, in which a file has the path that it will
have in the store, and stays until the store has it.

A file is whole and on the disk when ``write`` returns. A full disk is waited for: the content
is still in memory then, and what was written before stays as it is.
"""

import errno
import logging
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from placer.errors import MissingFileError, StoreError
from placer.files import atomic_write
from placer.files.documents import UNFINISHED

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0

_FULL = (errno.ENOSPC, errno.EDQUOT)

logger = logging.getLogger(__name__)


def pauses_s() -> Iterator[float]:
    """Yield how long to wait before each further try, in seconds: doubled up to a minute."""
    pause_s = FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def write_durably(path: Path, content: bytes) -> None:
    """Write a file whole and to the disk; wait, as long as it takes, while the disk is full.

    Raises:
        StoreError: If the file cannot be written for another reason.
    """
    is_waiting = False
    for pause_s in pauses_s():
        try:
            atomic_write(path, content)
            _sync_folder(path.parent)
        except StoreError as error:
            if not _is_full(error):
                raise
            if not is_waiting:
                logger.warning("%s", _no_room(path, len(content)))
                is_waiting = True
            time.sleep(pause_s)
        else:
            if is_waiting:
                logger.warning("there is room in %s again; going on", path.parent)
            return


class Journal:
    """Files of one run, by their path in the store.

    Attributes:
        folder: Holds them; made by the first file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, artifact: str, content: bytes) -> None:
        """Write a file, or write it anew; wait while the disk is full.

        Raises:
            StoreError: If it cannot be written for another reason.
        """
        write_durably(self.folder / artifact, content)

    def read(self, artifact: str) -> bytes:
        """Return the content of a file.

        Raises:
            MissingFileError: If there is none.
        """
        try:
            return (self.folder / artifact).read_bytes()
        except FileNotFoundError as error:
            raise MissingFileError(f"{self.folder} has no {artifact!r}") from error

    def names(self, folder: str) -> list[str]:
        """Return the paths of the files directly in a folder, sorted; none if it is absent."""
        try:
            paths = list((self.folder / folder).iterdir())
        except FileNotFoundError:
            return []
        return sorted(f"{folder}/{path.name}" for path in paths if not path.name.startswith("."))

    def forget(self, artifact: str) -> None:
        """Remove a file that is kept elsewhere, or that nobody needs any more."""
        (self.folder / artifact).unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove what a kill left of files that it kept from being whole.

        Nobody else may write to the journal meanwhile.
        """
        for path in self.folder.rglob(UNFINISHED):
            path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the whole journal, once the store has all of it."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    """Make the name of a file that was renamed into the folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_full(error: StoreError) -> bool:
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _FULL


def _no_room(path: Path, num_bytes: int) -> str:
    there = next(folder for folder in path.parents if folder.exists())
    free_bytes = shutil.disk_usage(there).free
    return (
        f"no room in {path.parent}: {path.name} needs {num_bytes:,} bytes and {free_bytes:,} are"
        " free; waiting until there is room, nothing is lost"
    )
