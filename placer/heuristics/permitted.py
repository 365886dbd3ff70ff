"""What every heuristic needs to know of devices: the accelerators, and what is permitted.

Array shapes: G groups, D devices, A accelerators.
"""

import numpy as np

from placer.devices import DeviceTopology
from placer.graph import BoolArray, IntArray
from placer.grouping import Grouping
from placer.policy import Actions
from placer.profile import Profile
from placer.traffic import group_compute_time_s


def accelerators(topology: DeviceTopology) -> IntArray:
    """Return the devices to spread over, ``[A]``: the GPUs if there are any, else all."""
    gpus = [i for i, device in enumerate(topology.devices) if device.kind == "GPU"]
    return np.array(gpus or range(topology.num_devices), dtype=np.int64)


def fastest_permitted(profile: Profile, grouping: Grouping) -> Actions:
    """Return the permitted device that computes each group soonest, ``[G]``; ties: the first."""
    allowed = grouping.allowed(profile)
    time_s = group_compute_time_s(profile, grouping)
    fastest: Actions = np.where(allowed, time_s, np.inf).argmin(axis=1).astype(np.int32)
    return fastest


def random_permitted(allowed: BoolArray, rng: np.random.Generator, count: int) -> Actions:
    """Return placements with every permitted device equally likely, ``[count, G]``.

    Args:
        allowed: Where each group may go, ``[G, D]``.
        rng: Of the draws.
        count: How many placements.
    """
    scores = rng.random((count, *allowed.shape))
    drawn: Actions = np.where(allowed, scores, -1).argmax(axis=2).astype(np.int32)
    return drawn


def permitted(profile: Profile, grouping: Grouping, wanted: IntArray) -> Actions:
    """Return the wanted devices, ``[G]``, or the fastest permitted where they are not."""
    groups = np.arange(grouping.num_groups)
    is_permitted = grouping.allowed(profile)[groups, wanted]
    chosen = np.where(is_permitted, wanted, fastest_permitted(profile, grouping))
    return chosen.astype(np.int32)
