"""The training loop: ask for trials, measure them, keep them, tell the trainer.

The log is the truth. A training that was cut short goes on from the log's last
checkpoint: the trials logged after it are told again, not measured again, which is
possible because a trainer proposes the same trials from the same state.

An update is made from a full batch. If the number of trials wanted ends inside a batch,
the rest of that batch is left for later: its first trials are measured and logged, and
their update is made when the training is continued. So 100 trials and then 100 more
are the same 200 trials as 200 at once.

A placement takes milliseconds to simulate and up to a minute to run. So the trials of a batch
may be measured and kept one at a time: a kill then loses one measurement, not a batch of them.

A trainer may have several batches in flight. Then all of them are measured while it learns from
the first, on as many environments at once as there are. They are kept and told in the order of
their numbers whatever the order in which they return, so the training stays the same; a
kill loses at most what is in flight.

A training may go on in another environment, such as the real devices after the simulation:
call ``train`` again, with more trials and the same log. The part before must end with a whole
batch, because a trainer learns from one environment at a time.
"""

import contextlib
import dataclasses
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from placer.batch_trainer import check_same_proposal
from placer.environment import Environment, Outcome
from placer.errors import InvalidValueError, PlacerError
from placer.grouping import Grouping
from placer.measuring import Measuring
from placer.ranking import fastest, step_time_s
from placer.trials import Checkpoint, Trial, TrialLog

logger = logging.getLogger(__name__)


class Trainer(Protocol):
    """Proposes trials and learns from their measurements."""

    @property
    def num_trials(self) -> int:
        """Number of trials told so far."""

    @property
    def update(self) -> int:
        """Number of updates made so far."""

    def ask(self) -> list[Trial]:
        """Return the trials in flight, those of the next update first, until they are told."""

    def tell(self, trials: Sequence[Trial]) -> dict[str, float]:
        """Learn from the trials of the next update, now measured; return some metrics."""

    def checkpoint(self) -> Checkpoint:
        """Return the whole state."""

    def restore(self, checkpoint: Checkpoint) -> None:
        """Return to the state of a checkpoint."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a training stands.

    Attributes:
        num_trials: Trials in the log.
        update: Updates made.
        best: The best trial so far, see ``placer.ranking``; None if none ran.
        invalid_share: Share of all trials so far that could not run.
        trials_per_s: Rate of this call, told again or measured; 0 before its first batch.
        metrics: Of the update that these trials ended; empty if they ended none.
    """

    num_trials: int
    update: int
    best: Trial | None
    invalid_share: float
    trials_per_s: float
    metrics: Mapping[str, float]

    @property
    def best_step_time_s(self) -> float | None:
        """Step time of the best trial; None if none ran."""
        return step_time_s(self.best)


def train(  # noqa: PLR0913 - each is a part of every training
    trainer: Trainer,
    environment: Environment,
    grouping: Grouping,
    log: TrialLog,
    *,
    num_trials: int,
    checkpoint_every: int,
    at_once: int | None = None,
    also_on: Sequence[Environment] = (),
) -> Iterator[Progress]:
    """Train until the log holds ``num_trials`` trials; yield whenever there are more.

    The first progress tells what the log held already. Each further one comes when its
    trials are kept, so the caller may stop at any time. A training that is interrupted, from
    outside or by an error, saves a checkpoint on its way out.

    Args:
        trainer: With the settings of the log's trials; a fresh one, or the one that made them.
        environment: Measures placements.
        grouping: From groups to ops.
        log: May hold an earlier part of this training.
        num_trials: How many trials the training has in total, earlier parts included.
        checkpoint_every: Updates between checkpoints; one more is saved at the end.
        at_once: Placements that are measured together and then kept; a whole batch if None.
        also_on: Further environments like the first, which measure at the same time.

    Raises:
        InvalidValueError: If the log is of another training; a trial that differs is named.
    """
    _check_at_least_one(num_trials=num_trials, checkpoint_every=checkpoint_every, at_once=at_once)
    logged = _restored(trainer, log)
    tally = _Tally(logged)
    yield tally.progress(trainer, {})
    asked = trainer.ask()
    is_ahead = asked[-1].update > asked[0].update
    environments = (environment, *also_on)
    saved = trainer.update
    try:
        with Measuring(environments, grouping, at_once=at_once, is_ahead=is_ahead) as measuring:
            for metrics in _batches(trainer, measuring, log, logged, tally, num_trials):
                if trainer.update - saved >= checkpoint_every:
                    log.save_checkpoint(trainer.checkpoint())
                    saved = trainer.update
                yield tally.progress(trainer, metrics)
    except BaseException:
        # In the middle of an update there is no state to save, and behind the log none of use.
        if tally.settled_update == trainer.update > saved:
            with contextlib.suppress(PlacerError):  # what ended the training is told instead
                log.save_checkpoint(trainer.checkpoint())
        raise
    if trainer.update > saved:
        log.save_checkpoint(trainer.checkpoint())


