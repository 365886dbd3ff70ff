"""Compute times of ops, from full traces of the step on one device of each type.

An op's time is all that its device spends on it, the executor's share included: that is most
of a small op. What is left between ops, and what tracing itself costs, is corrected by one
factor for all: the times add up to the step time that was measured without a trace.

An op that runs several times a step (in a loop) costs the sum. One that never shows up costs
nothing: TensorFlow pruned it.
"""

import collections
import datetime
import socket
import statistics
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import step_stats_pb2
from tensorflow.core.protobuf import config_pb2

from placer.devices import DeviceTopology
from placer.errors import InfeasibleError, InvalidValueError, WorkerError
from placer.graph import FloatArray, IntArray, OpGraph
from placer.profile import OpCosts, Provenance
from profiling.cluster import Cluster
from profiling.placed_step import PlacedStep, one_line
from profiling.real_environment import MeasurementConfig
from profiling.step import CapturedStep

_CONFIG = MeasurementConfig()


def trace_costs(
    step: CapturedStep, topology: DeviceTopology, cluster: Cluster, *, steps: int = 7
) -> tuple[OpCosts, Provenance]:
    """Measure what every op costs on each type of device of the cluster.

    Ops without a kernel on a type run on the first device that has one meanwhile; their time
    on that type is zero, and not marked as measured.

    Args:
        step: The step.
        topology: The cluster's devices, in the order of ``cluster.devices``.
        cluster: The workers.
        steps: Traced steps, and as many plain ones in turn with them; medians are taken.

    Returns:
        The costs, and their provenance. Its facts, as text: ``steps``, ``tensorflow`` (the
        version), ``step_time_s`` and ``traced_sum_s`` (before the correction), the last two
        for the first device type; for further types their name follows.

    Raises:
        InvalidValueError: If ``steps`` is not positive, or topology and cluster differ in
            the number or kinds of devices.
        InfeasibleError: If an op has no permitted device.
        WorkerError: If the step fails on a type, or the trace is empty.
    """
    if steps < 1:
        raise InvalidValueError(f"steps must be at least 1, got {steps}")
    cluster.check(topology)
    graph = step.op_graph
    types = tuple(dict.fromkeys(device.type for device in topology.devices))
    shape = (graph.num_ops, len(types))
    compute_time_s, measured = np.zeros(shape), np.zeros(shape, dtype=np.bool_)
    workspace_bytes = np.zeros(shape, dtype=np.int64)
    facts = {"steps": str(steps), "tensorflow": tf.__version__}
    for column, type_ in enumerate(types):
        devices = devices_for_type(graph, topology, type_)
        names = [cluster.devices[device] for device in devices]
        step_time_s, traces = _run_traced(step, names, cluster, steps)
        time_s = np.median([op_times_s(graph, trace) for trace in traces], axis=0)
        measured[:, column] = [topology.devices[device].type == type_ for device in devices]
        compute_time_s[:, column] = time_s * measured[:, column] * step_time_s / time_s.sum()
        workspace_bytes[:, column] = op_workspace_bytes(graph, traces[-1])
        suffix = f" {type_}" if column else ""
        facts[f"step_time_s{suffix}"] = f"{step_time_s:.6g}"
        facts[f"traced_sum_s{suffix}"] = f"{time_s.sum():.6g}"
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return (
        OpCosts(types, compute_time_s, measured, workspace_bytes.max(axis=1)),
        Provenance(method="trace", host=socket.gethostname(), date=now, facts=facts),
    )


def devices_for_type(graph: OpGraph, topology: DeviceTopology, type_: str) -> list[int]:
    """Return a device index for each op: the first of the type, where there is a kernel.

    Raises:
        InfeasibleError: If no device has a kernel for an op, or for those it must share a
            device with.
    """
    kinds = [set(op.device_kinds) for op in graph.ops]
    for ops in graph.colocations:
        shared = set.intersection(*(kinds[index] for index in ops))
        for index in ops:
            kinds[index] = shared
    indices = range(topology.num_devices)
    preferred = sorted(indices, key=lambda index: topology.devices[index].type != type_)
    devices = []
    for op, of_op in zip(graph.ops, kinds, strict=True):
        usable = [index for index in preferred if topology.devices[index].kind in of_op]
        if not usable:
            raise InfeasibleError(
                f"op {op.name!r} ({op.type}) needs a device of kind"
                f" {' or '.join(sorted(of_op)) or 'none'}, which {topology.name!r} has not"
            )
        devices.append(usable[0])
    return devices


def op_times_s(graph: OpGraph, trace: step_stats_pb2.StepStats) -> FloatArray:
    """Return the seconds that each op took in one traced step, ``[N]``.

    A GPU's executor only launches kernels; their own times are in a second record, and the
    longer of both counts.

    Raises:
        WorkerError: If the trace holds none of the ops.
    """
    executor_s: dict[str, float] = collections.defaultdict(float)
    kernels_s: dict[str, float] = collections.defaultdict(float)
    for device in trace.dev_stats:
        for stats in device.node_stats:
            if "/stream:all" in device.device:
                kernels_s[stats.node_name.split(":")[0]] += _elapsed_s(stats)
            elif device.device.startswith("/job:"):
                executor_s[stats.node_name] += _elapsed_s(stats)
    if executor_s.keys().isdisjoint(graph.index_of_name):
        raise WorkerError("the trace of a step is empty: no op can be timed")
    return np.array(
        [max(executor_s.get(op.name, 0.0), kernels_s.get(op.name, 0.0)) for op in graph.ops]
    )


def op_workspace_bytes(graph: OpGraph, trace: step_stats_pb2.StepStats) -> IntArray:
    """Return the temporary memory of each op in one traced step, ``[N]``."""
    most: dict[str, int] = collections.defaultdict(int)
    for device in trace.dev_stats:
        for stats in device.node_stats:
            temporary = stats.memory_stats.temp_memory_size
            most[stats.node_name] = max(most[stats.node_name], temporary)
    return np.array([most.get(op.name, 0) for op in graph.ops], dtype=np.int64)


def _elapsed_s(stats: step_stats_pb2.NodeExecStats) -> float:
    # Some records (transfers, kernels) are in microseconds alone.
    return float(stats.all_end_rel_nanos * 1e-9 or stats.all_end_rel_micros * 1e-6)


def _run_traced(
    step: CapturedStep,
    device_of_op: Sequence[str],
    cluster: Cluster,
    steps: int,
) -> tuple[float, list[step_stats_pb2.StepStats]]:
    """Return the median time of a plain step, and the traces."""
    plain_s, traces = [], []
    try:
        placed = PlacedStep(step, device_of_op, cluster, timeout_s=_CONFIG.timeout_s)
        try:
            placed.warm_up(_CONFIG.max_warmup_steps)
            for _ in range(steps):
                plain_s.append(placed.run())
                metadata = config_pb2.RunMetadata()
                placed.run(metadata)
                traces.append(metadata.step_stats)
        finally:
            placed.close()
    except (tf.errors.OpError, ArithmeticError) as error:
        raise WorkerError(
            f"step {step.name!r} cannot be traced on {device_of_op[0]}: {one_line(error)}"
        ) from error
    return statistics.median(plain_s), traces
