"""Proximal policy optimisation (Schulman et al., 2017): several updates by each batch.

A placement is expensive where it is measured, and REINFORCE uses it once. PPO climbs by the same
batch several times, as long as the policy stays near the one that drew it: a placement whose
choices have become likelier (or unlikelier, if it was bad) by more than the clip pushes no
further, and the epochs end once the policy has moved too far. Rewards, baseline and advantages are
REINFORCE's. With several batches in flight the ratio is to the policy that drew the placement,
so the clip corrects for staleness as well.

The ratio is of a mean choice, geometric over the groups of a placement. A ratio for each group, as
PPO has for each action of an episode, would need an advantage for each group; but a placement
has one step time, which no group owns.

Array shapes: B placements, G groups.
"""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from placer.batch_trainer import Batch
from placer.errors import InvalidValueError
from placer.graph import FloatArray
from placer.policy import Policy
from placer.policy_gradient import clipped_advantages, divergence_of_choices
from placer.reinforce import ReinforceConfig, ReinforceTrainer


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PpoConfig(ReinforceConfig):
    """How a policy is trained by PPO; see ``ReinforceConfig`` for what both share.

    Attributes:
        clip: How far the ratio of a mean choice may leave 1 and still push (Schulman et
            al., 2017: 0.2, for single actions).
        epochs: Updates by each batch at most (Schulman et al., 2017: 3 to 15).
        largest_divergence: No further epoch once a choice has moved by so many nats on
            average; the first is always made.
    """

    clip: float = 0.2
    epochs: int = 4
    largest_divergence: float = 0.02

    def __post_init__(self) -> None:
        ReinforceConfig.__post_init__(self)
        if not 0 < self.clip < 1:
            raise InvalidValueError(f"clip must be in (0, 1), got {self.clip}")
        if self.epochs < 1:
            raise InvalidValueError(f"epochs must be at least 1, got {self.epochs}")
        if not 0 < self.largest_divergence < math.inf:
            raise InvalidValueError(
                f"largest_divergence must be positive and finite, got {self.largest_divergence}"
            )


class PpoTrainer(ReinforceTrainer):
    """Improves a policy by PPO; see ``BatchTrainer``."""

    config: PpoConfig

    def __init__(self, policy: Policy, config: PpoConfig) -> None:
        super().__init__(policy, config)

    def _climb(self, batch: Batch, advantages: FloatArray) -> Mapping[str, float]:
        """Make up to ``epochs`` updates along the advantages, ``[B]``.

        Beside the metrics of the last of them: ``epochs``, ``divergence`` of the policy from
        the one that drew the batch, and ``clipped_share`` of the placements, at the end.
        """
        log_probs = self.policy.log_probs(batch.actions)
        sampled = log_probs if batch.sampled_log_probs is None else batch.sampled_log_probs
        metrics: Mapping[str, float] = {}
        divergence = 0.0
        epochs = 0
        while epochs < self.config.epochs and not divergence > self.config.largest_divergence:
            pushing = clipped_advantages(log_probs - sampled, advantages, clip=self.config.clip)
            metrics = self.policy.update(batch.actions, pushing)
            epochs += 1
            log_probs = self.policy.log_probs(batch.actions)
            divergence = divergence_of_choices(log_probs - sampled)
        final = clipped_advantages(log_probs - sampled, advantages, clip=self.config.clip)
        return {
            "epochs": float(epochs),
            "divergence": divergence,
            "clipped_share": float(np.mean((final == 0) & (advantages != 0))),
            **metrics,
        }
