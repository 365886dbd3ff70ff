"""The map from ops to groups."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.devices import Device, DeviceTopology, Link
from placer.errors import InfeasibleError, InvalidValueError
from placer.graph import Op, OpGraph
from placer.grouping import Grouping
from placer.profile import Profile
from tests.builders import make_costs, make_graph
from tests.strategies import groupings, op_graphs, profiles


@pytest.mark.parametrize("numbers", [[], [[0, 1]]])
def test_a_grouping_is_a_list_of_one_number_an_op(numbers: list[object]) -> None:
    with pytest.raises(InvalidValueError, match="one group an op, got shape"):
        Grouping(numbers)


@pytest.mark.parametrize("numbers", [[0, 2], [1, 2], [-1, 0], [0, -1]])
def test_groups_are_numbered_from_zero_without_a_gap(numbers: list[int]) -> None:
    with pytest.raises(InvalidValueError, match="numbered from 0 without a gap"):
        Grouping(numbers)


def test_groups_are_numbered_by_the_topological_order_of_their_first_ops() -> None:
    # d feeds a, so that Kahn's order is b, c, d, a.
    graph = make_graph(4, [(3, (0,), 1)])

    grouping = Grouping.in_topological_order(graph, ["x", "y", "x", "z"])

    assert grouping.group_of_op.tolist() == [1, 0, 1, 2]


def test_the_caller_may_go_on_writing_to_his_array_but_not_to_the_groupings() -> None:
    numbers = np.array([0, 1])
    grouping = Grouping(numbers)

    numbers[0] = 1

    assert grouping.group_of_op.tolist() == [0, 1]
    with pytest.raises(ValueError, match="read-only"):
        grouping.group_of_op[0] = 1


@given(st.data(), op_graphs())
def test_the_ops_of_all_groups_are_all_ops_each_in_its_group(
    data: st.DataObject, graph: OpGraph
) -> None:
    grouping = data.draw(groupings(graph))

    ops_of_group = grouping.ops_of_group

    assert len(ops_of_group) == grouping.num_groups
    assert sorted(np.concatenate(ops_of_group).tolist()) == list(range(graph.num_ops))
    for group, ops in enumerate(ops_of_group):
        assert (grouping.group_of_op[ops] == group).all()
        assert ops.tolist() == sorted(ops.tolist())


@given(st.data(), op_graphs())
def test_first_ops_of_groups_come_in_topological_order(data: st.DataObject, graph: OpGraph) -> None:
    grouping = data.draw(groupings(graph))

    firsts = [graph.topological_index[ops].min() for ops in grouping.ops_of_group]

    assert firsts == sorted(firsts)


class TestCheck:
    def test_a_grouping_of_another_number_of_ops_is_refused(self) -> None:
        with pytest.raises(InvalidValueError, match="of 2 ops, the graph has 3"):
            Grouping([0, 1]).check(make_graph(3, []))

    def test_colocated_ops_in_different_groups_are_refused(self) -> None:
        ops = (Op("a", "A", colocation="v"), Op("b", "B"), Op("c", "C", colocation="v"))

        Grouping([0, 1, 0]).check(OpGraph(ops, ()))

        with pytest.raises(InvalidValueError, match="colocated as 'v' are in different groups"):
            Grouping([0, 0, 1]).check(OpGraph(ops, ()))


class TestAllowed:
    def profile(self) -> Profile:
        ops = (
            Op("any", "A"),
            Op("gpu", "B", device_kinds=("GPU",)),
            Op("cpu", "C", device_kinds=("CPU",)),
        )
        link = Link(1.0)
        topology = DeviceTopology(
            (Device("cpu:0", kind="CPU"), Device("gpu:0")), {(0, 1): link, (1, 0): link}
        )
        return Profile(OpGraph(ops, ()), make_costs([1.0] * 3), topology)

    def test_a_group_may_go_where_all_its_ops_may(self) -> None:
        allowed = Grouping([0, 0, 1]).allowed(self.profile())

        assert allowed.tolist() == [[False, True], [True, False]]

    def test_a_group_whose_ops_exclude_each_other_is_refused_and_both_named(self) -> None:
        with pytest.raises(InfeasibleError, match=r"group 1 .*'cpu' needs CPU; 'gpu' needs GPU"):
            Grouping([0, 1, 1]).allowed(self.profile())

    @given(profiles())
    def test_groups_of_one_op_may_go_where_their_op_may(self, profile: Profile) -> None:
        grouping = Grouping(range(profile.graph.num_ops))

        assert np.array_equal(grouping.allowed(profile), profile.allowed)


def test_equal_groupings_have_equal_fingerprints() -> None:
    assert Grouping([0, 1, 0]).fingerprint == Grouping(np.array([0, 1, 0])).fingerprint
    assert Grouping([0, 1, 0]).fingerprint != Grouping([0, 1, 1]).fingerprint
