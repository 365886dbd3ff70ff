"""How far placements are apart, names of equal devices aside."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.devices import DeviceTopology, Link
from placer.errors import InvalidValueError
from placer.graph import Op
from placer.grouping import Grouping
from placer.placement_difference import (
    GroupedProfile,
    PlacementDifference,
    group_name,
    nearest_names,
    placement_difference,
)
from tests.builders import make_profile, make_topology
from tests.grouped_profiles import chain_of, profile_of


@pytest.fixture
def four_ops() -> GroupedProfile:
    """Ops a, b, c, d of 1, 2, 3, 4 seconds, a group each, on two equal devices."""
    return GroupedProfile(make_profile([1, 2, 3, 4], [], make_topology(2)), Grouping([0, 1, 2, 3]))


def test_a_placement_with_the_names_of_equal_devices_exchanged_is_the_same(four_ops):
    difference = placement_difference((0, 1, 1, 0), (1, 0, 0, 1), four_ops)

    assert difference == PlacementDifference(num_groups=4, num_moved=0, moved_time_share=0.0)


def test_what_moved_is_counted_after_the_best_renaming(four_ops):
    # With 0 and 1 exchanged the second is 0 1 1 1: only d moved, 4 of 10 seconds.
    difference = placement_difference((0, 1, 1, 0), (1, 0, 0, 0), four_ops)

    assert (difference.num_moved, difference.moved_share) == (1, 0.25)
    assert difference.moved_time_share == pytest.approx(0.4)
    assert difference.largest_moved == ("d",)


def test_of_equally_good_renamings_the_one_that_moves_less_time_counts(four_ops):
    # As they are, b and d (6 s) moved; with names exchanged a and c (4 s).
    difference = placement_difference((0, 0, 0, 0), (0, 1, 0, 1), four_ops)

    assert difference.num_moved == 2
    assert difference.moved_time_share == pytest.approx(0.4)
    assert difference.largest_moved == ("c", "a")


def test_devices_that_differ_keep_their_names():
    # One CPU and two GPUs.
    profile = profile_of([Op("a", "MatMul"), Op("b", "MatMul")], [])
    grouped = GroupedProfile(profile, Grouping([0, 1]))

    difference = placement_difference((0, 0), (1, 1), grouped)

    assert (difference.num_moved, difference.moved_time_share) == (2, 1.0)
    assert placement_difference((0, 1), (0, 2), grouped).num_moved == 0


def test_the_time_of_a_group_is_that_on_the_device_of_the_first_placement():
    profile = profile_of([Op("a", "MatMul"), Op("b", "MatMul")], [])
    grouped = GroupedProfile(profile, Grouping([0, 1]))

    # a on the CPU takes 10 s, b on a GPU 1 s; b stays on a GPU, whichever.
    difference = placement_difference((0, 1), (1, 2), grouped)

    assert difference.num_moved == 1
    assert difference.moved_time_share == pytest.approx(10 / 11)


def test_without_a_profile_names_are_compared_as_they_are():
    difference = placement_difference((0, 1, 1), (1, 1, 0), None)

    assert difference == PlacementDifference(num_groups=3, num_moved=2)


def test_where_nothing_takes_time_there_is_no_share_of_it():
    grouped = GroupedProfile(make_profile([0, 0], [], make_topology(2)), Grouping([0, 1]))

    difference = placement_difference((0, 0), (0, 1), grouped)

    assert (difference.num_moved, difference.moved_time_share) == (1, None)


def test_five_groups_are_named_the_longest_first():
    times_s = [1.0, 7.0, 2.0, 6.0, 3.0, 5.0, *[1.0] * 20]
    profile = make_profile(times_s, [], make_topology(2))
    grouped = GroupedProfile(profile, Grouping(range(26)))
    second = [1] * 6 + [0] * 20

    difference = placement_difference([0] * 26, second, grouped)

    assert difference.num_moved == 6
    assert difference.largest_moved == ("b", "d", "f", "e", "c")


def test_placements_of_other_groups_are_refused():
    with pytest.raises(InvalidValueError, match="same groups, got 2 and 3"):
        placement_difference((0, 1), (0, 1, 0), None)


def test_a_group_is_called_by_its_module_or_by_its_longest_op():
    modules = chain_of(["lstm/1", "lstm/1", "", ""])
    named = GroupedProfile(modules, Grouping([0, 0, 1, 1]))
    timed = GroupedProfile(make_profile([1, 5, 2], [], make_topology(2)), Grouping([0, 0, 0]))

    assert group_name(named, 0) == "lstm/1"
    assert group_name(named, 1) == "op2 and 1 more"
    assert group_name(timed, 0) == "b and 2 more"


@given(st.data())
def test_no_permitted_renaming_leaves_fewer_groups_on_other_devices(data: st.DataObject):
    num_devices = data.draw(st.integers(1, 4))
    classes = np.array(
        data.draw(st.lists(st.integers(0, 1), min_size=num_devices, max_size=num_devices))
    )
    num_groups = data.draw(st.integers(1, 6))
    devices = st.lists(
        st.integers(0, num_devices - 1), min_size=num_groups, max_size=num_groups
    ).map(np.array)
    first, second = data.draw(devices), data.draw(devices)
    time_s = np.array(
        data.draw(st.lists(st.integers(0, 9), min_size=num_groups, max_size=num_groups)),
        dtype=float,
    )

    names = nearest_names(first, second, classes, time_s)

    def moved(renamed: np.ndarray) -> tuple[int, float]:
        away = first != renamed[second]
        return int(away.sum()), float(time_s[away].sum())

    permitted = [
        np.array(order)
        for order in itertools.permutations(range(num_devices))
        if all(classes[old] == classes[new] for old, new in enumerate(order))
    ]
    assert any((names == order).all() for order in permitted)
    assert moved(names) == min(map(moved, permitted))


def test_one_device_has_nothing_to_move():
    topology = DeviceTopology.uniform(1, Link(bandwidth_bytes_per_s=1.0))
    grouped = GroupedProfile(make_profile([1, 2], [], topology), Grouping([0, 1]))

    assert placement_difference((0, 0), (0, 0), grouped).num_moved == 0
