"""What an environment is: something that says how long a placement's step takes."""

import dataclasses
import enum
import math
from collections.abc import Sequence
from typing import Protocol

from placer.errors import InvalidValueError
from placer.placement import Placement

REAL = "real"
"""The name of the environment that measures on the real devices."""


class Outcome(enum.StrEnum):
    """How the measurement of a placement ended."""

    OK = "OK"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    TIMED_OUT = "TIMED_OUT"
    CRASHED = "CRASHED"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What was found for one placement.

    Attributes:
        outcome: Whether the step ran, or why not.
        step_time_s: Median seconds of one step (the makespan, in a simulation); None
            exactly if the outcome is not OK.
        samples_s: The timed steps behind the median; empty for a simulation.
        peak_memory_bytes: Of each device; empty if unknown.
        detail: One line for people: which device ran out, which limit was met.
    """

    outcome: Outcome
    step_time_s: float | None = None
    samples_s: tuple[float, ...] = ()
    peak_memory_bytes: tuple[int, ...] = ()
    detail: str = ""

    def __post_init__(self) -> None:
        if (self.step_time_s is None) == (self.outcome is Outcome.OK):
            raise InvalidValueError(
                f"a step time belongs to outcome OK alone, got {self.step_time_s}"
                f" with {self.outcome}"
            )
        if self.step_time_s is not None and not 0 <= self.step_time_s < math.inf:
            raise InvalidValueError(
                f"step_time_s must be finite and not negative, got {self.step_time_s}"
            )


class Environment(Protocol):
    """Measures placements. A placement that cannot run is an outcome, never an exception."""

    @property
    def name(self) -> str:
        """``"simulated"``, ``"real"``, …: kept with every trial."""

    def measure(self, placements: Sequence[Placement]) -> list[Measurement]:
        """Return one measurement for each placement, in order.

        Raises:
            InvalidValueError: If a placement is of another number of ops or names a
                device that the topology does not have.
        """
