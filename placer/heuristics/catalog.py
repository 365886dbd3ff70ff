"""All heuristics that apply to a profile, by name."""

import functools
import logging
from collections.abc import Callable

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

HEURISTICS = (
    "expert", "metis", "scotch", "m-topo", "m-etf", "m-sct", "heft", "round-robin", "random",
)  # fmt: skip
"""Names of the heuristics, beside those of single devices, which a topology names."""


def heuristic_rules(
    profile: Profile, grouping: Grouping, *, seed: int = 0
) -> dict[str, Callable[[], Actions]]:
    """Return every heuristic by its name: called, it returns its actions, ``[G]``.

    The names are ``"single gpu:0"`` and so on for each device, and ``HEURISTICS``. A rule
    raises ``InfeasibleError`` if it does not apply.
    """
    singles: dict[str, Callable[[], Actions]] = {
        f"single {device.name}": functools.partial(single_device, profile, grouping, index)
        for index, device in enumerate(profile.topology.devices)
    }
    return singles | {
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


def heuristic_placements(
    profile: Profile, grouping: Grouping, *, seed: int = 0
) -> dict[str, Actions]:
    """Return the actions, ``[G]``, of every heuristic that applies, by its name.

    The names are those of ``heuristic_rules``. Why one is left out is logged.
    """
    placements: dict[str, Actions] = {}
    for name, rule in heuristic_rules(profile, grouping, seed=seed).items():
        try:
            placements[name] = rule()
        except InfeasibleError as error:
            _LOGGER.info("heuristic %r is left out: %s", name, error)
    return placements
