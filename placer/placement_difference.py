"""How far two placements of the same groups are apart.

Devices that nothing tells apart may exchange their names, so the second placement is first
renamed to be as near to the first as it can be: within each class of such devices an assignment
problem (Kuhn, 1955). Of the best renamings the one that moves the least compute time is taken.

Array shapes: G groups, D devices.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from placer.errors import InvalidValueError
from placer.graph import FloatArray, IntArray
from placer.grouping import Grouping
from placer.profile import Profile
from placer.search.space import interchangeable_devices
from placer.traffic import group_compute_time_s

_NUM_LARGEST = 5


@dataclasses.dataclass(frozen=True, eq=False)
class GroupedProfile:
    """What was placed.

    Attributes:
        profile: The graph and its costs.
        grouping: Its groups.
    """

    profile: Profile
    grouping: Grouping


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlacementDifference:
    """How far a second placement is from a first.

    Attributes:
        num_groups: G.
        num_moved: Groups on another device, after the best renaming of devices.
        moved_time_share: Their share of the compute time, as the first placement has it; None
            if the profile is not known, or nothing takes any time.
        largest_moved: Names of the moved groups that compute longest, these first.
    """

    num_groups: int
    num_moved: int
    moved_time_share: float | None = None
    largest_moved: tuple[str, ...] = ()

    @property
    def moved_share(self) -> float:
        """Share of the groups that are on another device."""
        return self.num_moved / self.num_groups


def placement_difference(
    first: Sequence[int], second: Sequence[int], grouped: GroupedProfile | None
) -> PlacementDifference:
    """Return how far the second placement is from the first.

    Args:
        first: Device of each group, ``[G]``.
        second: The same of the other placement, ``[G]``.
        grouped: What was placed. If None, no device is renamed and times are not known.

    Raises:
        InvalidValueError: If they are of different numbers of groups, or of none.
    """
    before, after = np.array(first, dtype=np.int64), np.array(second, dtype=np.int64)
    if len(before) != len(after) or not len(before):
        raise InvalidValueError(
            f"placements must be of the same groups, got {len(before)} and {len(after)}"
        )
    if grouped is None:
        return PlacementDifference(
            num_groups=len(before), num_moved=int(np.count_nonzero(before != after))
        )
    compute_time_s = group_compute_time_s(grouped.profile, grouped.grouping)
    time_s = compute_time_s[np.arange(len(before)), before]
    class_of_device = interchangeable_devices(grouped.profile)
    moved = before != nearest_names(before, after, class_of_device, time_s)[after]
    total_s = float(time_s.sum())
    by_time = np.flatnonzero(moved)[np.argsort(-time_s[moved], kind="stable")]
    return PlacementDifference(
        num_groups=len(before),
        num_moved=int(np.count_nonzero(moved)),
        moved_time_share=float(time_s[moved].sum()) / total_s if total_s else None,
        largest_moved=tuple(group_name(grouped, group) for group in by_time[:_NUM_LARGEST]),
    )


def nearest_names(
    first: IntArray, second: IntArray, class_of_device: IntArray, time_s: FloatArray
) -> IntArray:
    """Return the new name of each device of the second placement, ``[D]``.

    Args:
        first: Device of each group, ``[G]``.
        second: The same of the placement to rename, ``[G]``.
        class_of_device: Equal for devices that may exchange their names, ``[D]``.
        time_s: Compute time of each group, ``[G]``: decides between equally good renamings.
    """
    num_devices = len(class_of_device)
    agreement = np.zeros((num_devices, num_devices))
    # All groups together weigh less than one more group that agrees.
    shares = 0.5 * time_s / time_s.sum() if time_s.any() else np.zeros(len(time_s))
    np.add.at(agreement, (second, first), 1 + shares)
    names = np.arange(num_devices)
    for number in np.unique(class_of_device):
        alike = np.flatnonzero(class_of_device == number)
        rows, columns = linear_sum_assignment(agreement[np.ix_(alike, alike)], maximize=True)
        names[alike[rows]] = alike[columns]
    return names


def group_name(grouped: GroupedProfile, group: int) -> str:
    """Return how to call a group: its module, or its op that computes longest."""
    ops = grouped.grouping.ops_of_group[group]
    graph = grouped.profile.graph
    module: str = graph.ops[ops[0]].module
    if module and all(graph.ops[op].module == module for op in ops):
        return module
    longest = ops[np.argmax(grouped.profile.compute_time_s[ops].max(axis=1))]
    others = f" and {len(ops) - 1:,} more" if len(ops) > 1 else ""
    return f"{graph.ops[longest].name}{others}"
