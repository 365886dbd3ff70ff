"""Partitioning by METIS, and the form of graph that partitioners take.

METIS (Karypis and Kumar, 1998) splits the vertices of an undirected graph into parts of
nearly equal weight so that the edges between parts weigh little. It counts in integers:
times and sizes are scaled so that they sum to ``2**24``, and a vertex or edge too light
to be seen at that scale counts as one.

Array shapes: V vertices, E directed edges, P parts.
"""

import dataclasses

import numpy as np
import pymetis
import scipy.sparse

from placer.errors import InvalidValueError
from placer.graph import FloatArray, IntArray

SCALED_TOTAL = 2**24
"""Sum of scaled weights: fine enough for any graph, and far from the end of 32 bits."""


@dataclasses.dataclass(frozen=True, eq=False)
class PartitionGraph:
    """An undirected graph with positive integers on vertices and edges.

    Attributes:
        adjacency: Symmetric and without loops: the weight of each edge, ``[V, V]``.
        vertex_weights: ``[V]``.
    """

    adjacency: scipy.sparse.csr_array
    vertex_weights: IntArray

    @classmethod
    def from_edges(
        cls,
        sources: IntArray,
        destinations: IntArray,
        edge_weights: FloatArray,
        vertex_weights: FloatArray,
    ) -> "PartitionGraph":
        """Return the graph of directed edges, opposite directions added up.

        Args:
            sources: One end of each edge, ``[E]``.
            destinations: The other end, ``[E]``, never the same as its source.
            edge_weights: Not negative, in any unit, ``[E]``.
            vertex_weights: Not negative, in any unit, ``[V]``.
        """
        shape = (len(vertex_weights), len(vertex_weights))
        ends = (np.concatenate([sources, destinations]), np.concatenate([destinations, sources]))
        # Scaled before adding up, since an edge of weight zero is an edge all the same.
        weights = np.tile(positive_integers(edge_weights), 2)
        adjacency = scipy.sparse.csr_array(scipy.sparse.coo_array((weights, ends), shape=shape))
        adjacency.sort_indices()
        return cls(adjacency, positive_integers(vertex_weights))

    @property
    def num_vertices(self) -> int:
        """Number of vertices."""
        return len(self.vertex_weights)

    def induced(self, vertices: IntArray) -> "PartitionGraph":
        """Return the graph on some of the vertices, numbered as in the argument."""
        adjacency = scipy.sparse.csr_array(self.adjacency[vertices][:, vertices])
        adjacency.sort_indices()
        return PartitionGraph(adjacency, self.vertex_weights[vertices])


def positive_integers(values: FloatArray) -> IntArray:
    """Return the values in proportion, as integers from one up; all ones if all are zero."""
    total = values.sum()
    if total == 0:
        return np.ones(len(values), dtype=np.int64)
    scaled: IntArray = np.rint(values / total * SCALED_TOTAL).astype(np.int64)
    return np.maximum(scaled, 1)


def partition(graph: PartitionGraph, num_parts: int, *, seed: int = 0) -> IntArray:
    """Return the part of each vertex, ``[V]``, with parts balanced and the cut small.

    Recursive bisection, which fills every part far better than METIS's k-way scheme when
    parts are hardly larger than vertices. A graph of no more vertices than parts has each
    vertex in a part of its own.

    Raises:
        InvalidValueError: If the number of parts is less than one.
    """
    if num_parts < 1:
        raise InvalidValueError(f"the number of parts must be at least 1, got {num_parts}")
    if graph.num_vertices <= num_parts:
        return np.arange(graph.num_vertices, dtype=np.int64)
    adjacency = graph.adjacency
    _, part_of_vertex = pymetis.part_graph(
        num_parts,
        pymetis.CSRAdjacency(adjacency.indptr.astype(np.int64), adjacency.indices.astype(np.int64)),
        vweights=_at_most_a_share(graph.vertex_weights, num_parts),
        eweights=adjacency.data,
        recursive=True,
        options=pymetis.Options(seed=seed % 2**31),
    )
    return np.array(part_of_vertex, dtype=np.int64)


def _at_most_a_share(weights: IntArray, num_parts: int) -> IntArray:
    """Return the weights, none above the share that a part would get of the result.

    A heavier vertex fills a part alone, whatever its weight. Left as it is, it would make
    METIS count on shares that the other vertices cannot fill, and leave parts empty.
    """
    descending = np.sort(weights)[::-1]
    rest = int(weights.sum())
    for heavier in range(num_parts):
        share = rest / (num_parts - heavier)
        if descending[heavier] <= share:
            break
        rest -= int(descending[heavier])
    return np.minimum(weights, max(1, int(share)))
