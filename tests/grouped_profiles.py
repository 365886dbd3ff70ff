"""Small profiles for the tests of grouping and of heuristics, and the published graphs."""

import json
import pathlib
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import strategies as st

from placer.devices import Device, DeviceTopology, Link
from placer.graph import Op, OpGraph, Tensor
from placer.profile import OpCosts, Profile

MSR = pathlib.Path(__file__).parents[2] / "shared" / "workloads" / "msr"
BOTH = ("CPU", "GPU")
LINK = Link(bandwidth_bytes_per_s=1e9, latency_s=1e-3)
"""A megabyte takes 1 ms of latency and 1 ms of sending."""


def topology_of(*kinds: str) -> DeviceTopology:
    """Return devices of these kinds, named ``cpu:0``, ``gpu:0``, ``gpu:1``, …."""
    devices = tuple(
        Device(f"{kind.lower()}:{kinds[:i].count(kind)}", kind=kind, type=kind.lower())
        for i, kind in enumerate(kinds)
    )
    pairs = [(a, b) for a in range(len(kinds)) for b in range(len(kinds)) if a != b]
    return DeviceTopology(devices, dict.fromkeys(pairs, LINK))


def profile_of(
    ops: Sequence[Op],
    tensors: Sequence[tuple[int, tuple[int, ...], int]],
    topology: DeviceTopology | None = None,
    *,
    time_s: Sequence[float] | None = None,
    cpu_factor: float = 10,
) -> Profile:
    """Return a profile; times are of the GPU, one second each unless given."""
    gpu_s = np.ones(len(ops)) if time_s is None else np.array(time_s, dtype=float)
    times = np.stack([gpu_s, cpu_factor * gpu_s], axis=1)
    measured = np.zeros(times.shape, dtype=np.bool_)
    workspace_bytes = np.zeros(len(ops), dtype=np.int64)
    return Profile(
        OpGraph(tuple(ops), tuple(Tensor(*tensor) for tensor in tensors)),
        OpCosts(("gpu", "cpu"), times, measured, workspace_bytes),
        topology or topology_of("CPU", "GPU", "GPU"),
    )


def chain_of(modules: Sequence[str], topology: DeviceTopology | None = None) -> Profile:
    """Return a chain of ops ``op0 -> op1 -> …`` with these modules, a kilobyte between."""
    ops = [Op(f"op{i}", "MatMul", module=module) for i, module in enumerate(modules)]
    tensors = [(i, (i + 1,), 1000) for i in range(len(ops) - 1)]
    return profile_of(ops, tensors, topology)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """Draw a profile that may have one op, one device, no edges, no times, no modules."""
    num_ops = draw(st.integers(1, 12))
    kinds = draw(st.sampled_from([BOTH, ("CPU", "GPU", "GPU"), ("CPU",), ("CPU", "CPU")]))
    permitted = [BOTH, ("CPU",), ("GPU",)] if "GPU" in kinds else [BOTH, ("CPU",)]
    # A colocation key belongs to one set of kinds, so that what is drawn is feasible.
    choices = [(kinds, f"{kinds}{key}" if key else "") for kinds in permitted for key in range(3)]
    tied = draw(st.lists(st.sampled_from(choices), min_size=num_ops, max_size=num_ops))
    modules = st.sampled_from(["", "a/1", "a/2", "b/1"])
    ops = [
        Op(f"op{i}", "Op", colocation=key, device_kinds=op_kinds, module=draw(modules))
        for i, (op_kinds, key) in enumerate(tied)
    ]
    tensors = []
    for producer in range(num_ops - 1):
        consumers = draw(st.sets(st.integers(producer + 1, num_ops - 1), max_size=3))
        size_bytes = draw(st.sampled_from([0, 0, 4, 10**6, 10**12]))
        tensors.append((producer, tuple(sorted(consumers)), size_bytes))
    times = st.sampled_from([0.0, 0.0, 1e-9, 1e-3, 5.0])
    time_s = draw(st.lists(times, min_size=num_ops, max_size=num_ops))
    return profile_of(ops, tensors, topology_of(*kinds), time_s=time_s)


def msr_profile(name: str) -> Profile:
    """Return a published graph on four equal devices, or skip the test without the file."""
    path = MSR / f"{name}.json"
    if not path.exists():
        pytest.skip(f"the published graphs are not at {MSR}")
    content = json.loads(path.read_text())
    index = {node["id"]: i for i, node in enumerate(content["nodes"])}
    ops = [
        Op(
            f"{node['name']}:{node['id']}",
            "Op",
            memory_bytes=int(node["size"]),
            colocation="" if node.get("colorClass") is None else str(node["colorClass"]),
        )
        for node in content["nodes"]
    ]
    consumers: dict[int, set[int]] = {}
    sizes: dict[int, int] = {}
    for edge in content["edges"]:
        source = index[edge["sourceId"]]
        consumers.setdefault(source, set()).add(index[edge["destId"]])
        sizes[source] = max(sizes.get(source, 0), int(edge["size"]))
    tensors = [(op, tuple(sorted(consumers[op])), sizes[op]) for op in sorted(sizes)]
    link = Link(bandwidth_bytes_per_s=7.6e9, latency_s=25e-6)
    time_s = [round(node["fpgaLatency"] * 1000) / 1e6 for node in content["nodes"]]
    return profile_of(ops, tensors, DeviceTopology.uniform(4, link), time_s=time_s)
