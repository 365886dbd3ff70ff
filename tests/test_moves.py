import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.search.moves import Moves
from placer.traffic import GroupEdges


def edges_of(pairs):
    """Edges between groups, one byte each."""
    ones = np.ones(len(pairs), dtype=np.int64)
    sources, destinations = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2).T
    return GroupEdges(sources, destinations, ones, ones)


def ladder(num_rungs):
    """Two chains, 0-2-4-… and 1-3-5-…, whose groups take turns in the order."""
    return edges_of([(group, group + 2) for group in range(2 * num_rungs - 2)])


def neighbors(moves, actions, num):
    rng = np.random.default_rng(0)
    return [moves.neighbor(np.array(actions, dtype=np.int32), rng) for _ in range(num)]


def moved_groups(actions, others):
    return {tuple(np.flatnonzero(other != actions).tolist()) for other in others}


def test_a_piece_of_one_chain_moves_although_another_lies_between():
    # Of 16 groups the longest run or piece is 4; a run or shift takes both chains along.
    moves = Moves(np.ones((16, 2), dtype=np.bool_), ladder(8))

    moved = moved_groups(np.zeros(16), neighbors(moves, [0] * 16, 4000))

    assert (2, 4, 6, 8) in moved
    assert (3, 5, 7) in moved
    assert (4, 5, 6, 7) in moved


def test_a_shift_moves_the_boundary_between_two_runs():
    moves = Moves(np.ones((12, 2), dtype=np.bool_), edges_of([]))

    moved = moved_groups(np.repeat([0, 1], 6), neighbors(moves, [0] * 6 + [1] * 6, 4000))

    # Without edges there are no pieces, and no run is longer than three.
    assert {(0, 1, 2, 3), (1, 2, 3, 4, 5), (6, 7, 8, 9, 10, 11), (7, 8, 9, 10, 11)} <= moved
    assert not any(len(groups) > 3 and {5, 6} <= set(groups) for groups in moved)


def test_groups_exchange_devices_where_nothing_else_may_move():
    # Each of four groups on a device of its own; one move changes one group, two exchange.
    moves = Moves(np.ones((4, 4), dtype=np.bool_), edges_of([]))

    found = {tuple(row.tolist()) for row in neighbors(moves, [0, 1, 2, 3], 1000)}

    assert {(1, 0, 2, 3), (3, 1, 2, 0), (0, 2, 1, 3)} <= found


def test_a_lone_choice_is_always_found():
    allowed = np.zeros((50, 2), dtype=np.bool_)
    allowed[:, 0] = True
    allowed[17, 1] = True
    moves = Moves(allowed, edges_of([(0, 1), (16, 17), (17, 18)]))

    found = neighbors(moves, [0] * 50, 50)

    assert moved_groups(np.zeros(50), found) == {(17,)}


def test_without_a_choice_the_placement_stays():
    moves = Moves(np.ones((3, 1), dtype=np.bool_), edges_of([(0, 1)]))

    assert not moves.has_choices
    assert neighbors(moves, [0, 0, 0], 1)[0].tolist() == [0, 0, 0]


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_neighbors_are_permitted_and_differ(data):
    num_groups, num_devices = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 4))
    cells = st.booleans()
    allowed = np.array(
        data.draw(
            st.lists(
                st.lists(cells, min_size=num_devices, max_size=num_devices).filter(any),
                min_size=num_groups,
                max_size=num_groups,
            )
        )
    )
    pairs = [(a, b) for a in range(num_groups) for b in range(a + 1, num_groups)]
    edges = edges_of(data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else [])
    moves = Moves(allowed, edges)
    actions = allowed.argmax(axis=1).astype(np.int32)
    given_actions = actions.copy()

    found = neighbors(moves, actions, 20)

    assert np.array_equal(actions, given_actions)
    for other in found:
        assert allowed[np.arange(num_groups), other].all()
        assert np.array_equal(other, actions) == (not moves.has_choices)


@pytest.mark.parametrize("seed", range(3))
def test_a_neighbor_depends_on_the_generator_alone(seed):
    moves = Moves(np.ones((16, 3), dtype=np.bool_), ladder(8))
    actions = np.zeros(16, dtype=np.int32)

    first, second = (moves.neighbor(actions, np.random.default_rng(seed)) for _ in range(2))

    assert first.tolist() == second.tolist()
