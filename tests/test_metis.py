import ctypes
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.errors import InvalidValueError
from placer.graph import FloatArray
from placer.metis import SCALED_TOTAL, PartitionGraph, partition, positive_integers

CLIQUE = list(itertools.combinations(range(5), 2))
TWO_CLIQUES = [*CLIQUE, *((a + 5, b + 5) for a, b in CLIQUE), (4, 5)]
"""Ops 0-4 and 5-9, each tied to all of its own, and one edge between op 4 and op 5."""


def graph_of(
    edges: list[tuple[int, int]], edge_weights: list[float], vertex_weights: list[float]
) -> PartitionGraph:
    ends = np.array(edges, dtype=np.int64).reshape(-1, 2)
    return PartitionGraph.from_edges(
        ends[:, 0], ends[:, 1], np.array(edge_weights, dtype=float), np.array(vertex_weights)
    )


@st.composite
def partition_graphs(draw: st.DrawFn) -> PartitionGraph:
    num_vertices = draw(st.integers(1, 12))
    pairs = list(itertools.permutations(range(num_vertices), 2))
    edges = draw(st.lists(st.sampled_from(pairs), max_size=20)) if pairs else []
    weights = st.floats(0, 1e12)
    return graph_of(
        edges,
        draw(st.lists(weights, min_size=len(edges), max_size=len(edges))),
        draw(st.lists(weights, min_size=num_vertices, max_size=num_vertices)),
    )


class TestPartition:
    @pytest.mark.parametrize("seed", range(5))
    def test_two_cliques_are_cut_at_the_thin_edge_between_them(self, seed: int) -> None:
        graph = graph_of(TWO_CLIQUES, [1.0] * 21, [1.0] * 10)

        parts = partition(graph, 2, seed=seed)

        assert len(set(parts[:5])) == len(set(parts[5:])) == 1
        assert parts[0] != parts[9]

    def test_the_light_edges_of_a_ring_are_cut(self) -> None:
        # 0 = 1 - 2 = 3 - 0, double lines a hundred times heavier.
        graph = graph_of([(0, 1), (1, 2), (2, 3), (3, 0)], [100.0, 1.0, 100.0, 1.0], [1.0] * 4)

        parts = partition(graph, 2)

        assert parts[0] == parts[1] != parts[2] == parts[3]

    def test_parts_have_equal_weight_not_equal_size(self) -> None:
        # A chain of weights 4, 1, 1, 1, 1: the only equal halves are {0} and the rest.
        graph = graph_of([(0, 1), (1, 2), (2, 3), (3, 4)], [1.0] * 4, [4.0, 1, 1, 1, 1])

        parts = partition(graph, 2)

        assert parts[0] not in parts[1:]
        assert len(set(parts[1:])) == 1

    def test_a_vertex_heavier_than_all_others_leaves_no_part_empty(self) -> None:
        # Weight 10^6 beside nine of weight 1: it fills one of three parts by itself.
        chain = list(itertools.pairwise(range(10)))
        graph = graph_of(chain, [1.0] * 9, [1e6, *[1.0] * 9])

        parts = partition(graph, 3)

        assert set(parts) == {0, 1, 2}
        assert parts[0] not in parts[1:]

    def test_no_more_vertices_than_parts_gives_each_its_own(self) -> None:
        graph = graph_of([(0, 1), (1, 2)], [1.0, 1.0], [1.0, 1.0, 1.0])

        assert partition(graph, 3).tolist() == [0, 1, 2]
        assert partition(graph, 7).tolist() == [0, 1, 2]

    def test_one_part_holds_everything(self) -> None:
        graph = graph_of([(0, 1), (1, 2)], [1.0, 1.0], [1.0, 1.0, 1.0])

        assert partition(graph, 1).tolist() == [0, 0, 0]

    def test_less_than_one_part_is_refused(self) -> None:
        graph = graph_of([(0, 1)], [1.0], [1.0, 1.0])

        with pytest.raises(InvalidValueError, match="at least 1, got 0"):
            partition(graph, 0)

    @given(graph=partition_graphs(), num_parts=st.integers(1, 8), seed=st.integers(0, 2**40))
    def test_any_graph_is_partitioned_and_always_in_the_same_way(
        self, graph: PartitionGraph, num_parts: int, seed: int
    ) -> None:
        parts = partition(graph, num_parts, seed=seed)

        assert parts.shape == (graph.num_vertices,)
        assert set(parts.tolist()) <= set(range(num_parts))
        assert np.array_equal(parts, partition(graph, num_parts, seed=seed))

    def test_metis_prints_nothing_where_parts_are_hard_to_fill(
        self, capfd: pytest.CaptureFixture[str]
    ) -> None:
        # One vertex outweighs the rest a thousand times: unclipped, METIS complains on stdout.
        graph = graph_of([], [], [1e6, *[1.0] * 600])

        parts = partition(graph, 512)

        ctypes.CDLL(None).fflush(None)  # what C code printed may still wait in its buffer
        assert len(set(parts.tolist())) > 400
        assert capfd.readouterr() == ("", "")


