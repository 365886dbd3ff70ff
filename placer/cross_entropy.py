"""The cross-entropy method with self-imitation: learn from the best, and from nothing else.

An update makes the fastest placements of its batch likelier (the cross-entropy method, de Boer et
al., 2005), and with them the fastest distinct placements of the whole training so far
(self-imitation, Oh et al., 2018). There is no baseline and no failing signal to tune, and the scale
of step times does not matter: what could not run is never among the best. The price is that
nothing is learned from what was slow.

Imitation is right whichever policy drew the placement, so several batches in flight need no
correction.

What is remembered begins anew where the environment changes: a prediction is not to be compared
with a measurement.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from placer.batch_trainer import Batch, BatchTrainer, TrainerConfig, trial_from_json
from placer.errors import InvalidValueError
from placer.graph import FloatArray
from placer.policy import Actions, Policy
from placer.ranking import fastest_first
from placer.trials import Trial


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CrossEntropyConfig(TrainerConfig):
    """How a policy is trained; see ``TrainerConfig`` for what all trainers share.

    Attributes:
        elite_share: Of a batch, the share that is imitated, rounded up. De Boer et al. (2005)
            have 0.01 to 0.1 for samples of hundreds.
        num_remembered: Of the fastest distinct placements of the training, how many are
            imitated at every update; 0 is the plain method.
        imitation: Weight of the remembered ones together, relative to the batch's elite.
    """

    elite_share: float = 0.25
    num_remembered: int = 4
    imitation: float = 1.0

    def __post_init__(self) -> None:
        TrainerConfig.__post_init__(self)
        if not 0 < self.elite_share <= 1:
            raise InvalidValueError(f"elite_share must be in (0, 1], got {self.elite_share}")
        if self.num_remembered < 0:
            raise InvalidValueError(
                f"num_remembered must not be negative, got {self.num_remembered}"
            )
        if not 0 <= self.imitation < math.inf:
            raise InvalidValueError(
                f"imitation must be finite and not negative, got {self.imitation}"
            )

    @property
    def num_elite(self) -> int:
        """Placements of a batch that are imitated at most."""
        return math.ceil(self.elite_share * self.batch_size)


class CrossEntropyTrainer(BatchTrainer):
    """Improves a policy by imitating the fastest placements; see ``BatchTrainer``.

    Attributes:
        remembered: The fastest distinct placements so far, the fastest first.
    """

    config: CrossEntropyConfig

    def __init__(self, policy: Policy, config: CrossEntropyConfig) -> None:
        super().__init__(policy, config)
        self.remembered: list[Trial] = []

    def _learn(self, batch: Batch) -> Mapping[str, float]:
        """Imitate; ``elite_reward_mean`` is that of the batch's elite, if any ran."""
        config = self.config
        if batch.is_elsewhere:
            self.remembered = []
        elite = fastest_first(batch.trials)[: config.num_elite]
        self.remembered = _distinct([*self.remembered, *elite], config.num_remembered)
        actions = [
            _rows(elite, config.num_elite, batch),
            _rows(self.remembered, config.num_remembered, batch),
        ]
        weights = [
            _weights(len(elite), config.num_elite, 1.0),
            _weights(len(self.remembered), config.num_remembered, config.imitation),
        ]
        num_rows = config.num_elite + config.num_remembered
        # The policy takes the mean over all rows: this makes it a mean over the elite.
        metrics = self.policy.update(np.concatenate(actions), num_rows * np.concatenate(weights))
        if not elite:
            return metrics
        rewards = [batch.rewards[trial.number - batch.trials[0].number] for trial in elite]
        return {"elite_reward_mean": float(np.mean(rewards)), **metrics}

    def _memory(self) -> Mapping[str, Any]:
        return {"remembered": [dataclasses.asdict(trial) for trial in self.remembered]}

    def _remember(self, memory: Mapping[str, Any]) -> None:
        trials = [trial_from_json(fields) for fields in memory["remembered"]]
        self.remembered = [trial for trial in trials if trial is not None]


def _distinct(trials: Sequence[Trial], limit: int) -> list[Trial]:
    """Return the fastest trials of different placements."""
    first: dict[tuple[int, ...], Trial] = {}
    for trial in fastest_first(trials):
        first.setdefault(trial.device_of_group, trial)
    return list(first.values())[:limit]


def _rows(trials: Sequence[Trial], num_rows: int, batch: Batch) -> Actions:
    """Return the actions of the trials, filled up with others, which are to weigh nothing.

    There are as many rows at every update, so that a policy is compiled for them once.
    """
    rows = batch.actions[np.arange(num_rows) % len(batch.actions)]
    for row, trial in enumerate(trials):
        rows[row] = trial.device_of_group
    return rows


def _weights(count: int, num_rows: int, total: float) -> FloatArray:
    """Return ``total`` in equal parts for the first ``count`` rows, and 0 for the rest."""
    weights = np.zeros(num_rows)
    weights[:count] = total / max(count, 1)
    return weights
