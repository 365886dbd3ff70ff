"""Handing over to the tracking store what a training has kept already, by a thread of its own.

A training waits for no store. What it writes is safe in the run's journal; points, shards,
checkpoints and tags follow when the store takes them, of each file only the newest state. While
the store is locked, slow, full or away they are kept and tried again with growing pauses.

Points are counted by a tag only after they were sent, and removed one request at a time. So one
is sent again only if a kill comes between, and its time is the trial's: it stays one point. The
same thread keeps the heartbeat, so that a training in a long measurement does not seem dead.
"""

import dataclasses
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from placer.errors import PlacerError, StoreError
from placer.journal import Journal
from placer.mlflow_store import OpenRun, Point, Store, now
from placer.mlflow_waiting import PATIENCE_S, Outage, is_passing
from placer.tracking_names import (
    CHECKPOINT,
    CHECKPOINTS_FOLDER,
    HEARTBEAT,
    LOGGED_TRIALS,
    TRIALS_FOLDER,
)

HEARTBEAT_S = 60.0
KEPT_CHECKPOINTS = 2

_BATCH_POINTS = 800
_BATCH_S = 5.0
_REMINDER_S = 60.0

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class _Waiting:
    """What the store does not have yet.

    Attributes:
        artifacts: Paths of shards and checkpoints in the journal.
        checkpoint: The path that the checkpoint's tag is to name.
        points: Of the charts, by time.
        num_trials: Trials that are kept, whose points are sent or among ``points``.
    """

    artifacts: set[str] = dataclasses.field(default_factory=set)
    checkpoint: str | None = None
    points: list[Point] = dataclasses.field(default_factory=list)
    num_trials: int = 0


