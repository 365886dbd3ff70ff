import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.search.moves import Moves
from placer.traffic import GroupEdges, GroupTraffic


def traffic_of(pairs, seconds=1.0):
    """Edges between groups, one byte each, all of this transfer time or each of its own."""
    ones = np.ones(len(pairs), dtype=np.int64)
    sources, destinations = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    edges = GroupEdges(sources, destinations, ones, ones)
    return GroupTraffic(
        compute_time_s=np.zeros((1, 1)),
        memory_bytes=np.zeros(1, dtype=np.int64),
        edges=edges,
        transfer_time_s=np.broadcast_to(np.asarray(seconds, dtype=float), len(pairs)),
    )


def ladder(num_rungs):
    """Two chains, 0-2-4-… and 1-3-5-…, whose groups take turns in the order."""
    return traffic_of([(group, group + 2) for group in range(2 * num_rungs - 2)])


def neighbors(moves, actions, num):
    rng = np.random.default_rng(0)
    return [moves.neighbor(np.array(actions, dtype=np.int32), rng) for _ in range(num)]


def moved_groups(actions, others):
    return {tuple(np.flatnonzero(other != actions).tolist()) for other in others}


def test_a_piece_of_one_chain_moves_although_another_lies_between():
    # Of 16 groups the longest run or piece is 4; a run takes both chains along.
    moves = Moves(np.ones((16, 2), dtype=np.bool_), ladder(8))

    moved = moved_groups(np.zeros(16), neighbors(moves, [0] * 16, 2000))

    assert (2, 4, 6, 8) in moved
    assert (3, 5, 7) in moved
    assert (4, 5, 6, 7) in moved
    assert max(map(len, moved)) == 4


def test_a_piece_grows_along_heavy_edges():
    # A star of 12 groups around group 0, whose edge to group 5 takes all of the time.
    times_s = [1.0 if group == 5 else 1e-9 for group in range(1, 13)]
    moves = Moves(
        np.ones((13, 2), dtype=np.bool_),
        traffic_of([(0, group) for group in range(1, 13)], times_s),
    )

    moved = moved_groups(np.zeros(13), neighbors(moves, [0] * 13, 1000))

    # A run is of consecutive groups. A piece of three that starts at a light one goes on to
    # the centre, and from there, as one that starts at the centre, to group 5.
    pieces = {groups for groups in moved if len(groups) == 3 and groups[2] - groups[0] > 2}
    assert (0, 5, 9) in pieces
    assert all({0, 5} <= set(groups) for groups in pieces)


def test_a_group_follows_a_neighbor():
    # Seven devices that nobody uses, and one where the only neighbour is: one move in six
    # follows, and a half of the pieces do. By chance alone it would be one in nine.
    moves = Moves(np.ones((2, 9), dtype=np.bool_), traffic_of([(0, 1)]))

    found = neighbors(moves, [0, 1], 2000)

    assert np.mean([row[0] == row[1] for row in found]) > 0.3


def test_groups_exchange_devices_where_nothing_else_may_move():
    # Each of four groups on a device of its own; one move changes one group, two exchange.
    moves = Moves(np.ones((4, 4), dtype=np.bool_), traffic_of([]))

    found = {tuple(row.tolist()) for row in neighbors(moves, [0, 1, 2, 3], 1000)}

    assert {(1, 0, 2, 3), (3, 1, 2, 0), (0, 2, 1, 3)} <= found


def test_a_lone_choice_is_always_found():
    allowed = np.zeros((50, 2), dtype=np.bool_)
    allowed[:, 0] = True
    allowed[17, 1] = True
    moves = Moves(allowed, traffic_of([(0, 1), (16, 17), (17, 18)]))

    found = neighbors(moves, [0] * 50, 50)

    assert moved_groups(np.zeros(50), found) == {(17,)}


def test_without_a_choice_the_placement_stays():
    moves = Moves(np.ones((3, 1), dtype=np.bool_), traffic_of([(0, 1)]))

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
    traffic = traffic_of(data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else [])
    moves = Moves(allowed, traffic)
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
