"""Grouping of ops, as the paper does it (Mirhoseini et al., 2017, section 3.3).

1. Ops that TensorFlow or a variable ties together form a group.
2. Model rules: ops of one module (an LSTM step of a layer, a convolution's layer) form a
   group, and their gradients and updates with them.
3. An op whose outputs all go to one group joins that group, repeatedly.
4. If groups are still too many, METIS joins those that send each other most.

Groups are joined only if the same kinds of device are permitted to both: an op that runs
on the CPU alone never keeps a movable group there. Only colocation, which leaves no
choice, narrows the kinds.

Between steps a grouping is an array with the group of each op, numbered from 0 without a
gap; kinds of device are bits, one for each of ``DEVICE_KINDS``. Array shapes: N ops,
G groups.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from placer.errors import InfeasibleError, InvalidValueError, UnknownNameError
from placer.graph import DEVICE_KINDS, FloatArray, IntArray, OpGraph
from placer.grouping import Grouping
from placer.metis import partition
from placer.profile import Profile
from placer.traffic import group_traffic

METHODS = ("auto", "colocation")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupingConfig:
    """How ops are grouped.

    Attributes:
        method: ``"colocation"`` applies steps 1 and 4 alone. ``"auto"`` applies all four,
            but step 3 in a graph without modules only if groups are too many.
        max_groups: The cap of step 4. The default is that of TensorFlow's later hierarchical
            controller; the largest model of the paper (NMT, 248 groups) is left whole.
            Each set of permitted kinds keeps at least one group.
    """

    method: str = "auto"
    max_groups: int = 256

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UnknownNameError("grouping method", self.method, METHODS)
        if self.max_groups < 1:
            raise InvalidValueError(f"max_groups must be at least 1, got {self.max_groups}")


@dataclasses.dataclass(frozen=True, eq=False)
class GroupingResult:
    """A grouping and how it came about.

    Attributes:
        grouping: Numbered in topological order of the groups' first ops.
        num_groups_after: Number of groups after each step that was made, in order; the
            first entry, ``"ops"``, is the number of ops.
    """

    grouping: Grouping
    num_groups_after: Mapping[str, int]


DEFAULT_CONFIG = GroupingConfig()


def group_ops(profile: Profile, config: GroupingConfig = DEFAULT_CONFIG) -> GroupingResult:
    """Return the grouping of a profile's ops.

    Raises:
        InfeasibleError: If colocated ops have no kind of device in common.
    """
    graph = profile.graph
    groups = colocate(graph)
    kinds = common_kinds(graph, groups)
    counts = {"ops": graph.num_ops, "colocation": _count(groups)}
    if config.method == "auto" and any(op.module for op in graph.ops):
        groups = join_modules(graph, groups, kinds)
        counts["modules"] = _count(groups)
        groups = join_sole_consumers(graph, groups, kinds)
        counts["sole consumers"] = _count(groups)
    elif config.method == "auto" and _count(groups) > config.max_groups:
        time_s = profile.compute_time_s.mean(axis=1)
        share_s = time_s.sum() / config.max_groups
        groups = join_sole_consumers(graph, groups, kinds, time_s=time_s, max_time_s=share_s)
        counts["sole consumers"] = _count(groups)
    if _count(groups) > config.max_groups:
        groups = cap_groups(profile, groups, kinds, config.max_groups)
        counts["cap"] = _count(groups)
    return GroupingResult(Grouping.in_topological_order(graph, groups.tolist()), counts)


def colocate(graph: OpGraph) -> IntArray:
    """Return step 1: colocated ops share a group, every other op is a group, ``[N]``."""
    groups = np.arange(graph.num_ops)
    for ops in graph.colocations:
        groups[list(ops)] = ops[0]
    return _renumber(groups)


def common_kinds(graph: OpGraph, groups: IntArray) -> IntArray:
    """Return the kinds of device that all ops of each op's group permit, as bits, ``[N]``.

    Raises:
        InfeasibleError: If a group has none; the message names two ops that exclude
            each other.
    """
    bits = [sum(1 << DEVICE_KINDS.index(kind) for kind in op.device_kinds) for op in graph.ops]
    kinds_of_op = np.array(bits, dtype=np.int64)
    kinds_of_group = np.full(_count(groups), (1 << len(DEVICE_KINDS)) - 1)
    np.bitwise_and.at(kinds_of_group, groups, kinds_of_op)
    if (kinds_of_group == 0).any():
        members = np.flatnonzero(kinds_of_group[groups] == 0)
        members = members[groups[members] == groups[members[0]]]
        first = graph.ops[members[0]]
        other = graph.ops[next(op for op in members if kinds_of_op[op] != kinds_of_op[members[0]])]
        raise InfeasibleError(
            f"ops colocated as {first.colocation!r} have no kind of device in common:"
            f" {first.name!r} needs {' or '.join(first.device_kinds)},"
            f" {other.name!r} needs {' or '.join(other.device_kinds)}"
        )
    return kinds_of_group[groups]


def join_modules(graph: OpGraph, groups: IntArray, kinds: IntArray) -> IntArray:
    """Return step 2: groups of one module and equal kinds become one, ``[N]``.

    A colocated set that touches several modules, such as a variable that all time steps
    read, stays a group of its own: it must not fuse those modules.
    """
    modules = _modules_of_groups(graph, groups)
    keys: list[tuple[str, int]] = []
    for group, kind in zip(groups.tolist(), kinds.tolist(), strict=True):
        named = modules[group]
        keys.append((next(iter(named)), kind) if len(named) == 1 else ("", -1 - group))
    return _renumber(keys)


def join_sole_consumers(
    graph: OpGraph,
    groups: IntArray,
    kinds: IntArray,
    *,
    time_s: FloatArray | None = None,
    max_time_s: float = math.inf,
) -> IntArray:
    """Return step 3: a group without a module whose outputs all go to one group joins it.

    Ops are visited from the last to the first, so that one pass repeats the rule until
    nothing changes. A control edge makes its waiter a consumer, but is no reason to join:
    the op that waits for all updates of a step would else swallow every one of them.

    Args:
        graph: The graph.
        groups: Group of each op so far, ``[N]``.
        kinds: Permitted kinds of each op's group, ``[N]``.
        time_s: Compute time of each op, ``[N]``; needed only with a limit.
        max_time_s: Joined groups may not take longer: else a chain of ops, however long,
            would become one group.
    """
    home = np.arange(_count(groups))
    kinds_of_group = np.zeros(len(home), dtype=np.int64)
    kinds_of_group[groups] = kinds
    times = np.bincount(groups, weights=time_s, minlength=len(home))
    modules = _modules_of_groups(graph, groups)
    outputs = _outputs_of_groups(graph, groups)
    for group in _last_to_first(graph, groups):
        consumers = {_find(home, consumer) for consumer, _ in outputs[group]} - {group}
        if modules[group] or len(consumers) != 1:
            continue
        (target,) = consumers
        sends_bytes = any(size_bytes for _, size_bytes in outputs[group])
        fits = times[group] + times[target] <= max_time_s
        if sends_bytes and fits and kinds_of_group[group] == kinds_of_group[target]:
            home[group] = target
            times[target] += times[group]
    return _renumber([_find(home, group) for group in groups.tolist()])


def cap_groups(profile: Profile, groups: IntArray, kinds: IntArray, max_groups: int) -> IntArray:
    """Return step 4: at most ``max_groups`` groups, by METIS, ``[N]``.

    Groups of each set of permitted kinds are partitioned by themselves, into a number of
    parts in proportion to theirs, but at least one.
    """
    traffic = group_traffic(profile, Grouping(groups))
    whole = traffic.partition_graph(traffic.compute_time_s.mean(axis=1))
    kinds_of_group = np.zeros(_count(groups), dtype=np.int64)
    kinds_of_group[groups] = kinds
    classes = [np.flatnonzero(kinds_of_group == kind) for kind in np.unique(kinds)]
    part_of_group = np.empty(_count(groups), dtype=np.int64)
    offset = 0
    for members, num_parts in zip(classes, _shares(classes, max_groups), strict=True):
        part_of_group[members] = offset + partition(whole.induced(members), num_parts)
        offset += num_parts
    return _renumber(part_of_group[groups])


def _shares(classes: Sequence[IntArray], max_groups: int) -> list[int]:
    """Return how many of the permitted groups each class may keep: at least one."""
    spare = max(0, max_groups - len(classes))
    num_joinable = max(1, sum(len(members) - 1 for members in classes))
    shares = [1 + spare * (len(members) - 1) // num_joinable for members in classes]
    largest = max(range(len(classes)), key=lambda index: len(classes[index]))
    shares[largest] += max(0, max_groups - sum(shares))
    return shares


def _count(groups: IntArray) -> int:
    return int(groups.max()) + 1


def _renumber(keys: IntArray | Sequence[object]) -> IntArray:
    """Return numbers from 0 without a gap, equal exactly where the keys are."""
    number_of_key: dict[object, int] = {}
    listed = keys.tolist() if isinstance(keys, np.ndarray) else keys
    return np.array([number_of_key.setdefault(key, len(number_of_key)) for key in listed])


def _modules_of_groups(graph: OpGraph, groups: IntArray) -> list[set[str]]:
    """Return the distinct modules that the ops of each group name, ``[G]``."""
    modules: list[set[str]] = [set() for _ in range(_count(groups))]
    for op, group in zip(graph.ops, groups.tolist(), strict=True):
        if op.module:
            modules[group].add(op.module)
    return modules


def _outputs_of_groups(graph: OpGraph, groups: IntArray) -> list[list[tuple[int, int]]]:
    """Return, for each group, the consuming group and the bytes of all its outputs, ``[G]``."""
    outputs: list[list[tuple[int, int]]] = [[] for _ in range(_count(groups))]
    for tensor in graph.tensors:
        source = groups[tensor.producer]
        for consumer in tensor.consumers:
            if groups[consumer] != source:
                outputs[source].append((int(groups[consumer]), tensor.size_bytes))
    return outputs


def _last_to_first(graph: OpGraph, groups: IntArray) -> list[int]:
    """Return the groups in descending topological order of their first ops."""
    first_to_last = dict.fromkeys(groups[graph.topological_order].tolist())
    return list(first_to_last)[::-1]


def _find(home: IntArray, group: int) -> int:
    """Return the group that a group has joined in the end."""
    while home[group] != group:
        home[group] = home[home[group]]
        group = int(home[group])
    return group