class Handover:
    """The thread that brings a run's journal, points and heartbeat to the store.

    Args:
        store: The store that holds the run.
        run_id: MLflow's id of the run.
        num_trials: Number of trials whose points the store has already.
    """

    def __init__(self, store: Store, run_id: str, *, num_trials: int) -> None:
        self._run = OpenRun(store, run_id)
        self._connection = store.connection
        self._artifacts = store.artifacts
        self._journal: Journal = store.artifacts.journal(run_id)
        self._is_local = store.artifacts.are_local(run_id)
        self._changed = threading.Condition()
        # All below is read and changed while holding it.
        self._waiting = _Waiting(num_trials=num_trials)
        self._num_handed_over = num_trials
        self._is_busy = False
        self._is_hurried = False
        self._is_stopping = False
        self._refusal: Exception | None = None
        self._outage: Outage | None = None
        self._answered_at_s = self._beat_at_s = time.monotonic()

    # For the training

    def start(self) -> None:
        """Begin to hand over, and to keep the heartbeat."""
        name = f"hand over {self._run.run_id}"
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def add(self, points: Sequence[Point], *, num_trials: int, shards: Sequence[str]) -> None:
        """Take points and shards, in the journal by now, of trials up to ``num_trials``.

        Raises:
            StoreError: If the store refused for good what it was given before.
        """
        with self._changed:
            self._raise_refusal()
            self._waiting.points += points
            self._waiting.num_trials = num_trials
            if not self._is_local:
                self._waiting.artifacts |= set(shards)
            self._changed.notify_all()

    def add_checkpoint(self, artifact: str) -> None:
        """Take a checkpoint, in the journal by now; earlier ones need not be handed over.

        Raises:
            StoreError: If the store refused for good what it was given before.
        """
        with self._changed:
            self._raise_refusal()
            waiting = self._waiting
            if not self._is_local:
                waiting.artifacts -= {name for name in waiting.artifacts if _is_checkpoint(name)}
                waiting.artifacts.add(artifact)
            waiting.checkpoint = artifact
            self._is_hurried = True
            self._changed.notify_all()

    def close(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until the store has everything, then stop, and remove the journal.

        Args:
            patience_s: How long to wait for a store that does not answer.

        Raises:
            StoreError: If it has not; the message tells where the rest is.
        """
        try:
            with self._changed:
                self._is_hurried = True
                self._changed.notify_all()
                self._wait_until_over(patience_s)
                self._raise_refusal()
                if self._has_work():
                    raise StoreError(
                        f"{self._trouble()}; {self._kept()}: the same command goes on once the"
                        " store answers"
                    )
        finally:
            self.stop()
            with self._changed:
                self._changed.notify_all()
        if not self._is_local:
            self._journal.remove()

    def stop(self) -> None:
        """Stop within a minute, without handing over what is left; the journal has it."""
        self._is_stopping = True

    def _wait_until_over(self, patience_s: float) -> None:
        reminded_at_s = started_at_s = time.monotonic()
        if self._outage is not None:
            self._outage.try_now()
            reminded_at_s -= _REMINDER_S  # it may be hours since the store went away
        while self._has_work() and self._refusal is None:
            now_s = time.monotonic()
            if now_s - max(started_at_s, self._answered_at_s) > patience_s:
                return
            if self._outage is not None and now_s - reminded_at_s > _REMINDER_S:
                logger.warning("%s; %s; waiting for the store", self._trouble(), self._kept())
                reminded_at_s = now_s
            self._changed.wait(1.0)

    # The thread

    def _work(self) -> None:
        while self._wait_until_due():
            try:
                self._connection.check()
                self._hand_over()
            except Exception as error:  # noqa: BLE001 - the training tells it, at its next trial
                with self._changed:
                    if is_passing(error):
                        self._note_outage(error)
                    else:
                        self._refusal = error
                        self._is_stopping = True
            else:
                with self._changed:
                    self._note_answer()
            finally:
                with self._changed:
                    self._is_busy = False
                    self._changed.notify_all()

    def _wait_until_due(self) -> bool:
        """Wait until there is something to do; return False if nothing is to be done any more."""
        with self._changed:
            while not self._is_stopping:
                wait_s = self._due_at_s() - time.monotonic()
                if wait_s <= 0:
                    self._is_busy = True
                    return True
                self._changed.wait(wait_s)
            return False

    def _due_at_s(self) -> float:
        if self._outage is not None:
            return self._outage.retry_at_s
        beat_at_s = self._beat_at_s + HEARTBEAT_S
        if not self._is_anything_waiting():
            return beat_at_s
        if self._is_hurried or len(self._waiting.points) >= _BATCH_POINTS:
            return 0.0
        return min(beat_at_s, self._answered_at_s + _BATCH_S)

    def _hand_over(self) -> None:
        """Send everything that waits; what was sent does not wait any more if a later call fails.

        Shards come before the points that are derived from them. The tag that names a checkpoint
        is set after the file is there.
        """
        with self._changed:
            waiting = dataclasses.replace(self._waiting, points=list(self._waiting.points))
            artifacts = sorted(waiting.artifacts, key=lambda name: (_is_checkpoint(name), name))
        for artifact in artifacts:
            self._beat_if_due()
            self._upload(artifact)
        for start in range(0, len(waiting.points), _BATCH_POINTS):
            self._beat_if_due()
            batch = waiting.points[start : start + _BATCH_POINTS]
            self._run.log_points(batch)
            with self._changed:
                del self._waiting.points[: len(batch)]
                self._answered_at_s = time.monotonic()
        self._beat({LOGGED_TRIALS: str(waiting.num_trials)})
        with self._changed:
            self._num_handed_over = waiting.num_trials
        if waiting.checkpoint is not None:
            self._name_checkpoint(waiting.checkpoint)

    def _upload(self, artifact: str) -> None:
        """Send a file of the journal; forget those shards that will not be written again."""
        with self._changed:
            if artifact not in self._waiting.artifacts:
                return  # a checkpoint that gave way to a newer one
            self._waiting.artifacts.remove(artifact)  # written anew meanwhile, it waits again
        try:
            self._artifacts.upload(self._run.run_id, artifact, self._journal.folder / artifact)
        except PlacerError:
            with self._changed:
                if not (_is_checkpoint(artifact) and self._waiting.checkpoint != artifact):
                    self._waiting.artifacts.add(artifact)
            raise
        with self._changed:
            self._answered_at_s = time.monotonic()
            for shard in self._journal.names(TRIALS_FOLDER)[:-1]:
                if shard not in self._waiting.artifacts:
                    self._journal.forget(shard)

    def _name_checkpoint(self, artifact: str) -> None:
        """Set the tag that names a checkpoint, and remove old ones from the store."""
        run_id = self._run.run_id
        if not self._is_local:
            names = self._artifacts.names(run_id, CHECKPOINTS_FOLDER)
            if artifact not in names:
                return  # it gave way to a newer one
            for old in names[:-KEPT_CHECKPOINTS]:
                self._artifacts.delete(run_id, old)
        self._beat({CHECKPOINT: artifact})
        with self._changed:
            if self._waiting.checkpoint == artifact:
                self._waiting.checkpoint = None

    def _beat_if_due(self) -> None:
        if time.monotonic() - self._beat_at_s > HEARTBEAT_S:
            self._beat({})

    def _beat(self, tags: Mapping[str, str]) -> None:
        self._run.set_tags({HEARTBEAT: now(), **tags})
        self._beat_at_s = time.monotonic()

    # What both know

    def _is_anything_waiting(self) -> bool:
        waiting = self._waiting
        is_counted = self._num_handed_over == waiting.num_trials
        return bool(waiting.artifacts or waiting.points or waiting.checkpoint) or not is_counted

    def _has_work(self) -> bool:
        return self._is_busy or self._is_anything_waiting()

    def _kept(self) -> str:
        num_kept = self._waiting.num_trials - self._num_handed_over
        return f"{num_kept:,} trials are kept in {self._journal.folder}"

    def _trouble(self) -> str:
        if self._outage is None:
            return f"{self._connection.name} is slow to answer"
        return self._outage.reason

    def _note_outage(self, error: Exception) -> None:
        if self._outage is None:
            self._outage = Outage(self._num_handed_over)
            logger.warning("%s; training goes on, %s", error, self._kept())
        self._outage.failed(str(error))

    def _note_answer(self) -> None:
        self._answered_at_s = time.monotonic()
        if self._outage is not None:
            num_trials = self._num_handed_over - self._outage.num_before
            name = self._connection.name
            logger.warning("%s answers again; %d trials handed over", name, num_trials)
            self._outage = None
        if not self._is_anything_waiting():
            self._is_hurried = False

    def _raise_refusal(self) -> None:
        if self._refusal is not None:
            raise StoreError(f"{self._refusal}; {self._kept()}") from self._refusal


def _is_checkpoint(artifact: str) -> bool:
    return PurePosixPath(artifact).parts[0] == CHECKPOINTS_FOLDER
