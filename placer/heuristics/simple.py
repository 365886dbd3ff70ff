"""Placements that look at no traffic: one device, in turn, at random."""

import numpy as np

from placer.errors import InvalidValueError
from placer.grouping import Grouping
from placer.heuristics.permitted import accelerators, permitted, random_permitted
from placer.policy import Actions
from placer.profile import Profile


def single_device(profile: Profile, grouping: Grouping, device: int) -> Actions:
    """Return all groups on one device, ``[G]``; those that may not, on their fastest.

    Raises:
        InvalidValueError: If the topology has no such device.
    """
    num_devices = profile.topology.num_devices
    if not 0 <= device < num_devices:
        raise InvalidValueError(f"device must be from 0 to {num_devices - 1}, got {device}")
    return permitted(profile, grouping, np.full(grouping.num_groups, device))


def round_robin(profile: Profile, grouping: Grouping) -> Actions:
    """Return the groups dealt to the accelerators in turn, in topological order, ``[G]``."""
    targets = accelerators(profile.topology)
    return permitted(profile, grouping, targets[np.arange(grouping.num_groups) % len(targets)])


def random_placement(profile: Profile, grouping: Grouping, *, seed: int = 0) -> Actions:
    """Return each group on one of its permitted devices, all equally likely, ``[G]``."""
    rng = np.random.default_rng(seed)
    drawn: Actions = random_permitted(grouping.allowed(profile), rng, 1)[0]
    return drawn
