"""Drives a strategy: measures what it proposes, counts, and keeps the best.

Array shapes: B placements, G groups.
"""

import dataclasses
from collections.abc import Generator

import numpy as np

from placer.environment import Environment, Measurement
from placer.errors import InvalidValueError
from placer.graph import FloatArray
from placer.grouping import Grouping
from placer.placement import Placement
from placer.policy import Actions
from placer.profile import Profile
from placer.reinforce import failing_step_time_s
from placer.search.space import SearchSpace

Strategy = Generator[Actions, FloatArray, None]
"""Yields placements, ``[B, G]``, and is sent their costs in seconds, ``[B]``.

The cost of a placement that runs is its step time. That of one that does not is above the
failing signal, the further the more memory it lacks.
"""

_MOST_KNOWN_IN_A_ROW = 4_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search found.

    Attributes:
        device_of_group: The best placement that ran, ``[G]``; None if none did.
        best_step_time_s: Its step time; None if none ran.
        trajectory_s: The best step time after each evaluation; None until one ran.
    """

    device_of_group: tuple[int, ...] | None
    best_step_time_s: float | None
    trajectory_s: tuple[float | None, ...]

    @property
    def num_evaluations(self) -> int:
        """How many placements were measured."""
        return len(self.trajectory_s)


def run_search(
    strategy: Strategy,
    space: SearchSpace,
    profile: Profile,
    grouping: Grouping,
    environment: Environment,
    *,
    num_trials: int,
) -> SearchResult:
    """Measure what a strategy proposes until ``num_trials`` placements are measured.

    A placement is measured once. Proposed again, or with the names of equal devices
    exchanged, it is answered from memory and is no evaluation. The search also ends if the
    strategy does, or if it proposes nothing new any more.

    Args:
        strategy: Not yet started.
        space: Of the profile and grouping.
        profile: What is placed.
        grouping: Its groups.
        environment: Measures.
        num_trials: At most.

    Raises:
        InvalidValueError: If ``num_trials`` is not positive.
    """
    if num_trials < 1:
        raise InvalidValueError(f"num_trials must be at least 1, got {num_trials}")
    evaluations = _Evaluations(space, profile, grouping, environment, num_trials)
    try:
        actions = next(strategy)
        while not evaluations.is_over:
            costs = evaluations.costs(actions)
            if evaluations.is_over:
                break
            actions = strategy.send(costs)
    except StopIteration:
        pass
    finally:
        strategy.close()
    return evaluations.result()


class _Evaluations:
    """Counts and remembers what was measured."""

    def __init__(
        self,
        space: SearchSpace,
        profile: Profile,
        grouping: Grouping,
        environment: Environment,
        num_trials: int,
    ) -> None:
        self._space = space
        self._grouping = grouping
        self._environment = environment
        self._left = num_trials
        self._memory_bytes = profile.topology.memory_bytes
        self._failing_s = failing_step_time_s(profile)
        self._cost_of: dict[bytes, float] = {}
        self._known_in_a_row = 0
        self._trajectory_s: list[float | None] = []
        self._best: tuple[float, Actions] | None = None

    @property
    def is_over(self) -> bool:
        return self._left == 0 or self._known_in_a_row >= _MOST_KNOWN_IN_A_ROW

    def costs(self, actions: Actions) -> FloatArray:
        """Measure what is not known yet, as far as the budget goes; return all costs, ``[B]``.

        If the budget ends within, the costs of the rest are infinite.
        """
        named = self._space.canonical(actions)
        keys = [row.tobytes() for row in named]
        new = {key: i for i, key in enumerate(keys) if key not in self._cost_of}
        self._known_in_a_row = 0 if new else self._known_in_a_row + len(keys)
        chosen = list(new.values())[: self._left]
        placements = [Placement.from_groups(self._grouping, named[i]) for i in chosen]
        for i, found in zip(chosen, self._environment.measure(placements), strict=True):
            self._keep(keys[i], named[i], found)
        return np.array([self._cost_of.get(key, np.inf) for key in keys])

    def _keep(self, key: bytes, actions: Actions, found: Measurement) -> None:
        self._left -= 1
        self._cost_of[key] = self._cost(found)
        time_s = found.step_time_s
        if time_s is not None and (self._best is None or time_s < self._best[0]):
            self._best = (time_s, actions.copy())
        self._trajectory_s.append(None if self._best is None else self._best[0])

    def _cost(self, found: Measurement) -> float:
        if found.step_time_s is not None:
            return found.step_time_s
        if not found.peak_memory_bytes:
            return self._failing_s
        lacking = np.maximum(np.array(found.peak_memory_bytes) - self._memory_bytes, 0).sum()
        return self._failing_s * float(1 + lacking / max(np.sum(found.peak_memory_bytes), 1))

    def result(self) -> SearchResult:
        return SearchResult(
            device_of_group=None if self._best is None else tuple(self._best[1].tolist()),
            best_step_time_s=None if self._best is None else self._best[0],
            trajectory_s=tuple(self._trajectory_s),
        )
