"""Trials, and the log that keeps them.

The log is the truth: whatever a checkpoint holds can be found again from the trials and
the seed. A checkpoint only shortens the way.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from placer.environment import Measurement


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One sampled placement and, once it was measured, what was found.

    Attributes:
        number: From 0, without a gap within a training.
        update: The policy update that learns from it, from 0.
        device_of_group: The action of each group, ``[G]``.
        method: Who proposed it: ``"policy"`` or a heuristic's name.
        environment: Name of the environment that measured it; empty until then.
        measurement: None until it was measured.
        finished_at_s: Wall-clock time of the measurement, seconds since the epoch.
    """

    number: int
    update: int
    device_of_group: tuple[int, ...]
    method: str = "policy"
    environment: str = ""
    measurement: Measurement | None = None
    finished_at_s: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A trainer's whole state after an update.

    Attributes:
        update: Number of updates made.
        num_trials: Number of trials told so far.
        arrays: Everything with a shape: policy and optimiser variables.
        scalars: Everything else: baseline, best, counters. Plain JSON values.
    """

    update: int
    num_trials: int
    arrays: Mapping[str, npt.NDArray[np.generic]]
    scalars: Mapping[str, Any]


class TrialLog(Protocol):
    """Keeps trials and checkpoints of one training."""

    def append(self, trials: Sequence[Trial], metrics: Mapping[str, float]) -> None:
        """Keep measured trials of one update, and the metrics of an update that they end."""

    def trials(self) -> list[Trial]:
        """Return all trials kept so far, by number."""

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint; after this returns, a kill loses nothing up to it."""

    def load_checkpoint(self) -> Checkpoint | None:
        """Return the last checkpoint that can be read, or None."""


class InMemoryTrialLog:
    """A log for tests and for searches that nobody needs to resume."""

    def __init__(self) -> None:
        self._trials: list[Trial] = []
        self._checkpoint: Checkpoint | None = None
        self.metrics: list[dict[str, float]] = []

    def append(self, trials: Sequence[Trial], metrics: Mapping[str, float]) -> None:
        """Keep measured trials of one update, and the metrics of an update that they end."""
        self._trials.extend(trials)
        self.metrics.append(dict(metrics))

    def trials(self) -> list[Trial]:
        """Return all trials kept so far, by number."""
        return list(self._trials)

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint."""
        self._checkpoint = checkpoint

    def load_checkpoint(self) -> Checkpoint | None:
        """Return the last checkpoint, or None."""
        return self._checkpoint
