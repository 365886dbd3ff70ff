"""Hypothesis strategies for the core types.

Times and sizes come mostly from a few small whole numbers, so that ties and work of no
duration are common rather than rare.
"""

import numpy as np
from hypothesis import strategies as st

from placer.devices import UNLIMITED_BYTES, Device, DeviceTopology, Link
from placer.graph import Op, OpGraph, Tensor
from placer.grouping import Grouping
from placer.placement import Placement
from placer.profile import OpCosts, Profile

TIMES_S = st.one_of(st.sampled_from([0.0, 1.0, 1.0, 2.0, 3.0]), st.floats(0.0, 4.0))
LOADS = st.sampled_from([0.0, 0.3, 0.5, 0.701, 1.0])
SIZES_BYTES = st.sampled_from([0, 0, 1, 1, 2, 3, 1000])
DEVICE_TYPES = ("fast", "slow")


@st.composite
def op_graphs(draw: st.DrawFn, max_ops: int = 9) -> OpGraph:
    """Acyclic graphs whose op indices are in no topological order."""
    num_ops = draw(st.integers(1, max_ops))
    order = draw(st.permutations(range(num_ops)))
    kinds = st.sampled_from([("CPU", "GPU"), ("CPU", "GPU"), ("CPU", "GPU"), ("GPU",)])
    ops = tuple(
        Op(
            f"op{op}",
            draw(st.sampled_from(["Const", "MatMul"])),
            memory_bytes=draw(SIZES_BYTES),
            device_kinds=draw(kinds),
        )
        for op in range(num_ops)
    )
    tensors = []
    for position, producer in enumerate(order):
        for _ in range(draw(st.integers(0, 2))):
            later = order[position + 1 :]
            consumers = draw(st.sets(st.sampled_from(later), max_size=4)) if later else set()
            tensors.append(Tensor(producer, tuple(sorted(consumers)), draw(SIZES_BYTES)))
    return OpGraph(ops, tuple(draw(st.permutations(tensors))))


@st.composite
def topologies(draw: st.DrawFn, max_devices: int = 5, *, loads: bool = True) -> DeviceTopology:
    """Up to five devices, at least one of them a GPU, with links that differ by direction.

    ``loads`` says whether transfers may take time of the devices at their ends.
    """
    loads = loads and draw(st.booleans())
    num_devices = draw(st.integers(1, max_devices))
    devices = tuple(
        Device(
            f"device:{number}",
            kind="GPU" if number == 0 else draw(st.sampled_from(["GPU", "GPU", "CPU"])),
            type=draw(st.sampled_from(DEVICE_TYPES)),
            memory_bytes=draw(st.sampled_from([UNLIMITED_BYTES, 1, 5, 1000])),
        )
        for number in range(num_devices)
    )
    link = st.builds(
        Link,
        bandwidth_bytes_per_s=st.sampled_from([1.0, 1.0, 2.0, 3.0, 1000.0]),
        latency_s=st.sampled_from([0.0, 0.0, 1.0, 0.1]),
        **({"source_load": LOADS, "destination_load": LOADS} if loads else {}),
    )
    pairs = [(a, b) for a in range(num_devices) for b in range(num_devices) if a != b]
    return DeviceTopology(devices, {pair: draw(link) for pair in pairs})


@st.composite
def profiles(draw: st.DrawFn, max_ops: int = 9, max_devices: int = 5) -> Profile:
    """A graph, a topology and costs on two types of device."""
    graph = draw(op_graphs(max_ops))
    shape = (graph.num_ops, len(DEVICE_TYPES))
    times = draw(st.lists(TIMES_S, min_size=shape[0] * 2, max_size=shape[0] * 2))
    workspace = draw(st.lists(SIZES_BYTES, min_size=shape[0], max_size=shape[0]))
    costs = OpCosts(
        DEVICE_TYPES,
        np.array(times).reshape(shape),
        np.ones(shape, dtype=np.bool_),
        np.array(workspace, dtype=np.int64),
    )
    return Profile(graph, costs, draw(topologies(max_devices)))


@st.composite
def placements(draw: st.DrawFn, profile: Profile) -> Placement:
    """Placements of the profile's ops on devices whose kind has a kernel for them."""
    return Placement(
        [draw(st.sampled_from(np.flatnonzero(row).tolist())) for row in profile.allowed]
    )


@st.composite
def placed_profiles(
    draw: st.DrawFn, max_ops: int = 9, max_devices: int = 5
) -> tuple[Profile, Placement]:
    """A profile and one of its placements."""
    profile = draw(profiles(max_ops, max_devices))
    return profile, draw(placements(profile))


@st.composite
def groupings(draw: st.DrawFn, graph: OpGraph) -> Grouping:
    """Groupings of the graph by arbitrary keys, numbered in topological order."""
    keys = draw(
        st.lists(st.integers(0, graph.num_ops), min_size=graph.num_ops, max_size=graph.num_ops)
    )
    return Grouping.in_topological_order(graph, keys)
