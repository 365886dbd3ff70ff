"""REINFORCE as the paper trains with it: a moving baseline, and a failing signal.

When a batch comes from another environment than the one before, its step times are of another
kind, a prediction or a measurement, and what was an average reward is none any more: the
baseline starts anew from the mean of that batch. It does not start at the failing signal again,
because the policy is no beginner any more, and a baseline far below all rewards would praise
whatever is sampled. For the same reason a policy that has learned something already, see
``placer.warm_start``, does not start at the failing signal either.

With several batches in flight a placement was drawn by an older policy than the one it is to
improve. Its advantage is then weighted by how much likelier it is now, one at most: the
truncated importance weight of Espeholt et al. (2018).

Array shapes: B placements, G groups.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from placer.batch_trainer import Batch, BatchTrainer, TrainerConfig
from placer.errors import InvalidValueError
from placer.graph import FloatArray
from placer.policy import Policy
from placer.policy_gradient import advantages_of, moving_baseline, truncated_importance
from placer.profile import Profile


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReinforceConfig(TrainerConfig):
    """How a policy is trained by REINFORCE; see ``TrainerConfig`` for what all trainers share.

    Attributes:
        baseline_decay: Of the moving average of rewards (later controller: 0.9).
        start_from_failing: Start the baseline at the failing signal's reward, as the
            paper; otherwise at the mean of the first batch's rewards.
        runnable_only_after: Updates after which placements that cannot run teach nothing.
            The later controller has 1,000, the paper 5,000.
    """

    baseline_decay: float = 0.9
    start_from_failing: bool = True
    runnable_only_after: int = 1000

    def __post_init__(self) -> None:
        TrainerConfig.__post_init__(self)
        if not 0 <= self.baseline_decay < 1:
            raise InvalidValueError(f"baseline_decay must be in [0, 1), got {self.baseline_decay}")
        if self.runnable_only_after < 0:
            raise InvalidValueError(
                f"runnable_only_after must not be negative, got {self.runnable_only_after}"
            )


def failing_step_time_s(profile: Profile) -> float:
    """Return a failing signal for a profile: twice the work of one step on its slowest device.

    A placement slower than that is worse than useless, and the reward of a failure stays
    within reach of the rewards of the others: a constant such as 100 s would dwarf them on
    a graph that steps in a millisecond.

    It serves measurements as well as makespans: the times of a traced profile add up to the
    measured step time of one device.
    """
    return 2 * max(float(profile.compute_time_s.sum(axis=0).max()), 1e-9)


class ReinforceTrainer(BatchTrainer):
    """Improves a policy by REINFORCE with a moving baseline; see ``BatchTrainer``."""

    config: ReinforceConfig

    def __init__(self, policy: Policy, config: ReinforceConfig) -> None:
        super().__init__(policy, config)
        self._baseline: float | None = None
        if config.start_from_failing:
            self._baseline = -math.sqrt(config.failing_step_time_s)

    def _learn(self, batch: Batch) -> Mapping[str, float]:
        """Climb along the advantages; ``baseline`` is what the rewards were compared with."""
        if batch.is_elsewhere:
            self._baseline = None
        # Once the policy can be expected to know what runs, failures only add noise.
        counted = ~batch.failed | (self.update < self.config.runnable_only_after)
        baseline = self._baseline_for(batch.rewards[counted])
        metrics = self._climb(batch, advantages_of(batch.rewards, baseline, counted))
        self._baseline = moving_baseline(
            baseline, batch.rewards[counted], decay=self.config.baseline_decay
        )
        return {"baseline": baseline, **metrics}

    def _climb(self, batch: Batch, advantages: FloatArray) -> Mapping[str, float]:
        """Make one update along the advantages, ``[B]``; ``importance`` is the mean weight."""
        if batch.sampled_log_probs is None:
            return self.policy.update(batch.actions, advantages)
        log_ratios = self.policy.log_probs(batch.actions) - batch.sampled_log_probs
        importance = truncated_importance(log_ratios.sum(axis=1))
        metrics = self.policy.update(batch.actions, importance * advantages)
        return {"importance": float(np.mean(importance)), **metrics}

    def _baseline_for(self, rewards: FloatArray) -> float:
        if self._baseline is not None:
            return self._baseline
        if rewards.size:
            return float(rewards.mean())
        return -math.sqrt(self.config.failing_step_time_s)

    def _memory(self) -> Mapping[str, Any]:
        return {"baseline": self._baseline}

    def _remember(self, memory: Mapping[str, Any]) -> None:
        self._baseline = memory["baseline"]