class TestPartitionGraph:
    def test_opposite_edges_are_added_up_and_the_graph_is_symmetric(self) -> None:
        # Weights 1, 2 and 1 of a total of 4; the first two join the same vertices.
        graph = graph_of([(0, 1), (1, 0), (1, 2)], [1.0, 2.0, 1.0], [1.0, 1.0, 1.0])

        quarter = SCALED_TOTAL // 4
        expected = [[0, 3 * quarter, 0], [3 * quarter, 0, quarter], [0, quarter, 0]]
        assert graph.adjacency.toarray().tolist() == expected

    def test_an_edge_without_weight_is_still_an_edge(self) -> None:
        graph = graph_of([(0, 1), (1, 2)], [0.0, 1.0], [1.0, 1.0, 1.0])

        assert graph.adjacency.toarray()[0, 1] == 1

    def test_an_induced_graph_keeps_the_edges_among_its_vertices(self) -> None:
        graph = graph_of([(0, 1), (1, 2), (2, 3)], [1.0, 1.0, 2.0], [1.0, 2.0, 3.0, 2.0])

        part = graph.induced(np.array([1, 3, 2]))

        # Only the edge between 2 and 3 is inside, now between vertices 2 and 1; 1-2 is 0-2.
        half, quarter = SCALED_TOTAL // 2, SCALED_TOTAL // 4
        expected = [[0, 0, quarter], [0, 0, half], [quarter, half, 0]]
        assert part.adjacency.toarray().tolist() == expected
        assert part.vertex_weights.tolist() == graph.vertex_weights[[1, 3, 2]].tolist()


class TestPositiveIntegers:
    def test_values_keep_their_proportions(self) -> None:
        scaled = positive_integers(np.array([1e-9, 3e-9]))

        assert scaled.tolist() == [SCALED_TOTAL // 4, 3 * SCALED_TOTAL // 4]

    def test_what_is_too_small_to_see_counts_one(self) -> None:
        assert positive_integers(np.array([0.0, 1e-30, 1.0])).tolist() == [1, 1, SCALED_TOTAL]

    @pytest.mark.parametrize("values", [np.zeros(3), np.zeros(0)])
    def test_zeros_alone_become_ones(self, values: FloatArray) -> None:
        assert positive_integers(values).tolist() == [1] * len(values)

    @given(st.lists(st.floats(0, 1e300), min_size=1, max_size=30))
    def test_the_order_of_values_is_kept_and_none_vanishes(self, values: list[float]) -> None:
        scaled = positive_integers(np.array(values))

        assert scaled.min() >= 1
        assert (np.diff(scaled[np.argsort(values, kind="stable")]) >= 0).all()
