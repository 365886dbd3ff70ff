"""Small profiles in one line, for tests whose numbers are worked out on paper."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from placer.devices import REFERENCE_TYPE, Device, DeviceTopology, Link
from placer.graph import Op, OpGraph, Tensor
from placer.profile import OpCosts, Profile

SECOND_PER_BYTE = Link(bandwidth_bytes_per_s=1.0)
"""Moves a tensor of n bytes in n seconds."""


def make_topology(num_devices: int, link: Link = SECOND_PER_BYTE, **limits: int) -> DeviceTopology:
    """Return equal GPUs ``gpu:0``, … with equal links; ``memory_bytes`` limits each."""
    devices = tuple(Device(f"gpu:{number}", **limits) for number in range(num_devices))
    pairs = [(a, b) for a in range(num_devices) for b in range(num_devices) if a != b]
    return DeviceTopology(devices, dict.fromkeys(pairs, link))


def make_graph(
    num_ops: int,
    tensors: Sequence[tuple[int, tuple[int, ...], int]],
    memory_bytes: Sequence[int] | None = None,
) -> OpGraph:
    """Return a graph of ops a, b, c, … and tensors (producer, consumers, size_bytes)."""
    memory_bytes = memory_bytes or [0] * num_ops
    ops = tuple(
        Op(chr(ord("a") + number), "MatMul", memory_bytes=memory_bytes[number])
        for number in range(num_ops)
    )
    return OpGraph(ops, tuple(Tensor(*tensor) for tensor in tensors))


def make_costs(
    compute_time_s: Sequence[float], workspace_bytes: Sequence[int] | None = None
) -> OpCosts:
    """Return costs that are the same on every device."""
    times = np.array(compute_time_s, dtype=np.float64)[:, np.newaxis]
    workspace = np.array(workspace_bytes or [0] * len(times), dtype=np.int64)
    return OpCosts((REFERENCE_TYPE,), times, np.zeros(times.shape, dtype=np.bool_), workspace)


def make_profile(
    compute_time_s: Sequence[float],
    tensors: Sequence[tuple[int, tuple[int, ...], int]],
    topology: DeviceTopology,
    memory_bytes: Sequence[int] | None = None,
) -> Profile:
    """Return a profile of ops a, b, c, … with these compute times and tensors."""
    graph = make_graph(len(compute_time_s), tensors, memory_bytes)
    return Profile(graph, make_costs(compute_time_s), topology)


def result_row(method: str, **changes: Any) -> dict[str, Any]:
    """Return a row of an evaluation in which nothing was measured."""
    return {
        "method": method,
        "outcome": "OK",
        "makespan_s": 0.5,
        "step_time_s": None,
        "spread_s": None,
        "gap": 0.02,
        "speedup_over_single": 1.25,
        "speedup_over_expert": None,
        "speedup_over_single_interval": None,
        "speedup_over_expert_interval": None,
        "peak_memory_bytes": [2**30, 0],
        "detail": "",
        "placement": "abc",
        **changes,
    }
