"""m-TOPO, m-ETF and m-SCT: placements by scheduling, within the devices' memory.

Jeon et al., *Baechi: Fast Device Placement of Machine Learning Graphs* (SoCC 2020). All three
take devices to be equally fast. Where there are GPUs, groups that may run there are spread
over them, and only the others go to a CPU. How memory is counted and how groups are
pinned is in ``placer.heuristics.partial_schedule``.

Array shapes: G groups, D devices.
"""

from placer.graph import FloatArray, IntArray
from placer.grouping import Grouping
from placer.heuristics.etf import EarliestTaskFirst
from placer.heuristics.favorites import favorite_children
from placer.heuristics.partial_schedule import PinnedGroups, accelerator_choices, group_bytes
from placer.heuristics.permitted import accelerators
from placer.policy import Actions
from placer.profile import Profile
from placer.traffic import group_compute_time_s


def m_topo(profile: Profile, grouping: Grouping) -> Actions:
    """Fill one accelerator after another with the groups in topological order, ``[G]``.

    An accelerator takes groups until the next would bring it above an equal share of all
    groups' bytes and the largest group's; the first have more than their share and the
    last less, as in Baechi. Where groups have no bytes their compute times are shared instead.
    Groups that find no room further on, and those that may run on no accelerator, go to the
    fastest device that has room.

    Raises:
        InfeasibleError: If a group has no permitted device, or fits on none.
    """
    choices = accelerator_choices(profile, grouping)
    groups = PinnedGroups(profile, grouping, choices)
    targets = accelerators(profile.topology)
    time_s = group_compute_time_s(profile, grouping)
    sizes: list[float] = _sizes(profile, grouping, time_s[:, targets]).tolist()
    shared = [size for size, row in zip(sizes, choices[:, targets], strict=True) if row.any()]
    most = sum(shared) / len(targets) + max(shared, default=0)
    filled = dict.fromkeys(targets.tolist(), 0.0)
    current, last = min(filled), max(filled)
    for group in dict.fromkeys(grouping.group_of_op[profile.graph.topological_order].tolist()):
        devices = groups.devices(group)
        ahead = [
            device
            for device in filled
            if device >= current
            and device in devices
            and (device == last or filled[device] + sizes[group] <= most)
        ]
        device = ahead[0] if ahead else min(devices, key=time_s[group].__getitem__)
        groups.pin(group, device)
        if device in filled:
            filled[device] += sizes[group]
            current = max(current, device)
    return groups.actions


def _sizes(profile: Profile, grouping: Grouping, time_s: FloatArray) -> IntArray | FloatArray:
    """Return by what groups are shared among devices, ``[G]``."""
    size_bytes = group_bytes(profile, grouping)
    mean_s: FloatArray = time_s.mean(axis=1)
    return size_bytes if size_bytes.any() else mean_s


def m_etf(profile: Profile, grouping: Grouping) -> Actions:
    """Schedule the op that can start first, where it can, until all are placed, ``[G]``.

    The rule is in ``placer.heuristics.etf``. One accelerator after the other is
    filled if transfers are slow, and all share the work if they are fast.

    Raises:
        InfeasibleError: If a group has no permitted device, or fits on none.
    """
    return EarliestTaskFirst(profile, grouping).run()


def m_sct(profile: Profile, grouping: Grouping) -> Actions:
    """Schedule as ``m_etf``, but keep devices free for favourite children, ``[G]``.

    The rule is in ``placer.heuristics.etf``; which consumer of an op is its favourite child is
    found by linear programming in ``placer.heuristics.favorites``.

    Raises:
        InfeasibleError: If a group has no permitted device, or fits on none.
    """
    favorites: list[int] = favorite_children(profile, grouping).tolist()
    return EarliestTaskFirst(profile, grouping, favorites).run()
