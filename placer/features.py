"""What a policy sees of each group: op types, output shapes, neighbours, permitted devices.

Mirhoseini et al. (2017), section 3: an op is described by its type, the sizes of its
outputs and its adjacency; the sequence is in topological order. Here a group stands where
the paper has an op, as in the authors' later controller: its types are counted, its
largest outputs are listed, and its adjacency is to other groups. Groups are numbered in
topological order already, so row g is step g of the sequence.

Array shapes: N ops, G groups, V op types, D devices.
"""

import dataclasses

import numpy as np

from placer.errors import InvalidValueError
from placer.graph import BoolArray, FloatArray, OpGraph
from placer.grouping import Grouping
from placer.profile import Profile

MAX_OUTPUTS = 4
"""Outputs described of each group: its largest ones, the largest first."""

MAX_RANK = 4
"""Dimensions described of each output: its first ones."""


@dataclasses.dataclass(frozen=True, eq=False)
class GroupFeatures:
    """The input sequence of a policy, one row a group.

    Attributes:
        op_types: The graph's op types in alphabetical order, V of them: the vocabulary of
            the type embedding that a policy trains.
        type_shares: Share of the group's ops that are of each type, ``[G, V]``; rows sum to 1.
        output_shapes: ``log(1 + size)`` of the first ``MAX_RANK`` dimensions of the
            ``MAX_OUTPUTS`` largest outputs, zero where there is none and where a size is
            not known, ``[G, MAX_OUTPUTS * MAX_RANK]``.
        traffic_bytes: Bytes from the row's group to the column's, each tensor counted once
            for each group that consumes it; the diagonal is zero, ``[G, G]``.
        adjacent: True where the row's group has a tensor, or a control edge, for the
            column's, ``[G, G]``; False on the diagonal.
        allowed: True where the group may go, ``[G, D]``.

    Raises:
        InvalidValueError: If shapes disagree or a group has no permitted device.
    """

    op_types: tuple[str, ...]
    type_shares: FloatArray
    output_shapes: FloatArray
    traffic_bytes: FloatArray
    adjacent: BoolArray
    allowed: BoolArray

    def __post_init__(self) -> None:
        groups = self.num_groups
        for what, shape in (
            ("type_shares", (groups, len(self.op_types))),
            ("output_shapes", (groups, MAX_OUTPUTS * MAX_RANK)),
            ("traffic_bytes", (groups, groups)),
            ("adjacent", (groups, groups)),
        ):
            found = getattr(self, what).shape
            if found != shape:
                raise InvalidValueError(f"{what} must have shape {shape}, got {found}")
        if not self.allowed.any(axis=1).all():
            group = int(np.argmin(self.allowed.any(axis=1)))
            raise InvalidValueError(f"group {group} has no permitted device")

    @property
    def num_groups(self) -> int:
        """Number of groups, G."""
        return len(self.allowed)

    @property
    def num_devices(self) -> int:
        """Number of devices, D."""
        return int(self.allowed.shape[1])


def group_features(profile: Profile, grouping: Grouping) -> GroupFeatures:
    """Return what a policy sees of a profile under a grouping.

    Raises:
        InvalidValueError: If the grouping is not one of this graph.
        InfeasibleError: If a group has no permitted device.
    """
    allowed = grouping.allowed(profile)
    op_types, type_shares = _type_shares(profile.graph, grouping)
    traffic_bytes, adjacent = _traffic(profile.graph, grouping)
    return GroupFeatures(
        op_types=op_types,
        type_shares=type_shares,
        output_shapes=_output_shapes(profile.graph, grouping),
        traffic_bytes=traffic_bytes,
        adjacent=adjacent,
        allowed=allowed,
    )


def _type_shares(graph: OpGraph, grouping: Grouping) -> tuple[tuple[str, ...], FloatArray]:
    op_types = tuple(sorted({op.type for op in graph.ops}))
    column_of_type = {op_type: column for column, op_type in enumerate(op_types)}
    columns = np.array([column_of_type[op.type] for op in graph.ops])
    counts = np.zeros((grouping.num_groups, len(op_types)))
    np.add.at(counts, (grouping.group_of_op, columns), 1)
    return op_types, counts / counts.sum(axis=1, keepdims=True)


def _output_shapes(graph: OpGraph, grouping: Grouping) -> FloatArray:
    table = np.zeros((grouping.num_groups, MAX_OUTPUTS, MAX_RANK))
    for group, ops in enumerate(grouping.ops_of_group):
        shapes = [np.maximum(shape, 0) for op in ops for shape in graph.ops[op].output_shapes]
        # The sort is stable: of equally large outputs the one of the lower op comes first.
        shapes.sort(key=lambda shape: float(np.prod(shape, dtype=np.float64)), reverse=True)
        for output, shape in enumerate(shapes[:MAX_OUTPUTS]):
            sizes = shape[:MAX_RANK]
            table[group, output, : len(sizes)] = np.log1p(sizes)
    return table.reshape(grouping.num_groups, MAX_OUTPUTS * MAX_RANK)


def _traffic(graph: OpGraph, grouping: Grouping) -> tuple[FloatArray, BoolArray]:
    traffic_bytes = np.zeros((grouping.num_groups, grouping.num_groups))
    adjacent = np.zeros(traffic_bytes.shape, dtype=np.bool_)
    for tensor in graph.tensors:
        source = grouping.group_of_op[tensor.producer]
        # A tensor moves once to a group, however many of its ops consume it.
        destinations = np.unique(grouping.group_of_op[list(tensor.consumers)])
        traffic_bytes[source, destinations] += tensor.size_bytes
        adjacent[source, destinations] = True
    np.fill_diagonal(traffic_bytes, 0)
    np.fill_diagonal(adjacent, False)
    return traffic_bytes, adjacent
