"""Favourite children: by linear programs that can be solved on paper."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.group_ops import GroupingConfig, group_ops
from placer.grouping import Grouping
from placer.heuristics import favorites
from placer.heuristics.etf import NO_OP
from placer.heuristics.favorites import favorite_children
from placer.profile import Profile
from tests.builders import make_profile, make_topology
from tests.grouped_profiles import chain_of, topology_of
from tests.grouped_profiles import profiles as roomy_profiles


def alone(profile: Profile) -> Grouping:
    return Grouping(range(profile.graph.num_ops))


class TestFavoriteChildren:
    def test_everyone_in_a_chain_is_a_favorite(self) -> None:
        profile = chain_of(["", "", ""], topology_of("GPU", "GPU"))

        assert favorite_children(profile, alone(profile)).tolist() == [1, 2, NO_OP]

    def test_of_two_consumers_the_longer_is_the_favorite(self) -> None:
        # Sent 5 bytes, b would end at 16. Sent 9, c ends at 11.
        profile = make_profile([1.0, 10.0, 1.0], [(0, (1,), 5), (0, (2,), 9)], make_topology(2))

        assert favorite_children(profile, alone(profile)).tolist() == [1, NO_OP, NO_OP]

    def test_of_two_producers_the_later_has_the_favorite(self) -> None:
        # a ends at 9, b at 1: c waits for the byte of a, or for that of b with time to spare.
        profile = make_profile([9.0, 1.0, 1.0], [(0, (2,), 1), (1, (2,), 1)], make_topology(2))

        assert favorite_children(profile, alone(profile)).tolist() == [2, NO_OP, NO_OP]

    def test_where_the_longest_path_does_not_care_the_longer_transfer_is_saved(self) -> None:
        # d takes 100 s whatever becomes of a, b and c.
        tensors = [(0, (1,), 5), (0, (2,), 9)]
        profile = make_profile([1.0, 10.0, 1.0, 100.0], tensors, make_topology(2))

        assert favorite_children(profile, alone(profile)).tolist() == [2, NO_OP, NO_OP, NO_OP]

    def test_neither_a_control_edge_nor_an_edge_within_a_group_makes_a_favorite(self) -> None:
        tensors = [(0, (1,), 0), (1, (2,), 5)]
        profile = make_profile([1.0] * 3, tensors, make_topology(2))

        assert favorite_children(profile, Grouping([0, 1, 1])).tolist() == [NO_OP] * 3

    def test_with_too_many_edges_the_longest_transfers_are_saved(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # As where b was the favourite, but no program is solved.
        monkeypatch.setattr(favorites, "MOST_EDGES", 1)
        profile = make_profile([1.0, 10.0, 1.0], [(0, (1,), 5), (0, (2,), 9)], make_topology(2))

        assert favorite_children(profile, alone(profile)).tolist() == [2, NO_OP, NO_OP]

    @given(profile=roomy_profiles(), most_edges=st.sampled_from([0, 20_000]))
    def test_an_op_has_one_favorite_that_it_sends_bytes_and_is_the_favorite_of_one(
        self, profile: Profile, most_edges: int
    ) -> None:
        grouping = group_ops(profile, GroupingConfig(method="colocation")).grouping
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(favorites, "MOST_EDGES", most_edges)
            children = favorite_children(profile, grouping)

        sent = {
            (tensor.producer, consumer)
            for tensor in profile.graph.tensors
            for consumer in tensor.consumers
            if tensor.size_bytes
        }
        chosen = [(op, child) for op, child in enumerate(children.tolist()) if child != NO_OP]
        assert set(chosen) <= sent
        assert len({child for _, child in chosen}) == len(chosen)
        for op, child in chosen:
            assert grouping.group_of_op[op] != grouping.group_of_op[child]
