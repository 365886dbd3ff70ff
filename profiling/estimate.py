"""Estimated op times for devices that are described but absent.

TensorFlow's virtual-cluster cost model counts the arithmetic and the bytes of each op,
divides them by the peak rates of a described device, and adds the two times. It is asked
here about a *unit device* of one operation and one byte a nanosecond: its answers are then
the counts themselves, the same for every device, and one question serves all types. The
rates are ours, because the model's own take a CPU core for one operation a cycle and every
GPU since Pascal for 64 lanes a multiprocessor. Time of an op:

    launch_s + operations / (peak · efficiency) + bytes / (bandwidth · efficiency)

``docs/estimates.md`` derives the constants and compares the sums with published times.
Array shapes: N ops, T device types.
"""

import dataclasses
import datetime
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from tensorflow.core.grappler.costs import op_performance_data_pb2
from tensorflow.core.protobuf import device_properties_pb2, meta_graph_pb2
from tensorflow.python.grappler import cluster as grappler_cluster
from tensorflow.python.grappler import item as grappler_item

from placer.devices import DeviceTopology, Hardware
from placer.errors import InvalidValueError, UnknownNameError
from placer.graph import BoolArray, FloatArray, OpGraph
from placer.profile import OpCosts, Provenance
from profiling.step import CapturedStep

DENSE_OPS = frozenset(
    {
        "BatchMatMul",
        "BatchMatMulV2",
        "Conv2D",
        "Conv2DBackpropFilter",
        "Conv2DBackpropInput",
        "Einsum",
        "MatMul",
    }
)
"""Ops whose arithmetic a BLAS or convolution library does: matrix multiply-adds."""

FREE_OPS = frozenset(
    {
        "Const",
        "ExpandDims",
        "Identity",
        "IdentityN",
        "NoOp",
        "PreventGradient",
        "Rank",
        "ReadVariableOp",
        "Reshape",
        "Shape",
        "ShapeN",
        "Size",
        "Squeeze",
        "StopGradient",
        "VarHandleOp",
    }
)
"""Ops that take no time: each hands on a buffer that exists, or reads its shape on the host,
and launches no kernel."""

OPAQUE_OPS = frozenset(
    {
        "Case",
        "If",
        "PartitionedCall",
        "StatefulPartitionedCall",
        "StatelessCase",
        "StatelessIf",
        "StatelessWhile",
        "While",
    }
)
"""Ops whose inside the cost model does not look at: they count as moving their inputs and
outputs once, which is far too little. The provenance says how many there are."""

DENSE_EFFICIENCY = {"GPU": 0.6, "CPU": 0.4}
"""Share of peak arithmetic that dense ops reach.

GPU: cuBLAS 7.0 SGEMM on a K40, 45 % of its boost peak at 1,024 and 65 % at 4,096 (measured by
the clBLAS project). CPU: InceptionV3 training with MKL on two 16-core Broadwells, 20.8 images/s
(TensorFlow performance guide), less the time of its memory-bound ops.
"""

ELEMENTWISE_EFFICIENCY = {"GPU": 0.5, "CPU": 0.5}
"""Share of peak arithmetic of all other ops: a peak counts a fused multiply-add as two."""

MEMORY_EFFICIENCY = {"GPU": 0.75, "CPU": 0.65}
"""Share of peak bandwidth that large streams reach.

BabelStream triad: K80 176 of 240 GB/s, H100 NVL 3,304 of 3,938 GB/s; Haswell 91 GB/s, taken for
two sockets of 68 GB/s.
"""

LAUNCH_S = {"GPU": 5e-6, "CPU": 1e-6}
"""Seconds before the first operation of a kernel.

GPU: an empty kernel takes about 3 µs (NVIDIA developer forum 233645), earlier hardware and
TensorFlow's executor the rest. CPU: TensorFlow 2.21 takes 0.3 µs for each op of a chain of
scalar additions on one thread; handing an op to another thread takes more.
"""

CPU_FLOPS_PER_CYCLE = 32
"""Float32 operations of a core: two fused multiply-add units of eight lanes (AVX2)."""

GPU_FLOPS_PER_CYCLE = {
    "3": 384,
    "5": 256,
    "6.0": 128,
    "6.1": 256,
    "7": 128,
    "8.0": 128,
    "8.6": 256,
    "8.9": 256,
    "9": 256,
}
"""Float32 operations of a multiprocessor by compute capability, or its major part: twice the
fused multiply-adds of the CUDA C++ programming guide's table of arithmetic throughput."""

