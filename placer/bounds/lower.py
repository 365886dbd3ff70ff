"""The sharpest of all bounds."""

import dataclasses
import math

from placer.bounds.cut import cut_s
from placer.bounds.program import is_small, program_s
from placer.bounds.relaxed import critical_path_s, one_machine_s, work_s
from placer.grouping import Grouping
from placer.profile import Profile


@dataclasses.dataclass(frozen=True, slots=True)
class Bound:
    """A time that no placement that fits the memory is below.

    Attributes:
        name: Which bound it is.
        seconds: The time.
    """

    name: str
    seconds: float

    def gap(self, makespan_s: float | None) -> float | None:
        """Return how far a makespan is above the bound, as a share of the bound.

        None if there is no makespan, or the bound is zero. Zero or less says that the
        placement is the best there is.
        """
        return None if makespan_s is None or self.seconds <= 0 else makespan_s / self.seconds - 1


def lower_bound(profile: Profile, grouping: Grouping) -> Bound:
    """Return the sharpest bound; of equal ones, the simplest.

    The program, of which a small graph takes seconds, is solved only if the profile is small.
    If no placement fits the memory, the bounds that know it are left out.

    Raises:
        InfeasibleError: If a group has no permitted device.
    """
    bounds = [
        Bound("critical path", critical_path_s(profile, grouping)),
        Bound("work", work_s(profile, grouping)),
        Bound("one machine", one_machine_s(profile, grouping)),
        Bound("cut", cut_s(profile, grouping)),
    ]
    known_s = max(bound.seconds for bound in bounds)
    if is_small(profile) and known_s < math.inf:
        bounds.append(Bound("program", program_s(profile, grouping, known_s=known_s)))
    finite = (bound for bound in bounds if bound.seconds < math.inf)
    return max(finite, key=lambda bound: bound.seconds)
