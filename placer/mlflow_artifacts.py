"""Artifacts of runs: whole files, in a local folder or behind a server.

Where artifacts are local they are read in place and written under another name first, so
that a kill never leaves a part of one; a full disk is waited for. Elsewhere MLflow carries them.
"""

import functools
import os
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path

from placer.errors import MissingFileError
from placer.journal import Journal, write_durably
from placer.mlflow_connection import Connection, sqlite_file

# isort: split
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

JOURNAL_VARIABLE = "PLACER_JOURNAL"
"""Names the folder of the journals, instead of ``mlruns/journal``."""


class Artifacts:
    """The files of all runs of one store, by run id and path within the run.

    Every method raises ``StoreError`` if the store does not answer, and
    ``UnknownNameError`` if it has no run of the id.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._artifact_uris: dict[str, str] = {}

    def download(self, run_id: str, artifact: str) -> Path:
        """Return a path to read an artifact (a file or a folder) from.

        It is the artifact itself where artifacts are local, and otherwise a copy that
        lives as long as this store; it must not be changed.

        Raises:
            MissingFileError: If the run has no such artifact.
        """
        folder = self._local_folder(run_id)
        if folder is not None:
            is_there = (folder / artifact).exists()
        else:
            is_there = artifact in self.names(run_id, str(Path(artifact).parent))
        if not is_there:
            raise MissingFileError(f"run {run_id} has no artifact {artifact!r}")
        if folder is not None:
            return folder / artifact
        # MLflow puts a file that it downloads directly into the folder it is given.
        copies = Path(self._scratch.name, run_id, artifact).parent
        copies.mkdir(parents=True, exist_ok=True)
        with self._connection.errors():
            client = self._connection.client
            return Path(client.download_artifacts(run_id, artifact, dst_path=str(copies)))

    def names(self, run_id: str, folder: str) -> list[str]:
        """Return the paths of the artifacts directly in a folder, sorted; none if it is absent."""
        local = self._local_folder(run_id)
        if local is None:
            with self._connection.errors():
                path = None if folder == "." else folder
                files = self._connection.client.list_artifacts(run_id, path)
                return sorted(file.path for file in files)
        if not (local / folder).is_dir():
            return []
        paths = (path.relative_to(local) for path in (local / folder).iterdir())
        return sorted(str(path) for path in paths if not path.name.startswith("."))

    def write(self, run_id: str, artifact: str, content: bytes) -> None:
        """Write a file, whole or not at all where artifacts are local; wait for a full disk."""
        folder = self._local_folder(run_id)
        if folder is not None:
            write_durably(folder / artifact, content)
            return
        with self._connection.errors(), tempfile.TemporaryDirectory() as scratch:
            copy = Path(scratch, Path(artifact).name)
            copy.write_bytes(content)
            self.upload(run_id, artifact, copy)

    def upload(self, run_id: str, artifact: str, path: Path) -> None:
        """Send a file whose name is the artifact's to where artifacts are not local."""
        parent = Path(artifact).parent
        with self._connection.errors():
            self._connection.client.log_artifact(
                run_id, str(path), None if parent == Path() else str(parent)
            )

    def journal(self, run_id: str) -> Journal:
        """Return where files of a run are safe before the store has them.

        Where artifacts are local that is their own folder. Otherwise it is below the folder
        that ``PLACER_JOURNAL`` names, or ``mlruns/journal``, or beside an embedded store.
        """
        folder = self._local_folder(run_id)
        if folder is not None:
            return Journal(folder)
        database = sqlite_file(self._connection.uri)
        beside = Path("mlruns") if database is None else database.parent
        root = os.environ.get(JOURNAL_VARIABLE, "").strip() or beside / "journal"
        return Journal(Path(root, run_id).resolve())

    def are_local(self, run_id: str) -> bool:
        """Tell whether the artifacts of a run are a folder of this machine."""
        return self._local_folder(run_id) is not None

    def delete(self, run_id: str, artifact: str) -> None:
        """Remove a file that nobody needs any more."""
        with self._connection.errors():
            get_artifact_repository(
                self._artifact_uri(run_id), self._connection.uri
            ).delete_artifacts(artifact)

    def _local_folder(self, run_id: str) -> Path | None:
        uri = urllib.parse.urlsplit(self._artifact_uri(run_id))
        if uri.scheme not in ("", "file"):
            return None
        return Path(urllib.request.url2pathname(uri.path) if uri.scheme else uri.path)

    def _artifact_uri(self, run_id: str) -> str:
        if run_id not in self._artifact_uris:
            self._artifact_uris[run_id] = self._connection.get_run(run_id).info.artifact_uri
        return self._artifact_uris[run_id]

    @functools.cached_property
    def _scratch(self) -> "tempfile.TemporaryDirectory[str]":
        return tempfile.TemporaryDirectory(prefix="placer-")