GPU_DENSE_FLOPS_PER_CYCLE = {"8.0": 1024, "8.6": 512, "8.9": 512, "9": 2048}
"""The same for dense ops where they run on tensor cores: TensorFlow multiplies float32 as TF32
from capability 8.0 on. A100: 156 TFLOP/s = 108 multiprocessors · 1.41 GHz · 1,024."""

# The model takes a CPU's rates as num_cores · MHz / 1000 operations and KB/s / 10⁶ bytes a ns.
_UNIT_DEVICE = device_properties_pb2.NamedDevice(
    name="/job:localhost/replica:0/task:0/device:CPU:0",
    properties=device_properties_pb2.DeviceProperties(
        type="CPU", num_cores=1, frequency=1000, bandwidth=1_000_000
    ),
)


@dataclasses.dataclass(frozen=True, eq=False)
class OpWork:
    """What each op of a graph has to do, wherever it runs.

    Attributes:
        operations: Arithmetic operations, in thousands rounded down, ``[N]``.
        moved_bytes: Bytes read and written, in thousands rounded down, ``[N]``.
        workspace_bytes: Scratch memory, ``[N]``.
        estimated: False where the cost model gave nothing or an overflow: there
            ``moved_bytes`` are the op's inputs and outputs and the rest is zero, ``[N]``.
    """

    operations: FloatArray
    moved_bytes: FloatArray
    workspace_bytes: FloatArray
    estimated: BoolArray


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRates:
    """Peak rates of a type of device, before efficiency.

    Attributes:
        kind: ``CPU`` or ``GPU``.
        dense_flops_per_s: Of ``DENSE_OPS``.
        flops_per_s: Of all other ops.
        bytes_per_s: Of the device's own memory.
    """

    kind: str
    dense_flops_per_s: float
    flops_per_s: float
    bytes_per_s: float

    @classmethod
    def of(cls, hardware: Hardware, kind: str) -> "DeviceRates":
        """Return the peak rates of described hardware.

        Raises:
            UnknownNameError: If a GPU's architecture is missing or unknown.
        """
        cycles_per_s = hardware.num_cores * hardware.frequency_mhz * 1e6
        flops = dense_flops = CPU_FLOPS_PER_CYCLE
        if kind == "GPU":
            flops = _flops_per_cycle(hardware.architecture)
            dense_flops = _by_capability(GPU_DENSE_FLOPS_PER_CYCLE, hardware.architecture) or flops
        return cls(
            kind=kind,
            dense_flops_per_s=dense_flops * cycles_per_s,
            flops_per_s=flops * cycles_per_s,
            bytes_per_s=hardware.memory_bandwidth_bytes_per_s,
        )


def estimate_costs(step: CapturedStep, topology: DeviceTopology) -> tuple[OpCosts, Provenance]:
    """Estimate the time of every op on every device type of a topology.

    A type's column is filled for ops that have no kernel there, too: the profile never
    permits them to run on it.

    Args:
        step: The captured training step.
        topology: Devices whose types are all described in its hardware.

    Returns:
        The costs, none of them measured, and how they were made.

    Raises:
        UnknownNameError: If a device type or a GPU's architecture is not described.
        InvalidValueError: If a device type is of two kinds.
    """
    kind_of_type = _kinds(topology)
    rates = [DeviceRates.of(topology.hardware[type_], kind) for type_, kind in kind_of_type.items()]
    work = count_work(step)
    costs = OpCosts(
        device_types=tuple(kind_of_type),
        compute_time_s=np.stack([_times_s(step.op_graph, work, rate) for rate in rates], axis=1),
        measured=np.zeros((step.op_graph.num_ops, len(rates)), dtype=np.bool_),
        workspace_bytes=work.workspace_bytes.astype(np.int64),
    )
    return costs, _provenance(step.op_graph, work, topology, kind_of_type)


def count_work(step: CapturedStep) -> OpWork:
    """Return the arithmetic and the bytes of each op, as TensorFlow's cost model counts them.

    Ops the model has no formula for count as moving their inputs and outputs once.

    Args:
        step: The captured training step.
    """
    graph = step.op_graph
    performances = _measure(step)
    counts = np.full((graph.num_ops, 3), -1.0)
    for op, name in enumerate(op.name for op in graph.ops):
        if name in performances:
            performance = performances[name]
            counts[op] = (
                performance.compute_time,
                performance.memory_time,
                performance.op_memory.temp_memory,
            )
    estimated = np.all(counts >= 0, axis=1)
    counts[~estimated] = 0.0
    counts[~estimated, 1] = _tensor_bytes(graph)[~estimated]
    return OpWork(counts[:, 0], counts[:, 1], counts[:, 2], estimated)


