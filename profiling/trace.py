"""Compute times of ops, from full traces of the step on one device of each type.

Tracing slows a step down, and the clock of a trace does not see what TensorFlow does between
ops. So the traced times are scaled: on one device they add up to the step time that was
measured without a trace. An op that runs several times a step (in a loop) costs the sum. One
that never shows up costs nothing: TensorFlow pruned it.
"""

import collections
import datetime
import socket
import statistics
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import step_stats_pb2
from tensorflow.core.protobuf import config_pb2

from placer.devices import DeviceTopology
from placer.errors import InfeasibleError, InvalidValueError, WorkerError
from placer.graph import BoolArray, FloatArray, IntArray
from placer.profile import OpCosts, Provenance
from profiling.cluster import LocalCluster
from profiling.real_environment import MeasurementConfig, PlacedStep
from profiling.step import CapturedStep


def trace_costs(
    step: CapturedStep,
    topology: DeviceTopology,
    cluster: LocalCluster,
    *,
    steps: int = 7,
    config: MeasurementConfig = MeasurementConfig(),
) -> tuple[OpCosts, Provenance]:
    """Measure what every op costs on each type of device of the cluster.

    Ops without a kernel on a type run on the first device that has one meanwhile; their time
    on that type is zero and not marked as measured.

    Args:
        step: The step.
        topology: The cluster's devices, in the order of ``cluster.devices``.
        cluster: The workers.
        steps: Traced steps, and as many plain ones; medians are taken.
        config: How to warm up, and the time limit.

    Returns:
        The costs, and their provenance with the facts ``steps`` and ``tensorflow`` and, for
        each type, ``step_time_s TYPE`` and ``traced_sum_s TYPE`` before the scaling.

    Raises:
        InvalidValueError: If ``steps`` is not positive, or topology and cluster differ in
            the number of devices.
        InfeasibleError: If an op has no permitted device.
        WorkerError: If the step fails on a type, or the trace is empty.
    """
    if steps < 1:
        raise InvalidValueError(f"steps must be at least 1, got {steps}")
    if topology.num_devices != len(cluster.devices):
        raise InvalidValueError(
            f"topology {topology.name!r} has {topology.num_devices} devices,"
            f" but the cluster has {len(cluster.devices)}"
        )
    types = list(dict.fromkeys(device.type for device in topology.devices))
    times_s, workspaces, measured = [], [], []
    facts = {"steps": str(steps), "tensorflow": tf.__version__}
    for type_ in types:
        devices = _devices_for(step, topology, type_)
        names = [cluster.devices[device] for device in devices]
        try:
            step_time_s, traces = _trace(step, names, cluster, steps, config)
        except (tf.errors.OpError, ArithmeticError) as error:
            raise WorkerError(f"step {step.name!r} cannot be traced on {type_!r}: {error}") from error
        of_type = np.array([topology.devices[device].type == type_ for device in devices])
        time_s = np.median([op_times_s(step, trace) for trace in traces], axis=0)
        facts[f"step_time_s {type_}"] = f"{step_time_s:.6g}"
        facts[f"traced_sum_s {type_}"] = f"{time_s.sum():.6g}"
        times_s.append(np.where(of_type, time_s * (step_time_s / time_s.sum()), 0.0))
        measured.append(of_type)
        workspaces.append(_workspace_bytes(step, traces[-1]))
    costs = OpCosts(
        device_types=tuple(types),
        compute_time_s=np.stack(times_s, axis=1),
        measured=np.stack(measured, axis=1),
        workspace_bytes=np.max(workspaces, axis=0),
    )
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return costs, Provenance(method="trace", host=socket.gethostname(), date=now, facts=facts)
