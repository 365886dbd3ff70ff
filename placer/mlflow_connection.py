"""Finding the tracking store, and making the embedded one.

The embedded store is a SQLite database with a folder of artifacts beside it. It is made
under another name and then renamed: whoever sees the database sees a whole one. A store
that cannot be used is found out here, within seconds and in one line; MLflow itself would
retry for minutes.
"""

import contextlib
import dataclasses
import fcntl
import http.client
import logging
import os
import re
import sqlite3
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from alembic.util import CommandError
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from placer.errors import PlacerError, StoreError, UnknownNameError
from placer.tracking_names import EXPERIMENT

# MLflow reads the first two while it is imported. They are defaults: the user's own win.
for _name, _value in {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_AGENT_HINT": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "5",  # about a minute with MLflow's growing pauses
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}.items():
    os.environ.setdefault(_name, _value)

import mlflow  # noqa: E402
from mlflow import MlflowClient  # noqa: E402
from mlflow.entities import ExperimentTag, Run  # noqa: E402
from mlflow.exceptions import MlflowException  # noqa: E402
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore  # noqa: E402

# What MLflow logs on an error comes with a traceback; here each is raised, in one line.
logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
logging.getLogger("alembic").setLevel(logging.WARNING)

DATABASE_FILE = "mlflow.db"
ARTIFACTS_FOLDER = "artifacts"

_PROBE_S = 5.0
_PATIENT_PROBE_S = 20.0
"""A server that served before may be busy; one that was never seen is rather a wrong URI."""
_LOCK_WAIT_S = 60


@dataclasses.dataclass(frozen=True)
class Connection:
    """A store that answered.

    Attributes:
        uri: MLflow's tracking URI; may hold a password.
        client: MLflow's client of it.
        experiment_id: Of the experiment that holds all of Placer's runs.
    """

    uri: str
    client: MlflowClient
    experiment_id: str

    @property
    def name(self) -> str:
        """What a message calls the store, without a password."""
        return f"tracking store {_shown(self.uri)}"

    def check(self) -> None:
        """See that a server answers, in seconds; MLflow's own calls would try for minutes.

        Raises:
            StoreError: If it does not.
        """
        if self.uri.startswith(("http://", "https://")):
            _check_health(self.uri, _PATIENT_PROBE_S)

    def errors(self) -> contextlib.AbstractContextManager[None]:
        """Turn what MLflow raises inside the block into a ``StoreError`` of one line."""
        return _one_line_errors(self.uri)

    def get_run(self, run_id: str) -> Run:
        """Return MLflow's record of a run.

        Raises:
            UnknownNameError: If there is none; the message offers the nearest id.
        """
        with self.errors():
            try:
                return self.client.get_run(run_id)
            except MlflowException as error:
                if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                    raise
                known = self.client.search_runs([self.experiment_id])
        raise UnknownNameError("run", run_id, [run.info.run_id for run in known])