def _measure(step: CapturedStep) -> dict[str, op_performance_data_pb2.OpPerformance]:
    meta_graph = meta_graph_pb2.MetaGraphDef()
    meta_graph.graph_def.CopyFrom(step.graph_def)
    for node in meta_graph.graph_def.node:
        node.device = _UNIT_DEVICE.name
    wanted = [name.split(":")[0] for name in (*step.fetches, *step.targets)]
    meta_graph.collection_def["train_op"].node_list.value.extend(wanted)
    cluster = grappler_cluster.Cluster(devices=[_UNIT_DEVICE])
    try:
        performances, _, _ = cluster.MeasureCosts(grappler_item.Item(meta_graph))
    finally:
        cluster.Shutdown()
    return {performance.node: performance for performance in performances}


def _tensor_bytes(graph: OpGraph) -> FloatArray:
    moved_bytes = np.zeros(graph.num_ops)
    for tensor in graph.tensors:
        moved_bytes[[tensor.producer, *tensor.consumers]] += tensor.size_bytes
    return moved_bytes


def _times_s(graph: OpGraph, work: OpWork, rates: DeviceRates) -> FloatArray:
    kind = rates.kind
    flops_per_s = np.where(
        _of_type(graph, DENSE_OPS),
        rates.dense_flops_per_s * DENSE_EFFICIENCY[kind],
        rates.flops_per_s * ELEMENTWISE_EFFICIENCY[kind],
    )
    bytes_per_s = rates.bytes_per_s * MEMORY_EFFICIENCY[kind]
    times_s = LAUNCH_S[kind] + work.operations / flops_per_s + work.moved_bytes / bytes_per_s
    return np.where(_of_type(graph, FREE_OPS), 0.0, times_s)


def _of_type(graph: OpGraph, types: frozenset[str]) -> BoolArray:
    return np.array([op.type in types for op in graph.ops])


def _kinds(topology: DeviceTopology) -> dict[str, str]:
    kind_of_type: dict[str, str] = {}
    for device in topology.devices:
        if device.type not in topology.hardware:
            raise UnknownNameError(
                f"hardware of device {device.name!r} (describe it in the topology): type",
                device.type,
                topology.hardware,
            )
        if kind_of_type.setdefault(device.type, device.kind) != device.kind:
            raise InvalidValueError(
                f"device type {device.type!r} must be of one kind, but device {device.name!r}"
                f" is a {device.kind} and another a {kind_of_type[device.type]}"
            )
    return kind_of_type


def _flops_per_cycle(architecture: str) -> int:
    flops = _by_capability(GPU_FLOPS_PER_CYCLE, architecture)
    if flops is None:
        raise UnknownNameError("GPU architecture", architecture, GPU_FLOPS_PER_CYCLE)
    return flops


def _by_capability(table: Mapping[str, int], architecture: str) -> int | None:
    return table.get(architecture, table.get(architecture.split(".", maxsplit=1)[0]))


def _provenance(
    graph: OpGraph, work: OpWork, topology: DeviceTopology, kind_of_type: Mapping[str, str]
) -> Provenance:
    free = _of_type(graph, FREE_OPS)
    unknown_shape = [any(-1 in shape for shape in op.output_shapes) for op in graph.ops]
    facts = {
        "tensorflow": tf.__version__,
        "ops without cost": str(np.count_nonzero(free)),
        "ops with no estimate (bytes only)": str(np.count_nonzero(~work.estimated & ~free)),
        "loops, branches and calls (bytes only)": str(
            np.count_nonzero(_of_type(graph, OPAQUE_OPS))
        ),
        "ops of unknown shape (taken as 1)": str(np.count_nonzero(unknown_shape)),
    }
    for kind in sorted(set(kind_of_type.values())):
        facts[f"corrections {kind}"] = (
            f"efficiency dense {DENSE_EFFICIENCY[kind]}, elementwise"
            f" {ELEMENTWISE_EFFICIENCY[kind]}, memory {MEMORY_EFFICIENCY[kind]};"
            f" launch {LAUNCH_S[kind]} s"
        )
    for type_ in kind_of_type:
        facts[f"hardware {type_}"] = topology.hardware[type_].source or "no source given"
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Provenance(method="estimate", date=now, facts=facts)
