"""The tracking store: one MLflow run for each stage, and the files that stages hand on.

A stage's run is tagged with the stage's name and the fingerprint of its inputs, its key. A
run counts as a result once it is FINISHED, which is the last thing written: whatever fails
or is killed before leaves a run that nobody reuses. A training that did not finish is
continued instead, by whoever starts it again with the same key.

Runs are always named by id. MLflow's active run belongs to a thread, and flows have several.
"""

import contextlib
import dataclasses
import datetime
import getpass
import io
import os
import platform
import time
import urllib.parse
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from placer.errors import InvalidValueError, StoreError
from placer.mlflow_artifacts import Artifacts
from placer.mlflow_connection import Connection, connect, sqlite_file
from placer.run_claims import LOCKS_FOLDER, SETTLING_S, in_progress, locked
from placer.stage_run import INTERRUPTED, StageRun
from placer.tracking_names import CLAIM, ERROR, HEARTBEAT, HOST, KEY, PARENT_RUN, PID, STAGE

# isort: split
from mlflow.entities import Metric, Param, Run, RunTag

TRAIN_STAGE = "train"

_NOTE = "mlflow.note.content"
_FINISHED = "FINISHED"
_MAX_PARAM = 6000


class Store:
    """Runs and their artifacts, in one experiment of one tracking store.

    Every method raises ``StoreError`` if the store does not answer, and
    ``UnknownNameError`` if it has no run of the id.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.artifacts = Artifacts(connection)

    @property
    def uri(self) -> str:
        """MLflow's tracking URI."""
        return self.connection.uri

    # Runs

    def run(self, run_id: str) -> StageRun:
        """Return what the store says about a run."""
        return _stage_run(self.connection.get_run(run_id))

    def find_stage(self, stage: str, key: str) -> StageRun | None:
        """Return the last finished run of a stage with these inputs, if there is one."""
        return self._find(stage, key, f"attributes.status = '{_FINISHED}'")

    def find_training(self, key: str) -> StageRun | None:
        """Return the last training with these settings that did not finish, if any."""
        return self._find(TRAIN_STAGE, key, f"attributes.status != '{_FINISHED}'")

    def trainings(self, tags: Mapping[str, str], *, limit: int) -> list[StageRun]:
        """Return the newest trainings that have all these tags, the newest first.

        Raises:
            InvalidValueError: If the store cannot be asked for a tag.
        """
        query = [_has_tag(name, value) for name, value in {**tags, STAGE: TRAIN_STAGE}.items()]
        with self.connection.errors():
            found = self.connection.client.search_runs(
                [self.connection.experiment_id],
                filter_string=" and ".join(query),
                order_by=["attributes.start_time DESC"],
                max_results=limit,
            )
        return [_stage_run(run) for run in found]

    def mark_interrupted(self) -> None:
        """Give the trainings whose process died the status KILLED, and a tag that says why.

        MLflow's page would show them as running for ever.
        """
        query = f"tags.`{STAGE}` = '{TRAIN_STAGE}' and attributes.status = 'RUNNING'"
        with self.connection.errors():
            found = self.connection.client.search_runs([self.connection.experiment_id], query)
        for run in map(_stage_run, found):
            # Who goes on with it at this moment holds its lock.
            if run.state == INTERRUPTED:
                with contextlib.suppress(StoreError), self._locked(run.tags[KEY]):
                    if self.run(run.run_id).state == INTERRUPTED:
                        reason = f"{run.worker} is gone; `placer resume {run.run_id}` goes on"
                        OpenRun(self, run.run_id).set_tags({ERROR: f"interrupted: {reason}"})
                        self._terminate(run.run_id, "KILLED")

    def finished_children(self, run_id: str) -> list[StageRun]:
        """Return the finished runs below a run."""
        query = f"tags.`{PARENT_RUN}` = '{run_id}' and attributes.status = '{_FINISHED}'"
        found: list[StageRun] = []
        token = None
        with self.connection.errors():
            while True:
                page = self.connection.client.search_runs(
                    [self.connection.experiment_id], filter_string=query, page_token=token
                )
                found += [_stage_run(run) for run in page]
                token = page.token
                if not token:
                    return found

    @contextlib.contextmanager
    def stage(
        self,
        stage: str,
        key: str,
        *,
        name: str,
        params: Mapping[str, Any],
        tags: Mapping[str, str],
    ) -> Iterator["OpenRun"]:
        """Open a new run of a stage, and end it as the block ends.

        Args:
            stage: The stage's name.
            key: Fingerprint of the stage's inputs.
            name: Of the run, for people.
            params: Settings; nested mappings become dotted names.
            tags: To find the run by.

        Yields:
            The run, FINISHED after the block, FAILED after an error, KILLED if interrupted.
        """
        with self._ended(self._create(stage, key, name, params, tags)) as run:
            yield run

    @contextlib.contextmanager
    def continued(
        self,
        stage: str,
        key: str,
        *,
        name: str,
        params: Mapping[str, Any],
        tags: Mapping[str, str],
    ) -> Iterator["OpenRun"]:
        """Open the unfinished run of a stage with these inputs, or a new one; as ``stage``.

        Raises:
            StoreError: If another process is working on it.
        """
        with self._locked(key):
            found = self._find(stage, key, f"attributes.status != '{_FINISHED}'")
            run_id = found.run_id if found else self._create(stage, key, name, params, tags)
            self._claim(run_id, found)
            if found is None:
                self._yield_to_earlier(run_id, stage, key)
            with self._ended(run_id) as run:
                self._run_again(run_id)
                yield run

    @contextlib.contextmanager
    def reopened(self, run_id: str) -> Iterator["OpenRun"]:
        """Open a run again, finished or not; it ends as the block ends, as in ``stage``.

        Raises:
            StoreError: If another process is working on it.
        """
        with self._locked(self.run(run_id).tags[KEY]):
            self._claim(run_id, self.run(run_id))
            with self._ended(run_id) as run:
                self._run_again(run_id)
                yield run

    def _locked(self, key: str) -> contextlib.AbstractContextManager[None]:
        database = sqlite_file(self.uri)
        if database is None:
            return contextlib.nullcontext()
        return locked(database.parent / LOCKS_FOLDER, key)

    def _claim(self, run_id: str, found: StageRun | None) -> None:
        """Make a run this process's own; ``found`` is what it was, None if it is new."""
        if found is not None and found.is_alive_elsewhere:
            raise StoreError(f"run {run_id}: {in_progress(found.worker)}")
        claim = uuid.uuid4().hex
        own = {HOST: platform.node(), PID: str(os.getpid()), HEARTBEAT: now(), CLAIM: claim}
        OpenRun(self, run_id).set_tags(own)
        if sqlite_file(self.uri) is None:
            time.sleep(SETTLING_S)
            now_there = self.run(run_id)
            if now_there.tags[CLAIM] != claim:
                raise StoreError(f"run {run_id}: {in_progress(now_there.worker)}")

    def _yield_to_earlier(self, run_id: str, stage: str, key: str) -> None:
        """Give up a new run if another process has started the same a moment before."""
        first = self._find(stage, key, "attributes.status = 'RUNNING'", earliest=True)
        if first is not None and first.run_id != run_id and first.is_alive:
            with self.connection.errors():
                self.connection.client.delete_run(run_id)
            raise StoreError(f"run {first.run_id}: {in_progress(first.worker)}")

    def _run_again(self, run_id: str) -> None:
        with self.connection.errors():
            self.connection.client.update_run(run_id, status="RUNNING")
            if ERROR in self.run(run_id).tags:
                self.connection.client.delete_tag(run_id, ERROR)

    def training(
        self, key: str, *, name: str, params: Mapping[str, Any], tags: Mapping[str, str]
    ) -> contextlib.AbstractContextManager["OpenRun"]:
        """Open the unfinished training of these settings, or a new one; as ``continued``."""
        return self.continued(TRAIN_STAGE, key, name=name, params=params, tags=tags)

    @contextlib.contextmanager
    def _ended(self, run_id: str) -> Iterator["OpenRun"]:
        run = OpenRun(self, run_id)
        try:
            yield run
        except BaseException as error:
            is_killed = not isinstance(error, Exception)  # Ctrl-C, SIGTERM, the end of the process
            text = str(error) or ("interrupted; started again it goes on" if is_killed else "")
            reason = " ".join(f"{type(error).__name__}: {text}".split())
            # If the store is what failed, its error is the one to raise.
            with contextlib.suppress(StoreError):
                run.set_tags({ERROR: reason[:_MAX_PARAM]})
                self._terminate(run_id, "KILLED" if is_killed else "FAILED")
            raise
        self._terminate(run_id, _FINISHED)

    def _terminate(self, run_id: str, status: str) -> None:
        with self.connection.errors():
            self.connection.client.set_terminated(run_id, status)

    def _create(
        self, stage: str, key: str, name: str, params: Mapping[str, Any], tags: Mapping[str, str]
    ) -> str:
        own = {
            STAGE: stage,
            KEY: key,
            "mlflow.user": _user(),
            "mlflow.source.name": f"placer {stage}",
            "mlflow.source.type": "LOCAL",
        }
        with self.connection.errors():
            run = self.connection.client.create_run(
                self.connection.experiment_id, run_name=name, tags={**tags, **own}
            )
        run_id: str = run.info.run_id
        OpenRun(self, run_id).log_params(params)
        return run_id

    def _find(
        self, stage: str, key: str, condition: str, *, earliest: bool = False
    ) -> StageRun | None:
        query = f"tags.`{STAGE}` = '{stage}' and tags.`{KEY}` = '{key}' and {condition}"
        with self.connection.errors():
            found = self.connection.client.search_runs(
                [self.connection.experiment_id],
                filter_string=query,
                order_by=[f"attributes.start_time {'ASC' if earliest else 'DESC'}"],
                max_results=1,
            )
        return _stage_run(found[0]) if found else None

    # Artifacts

    def download(self, run_id: str, artifact: str) -> Path:
        """Return a path to read an artifact (a file or a folder) from; do not change it.

        Raises:
            MissingFileError: If the run has no such artifact.
        """
        return self.artifacts.download(run_id, artifact)


