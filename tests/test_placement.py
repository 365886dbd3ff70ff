"""The device of every op."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.errors import InvalidValueError
from placer.graph import OpGraph
from placer.grouping import Grouping
from placer.placement import Placement
from tests.strategies import groupings, op_graphs

DEVICES = st.lists(st.integers(0, 9), min_size=1, max_size=20)


@pytest.mark.parametrize("devices", [[], [[0, 1]], 3])
def test_a_placement_is_a_list_of_one_device_an_op(devices: object) -> None:
    with pytest.raises(InvalidValueError, match="one device an op, got an array of shape"):
        Placement(devices)


def test_a_negative_device_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="must not be negative, got -2"):
        Placement([0, -2])


def test_a_device_that_is_no_whole_number_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="must be whole numbers, got float64"):
        Placement([0.0, 0.7])


def test_an_index_too_large_to_keep_is_refused_and_not_wrapped() -> None:
    with pytest.raises(InvalidValueError, match="must be below 2\\*\\*31, got 4294967297"):
        Placement(np.array([2**32 + 1]))


def test_the_caller_may_go_on_writing_to_his_array_but_not_to_the_placements() -> None:
    devices = np.array([0, 1], dtype=np.int32)
    placement = Placement(devices)

    devices[0] = 1

    assert placement.device_of_op.tolist() == [0, 1]
    with pytest.raises(ValueError, match="read-only"):
        placement.device_of_op[0] = 1


@given(DEVICES, DEVICES)
def test_placements_are_equal_exactly_when_their_devices_are(
    first: list[int], second: list[int]
) -> None:
    placements = Placement(first), Placement(np.array(second, dtype=np.int64))

    assert (placements[0] == placements[1]) == (first == second)
    assert (placements[0].fingerprint == placements[1].fingerprint) == (first == second)
    assert len(set(placements)) == (1 if first == second else 2)


def test_a_placement_is_not_equal_to_a_list() -> None:
    assert Placement([0, 1]) != [0, 1]


@given(st.data(), op_graphs())
def test_every_op_gets_the_device_of_its_group(data: st.DataObject, graph: OpGraph) -> None:
    grouping = data.draw(groupings(graph))
    actions = data.draw(
        st.lists(st.integers(0, 3), min_size=grouping.num_groups, max_size=grouping.num_groups)
    )

    placement = Placement.from_groups(grouping, actions)

    for op in range(graph.num_ops):
        assert placement.device_of_op[op] == actions[grouping.group_of_op[op]]


@pytest.mark.parametrize("actions", [[0], [0, 1, 0], [[0, 1]]])
def test_actions_for_another_number_of_groups_are_refused(actions: list[object]) -> None:
    with pytest.raises(InvalidValueError, match="one device for each of 2 groups"):
        Placement.from_groups(Grouping([0, 1, 0]), actions)
