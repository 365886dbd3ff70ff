"""What all trainers share: batches of trials that are asked for and told.

A trainer owns no environment and no clock: it proposes trials, is told their measurements
batch by batch, and improves its policy by each. Trial n belongs to update n // batch_size, and
its draws depend on the policy, the seed and n alone. So asking again before telling, or after
restoring a checkpoint, gives the same trials.

Measurements may take long. With ``in_flight`` = K the trainer proposes K batches before the first
of them is told, as the paper's controllers do for their workers (Mirhoseini et al., 2017,
section 3.3). Batches are told in their order, whatever the order in which measurements return,
and batch u is drawn from the policy after update u - K + 1 (the initial one for the first K).
Which policy drew a trial therefore follows from its number, and a training is the same however
fast its workers are. What a stale batch teaches is corrected by the log-probabilities it
was drawn with; they and the batches in flight are part of a checkpoint.

Array shapes: B placements, G groups, K batches in flight.
"""

import abc
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from placer.environment import Measurement, Outcome
from placer.errors import InvalidValueError
from placer.graph import BoolArray, FloatArray
from placer.policy import Actions, Policy
from placer.policy_gradient import rewards_of
from placer.ranking import fastest, step_time_s
from placer.trials import Checkpoint, Trial

_IN_FLIGHT = "in_flight/"
_ACTIONS = f"{_IN_FLIGHT}actions"
_LOG_PROBS = f"{_IN_FLIGHT}log_probs"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    """What every way of training needs to know.

    Attributes:
        failing_step_time_s: The failing signal: the step time that stands for a placement
            that cannot run. The authors' later controller has 100 s for steps of some
            seconds; ``placer.reinforce.failing_step_time_s`` derives one from a profile.
        batch_size: Placements an update. The paper averages over K placements and does
            not fix K here.
        in_flight: Batches that are proposed before the first of them is told; 1 waits for
            each batch before it draws the next.
        seed: All draws derive from it.
    """

    failing_step_time_s: float
    batch_size: int = 16
    in_flight: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.failing_step_time_s < math.inf:
            raise InvalidValueError(
                f"failing_step_time_s must be positive and finite, got {self.failing_step_time_s}"
            )
        for field in ("batch_size", "in_flight"):
            if getattr(self, field) < 1:
                raise InvalidValueError(f"{field} must be at least 1, got {getattr(self, field)}")
        if self.seed < 0:
            raise InvalidValueError(f"seed must not be negative, got {self.seed}")


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """What a trainer learns from at once: the measured trials of one update.

    Attributes:
        trials: In order of their numbers, B of them.
        actions: What was done, ``[B, G]``.
        rewards: Of each placement, ``[B]``; see ``placer.policy_gradient.rewards_of``.
        failed: Which could not run, ``[B]``.
        sampled_log_probs: Log-probability of each choice under the policy that drew it,
            ``[B, G]``; None if that is the policy as it is now.
        is_elsewhere: True if the batch before was measured in another environment.
    """

    trials: Sequence[Trial]
    actions: Actions
    rewards: FloatArray
    failed: BoolArray
    sampled_log_probs: FloatArray | None
    is_elsewhere: bool


class _Proposed(NamedTuple):
    """A batch that was asked for and not told yet."""

    trials: list[Trial]
    log_probs: FloatArray | None


