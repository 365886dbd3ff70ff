"""The trial log of a training, kept in its MLflow run.

Trials are rows of Parquet shards, ``trials/`` and the number of the first trial. The last
shard is written anew, whole, with every append, so an append that returned is kept and
there is nothing to merge. The points of the charts are derived from the shards.

Shards and checkpoints are written to the run's journal, and are safe there; another thread
hands them over to the store, with the points and a tag that counts them. A log that is opened
again reads the store and the journal together, and hands over what a kill left out. Of a shard
that is in both the longer one counts: a shard is only ever extended.

Checkpoints are ``checkpoints/`` and a name that holds the content's checksum. The tag that
names a checkpoint is set last; the last two files are kept.
"""

import itertools
import logging
import math
import weakref
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

import pandas as pd
import pyarrow as pa

from placer.checkpoint_files import checkpoint_name, decode_checkpoint, encode_checkpoint
from placer.errors import FileFormatError, InvalidValueError, MissingFileError, StoreError
from placer.journal import Journal
from placer.mlflow_handover import KEPT_CHECKPOINTS, Handover
from placer.mlflow_store import OpenRun, Point, Store
from placer.mlflow_waiting import PATIENCE_S, until_it_answers
from placer.ranking import fastest, step_time_s
from placer.tracking_names import (
    BEST_STEP_TIME,
    CHECKPOINT,
    CHECKPOINTS_FOLDER,
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

_LAST_PATIENCE_S = 5.0
"""How long a training that fails or is interrupted waits for the store."""

logger = logging.getLogger(__name__)


class MLflowTrialLog:
    """Keeps trials, metrics and checkpoints of one training in an MLflow run.

    Use it as a context manager, or call ``close``, so that everything reaches the store; what
    was appended is kept on this machine as soon as ``append`` returns. Inside the block the
    run's heartbeat is kept. A store that does not answer is waited for.

    Attributes:
        store: The store that holds the run.
        run_id: MLflow's id of the run.
    """

    def __init__(self, store: Store, run_id: str) -> None:
        self.store = store
        self.run_id = run_id
        self._writer: _Writer | None = None

    def __enter__(self) -> "MLflowTrialLog":
        self._opened()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
            return
        try:
            self._close(_LAST_PATIENCE_S)
        except StoreError as error:  # what ended the training is told instead
            logger.warning("%s", error)

    def close(self) -> None:
        """Wait until the store has everything.

        Raises:
            StoreError: If it does not answer for ten minutes, or refuses; the message tells
                where the trials are.
        """
        self._close(PATIENCE_S)

    def append(self, trials: Sequence[Trial], metrics: Mapping[str, float]) -> None:
        """Keep measured trials of one update, and the metrics of an update that they end.

        Trials that are already kept are left as they are. A metric that is infinite or not
        a number is not kept.

        Raises:
            InvalidValueError: If a trial's number leaves a gap.
            StoreError: If the store refuses for good what it was given before, such as
                because the run was deleted. What is kept stays.
        """
        self._opened().append(trials, metrics)

    def trials(self) -> list[Trial]:
        """Return all trials kept so far, by number.

        Raises:
            FileFormatError: If a shard is damaged; the message names it.
        """
        if self._writer is not None:
            return self._writer.trials()
        shards, _ = until_it_answers(self.store.connection, self._read_shards)
        return _trials_of(shards)

    def updates(self) -> list[tuple[list[Trial], dict[str, float]]]:
        """Return the trials of each update, in order, and the metrics of those that ended.

        It is what ``append`` was given: another log that is given it is the same.
        """
        shards, _ = until_it_answers(self.store.connection, self._read_shards)
        trials = _trials_of(shards)
        metrics = {
            update: kept for shard in shards.values() for update, kept in shard.updates.items()
        }
        return [
            (list(found), metrics.get(update, {}))
            for update, found in itertools.groupby(trials, key=lambda trial: trial.update)
        ]

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint; after this returns, a kill loses nothing up to it."""
        self._opened().save_checkpoint(checkpoint)

    def load_checkpoint(self) -> Checkpoint | None:
        """Return the last checkpoint that can be read, or None."""
        return until_it_answers(self.store.connection, self._read_checkpoint)

    def log_top_placements(self, frame: pd.DataFrame) -> None:
        """Keep the table of the fastest placements, which the run's page shows."""
        run = OpenRun(self.store, self.run_id)
        until_it_answers(self.store.connection, lambda: run.log_table(frame, TOP_PLACEMENTS_FILE))

    def _opened(self) -> "_Writer":
        """Go on where the shards end, the first time something is to be written."""
        if self._writer is None:
            self._writer = until_it_answers(self.store.connection, self._open)
            # The thread ends with a log that nobody closed.
            weakref.finalize(self, self._writer.handover.stop)
        return self._writer

    def _open(self) -> "_Writer":
        tags = self.store.run(self.run_id).tags
        shards, unsent = self._read_shards()
        journal = self.store.artifacts.journal(self.run_id)
        journal.tidy()
        num_logged = int(tags.get(LOGGED_TRIALS, "0"))
        handover = Handover(self.store, self.run_id, num_trials=num_logged)
        writer = _Writer(journal, handover, shards, unsent, num_logged=num_logged)
        checkpoints = journal.names(CHECKPOINTS_FOLDER)
        if checkpoints and checkpoints[-1] > tags.get(CHECKPOINT, ""):
            handover.add_checkpoint(checkpoints[-1])
        handover.start()
        return writer

    def _close(self, patience_s: float) -> None:
        if self._writer is not None:
            handover, self._writer = self._writer.handover, None
            handover.close(patience_s)

    def _read_shards(self) -> tuple[dict[str, "_Shard"], list[str]]:
        """Return the shards by name, and the names of those that the store has not in full."""
        artifacts, run_id = self.store.artifacts, self.run_id
        journal = artifacts.journal(run_id)
        own = {} if artifacts.are_local(run_id) else _shards_of(journal)
        found: dict[str, _Shard] = {}
        for name in artifacts.names(run_id, TRIALS_FOLDER):
            content = artifacts.download(run_id, name).read_bytes()
            try:
                found[name] = _Shard(*decode_parquet(content, f"{name} of run {run_id}"))
            except FileFormatError:
                # A server that was killed while it took a shard has a part of it.
                if name not in own:
                    raise
        unsent = [
            name
            for name, shard in own.items()
            if name not in found or found[name].table.num_rows < shard.table.num_rows
        ]
        found |= {name: own[name] for name in unsent}
        return dict(sorted(found.items())), unsent

    def _read_checkpoint(self) -> Checkpoint | None:
        artifacts, run_id = self.store.artifacts, self.run_id
        journal = artifacts.journal(run_id)
        own = journal.names(CHECKPOINTS_FOLDER)
        names = {*own, *artifacts.names(run_id, CHECKPOINTS_FOLDER)}
        if (tagged := self.store.run(run_id).tags.get(CHECKPOINT)) is not None:
            names.add(tagged)
        # Names sort by update. The tag may be behind: it follows the file.
        for name in sorted(names, reverse=True):
            try:
                if name in own:
                    content = journal.read(name)
                else:
                    content = artifacts.download(run_id, name).read_bytes()
                return decode_checkpoint(content, PurePosixPath(name).name)
            except (FileFormatError, MissingFileError) as error:
                logger.warning("run %s: %s; using the checkpoint before it", run_id, error)
        return None


class _Shard(NamedTuple):
    """A part of the trial table, and the metrics of the updates that end in it."""

    table: pa.Table
    updates: dict[int, dict[str, float]]


class _Writer:
    """A log while it is written: all shards in memory, so that no store is asked for them.

    Attributes:
        handover: Takes what is in the journal to the store.
    """

    def __init__(
        self,
        journal: Journal,
        handover: Handover,
        shards: dict[str, _Shard],
        unsent: Sequence[str],
        *,
        num_logged: int,
    ) -> None:
        self.handover = handover
        self._journal = journal
        self._shards = shards
        self._num_trials = 0
        self._best: Trial | None = None
        points: list[Point] = []
        for table, updates in shards.values():
            points += self._points(table_to_trials(table), updates, num_logged=num_logged)
        handover.add(points, num_trials=self._num_trials, shards=unsent)

    def trials(self) -> list[Trial]:
        return _trials_of(self._shards)

    def append(self, trials: Sequence[Trial], metrics: Mapping[str, float]) -> None:
        new = [trial for trial in trials if trial.number >= self._num_trials]
        for number, trial in enumerate(new, start=self._num_trials):
            if trial.number != number:
                raise InvalidValueError(f"got trial {trial.number} where {number} belongs")
        if not new:
            return
        update = new[-1].update
        kept = {update: _finite(metrics, update)} if metrics else {}
        name = self._open_shard()
        begun = self._shards.get(name, _Shard(SCHEMA.empty_table(), {}))
        shard = _Shard(pa.concat_tables([begun.table, trials_to_table(new)]), begun.updates | kept)
        self._journal.write(name, encode_parquet(*shard))
        self._shards[name] = shard
        points = self._points(new, kept)
        self.handover.add(points, num_trials=self._num_trials, shards=[name])

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        content = encode_checkpoint(checkpoint)
        artifact = f"{CHECKPOINTS_FOLDER}/{checkpoint_name(checkpoint, content)}"
        self._journal.write(artifact, content)
        self.handover.add_checkpoint(artifact)
        for old in self._journal.names(CHECKPOINTS_FOLDER)[:-KEPT_CHECKPOINTS]:
            self._journal.forget(old)

    def _open_shard(self) -> str:
        """Return the name of the shard that the next trials belong to."""
        if self._shards:
            name = max(self._shards)
            if self._shards[name].table.num_rows < SHARD_TRIALS:
                return name
        return f"{TRIALS_FOLDER}/{self._num_trials:08d}.parquet"

    def _points(
        self, trials: Sequence[Trial], updates: UpdateMetrics, *, num_logged: int = 0
    ) -> list[Point]:
        """Return the points of the next trials, and of the updates that they end.

        Those of the first ``num_logged`` trials are left out: the store has them.
        """
        points: list[tuple[Trial, str, float, int]] = []
        last_of_update = {trial.update: trial for trial in trials}
        for trial in trials:
            before, self._best = self._best, fastest([self._best, trial])
            is_end = has_points(trial.update) and trial is last_of_update[trial.update]
            names = [STEP_TIME]
            if self._best is not before or (is_end and trial.update in updates):
                names.append(BEST_STEP_TIME)
            for name in names:
                time_s = step_time_s(trial if name == STEP_TIME else self._best)
                if time_s is not None:
                    points.append((trial, name, time_s, trial.number))
        for update, metrics in updates.items():
            trial = last_of_update[update]
            points += [
                (trial, f"{UPDATE_PREFIX}{name}", value, update)
                for name, value in metrics.items()
                if has_points(update)
            ]
        self._num_trials += len(trials)
        return [
            Point(name, value, step, trial.finished_at_s)
            for trial, name, value, step in points
            if trial.number >= num_logged
        ]


def has_points(update: int) -> bool:
    """Return whether the charts have points of an update.

    All of the first 256 have; then every second up to 512, every fourth up to 1,024, and so on:
    a long training has some 128 for each doubling. The shards have the metrics of all.
    """
    stride = 1 << max(0, update.bit_length() - 8)
    return update % stride == 0


def _trials_of(shards: Mapping[str, _Shard]) -> list[Trial]:
    return [trial for shard in shards.values() for trial in table_to_trials(shard.table)]


def _shards_of(journal: Journal) -> dict[str, _Shard]:
    return {
        name: _Shard(*decode_parquet(journal.read(name), str(journal.folder / name)))
        for name in journal.names(TRIALS_FOLDER)
    }


def _finite(metrics: Mapping[str, float], update: int) -> dict[str, float]:
    finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
    for name in sorted(set(metrics) - set(finite)):
        logger.warning("update %d: %s is %s and is not kept", update, name, metrics[name])
    return finite
