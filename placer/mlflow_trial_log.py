"""The trial log of a training, kept in its MLflow run.

Trials are rows of Parquet shards, ``trials/`` and the number of the first trial. The last
shard is written anew, whole, with every append, so an append that returned is kept and
there is nothing to merge. The points of the charts are derived from the shards. They are
sent in batches and a tag counts them; a log that is opened again sends those that a kill
left out. Their time is the trial's, so that a point sent twice is one point.

Checkpoints are ``checkpoints/`` and a name that holds the content's checksum. The tag that
names a checkpoint is set last; the last two files are kept.
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

import pandas as pd
import pyarrow as pa

from placer.checkpoint_files import checkpoint_name, decode_checkpoint, encode_checkpoint
from placer.errors import FileFormatError, InvalidValueError, MissingFileError
from placer.mlflow_store import OpenRun, Point, Store, now
from placer.ranking import fastest, step_time_s
from placer.tracking_names import (
    BEST_STEP_TIME,
    CHECKPOINT,
    CHECKPOINTS_FOLDER,
    HEARTBEAT,
    LOGGED_TRIALS,
    STEP_TIME,
    TOP_PLACEMENTS_FILE,
    TRIALS_FOLDER,
    UPDATE_PREFIX,
)
from placer.trial_table import (
    SCHEMA,
    UpdateMetrics,
    decode_parquet,
    encode_parquet,
    table_to_trials,
    trials_to_table,
)
from placer.trials import Checkpoint, Trial

SHARD_TRIALS = 256
"""A shard that holds this many trials is not added to."""

_BATCH_POINTS = 800
_BATCH_S = 5.0
_KEPT_CHECKPOINTS = 2

logger = logging.getLogger(__name__)


class MLflowTrialLog:
    """Keeps trials, metrics and checkpoints of one training in an MLflow run.

    Use it as a context manager, or call ``close``, so that the last points reach the
    charts; the trials themselves are kept as soon as ``append`` returns.

    Attributes:
        store: The store that holds the run.
        run_id: MLflow's id of the run.
    """

    def __init__(self, store: Store, run_id: str) -> None:
        self.store = store
        self.run_id = run_id
        self._run = OpenRun(store, run_id)
        self._curves: _Curves | None = None
        self._shard = SCHEMA.empty_table()
        self._shard_updates: dict[int, dict[str, float]] = {}
        self._num_trials = 0

    def __enter__(self) -> "MLflowTrialLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Send the points that are still waiting."""
        if self._curves is not None:
            self._curves.send()

    def append(self, trials: Sequence[Trial], metrics: Mapping[str, float]) -> None:
        """Keep measured trials of one update, and the metrics of an update that they end.

        Trials that are already kept are left as they are. A metric that is infinite or not
        a number is not kept.

        Raises:
            InvalidValueError: If a trial's number leaves a gap.
        """
        curves = self._opened()
        new = [trial for trial in trials if trial.number >= self._num_trials]
        for number, trial in enumerate(new, start=self._num_trials):
            if trial.number != number:
                raise InvalidValueError(f"got trial {trial.number} where {number} belongs")
        if not new:
            return
        update = new[-1].update
        kept = {update: _finite(metrics, update)} if metrics else {}
        if self._shard.num_rows >= SHARD_TRIALS:
            self._shard, self._shard_updates = SCHEMA.empty_table(), {}
        self._shard = pa.concat_tables([self._shard, trials_to_table(new)])
        self._shard_updates |= kept
        name = f"{TRIALS_FOLDER}/{self._num_trials + len(new) - self._shard.num_rows:08d}.parquet"
        content = encode_parquet(self._shard, self._shard_updates)
        self.store.artifacts.write(self.run_id, name, content)
        self._num_trials += len(new)
        curves.add(new, kept)
        curves.send_if_due()

    def trials(self) -> list[Trial]:
        """Return all trials kept so far, by number.

        Raises:
            FileFormatError: If a shard is damaged; the message names it.
        """
        return [trial for table, _ in self._shards() for trial in table_to_trials(table)]

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint; after this returns, a kill loses nothing up to it."""
        self._opened().send()
        content = encode_checkpoint(checkpoint)
        artifact = f"{CHECKPOINTS_FOLDER}/{checkpoint_name(checkpoint, content)}"
        self.store.artifacts.write(self.run_id, artifact, content)
        self._run.set_tags({CHECKPOINT: artifact, HEARTBEAT: now()})
        names = self.store.artifacts.names(self.run_id, CHECKPOINTS_FOLDER)
        for old in names[:-_KEPT_CHECKPOINTS]:
            self.store.artifacts.delete(self.run_id, old)

    def load_checkpoint(self) -> Checkpoint | None:
        """Return the last checkpoint that can be read, or None."""
        tagged = self.store.run(self.run_id).tags.get(CHECKPOINT)
        names = self.store.artifacts.names(self.run_id, CHECKPOINTS_FOLDER)
        older = sorted((name for name in names if name != tagged), reverse=True)
        for artifact in [*([tagged] if tagged else []), *older]:
            try:
                content = self.store.download(self.run_id, artifact).read_bytes()
                return decode_checkpoint(content, PurePosixPath(artifact).name)
            except (FileFormatError, MissingFileError) as error:
                logger.warning("run %s: %s; using the checkpoint before it", self.run_id, error)
        return None

    def log_top_placements(self, frame: pd.DataFrame) -> None:
        """Keep the table of the fastest placements, which the run's page shows."""
        self._run.log_table(frame, TOP_PLACEMENTS_FILE)

    def _shards(self) -> list[tuple[pa.Table, dict[int, dict[str, float]]]]:
        run_id = self.run_id
        names = self.store.artifacts.names(run_id, TRIALS_FOLDER)
        return [
            decode_parquet(
                self.store.download(run_id, name).read_bytes(), f"{name} of run {run_id}"
            )
            for name in names
        ]

    def _opened(self) -> "_Curves":
        """Go on where the shards end, the first time something is to be written."""
        if self._curves is None:
            num_logged = int(self.store.run(self.run_id).tags.get(LOGGED_TRIALS, "0"))
            curves = _Curves(self._run, num_logged)
            shards = self._shards()
            for table, updates in shards:
                curves.add(table_to_trials(table), updates)
            curves.send()
            if shards:
                self._shard, self._shard_updates = shards[-1]
            self._num_trials = sum(table.num_rows for table, _ in shards)
            self._curves = curves
        return self._curves


