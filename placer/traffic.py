"""The graph of groups: how long each computes, and what it sends to the others.

Array shapes: N ops, G groups, D devices, E pairs of groups, T tensors.
"""

import dataclasses

import numpy as np

from placer.devices import DeviceTopology
from placer.graph import FloatArray, IntArray, OpGraph
from placer.grouping import Grouping
from placer.metis import PartitionGraph
from placer.profile import Profile


@dataclasses.dataclass(frozen=True, eq=False)
class GroupEdges:
    """What groups send to each other: every pair with at least one tensor, ascending.

    A tensor counts once for each group it goes to, however many ops there wait for it, as
    it would be sent if every group had a device of its own.

    Attributes:
        sources: Producing group of each pair, ``[E]``.
        destinations: Consuming group, ``[E]``, never the producing one.
        size_bytes: Sum of the tensors' sizes, ``[E]``.
        num_tensors: How many tensors, control edges among them, ``[E]``.
    """

    sources: IntArray
    destinations: IntArray
    size_bytes: IntArray
    num_tensors: IntArray


@dataclasses.dataclass(frozen=True, eq=False)
class GroupTraffic:
    """The costs of groups, and of the edges between them.

    Attributes:
        compute_time_s: Sum over a group's ops on each device, ``[G, D]``.
        memory_bytes: Held by a group for the whole step, ``[G]``.
        edges: What groups send to each other.
        transfer_time_s: Seconds to send each pair's tensors over the mean link, ``[E]``.
    """

    compute_time_s: FloatArray
    memory_bytes: IntArray
    edges: GroupEdges
    transfer_time_s: FloatArray

    def partition_graph(self, compute_time_s: FloatArray) -> PartitionGraph:
        """Return the undirected graph for a partitioner, edges weighted by transfer time.

        Args:
            compute_time_s: Seconds by which groups are balanced, ``[G]``.
        """
        return PartitionGraph.from_edges(
            self.edges.sources, self.edges.destinations, self.transfer_time_s, compute_time_s
        )


def group_edges(graph: OpGraph, group_of_op: IntArray) -> GroupEdges:
    """Return what the groups of ``group_of_op``, ``[N]``, send to each other."""
    fan_outs = np.array([len(tensor.consumers) for tensor in graph.tensors], dtype=np.int64)
    consumers = [op for tensor in graph.tensors for op in tensor.consumers]
    producers = np.array([tensor.producer for tensor in graph.tensors], dtype=np.int64)
    sizes = np.array([tensor.size_bytes for tensor in graph.tensors], dtype=np.int64)
    num_groups = int(group_of_op.max()) + 1

    tensor_of_arrival = np.repeat(np.arange(len(graph.tensors)), fan_outs)
    group_of_arrival = group_of_op[np.array(consumers, dtype=np.int64)]
    arrivals = np.unique(tensor_of_arrival * num_groups + group_of_arrival)
    tensors, destinations = np.divmod(arrivals, num_groups)
    sources = group_of_op[producers[tensors]]
    leaves = sources != destinations

    pairs, pair_of_arrival, num_tensors = np.unique(
        sources[leaves] * num_groups + destinations[leaves],
        return_inverse=True,
        return_counts=True,
    )
    size_bytes = np.zeros(len(pairs), dtype=np.int64)
    np.add.at(size_bytes, pair_of_arrival, sizes[tensors[leaves]])
    return GroupEdges(pairs // num_groups, pairs % num_groups, size_bytes, num_tensors)


def group_traffic(profile: Profile, grouping: Grouping) -> GroupTraffic:
    """Return the costs of the groups and of the edges between them."""
    memory_bytes = np.zeros(grouping.num_groups, dtype=np.int64)
    np.add.at(memory_bytes, grouping.group_of_op, profile.memory_bytes)
    edges = group_edges(profile.graph, grouping.group_of_op)
    return GroupTraffic(
        compute_time_s=group_compute_time_s(profile, grouping),
        memory_bytes=memory_bytes,
        edges=edges,
        transfer_time_s=_mean_transfer_time_s(edges, profile.topology),
    )


def group_compute_time_s(profile: Profile, grouping: Grouping) -> FloatArray:
    """Return the sum of compute times of each group's ops on each device, ``[G, D]``."""
    compute_time_s = np.zeros((grouping.num_groups, profile.topology.num_devices))
    np.add.at(compute_time_s, grouping.group_of_op, profile.compute_time_s)
    return compute_time_s


def _mean_transfer_time_s(edges: GroupEdges, topology: DeviceTopology) -> FloatArray:
    """Return seconds over the mean link; over none, as on one device, it takes no time."""
    if not topology.links:
        return np.zeros(len(edges.sources))
    latency_s = np.mean([link.latency_s for link in topology.links.values()])
    s_per_byte = np.mean([1 / link.bandwidth_bytes_per_s for link in topology.links.values()])
    return np.asarray(edges.num_tensors * latency_s + edges.size_bytes * s_per_byte)