def connect(root: Path | None) -> Connection:
    """Find the store, make the embedded one if it is absent, and see that it answers.

    Args:
        root: Folder of the embedded store. If None, the store that
            ``MLFLOW_TRACKING_URI`` names, or else the one in ``mlruns``.

    Raises:
        StoreError: If the store does not answer, cannot be written, or is of another
            version of MLflow.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI", "").strip()
    artifacts = None
    database = sqlite_file(uri)
    if root is not None or not uri:
        database = (root or Path("mlruns")).resolve() / DATABASE_FILE
    if database is not None:
        artifacts = database.parent / ARTIFACTS_FOLDER
        _make_database(database, artifacts)
        _check_database(database)
        uri = _sqlite_uri(database)
    elif uri.startswith(("http://", "https://")):
        _check_server(uri)
    with _one_line_errors(uri):
        client = MlflowClient(tracking_uri=uri)
        return Connection(uri, client, _experiment(client, uri, artifacts))


@contextlib.contextmanager
def _one_line_errors(uri: str) -> Iterator[None]:
    try:
        yield
    except PlacerError:
        raise
    except (MlflowException, SQLAlchemyError, CommandError, ImportError, OSError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0] if lines else type(error).__name__
        if "database schema" in reason or "Can't locate revision" in reason:
            reason = (
                f"the database was made by another version of MLflow than the installed"
                f" {mlflow.__version__}; use that version, or back the database up and run"
                f" `mlflow db upgrade {_shown(uri)}`"
            )
        raise StoreError(f"tracking store {_shown(uri)}: {reason}") from error


def _shown(uri: str) -> str:
    return re.sub(r"(://[^:/@]*:)[^@]*@", r"\1***@", uri)


def _sqlite_uri(database: Path) -> str:
    url = URL.create("sqlite", database=str(database), query={"timeout": str(_LOCK_WAIT_S)})
    return url.render_as_string()


def sqlite_file(uri: str) -> Path | None:
    """Return the database file that a URI names; None if it is of another store.

    Raises:
        StoreError: If it is of SQLite but names no file.
    """
    if not uri.startswith("sqlite"):
        return None
    try:
        database = make_url(uri).database
    except ArgumentError as error:
        raise StoreError(f"tracking store {_shown(uri)}: not a URI of a database") from error
    if database in (None, "", ":memory:"):
        raise StoreError(
            f"tracking store {_shown(uri)}: the URI must name a file: sqlite:///mlflow.db"
        )
    return Path(str(database)).resolve()


def _make_database(database: Path, artifacts: Path) -> None:
    try:
        if database.exists():
            return
        database.parent.mkdir(parents=True, exist_ok=True)
        with (database.parent / f".{database.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not database.exists():  # another process may have made it meanwhile
                _draft_database(database, artifacts)
    except OSError as error:
        raise StoreError(f"cannot write {database}: {error.strerror or error}") from error


def _draft_database(database: Path, artifacts: Path) -> None:
    draft = database.with_name(f".{database.name}.draft")
    for leftover in database.parent.glob(f"{draft.name}*"):
        leftover.unlink()
    with _one_line_errors(str(draft)):
        store = SqlAlchemyStore(_sqlite_uri(draft), artifacts.as_uri())
        store.create_experiment(EXPERIMENT, artifacts.as_uri(), _experiment_tags())
        with store.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        store.engine.dispose()
    draft.replace(database)


def _check_database(database: Path) -> None:
    # SQLite opens what it may not write, and fails at the first write.
    for path in (database, database.parent):
        if not os.access(path, os.W_OK):
            raise StoreError(f"tracking store {database} cannot be used: {path} is read-only")
    try:
        uri = f"{database.as_uri()}?mode=rw"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=_LOCK_WAIT_S)) as connection:
            connection.execute("SELECT version_num FROM alembic_version")
            connection.execute("BEGIN IMMEDIATE")
            connection.rollback()
            connection.execute("PRAGMA journal_mode = WAL")
    except sqlite3.Error as error:
        raise StoreError(f"tracking store {database} cannot be used: {error}") from error


def _check_server(uri: str) -> None:
    try:
        _check_health(uri, _PROBE_S)
    except StoreError as error:
        raise StoreError(
            f"{error}; start that server, or unset MLFLOW_TRACKING_URI to use the store in mlruns"
        ) from error.__cause__


def _check_health(uri: str, timeout_s: float) -> None:
    try:
        with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=timeout_s):  # noqa: S310
            return
    except urllib.error.HTTPError as error:
        # It answers; whether it lets us in is for MLflow to say, which knows the credentials.
        if error.code < 500:
            return
        failure: Exception = error
    except (OSError, ValueError, http.client.HTTPException) as error:
        failure = error
    reason = failure.reason if type(failure) is urllib.error.URLError else failure
    raise StoreError(f"tracking store {_shown(uri)} does not answer ({reason})") from failure


def _experiment_tags() -> list[ExperimentTag]:
    note = "Stages of finding placements. `docs/metrics.md` explains metrics, tags and artifacts."
    return [
        ExperimentTag("mlflow.note.content", note),
        # The page then speaks of trainings; by default it takes them for language-model calls.
        ExperimentTag("mlflow.experimentKind", "custom_model_development"),
    ]


def _experiment(client: MlflowClient, uri: str, artifacts: Path | None) -> str:
    found = client.get_experiment_by_name(EXPERIMENT)
    if found is None:
        location = None if artifacts is None else artifacts.as_uri()
        # Another process may have been faster: then its experiment is the answer.
        with contextlib.suppress(MlflowException):
            tags = {tag.key: tag.value for tag in _experiment_tags()}
            client.create_experiment(EXPERIMENT, location, tags)
        found = client.get_experiment_by_name(EXPERIMENT)
    if found is None:
        raise StoreError(
            f"tracking store {_shown(uri)}: experiment {EXPERIMENT!r} cannot be created"
        )
    if found.lifecycle_stage != "active":
        raise StoreError(
            f"tracking store {_shown(uri)}: experiment {EXPERIMENT!r} was deleted; restore it with"
            f" `mlflow experiments restore -x {found.experiment_id}`"
        )
    experiment_id: str = found.experiment_id
    return experiment_id
