"""What an expert does by hand: whole units of the model, in order, spread over devices.

Layers of a recurrent network go to devices layer by layer, and the blocks of a
convolutional network block by block (Mirhoseini et al., 2017, section 4.2). A unit is
what ``Op.module`` names before its first slash.

Array shapes: G groups, U units, D devices.
"""

import numpy as np

from placer.errors import InfeasibleError
from placer.graph import IntArray, OpGraph
from placer.grouping import Grouping
from placer.heuristics.permitted import accelerators, permitted
from placer.policy import Actions
from placer.profile import Profile
from placer.traffic import group_edges

NO_UNIT = -1


def expert(profile: Profile, grouping: Grouping) -> Actions:
    """Return unit ``i`` of U on accelerator ``floor(i D / U)``, ``[G]``.

    A group without a unit goes where it exchanges most bytes with groups that have one,
    or to the first accelerator.

    Raises:
        InfeasibleError: If the graph's ops name no modules.
    """
    unit_of_op, num_units = _units_in_order(profile.graph)
    if num_units == 0:
        raise InfeasibleError("the expert needs a graph whose ops name modules, this has none")
    unit_of_group = _unit_of_groups(profile, grouping, unit_of_op, num_units)
    targets = accelerators(profile.topology)
    # Still negative where there is no unit.
    slots = unit_of_group * len(targets) // num_units
    busiest = _busiest_slot(profile.graph, grouping, slots)
    return permitted(profile, grouping, targets[np.where(slots < 0, busiest, slots)])


def _units_in_order(graph: OpGraph) -> tuple[IntArray, int]:
    """Return the unit of each op, ``[N]``, numbered in the order of the forward pass, and U."""
    names = [op.module.partition("/")[0] for op in graph.ops]
    order = sorted(set(names) - {""}, key=_places_of_units(graph, names).__getitem__)
    numbers = {"": NO_UNIT} | {name: number for number, name in enumerate(order)}
    return np.array([numbers[name] for name in names], dtype=np.int64), len(order)


def _places_of_units(graph: OpGraph, names: list[str]) -> dict[str, tuple[int, int, int]]:
    """Return by what to sort units: the depth at which each first hands on a tensor.

    Its first op would tell nothing: variables and constants of every unit stand at the
    start of the graph. So a constant that units share counts only for a unit that hands on
    nothing else; and a unit that hands on nothing stands where it ends.
    """
    depths = _depths(graph)
    index = graph.topological_index
    places: dict[str, tuple[int, int, int]] = {}
    for op, name in enumerate(names):
        ended = (2, int(depths[op]), int(index[op]))
        if name and places.get(name, ended) <= ended:
            places[name] = ended
    for tensor in graph.tensors:
        op, name = tensor.producer, names[tensor.producer]
        leaves = any(names[consumer] not in ("", name) for consumer in tensor.consumers)
        if name and tensor.size_bytes and leaves:
            is_source = int(not graph.predecessors[op])
            handed_on = (is_source, int(depths[op]), int(index[op]))
            places[name] = min(places[name], handed_on)
    return {name: (depth, at, tier) for name, (tier, depth, at) in places.items()}


def _depths(graph: OpGraph) -> IntArray:
    """Return the number of ops on the longest path to each op, ``[N]``."""
    depths = np.zeros(graph.num_ops, dtype=np.int64)
    for op in graph.topological_order:
        for consumer in graph.successors[op]:
            depths[consumer] = max(depths[consumer], depths[op] + 1)
    return depths


def _unit_of_groups(
    profile: Profile, grouping: Grouping, unit_of_op: IntArray, num_units: int
) -> IntArray:
    """Return the unit of most of each group's compute time, ``[G]``; ties: of most ops."""
    named = unit_of_op != NO_UNIT
    cells = (grouping.group_of_op[named], unit_of_op[named])
    time_s = np.zeros((grouping.num_groups, num_units))
    np.add.at(time_s, cells, profile.compute_time_s.mean(axis=1)[named])
    num_ops = np.zeros((grouping.num_groups, num_units))
    np.add.at(num_ops, cells, 1)
    longest = time_s == time_s.max(axis=1, keepdims=True)
    units: IntArray = np.where(longest, num_ops, -1).argmax(axis=1)
    return np.where(num_ops.any(axis=1), units, NO_UNIT)


def _busiest_slot(graph: OpGraph, grouping: Grouping, slot_of_group: IntArray) -> IntArray:
    """Return the slot with which each group exchanges most bytes, ``[G]``; 0 if with none.

    Args:
        graph: The graph.
        grouping: Its groups.
        slot_of_group: The accelerator's number, negative for groups without a unit, ``[G]``.
    """
    edges = group_edges(graph, grouping.group_of_op)
    size_bytes = np.zeros((grouping.num_groups, max(1, int(slot_of_group.max()) + 1)))
    for ends, others in (
        (edges.sources, edges.destinations),
        (edges.destinations, edges.sources),
    ):
        known = slot_of_group[others] >= 0
        np.add.at(size_bytes, (ends[known], slot_of_group[others][known]), edges.size_bytes[known])
    busiest: IntArray = size_bytes.argmax(axis=1)
    return busiest