def _batches(
    trainer: Trainer,
    measuring: Measuring,
    log: TrialLog,
    logged: Sequence[Trial],
    tally: "_Tally",
    num_trials: int,
) -> Iterator[Mapping[str, float]]:
    """Go through the batches, the last of which may be cut; yield whenever trials were kept."""
    update: int | None = None
    # A batch that was cut makes no update: it is the last.
    while trainer.num_trials < num_trials and trainer.update != update:
        update = trainer.update
        in_flight = trainer.ask()
        wanted = in_flight[: num_trials - trainer.num_trials]
        measuring.begin(wanted[max(0, len(logged) - trainer.num_trials) :])
        asked = [trial for trial in in_flight if trial.update == update]
        yield from _one_batch(trainer, asked, wanted[: len(asked)], measuring, log, logged, tally)


def _one_batch(
    trainer: Trainer,
    asked: Sequence[Trial],
    wanted: Sequence[Trial],
    measuring: Measuring,
    log: TrialLog,
    logged: Sequence[Trial],
    tally: "_Tally",
) -> Iterator[Mapping[str, float]]:
    """Take what is logged or measured and tell the trainer; yield whenever trials were kept.

    The last yield has the update's metrics, the others have none; nor has that of a batch
    of which not all trials are wanted, which makes no update. The last trials are kept together
    with the metrics of their update, so that the log never holds a whole batch without them.
    """
    told = _known(wanted, logged[trainer.num_trials :])
    tally.add([], num_handled=len(told))
    is_over = False
    while not is_over:
        measured = measuring.next() if len(told) < len(wanted) else []
        told += measured
        is_over = len(told) == len(wanted)
        tally.settled_update = None
        metrics = trainer.tell(told) if len(told) == len(asked) else {}
        if measured:
            log.append(measured, metrics)
        tally.settled_update = trainer.update
        tally.add(measured, num_handled=len(measured))
        yield metrics


def _check_at_least_one(**numbers: int | None) -> None:
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise InvalidValueError(f"{name} must be at least 1, got {number}")


def _known(wanted: Sequence[Trial], logged: Sequence[Trial]) -> list[Trial]:
    """Return those of the wanted trials that the log holds already, checked."""
    known = list(logged[: len(wanted)])
    for trial, expected in zip(known, wanted, strict=False):
        check_same_proposal(trial, expected)
    return known


def _restored(trainer: Trainer, log: TrialLog) -> list[Trial]:
    """Bring the trainer to the log's last checkpoint; return the log's trials, checked."""
    logged = log.trials()
    for number, trial in enumerate(logged):
        if trial.number != number:
            raise InvalidValueError(f"the log holds trial {trial.number} where {number} belongs")
    checkpoint = log.load_checkpoint()
    if checkpoint is not None and checkpoint.num_trials > len(logged):
        logger.warning(
            "the checkpoint is of %d trials, the log holds %d: starting again from the log",
            checkpoint.num_trials,
            len(logged),
        )
    elif checkpoint is not None:
        trainer.restore(checkpoint)
    return logged


class _Tally:
    """Counts what a training's progress is made of.

    Attributes:
        settled_update: The update after which log and trainer agree; None while they are changed.
    """

    def __init__(self, logged: Sequence[Trial]) -> None:
        self.settled_update: int | None = None
        self._started_s = time.monotonic()
        self._num_trials = 0
        self._num_failed = 0
        self._num_handled = 0
        self._best: Trial | None = None
        self.add(logged, num_handled=0)

    def add(self, trials: Sequence[Trial], *, num_handled: int) -> None:
        self._num_trials += len(trials)
        self._num_handled += num_handled
        self._best = fastest([self._best, *trials])
        self._num_failed += sum(
            trial.measurement is not None and trial.measurement.outcome is not Outcome.OK
            for trial in trials
        )

    def progress(self, trainer: Trainer, metrics: Mapping[str, float]) -> Progress:
        elapsed_s = time.monotonic() - self._started_s
        return Progress(
            num_trials=self._num_trials,
            update=trainer.update,
            best=self._best,
            invalid_share=self._num_failed / max(self._num_trials, 1),
            trials_per_s=self._num_handled / elapsed_s if self._num_handled else 0.0,
            metrics=metrics,
        )