class _Curves:
    """The points of the charts: derived from trials, sent in batches."""

    def __init__(self, run: OpenRun, num_logged: int) -> None:
        self._run = run
        self._num_logged = num_logged  # as the store has it: their points are not sent again
        self._num_trials = 0
        self._best: Trial | None = None
        self._points: list[Point] = []
        self._sent_at_s = time.monotonic()

    def add(self, trials: Sequence[Trial], updates: UpdateMetrics) -> None:
        """Add the points of trials, by number, and of the updates that they end."""
        points: list[tuple[Trial, str, float, int]] = []
        for trial in trials:
            self._best = fastest([self._best, trial])
            for name, one in ((STEP_TIME, trial), (BEST_STEP_TIME, self._best)):
                if (time_s := step_time_s(one)) is not None:
                    points.append((trial, name, time_s, trial.number))
        last_of_update = {trial.update: trial for trial in trials}
        for update, metrics in updates.items():
            trial = last_of_update[update]
            points += [
                (trial, f"{UPDATE_PREFIX}{name}", value, update) for name, value in metrics.items()
            ]
        self._points += [
            Point(name, value, step, trial.finished_at_s)
            for trial, name, value, step in points
            if trial.number >= self._num_logged
        ]
        self._num_trials += len(trials)

    def send_if_due(self) -> None:
        """Send the points if there are many, or if the last were sent some time ago."""
        is_late = time.monotonic() - self._sent_at_s > _BATCH_S
        if is_late or len(self._points) >= _BATCH_POINTS:
            self.send()

    def send(self) -> None:
        """Send all points, and then say how many trials they stand for."""
        if self._points:
            tags = {LOGGED_TRIALS: str(self._num_trials), HEARTBEAT: now()}
            self._run.log_points(self._points)
            self._run.set_tags(tags)
            self._points = []
        self._sent_at_s = time.monotonic()


def _finite(metrics: Mapping[str, float], update: int) -> dict[str, float]:
    finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
    for name in sorted(set(metrics) - set(finite)):
        logger.warning("update %d: %s is %s and is not kept", update, name, metrics[name])
    return finite
