"""Lower bounds: how long a step takes at least in the simulation, wherever its groups are.

They hold under the rules of ``placer.simulator`` for every placement of the groups on permitted
devices that fits the memory, and those of ``relaxed`` also for the others. From the simplest to
the sharpest:

* ``relaxed``: critical path, work, one machine. Transfers cost nothing.
* ``cut``: what is not sent must be kept together. Exact arithmetic, as above.
* ``program``: branch and bound, for graphs of some tens of ops. Up to the solver's tolerances.

A schedule behind a bound may start ops in any order. The simulation starts them first come, first
served, so that the best makespan may stay above a bound that is the best there is for free orders.
"""

from placer.bounds.cut import cut_s
from placer.bounds.lower import Bound, lower_bound
from placer.bounds.program import program_s
from placer.bounds.relaxed import critical_path_s, one_machine, one_machine_s, work_s

__all__ = [
    "Bound",
    "critical_path_s",
    "cut_s",
    "lower_bound",
    "one_machine",
    "one_machine_s",
    "program_s",
    "work_s",
]
