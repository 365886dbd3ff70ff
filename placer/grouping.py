"""Groupings: ops that move together.

Array shapes: N ops, G groups, D devices.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from placer.errors import InfeasibleError, InvalidValueError
from placer.fingerprint import fingerprint
from placer.graph import BoolArray, IntArray, OpGraph
from placer.profile import Profile


@dataclasses.dataclass(frozen=True, eq=False)
class Grouping:
    """The group of every op, ``[N]``; groups are 0 … G-1 and none is empty.

    Raises:
        InvalidValueError: If a number is missing or negative.
    """

    group_of_op: IntArray

    def __init__(self, group_of_op: Sequence[int] | npt.NDArray[np.integer]) -> None:
        array = np.array(group_of_op, dtype=np.int64)
        if array.ndim != 1 or array.size == 0:
            raise InvalidValueError(f"a grouping names one group an op, got shape {array.shape}")
        if not np.array_equal(np.unique(array), np.arange(array.max() + 1)):
            raise InvalidValueError("groups must be numbered from 0 without a gap")
        array.setflags(write=False)
        object.__setattr__(self, "group_of_op", array)

    @classmethod
    def in_topological_order(cls, graph: OpGraph, keys: Sequence[object]) -> "Grouping":
        """Return the grouping by equal keys, numbered by the topological order of first ops."""
        number_of_key: dict[object, int] = {}
        for op in graph.topological_order:
            number_of_key.setdefault(keys[op], len(number_of_key))
        return cls([number_of_key[key] for key in keys])

    @property
    def num_groups(self) -> int:
        """Number of groups."""
        return int(self.group_of_op.max()) + 1

    @functools.cached_property
    def ops_of_group(self) -> tuple[IntArray, ...]:
        """The ops of each group, ascending."""
        order = np.argsort(self.group_of_op, kind="stable")
        bounds = np.searchsorted(self.group_of_op[order], np.arange(1, self.num_groups))
        return tuple(np.split(order, bounds))

    @functools.cached_property
    def fingerprint(self) -> str:
        """A name for the content."""
        return fingerprint(["grouping 1", self.group_of_op])

    def check(self, graph: OpGraph) -> None:
        """Check that this is a grouping of the graph.

        Raises:
            InvalidValueError: If it is of another number of ops, or colocated ops differ.
        """
        if len(self.group_of_op) != graph.num_ops:
            raise InvalidValueError(
                f"the grouping is of {len(self.group_of_op)} ops, the graph has {graph.num_ops}"
            )
        for ops in graph.colocations:
            if len(set(self.group_of_op[list(ops)].tolist())) > 1:
                name = graph.ops[ops[0]].colocation
                raise InvalidValueError(f"ops colocated as {name!r} are in different groups")

    def allowed(self, profile: Profile) -> BoolArray:
        """Return where each group may go: the devices permitted to all its ops, ``[G, D]``.

        Raises:
            InfeasibleError: If a group has no permitted device; the message names two ops
                whose kinds of device exclude each other.
        """
        self.check(profile.graph)
        forbidden = np.zeros((self.num_groups, profile.topology.num_devices), dtype=np.bool_)
        np.logical_or.at(forbidden, self.group_of_op, ~profile.allowed)
        for group in np.flatnonzero(forbidden.all(axis=1)):
            ops = [profile.graph.ops[op] for op in self.ops_of_group[group]]
            kinds = sorted({f"{op.name!r} needs {'/'.join(op.device_kinds)}" for op in ops})
            raise InfeasibleError(f"group {group} has no permitted device: {'; '.join(kinds[:3])}")
        return ~forbidden
