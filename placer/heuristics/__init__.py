"""Rules that place without learning: the placements a learned one must beat.

Each is a pure function of a profile and a grouping that returns an action for each
group. Where the device a rule wants is not permitted to a group, the group goes to the
fastest device that is. Rules that count memory refuse what does not fit.
"""

from placer.heuristics.baechi import m_etf, m_sct, m_topo
from placer.heuristics.catalog import HEURISTICS, heuristic_placements, heuristic_rules
from placer.heuristics.expert import expert
from placer.heuristics.heft import heft
from placer.heuristics.partitioners import metis_min_cut, scotch_mapping
from placer.heuristics.simple import random_placement, round_robin, single_device

__all__ = [
    "HEURISTICS",
    "expert",
    "heft",
    "heuristic_placements",
    "heuristic_rules",
    "m_etf",
    "m_sct",
    "m_topo",
    "metis_min_cut",
    "random_placement",
    "round_robin",
    "scotch_mapping",
    "single_device",
]
