"""Measuring trials: here and now, or ahead of time on several environments at once.

Trials are begun in the order of their numbers and come back in that order, a few at a time. On one
environment nothing is measured before it is wanted. Ahead of that, or on several environments
(each in a thread of its own), trials that were begun are measured while the caller does
something else, such as updating a policy.
"""

import collections
import concurrent.futures
import dataclasses
import functools
import queue
import time
from collections.abc import Callable, Sequence

from placer.environment import Environment
from placer.errors import InvalidValueError
from placer.grouping import Grouping
from placer.placement import Placement
from placer.trials import Trial


class Measuring:
    """Measures trials in the order in which they were begun. It is a context manager.

    The end of its block waits for what is being measured, and drops what only waits.

    Args:
        environments: Where; all of one name. Each measures one portion at a time.
        grouping: From groups to ops.
        at_once: Trials of an update that are one portion; all of them if None.
        is_ahead: Whether to measure before it is wanted; several environments always do.

    Raises:
        InvalidValueError: If there is no environment, or their names differ.
    """

    def __init__(
        self,
        environments: Sequence[Environment],
        grouping: Grouping,
        *,
        at_once: int | None,
        is_ahead: bool,
    ) -> None:
        names = {environment.name for environment in environments}
        if len(names) != 1:
            raise InvalidValueError(
                f"trials are measured in environments of one name, got {sorted(names)}"
            )
        self._grouping = grouping
        self._at_once = at_once
        self._idle: queue.SimpleQueue[Environment] = queue.SimpleQueue()
        for environment in environments:
            self._idle.put(environment)
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None
        if is_ahead or len(environments) > 1:
            self._pool = concurrent.futures.ThreadPoolExecutor(len(environments), "measuring")
        self._portions: collections.deque[Callable[[], list[Trial]]] = collections.deque()
        self._next_number = 0

    def __enter__(self) -> "Measuring":
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for what is being measured; drop the rest."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def begin(self, trials: Sequence[Trial]) -> None:
        """Begin those trials, by number, that were not begun yet."""
        new = [trial for trial in trials if trial.number >= self._next_number]
        while new:
            update = new[0].update
            portion = [trial for trial in new if trial.update == update][: self._at_once]
            measure = functools.partial(self._measure, portion)
            self._portions.append(
                measure if self._pool is None else self._pool.submit(measure).result
            )
            new = new[len(portion) :]
            self._next_number = portion[-1].number + 1

    def next(self) -> list[Trial]:
        """Return the next portion, measured: trials of one update. Waits if it must."""
        return self._portions.popleft()()

    def _measure(self, trials: Sequence[Trial]) -> list[Trial]:
        placements = [
            Placement.from_groups(self._grouping, trial.device_of_group) for trial in trials
        ]
        environment = self._idle.get()
        try:
            measurements = environment.measure(placements)
        finally:
            self._idle.put(environment)
        finished_at_s = time.time()
        return [
            dataclasses.replace(
                trial,
                environment=environment.name,
                measurement=measurement,
                finished_at_s=finished_at_s,
            )
            for trial, measurement in zip(trials, measurements, strict=True)
        ]
