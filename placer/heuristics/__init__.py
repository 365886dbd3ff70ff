"""Rules that place without learning: the placements a learned one must beat.

Each is a pure function of a profile and a grouping that returns an action for each
group. Where the device a rule wants is not permitted to a group, the group goes to the
fastest device that is.
"""

from placer.heuristics.catalog import heuristic_placements
from placer.heuristics.expert import expert
from placer.heuristics.partitioners import metis_min_cut, scotch_mapping
from placer.heuristics.simple import random_placement, round_robin, single_device

__all__ = [
    "expert",
    "heuristic_placements",
    "metis_min_cut",
    "random_placement",
    "round_robin",
    "scotch_mapping",
    "single_device",
]