class Point(NamedTuple):
    """A point of a curve.

    Attributes:
        name: Of the metric.
        value: Finite.
        step: Trial or update.
        time_s: Seconds since the epoch.
    """

    name: str
    value: float
    step: int
    time_s: float


@dataclasses.dataclass(frozen=True)
class OpenRun:
    """A run that is being written.

    Attributes:
        store: The store that holds it.
        run_id: MLflow's id.
    """

    store: Store
    run_id: str

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Keep settings; nested mappings become dotted names. They cannot change later."""
        entities = [Param(name, str(value)[:_MAX_PARAM]) for name, value in _flat(params)]
        with self.store.connection.errors():
            self.store.connection.client.log_batch(self.run_id, params=entities)

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        """Keep figures of the whole run."""
        self.log_points([Point(name, value, 0, time.time()) for name, value in metrics.items()])

    def log_points(self, points: Sequence[Point]) -> None:
        """Keep points of curves; one that is there already stays one."""
        metrics = [
            Metric(point.name, point.value, round(point.time_s * 1000), point.step)
            for point in points
        ]
        with self.store.connection.errors():
            self.store.connection.client.log_batch(self.run_id, metrics=metrics)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags, or change them."""
        entities = [RunTag(name, value) for name, value in tags.items()]
        with self.store.connection.errors():
            self.store.connection.client.log_batch(self.run_id, tags=entities)

    def describe(self, markdown: str, figures: Sequence[str] = ()) -> None:
        """Set the description that the page shows at the top of the run.

        Args:
            markdown: What to say.
            figures: Artifacts of the run to show below it.
        """
        images = [
            f"![{Path(name).stem}](get-artifact?path={urllib.parse.quote(name)}&run_uuid={self.run_id})"
            for name in figures
        ]
        self.set_tags({_NOTE: "\n\n".join([markdown, *images])})

    def log_file(self, path: Path, artifact: str) -> None:
        """Keep a file as the artifact of this path."""
        self.store.artifacts.write(self.run_id, artifact, path.read_bytes())

    def log_folder(self, folder: Path) -> None:
        """Keep all files below a folder, under their paths in it."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.log_file(path, path.relative_to(folder).as_posix())

    def log_text(self, text: str, artifact: str) -> None:
        """Keep a text: Markdown, HTML, JSON or CSV, as its name ends."""
        self.store.artifacts.write(self.run_id, artifact, text.encode())

    def log_table(self, frame: pd.DataFrame, artifact: str) -> None:
        """Keep a table as CSV, which the page shows as a table."""
        self.log_text(frame.to_csv(index=False), artifact)

    def log_figure(self, figure: Figure, artifact: str) -> None:
        """Keep a figure as an image; the format is as the name ends."""
        content = io.BytesIO()
        figure.savefig(content, format=Path(artifact).suffix.lstrip("."))
        self.store.artifacts.write(self.run_id, artifact, content.getvalue())


def open_store(root: Path | None = None) -> Store:
    """Open the tracking store; make the embedded one if it does not exist.

    Args:
        root: Folder of the embedded store. If None, the store that
            ``MLFLOW_TRACKING_URI`` names, or else the one in ``mlruns``.

    Raises:
        StoreError: If it does not answer, cannot be written, or is of another version.
    """
    return Store(connect(root))


def now() -> str:
    """Return the time, UTC, as tags have it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _stage_run(run: Run) -> StageRun:
    return StageRun(
        run_id=run.info.run_id,
        name=run.info.run_name,
        status=run.info.status,
        tags=dict(run.data.tags),
        params=dict(run.data.params),
        metrics=dict(run.data.metrics),
    )


def _has_tag(name: str, value: str) -> str:
    """Return the condition that a run has a tag; the language of the store knows no escapes."""
    quote = '"' if "'" in value else "'"
    if not name or "`" in name or quote in value:
        raise InvalidValueError(
            f"cannot search for tag {name!r} = {value!r}: the name must be without `, the value"
            " without one of ' and \""
        )
    return f"tags.`{name}` = {quote}{value}{quote}"


def _flat(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
