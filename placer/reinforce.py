"""REINFORCE as the paper trains with it, behind ``ask`` and ``tell``.

The trainer owns no environment and no clock: it proposes a batch of trials, is told their
measurements, and updates its policy once. Trial n belongs to update n // batch_size, and
its draws depend on the seed and n alone. So asking again before telling, or after
restoring a checkpoint, gives the same trials.

An update learns from trials of one environment. When the next batch comes from another one,
its step times are of another kind, a prediction or a measurement, and what was an average
reward is none any more: the baseline starts anew from the mean of that batch. It does not
start at the failing signal again, because the policy is no beginner any more, and a baseline
far below all rewards would praise whatever is sampled.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from placer.environment import Measurement, Outcome
from placer.errors import InvalidValueError
from placer.graph import FloatArray
from placer.policy import Policy
from placer.policy_gradient import advantages_of, moving_baseline, rewards_of
from placer.profile import Profile
from placer.ranking import fastest, step_time_s
from placer.trials import Checkpoint, Trial


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReinforceConfig:
    """How a policy is trained.

    Attributes:
        failing_step_time_s: The failing signal: the step time that stands for a placement
            that cannot run. The authors' later controller has 100 s for steps of some
            seconds; ``failing_step_time_s`` derives one from a profile.
        batch_size: Placements an update. The paper averages over K placements and does
            not fix K here.
        baseline_decay: Of the moving average of rewards (later controller: 0.9).
        start_from_failing: Start the baseline at the failing signal's reward, as the
            paper; otherwise at the mean of the first batch's rewards.
        runnable_only_after: Updates after which placements that cannot run teach nothing.
            The later controller has 1,000, the paper 5,000.
        seed: All draws derive from it.
    """

    failing_step_time_s: float
    batch_size: int = 16
    baseline_decay: float = 0.9
    start_from_failing: bool = True
    runnable_only_after: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.failing_step_time_s < math.inf:
            raise InvalidValueError(
                f"failing_step_time_s must be positive and finite, got {self.failing_step_time_s}"
            )
        if self.batch_size < 1:
            raise InvalidValueError(f"batch_size must be at least 1, got {self.batch_size}")
        if not 0 <= self.baseline_decay < 1:
            raise InvalidValueError(f"baseline_decay must be in [0, 1), got {self.baseline_decay}")
        for field in ("runnable_only_after", "seed"):
            if getattr(self, field) < 0:
                raise InvalidValueError(f"{field} must not be negative, got {getattr(self, field)}")


def failing_step_time_s(profile: Profile) -> float:
    """Return a failing signal for a profile: twice the work of one step on its slowest device.

    A placement slower than that is worse than useless, and the reward of a failure stays
    within reach of the rewards of the others: a constant such as 100 s would dwarf them on
    a graph that steps in a millisecond.

    It serves measurements as well as makespans: the times of a traced profile add up to the
    measured step time of one device.
    """
    return 2 * max(float(profile.compute_time_s.sum(axis=0).max()), 1e-9)


class ReinforceTrainer:
    """Improves a policy by REINFORCE with a moving baseline.

    Attributes:
        policy: What is trained.
        config: How.
        update: Number of updates made.
        best: The best trial told so far, see ``placer.ranking``; None if none ran.
    """

    def __init__(self, policy: Policy, config: ReinforceConfig) -> None:
        self.policy = policy
        self.config = config
        self.update = 0
        self.best: Trial | None = None
        self._baseline: float | None = None
        if config.start_from_failing:
            self._baseline = -math.sqrt(config.failing_step_time_s)
        self._environment: str | None = None
        self._asked: list[Trial] | None = None

    @property
    def num_trials(self) -> int:
        """Number of trials told so far."""
        return self.update * self.config.batch_size

    def ask(self) -> list[Trial]:
        """Return the trials of the next update; the same ones until they are told."""
        if self._asked is None:
            numbers = np.arange(self.num_trials, self.num_trials + self.config.batch_size)
            actions = self.policy.sample(self.config.seed, numbers)
            self._asked = [
                Trial(
                    number=int(number),
                    update=self.update,
                    device_of_group=tuple(action.tolist()),
                )
                for number, action in zip(numbers, actions, strict=True)
            ]
        return list(self._asked)

    def tell(self, trials: Sequence[Trial]) -> dict[str, float]:
        """Update the policy by the trials that were asked, now measured.

        Returns:
            Metrics of the update: ``reward_mean`` and ``baseline`` (what the rewards were
            compared with), ``invalid_share`` of placements that could not run, and the
            policy's ``entropy``, ``gradient_norm`` and ``loss``.

        Raises:
            InvalidValueError: If these are not the trials that ``ask`` returns, in order,
                one has no measurement, or they are of several environments.
        """
        measurements = self._checked(trials)
        if self._environment not in (None, trials[0].environment):
            self._baseline = None
        self._environment = trials[0].environment
        rewards = rewards_of(measurements, self._failing_step_time_s(trials))
        failed = np.array([found.outcome is not Outcome.OK for found in measurements])
        # Once the policy can be expected to know what runs, failures only add noise.
        counted = ~failed | (self.update < self.config.runnable_only_after)
        baseline = self._baseline_for(rewards[counted])
        actions = np.array([trial.device_of_group for trial in trials], dtype=np.int32)
        metrics = self.policy.update(actions, advantages_of(rewards, baseline, counted))
        self._baseline = moving_baseline(
            baseline, rewards[counted], decay=self.config.baseline_decay
        )
        self.update += 1
        self.best = fastest([self.best, *trials])
        self._asked = None
        return {
            "reward_mean": float(rewards.mean()),
            "baseline": baseline,
            "invalid_share": float(failed.mean()),
            **metrics,
        }

    def _failing_step_time_s(self, trials: Sequence[Trial]) -> float:
        # What ran, however slowly, must not look worse than what did not run beside it.
        ran_s = [time_s for trial in trials if (time_s := step_time_s(trial)) is not None]
        return max([self.config.failing_step_time_s, *ran_s])

    def _baseline_for(self, rewards: FloatArray) -> float:
        if self._baseline is not None:
            return self._baseline
        if rewards.size:
            return float(rewards.mean())
        return -math.sqrt(self.config.failing_step_time_s)

    def _checked(self, trials: Sequence[Trial]) -> list[Measurement]:
        asked = self.ask()
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

    def checkpoint(self) -> Checkpoint:
        """Return the whole state; what was asked and not told is not part of it."""
        return Checkpoint(
            update=self.update,
            num_trials=self.num_trials,
            arrays=self.policy.state(),
            scalars={
                "config": dataclasses.asdict(self.config),
                "baseline": self._baseline,
                "environment": self._environment,
                "best": None if self.best is None else dataclasses.asdict(self.best),
            },
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Return to the state of a checkpoint.

        Raises:
            InvalidValueError: If it was made with other settings or another policy.
        """
        ours = dataclasses.asdict(self.config)
        for field, value in checkpoint.scalars["config"].items():
            if ours.get(field) != value:
                raise InvalidValueError(
                    f"the checkpoint was made with {field} = {value}, not {ours.get(field)}"
                )
        self.policy.restore(checkpoint.arrays)
        self.update = checkpoint.update
        self.best = _trial_from_json(checkpoint.scalars["best"])
        self._baseline = checkpoint.scalars["baseline"]
        self._environment = checkpoint.scalars["environment"]
        self._asked = None


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


def _trial_from_json(fields: Mapping[str, Any] | None) -> Trial | None:
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
