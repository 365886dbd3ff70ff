"""All heuristics that apply to a profile, by name."""

import logging
from collections.abc import Callable, Mapping

from placer.errors import InfeasibleError
from placer.grouping import Grouping
from placer.heuristics.baechi import m_etf, m_sct, m_topo
from placer.heuristics.expert import expert
from placer.heuristics.heft import heft
from placer.heuristics.partitioners import metis_min_cut, scotch_mapping
from placer.heuristics.simple import random_placement, round_robin, single_device
from placer.policy import Actions
from placer.profile import Profile

_LOGGER = logging.getLogger(__name__)


def heuristic_placements(
    profile: Profile, grouping: Grouping, *, seed: int = 0
) -> dict[str, Actions]:
    """Return the actions, ``[G]``, of every heuristic that applies, by its name.

    The names are ``"single gpu:0"`` and so on for each device, ``"expert"``, ``"metis"``,
    ``"scotch"``, ``"m-topo"``, ``"m-etf"``, ``"m-sct"``, ``"heft"``, ``"round-robin"`` and
    ``"random"``. Why one is left out is logged.
    """
    placements = {
        f"single {device.name}": single_device(profile, grouping, index)
        for index, device in enumerate(profile.topology.devices)
    }
    rules: Mapping[str, Callable[[], Actions]] = {
        "expert": lambda: expert(profile, grouping),
        "metis": lambda: metis_min_cut(profile, grouping, seed=seed),
        "scotch": lambda: scotch_mapping(profile, grouping, seed=seed),
        "m-topo": lambda: m_topo(profile, grouping),
        "m-etf": lambda: m_etf(profile, grouping),
        "m-sct": lambda: m_sct(profile, grouping),
        "heft": lambda: heft(profile, grouping),
        "round-robin": lambda: round_robin(profile, grouping),
        "random": lambda: random_placement(profile, grouping, seed=seed),
    }
    for name, rule in rules.items():
        try:
            placements[name] = rule()
        except InfeasibleError as error:
            _LOGGER.info("heuristic %r is left out: %s", name, error)
    return placements