class BatchTrainer(abc.ABC):
    """Proposes batches and checks what is told; how to learn from it is the subclass's.

    Attributes:
        policy: What is trained.
        config: How.
        update: Number of updates made.
        best: The best trial told so far, see ``placer.ranking``; None if none ran.
    """

    def __init__(self, policy: Policy, config: TrainerConfig) -> None:
        self.policy = policy
        self.config = config
        self.update = 0
        self.best: Trial | None = None
        self._environment: str | None = None
        self._in_flight: list[_Proposed] = []

    @property
    def num_trials(self) -> int:
        """Number of trials told so far."""
        return self.update * self.config.batch_size

    def ask(self) -> list[Trial]:
        """Return the trials in flight by number, those of the next update first.

        They are the same ones until ``tell`` takes the first batch of them.
        """
        return [trial for proposed in self._proposed() for trial in proposed.trials]

    def tell(self, trials: Sequence[Trial]) -> dict[str, float]:
        """Improve the policy by the first batch that was asked, now measured.

        Returns:
            Metrics of the update: ``reward_mean``, ``invalid_share`` of placements that could
            not run, and those of the way of training, the policy's ``entropy``,
            ``gradient_norm`` and ``loss`` among them.

        Raises:
            InvalidValueError: If these are not the first trials that ``ask`` returns, in order,
                one has no measurement, or they are of several environments.
        """
        batch = self._checked(trials)
        metrics = self._learn(batch)
        self.update += 1
        self.best = fastest([self.best, *trials])
        self._environment = trials[0].environment
        del self._in_flight[0]
        return {
            "reward_mean": float(batch.rewards.mean()),
            "invalid_share": float(batch.failed.mean()),
            **metrics,
        }

    def checkpoint(self) -> Checkpoint:
        """Return the whole state."""
        arrays = dict(self.policy.state())
        # A stale batch cannot be drawn again: its policy is gone. One that the policy of now
        # has drawn could, but then what is kept would depend on whether it was asked for.
        stale = self._proposed()[: self.config.in_flight - 1]
        if stale:
            arrays[_ACTIONS] = np.concatenate([_actions(each.trials) for each in stale])
            arrays[_LOG_PROBS] = np.concatenate(
                [each.log_probs for each in stale if each.log_probs is not None]
            )
        return Checkpoint(
            update=self.update,
            num_trials=self.num_trials,
            arrays=arrays,
            scalars={
                "config": dataclasses.asdict(self.config),
                "environment": self._environment,
                "best": None if self.best is None else dataclasses.asdict(self.best),
                **self._memory(),
            },
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Return to the state of a checkpoint.

        Raises:
            InvalidValueError: If it was made with other settings or another policy.
        """
        ours = dataclasses.asdict(self.config)
        theirs = checkpoint.scalars["config"]
        for field in sorted(ours.keys() | theirs.keys()):
            if ours.get(field) != theirs.get(field):
                raise InvalidValueError(
                    f"the checkpoint was made with {field} = {theirs.get(field)},"
                    f" not {ours.get(field)}"
                )
        self.policy.restore(policy_state(checkpoint))
        self.update = checkpoint.update
        self.best = trial_from_json(checkpoint.scalars["best"])
        self._environment = checkpoint.scalars["environment"]
        self._remember(checkpoint.scalars)
        self._in_flight = []
        if _ACTIONS in checkpoint.arrays:
            self._in_flight = self._stale(checkpoint)

    @abc.abstractmethod
    def _learn(self, batch: Batch) -> Mapping[str, float]:
        """Improve the policy; return metrics."""

    @abc.abstractmethod
    def _memory(self) -> Mapping[str, Any]:
        """Return what else a checkpoint must hold, as plain JSON values."""

    @abc.abstractmethod
    def _remember(self, memory: Mapping[str, Any]) -> None:
        """Return to what ``_memory`` gave."""

    def _proposed(self) -> list[_Proposed]:
        """Return all batches in flight; draw those that are not there yet."""
        size = self.config.batch_size
        while len(self._in_flight) < self.config.in_flight:
            update = self.update + len(self._in_flight)
            actions = self.policy.sample(
                self.config.seed, np.arange(update * size, (update + 1) * size)
            )
            # Without stale batches there is nothing to correct.
            log_probs = self.policy.log_probs(actions) if self.config.in_flight > 1 else None
            self._in_flight.append(_Proposed(self._trials(update, actions), log_probs))
        return self._in_flight

    def _trials(self, update: int, actions: Actions) -> list[Trial]:
        first = update * self.config.batch_size
        return [
            Trial(number=number, update=update, device_of_group=tuple(action.tolist()))
            for number, action in enumerate(actions, start=first)
        ]

    def _stale(self, checkpoint: Checkpoint) -> list[_Proposed]:
        num_stale = self.config.in_flight - 1
        actions = np.split(checkpoint.arrays[_ACTIONS], num_stale)
        log_probs = np.split(checkpoint.arrays[_LOG_PROBS], num_stale)
        return [
            _Proposed(self._trials(update, drawn), known)
            for update, (drawn, known) in enumerate(
                zip(actions, log_probs, strict=True), start=checkpoint.update
            )
        ]

    def _checked(self, trials: Sequence[Trial]) -> Batch:
        # All that this policy is to draw is drawn before it changes.
        proposed = self._proposed()[0]
        measurements = _measurements(trials, proposed.trials)
        return Batch(
            trials=trials,
            actions=_actions(trials),
            rewards=rewards_of(measurements, self._failing_step_time_s(trials)),
            failed=np.array([found.outcome is not Outcome.OK for found in measurements]),
            sampled_log_probs=proposed.log_probs,
            is_elsewhere=self._environment not in (None, trials[0].environment),
        )

    def _failing_step_time_s(self, trials: Sequence[Trial]) -> float:
        # What ran, however slowly, must not look worse than what did not run beside it.
        ran_s = [time_s for trial in trials if (time_s := step_time_s(trial)) is not None]
        return max([self.config.failing_step_time_s, *ran_s])


def policy_state(checkpoint: Checkpoint) -> dict[str, np.ndarray[Any, np.dtype[np.generic]]]:
    """Return the policy's part of a trainer's checkpoint: what ``Policy.restore`` takes."""
    return {
        name: array for name, array in checkpoint.arrays.items() if not name.startswith(_IN_FLIGHT)
    }


def check_same_proposal(trial: Trial, expected: Trial) -> None:
    """Check that a trial is the one that was asked, measured or not.

    Raises:
        InvalidValueError: If number, update or actions differ; the message names the trial.
    """
    for field in ("number", "update", "device_of_group"):
        if getattr(trial, field) != getattr(expected, field):
            raise InvalidValueError(
                f"trial {trial.number} is not what this policy proposes as trial"
                f" {expected.number}: its {field} differs"
            )


def trial_from_json(fields: Mapping[str, Any] | None) -> Trial | None:
    """Return the trial whose ``dataclasses.asdict`` went through JSON; None for None."""
    if fields is None:
        return None
    measurement = dict(fields["measurement"])
    measurement["outcome"] = Outcome(measurement["outcome"])
    for field in ("samples_s", "peak_memory_bytes"):
        measurement[field] = tuple(measurement[field])
    return Trial(
        **{
            **fields,
            "device_of_group": tuple(fields["device_of_group"]),
            "measurement": Measurement(**measurement),
        }
    )


def _measurements(trials: Sequence[Trial], asked: Sequence[Trial]) -> list[Measurement]:
    if len(trials) != len(asked):
        raise InvalidValueError(f"{len(asked)} trials were asked, got {len(trials)}")
    measurements = []
    for trial, expected in zip(trials, asked, strict=True):
        check_same_proposal(trial, expected)
        if trial.measurement is None:
            raise InvalidValueError(f"trial {trial.number} has no measurement")
        measurements.append(trial.measurement)
    environments = sorted({trial.environment for trial in trials})
    if len(environments) > 1:
        raise InvalidValueError(
            f"an update learns from one environment, got trials of {environments}"
        )
    return measurements


def _actions(trials: Sequence[Trial]) -> Actions:
    return np.array([trial.device_of_group for trial in trials], dtype=np.int32)
