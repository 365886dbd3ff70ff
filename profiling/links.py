"""Links between the devices of a cluster, fitted to real transfers.

A tensor is sent back and forth between two devices, several times in one step. The time from
the end of the op that made it to the start of the op that waits for it is what a simulation
must add for a transfer. It is the same for all sizes but for two numbers, the latency and
the bandwidth of that direction, which are fitted to it.

On one host both ends take their time from the same clock; between hosts the offset of their
clocks is taken out, see ``profiling.clocks``.
"""

import itertools
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
import scipy.optimize
import tensorflow as tf
from tensorflow.core.framework import step_stats_pb2
from tensorflow.core.protobuf import config_pb2

from placer.devices import DeviceTopology, Link
from placer.errors import WorkerError
from profiling.clocks import without_clock_offset
from profiling.cluster import Cluster
from profiling.discovery import discover_devices

SIZES_BYTES = (4, 2**16, 2**20, 2**23)
"""Tensors that are sent: a scalar, and what activations and gradients weigh."""

_HOPS = 8
_WARMUP_STEPS = 2
_CLOCK_TICK_S = 1e-9


def local_topology(cluster: Cluster) -> DeviceTopology:
    """Return the cluster's devices, with links as measured now.

    ``profiling.discovery`` says what the devices and their types are called.

    Raises:
        WorkerError: If the workers do not answer, or transfers fail.
    """
    return DeviceTopology(discover_devices(cluster), measure_links(cluster), name=cluster.name)


def measure_links(
    cluster: Cluster, *, sizes_bytes: Sequence[int] = SIZES_BYTES, steps: int = 5
) -> dict[tuple[int, int], Link]:
    """Measure the link of every ordered pair of devices.

    Args:
        cluster: The workers.
        sizes_bytes: Sizes of the tensors to send, multiples of 4; at least two, ascending.
        steps: Steps of each size; the median of all their transfers counts.

    Raises:
        WorkerError: If transfers fail or cannot be timed.
    """
    links: dict[tuple[int, int], Link] = {}
    for pair in itertools.combinations(range(len(cluster.devices)), 2):
        names = (cluster.devices[pair[0]], cluster.devices[pair[1]])
        try:
            times_s = [_transfer_times_s(cluster, names, size, steps) for size in sizes_bytes]
        except tf.errors.OpError as error:
            raise WorkerError(
                f"transfers between {names[0]} and {names[1]} failed: {error.message}"
            ) from error
        there, back = (np.array(each) for each in zip(*times_s, strict=True))
        if cluster.clocks[pair[0]] != cluster.clocks[pair[1]]:
            there, back = without_clock_offset(there, back)
        links[pair] = fit_link(sizes_bytes, np.maximum(there, _CLOCK_TICK_S))
        links[pair[1], pair[0]] = fit_link(sizes_bytes, np.maximum(back, _CLOCK_TICK_S))
    return links


def fit_link(sizes_bytes: Sequence[int], times_s: Sequence[float]) -> Link:
    """Fit ``time = latency + size / bandwidth``, neither below zero.

    Least squares of the relative errors: small tensors, of which a step sends most, count as
    much as large ones.
    """
    times = np.asarray(times_s)
    equations = np.stack([np.ones(len(times)), np.asarray(sizes_bytes, dtype=float)], axis=1)
    (latency_s, s_per_byte), _ = scipy.optimize.nnls(
        equations / times[:, None], np.ones(len(times))
    )
    # Transfers that take equally long whatever their size: faster than can be told.
    s_per_byte = max(s_per_byte, 1e-15)
    return Link(bandwidth_bytes_per_s=float(1 / s_per_byte), latency_s=float(latency_s))


def _transfer_times_s(
    cluster: Cluster, names: tuple[str, str], size_bytes: int, steps: int
) -> tuple[float, float]:
    """Return the median seconds from the first device to the second, and back."""
    graph = tf.Graph()
    with graph.as_default():
        with tf.device(names[0]):
            tensor = tf.compat.v1.get_variable(
                "tensor", [size_bytes // 4], initializer=tf.zeros_initializer(), use_resource=True
            )
            initializer = tensor.initializer
            value = tensor.read_value()
        for hop in range(_HOPS + 1):
            with tf.device(names[hop % 2]):
                value = tf.identity(value, name=f"hop_{hop}")
    samples: tuple[list[float], list[float]] = ([], [])
    options = config_pb2.RunOptions(trace_level=config_pb2.RunOptions.FULL_TRACE)
    with cluster.session(graph) as session:
        session.run(initializer)
        for _ in range(_WARMUP_STEPS):
            session.run(value.op)
        for _ in range(steps):
            metadata = config_pb2.RunMetadata()
            session.run(value.op, options=options, run_metadata=metadata)
            for hop, time_s in enumerate(hop_times_s(metadata.step_stats)):
                samples[hop % 2].append(time_s)
    return statistics.median(samples[0]), statistics.median(samples[1])


def hop_times_s(trace: step_stats_pb2.StepStats) -> list[float]:
    """Return the seconds of each hop but the first two, in which the workers wake up.

    They are from one worker's clock to another's, hence negative where the second is behind.

    Raises:
        WorkerError: If a hop is missing in the trace.
    """
    found: Mapping[str, step_stats_pb2.NodeExecStats] = {
        stats.node_name: stats
        for device in trace.dev_stats
        if device.device.startswith("/job:")
        for stats in device.node_stats
    }
    try:
        hops = [found[f"hop_{hop}"] for hop in range(_HOPS + 1)]
    except KeyError as error:
        raise WorkerError(f"the trace of a transfer lacks {error}") from error
    return [
        (_start_ns(after) - _end_ns(before)) * 1e-9
        for before, after in itertools.pairwise(hops[2:])
    ]


def _start_ns(stats: step_stats_pb2.NodeExecStats) -> int:
    return int(stats.all_start_nanos + stats.op_start_rel_nanos)


def _end_ns(stats: step_stats_pb2.NodeExecStats) -> int:
    return int(stats.all_start_nanos + stats.op_end_rel_nanos)
