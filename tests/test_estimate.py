"""Estimated op times, against arithmetic on paper and against TensorFlow's own rates."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.core.protobuf import device_properties_pb2, meta_graph_pb2
from tensorflow.python.grappler import cluster as grappler_cluster
from tensorflow.python.grappler import item as grappler_item

from placer.devices import Device, DeviceTopology, Hardware, Link
from placer.errors import InvalidValueError, UnknownNameError
from placer.files.topologies import load_topology, packaged_topologies
from placer.graph import Op, OpGraph, Tensor
from placer.profile import Profile
from profiling.estimate import (
    CPU_FLOPS_PER_CYCLE,
    DENSE_EFFICIENCY,
    DENSE_OPS,
    ELEMENTWISE_EFFICIENCY,
    FREE_OPS,
    LAUNCH_S,
    MEMORY_EFFICIENCY,
    OPAQUE_OPS,
    DeviceRates,
    count_work,
    estimate_costs,
)
from profiling.step import CapturedStep

pytestmark = pytest.mark.slow

# 10 multiprocessors · 1 cycle a nanosecond · 192 lanes · 2 = 3,840 operations a nanosecond.
KEPLER = Hardware(
    frequency_mhz=1000,
    num_cores=10,
    memory_bandwidth_bytes_per_s=200e9,
    architecture="3.7",
    source="made up",
)
HOST = Hardware(frequency_mhz=2000, num_cores=4, memory_bandwidth_bytes_per_s=50e9)


def topology_of(*hardware: Hardware) -> DeviceTopology:
    """Return one device a description, called type:0, a GPU where there is an architecture."""
    types = [f"type{index}" for index in range(len(hardware))]
    devices = tuple(
        Device(f"{type_}:0", kind="GPU" if described.architecture else "CPU", type=type_)
        for type_, described in zip(types, hardware, strict=True)
    )
    pairs = [(a, b) for a in range(len(types)) for b in range(len(types)) if a != b]
    return DeviceTopology(
        devices, dict.fromkeys(pairs, Link(1e9)), dict(zip(types, hardware, strict=True))
    )


def step_of(graph: tf.Graph, *fetches: str) -> CapturedStep:
    """Return a graph as a captured step whose every op belongs to the step."""
    operations = graph.get_operations()
    index = {operation.name: number for number, operation in enumerate(operations)}
    ops = tuple(
        Op(
            operation.name,
            operation.type,
            output_shapes=tuple(
                tuple(-1 if size is None else size for size in output.shape.as_list())
                for output in operation.outputs
            ),
        )
        for operation in operations
    )
    tensors = tuple(
        Tensor(
            index[output.op.name],
            tuple(sorted({index[consumer.name] for consumer in output.consumers()})),
            (output.shape.num_elements() or 0) * (output.dtype.size or 0),
        )
        for operation in operations
        for output in operation.outputs
    )
    return CapturedStep(
        "test", graph.as_graph_def(), OpGraph(ops, tensors), fetches, (), (), len(ops)
    )


def variable(name: str, *shape: int) -> tf.Tensor:
    handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=shape, shared_name=name, name=name)
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32, name=f"{name}_read")


def matmul_step(rows: int, inner: int, columns: int) -> CapturedStep:
    with tf.Graph().as_default() as graph:
        tf.matmul(variable("a", rows, inner), variable("b", inner, columns), name="product")
    return step_of(graph, "product:0")


def add_step(size: int) -> CapturedStep:
    with tf.Graph().as_default() as graph:
        tf.add(variable("a", size), variable("b", size), name="sum")
    return step_of(graph, "sum:0")


def time_s(step: CapturedStep, name: str, hardware: Hardware) -> float:
    costs, _ = estimate_costs(step, topology_of(hardware))
    return float(costs.compute_time_s[step.op_graph.index_of_name[name], 0])


@pytest.fixture(scope="module")
def mixed_step() -> CapturedStep:
    """A dense layer, an activation and an Inception-sized convolution."""
    with tf.Graph().as_default() as graph:
        product = tf.matmul(variable("a", 1024, 1024), variable("b", 1024, 1024), name="product")
        tf.tanh(product, name="activation")
        image = variable("image", 32, 147, 147, 32)
        filters = variable("filters", 3, 3, 32, 64)
        tf.nn.conv2d(image, filters, 1, "SAME", name="convolution")
    return step_of(graph, "activation:0", "convolution:0")


def test_work_of_a_matrix_product_is_two_n_cubed_operations_and_three_matrices(mixed_step):
    op = mixed_step.op_graph.index_of_name["product"]

    work = count_work(mixed_step)

    # 2 · 1024³ = 2,147,483,648 and 3 · 4 · 1024² = 12,582,912, in thousands rounded down.
    assert work.operations[op] == 2_147_483_000
    assert work.moved_bytes[op] == 12_582_000
    assert work.estimated[op]


def test_work_of_a_convolution_is_its_multiply_adds_and_its_three_tensors(mixed_step):
    op = mixed_step.op_graph.index_of_name["convolution"]

    work = count_work(mixed_step)

    # 2 · 32 images · 147² positions · 3² taps · 32 in · 64 out.
    assert work.operations[op] == pytest.approx(25_491_013_632, abs=1000)
    # 4 · (32 · 147² · 32 + 3² · 32 · 64 + 32 · 147² · 64) bytes.
    assert work.moved_bytes[op] == pytest.approx(265_605_120, abs=1000)


def test_a_matrix_product_takes_launch_and_arithmetic_and_memory_time():
    step = matmul_step(1024, 1024, 1024)

    time = time_s(step, "product", KEPLER)

    # Peak 10 · 1e9 · 192 lanes · 2 = 3.84e12 operations/s, of which 0.6: 932.1 µs.
    # 12,582,912 bytes at 0.75 of 200e9/s: 83.9 µs.  Launch: 5 µs.
    assert time == pytest.approx(5e-6 + 932.07e-6 + 83.886e-6, rel=1e-4)


@pytest.mark.parametrize(
    ("architecture", "lanes"), [("3.7", 192), ("5.2", 128), ("6.0", 64), ("7.0", 64), ("8.0", 64)]
)
def test_counts_divided_by_tensorflows_rates_are_tensorflows_times_on_a_gpu(
    mixed_step, architecture, lanes
):
    described = device_properties_pb2.DeviceProperties(
        type="GPU", num_cores=10, frequency=1000, bandwidth=200_000_000
    )
    described.environment["architecture"] = architecture

    work = count_work(mixed_step)
    theirs = _tensorflow_times(mixed_step, described, "GPU")

    # They round down to whole microseconds, we to thousands of operations.
    for op, name in enumerate(op.name for op in mixed_step.op_graph.ops):
        compute_ns, memory_ns = theirs[name]
        assert work.operations[op] / (10 * lanes * 2) == pytest.approx(compute_ns, abs=1001)
        assert work.moved_bytes[op] / 200 == pytest.approx(memory_ns, abs=1001)


def test_tensorflow_takes_a_core_for_one_operation_a_cycle_and_we_for_its_vector_units(mixed_step):
    described = device_properties_pb2.DeviceProperties(
        type="CPU", num_cores=4, frequency=2000, bandwidth=50_000_000
    )
    op = mixed_step.op_graph.index_of_name["product"]

    work = count_work(mixed_step)
    compute_ns, _ = _tensorflow_times(mixed_step, described, "CPU")["product"]

    # 4 cores · 2 GHz = 8 operations a nanosecond for them, 32 times that for us.
    assert work.operations[op] / 8 == pytest.approx(compute_ns, abs=1001)
    assert DeviceRates.of(HOST, "CPU").flops_per_s == 8e9 * CPU_FLOPS_PER_CYCLE


def _tensorflow_times(
    step: CapturedStep, properties: device_properties_pb2.DeviceProperties, kind: str
) -> dict[str, tuple[int, int]]:
    device = device_properties_pb2.NamedDevice(
        name=f"/job:localhost/replica:0/task:0/device:{kind}:0", properties=properties
    )
    meta_graph = meta_graph_pb2.MetaGraphDef(graph_def=step.graph_def)
    for node in meta_graph.graph_def.node:
        node.device = device.name
    meta_graph.collection_def["train_op"].node_list.value.extend(
        fetch.split(":")[0] for fetch in step.fetches
    )
    cluster = grappler_cluster.Cluster(devices=[device])
    performances, _, _ = cluster.MeasureCosts(grappler_item.Item(meta_graph))
    cluster.Shutdown()
    return {
        performance.node: (performance.compute_time, performance.memory_time)
        for performance in performances
    }


# Published peaks: NVIDIA's data sheets (K80 and P100 at boost clock; TF32 without sparsity).
@pytest.mark.parametrize(
    ("num_cores", "frequency_mhz", "architecture", "tera_flops", "dense_tera_flops"),
    [
        (13, 875, "3.7", 4.37, 4.37),
        (24, 1114, "5.2", 6.84, 6.84),
        (56, 1480, "6.0", 10.6, 10.6),
        (20, 1303, "6.1", 6.67, 6.67),
        (80, 1530, "7.0", 15.7, 15.7),
        (108, 1410, "8.0", 19.5, 156.0),
        (84, 1740, "8.6", 37.4, 74.8),
        (132, 1830, "9.0", 61.8, 494.7),
    ],
)
def test_peaks_of_known_gpus_are_the_published_ones(
    num_cores, frequency_mhz, architecture, tera_flops, dense_tera_flops
):
    hardware = Hardware(
        num_cores=num_cores,
        frequency_mhz=frequency_mhz,
        architecture=architecture,
        memory_bandwidth_bytes_per_s=1e12,
    )

    rates = DeviceRates.of(hardware, "GPU")

    assert rates.flops_per_s == pytest.approx(tera_flops * 1e12, rel=0.01)
    assert rates.dense_flops_per_s == pytest.approx(dense_tera_flops * 1e12, rel=0.01)
    assert rates.bytes_per_s == 1e12


def test_only_dense_ops_run_on_tensor_cores(mixed_step):
    ampere = dataclasses.replace(KEPLER, architecture="8.0", memory_bandwidth_bytes_per_s=1e15)
    volta = dataclasses.replace(ampere, architecture="7.0")

    costs, _ = estimate_costs(mixed_step, topology_of(volta, ampere))

    compute_s = costs.compute_time_s - LAUNCH_S["GPU"]
    ratio = compute_s[:, 0] / compute_s[:, 1]
    # 1,024 against 128 operations a cycle; no other unit of the two differs.
    assert ratio[mixed_step.op_graph.index_of_name["product"]] == pytest.approx(8, rel=1e-3)
    assert ratio[mixed_step.op_graph.index_of_name["activation"]] == pytest.approx(1)


def test_twice_the_clock_halves_the_arithmetic_time_and_nothing_else():
    step = matmul_step(2048, 2048, 2048)
    twice = dataclasses.replace(KEPLER, frequency_mhz=2000)

    saved_s = time_s(step, "product", KEPLER) - time_s(step, "product", twice)

    # Half of 2 · 2048³ operations at 0.6 of 3.84e12 a second.
    assert saved_s == pytest.approx(0.5 * 2 * 2048**3 / (0.6 * 3.84e12), rel=1e-6)


def test_twice_the_bandwidth_halves_the_time_of_an_addition_after_its_launch():
    step = add_step(10_000_000)
    twice = dataclasses.replace(KEPLER, memory_bandwidth_bytes_per_s=400e9)

    slow_s = time_s(step, "sum", KEPLER) - LAUNCH_S["GPU"]
    fast_s = time_s(step, "sum", twice) - LAUNCH_S["GPU"]

    # 120 MB at 150 GB/s: 800 µs; its ten million additions take 5 µs more.
    assert slow_s == pytest.approx(800e-6 + 10e6 / (0.5 * 3.84e12), rel=1e-4)
    assert slow_s / fast_s == pytest.approx(2, rel=0.02)


def test_a_tiny_op_takes_the_launch_time_of_its_kind_of_device():
    step = add_step(1)

    costs, _ = estimate_costs(step, topology_of(KEPLER, HOST))

    op = step.op_graph.index_of_name["sum"]
    assert costs.compute_time_s[op].tolist() == [LAUNCH_S["GPU"], LAUNCH_S["CPU"]]


def test_ops_that_launch_no_kernel_take_no_time_on_any_device():
    with tf.Graph().as_default() as graph:
        read = variable("a", 64, 64)
        same = tf.identity(tf.reshape(tf.stop_gradient(read), [4096]), name="same")
        tf.expand_dims(tf.squeeze(tf.expand_dims(same, 0)), 0, name="wide")
    step = step_of(graph, "wide:0")

    costs, provenance = estimate_costs(step, topology_of(KEPLER, HOST))

    assert {op.type for op in step.op_graph.ops} <= FREE_OPS
    assert not costs.compute_time_s.any()
    assert provenance.facts["ops without cost"] == str(step.op_graph.num_ops)


def test_no_op_is_of_two_classes():
    assert not DENSE_OPS & FREE_OPS
    assert not OPAQUE_OPS & (DENSE_OPS | FREE_OPS)


def test_costs_are_finite_unmeasured_and_in_the_order_of_the_topology(mixed_step):
    topology = topology_of(HOST, KEPLER)

    costs, provenance = estimate_costs(mixed_step, topology)

    assert costs.device_types == ("type0", "type1")
    assert costs.compute_time_s.shape == (mixed_step.op_graph.num_ops, 2)
    assert np.isfinite(costs.compute_time_s).all()
    assert (costs.compute_time_s >= 0).all()
    assert not costs.measured.any()
    assert costs.workspace_bytes.tolist() == [0] * mixed_step.op_graph.num_ops
    assert Profile(mixed_step.op_graph, costs, topology, provenance).provenance is provenance


def test_provenance_names_version_corrections_and_the_source_of_each_hardware(mixed_step):
    _, provenance = estimate_costs(mixed_step, topology_of(KEPLER, HOST))

    assert provenance.method == "estimate"
    assert provenance.host == ""
    assert provenance.date.endswith("+00:00")
    assert provenance.facts["tensorflow"] == tf.__version__
    assert provenance.facts["ops with no estimate (bytes only)"] == "0"
    assert provenance.facts["hardware type0"] == "made up"
    assert provenance.facts["hardware type1"] == "no source given"
    for kind in ("CPU", "GPU"):
        for correction in (DENSE_EFFICIENCY, ELEMENTWISE_EFFICIENCY, MEMORY_EFFICIENCY, LAUNCH_S):
            assert f" {correction[kind]}" in provenance.facts[f"corrections {kind}"]


def test_two_devices_of_a_type_share_a_column():
    topology = DeviceTopology(
        (Device("gpu:0", type="kepler"), Device("gpu:1", type="kepler")),
        {(0, 1): Link(1e9), (1, 0): Link(1e9)},
        {"kepler": KEPLER, "unused": HOST},
    )

    costs, provenance = estimate_costs(add_step(8), topology)

    assert costs.device_types == ("kepler",)
    assert "hardware unused" not in provenance.facts


def test_an_op_without_a_gpu_kernel_has_a_time_in_the_gpus_column_all_the_same():
    step = add_step(8)
    ops = tuple(dataclasses.replace(op, device_kinds=("CPU",)) for op in step.op_graph.ops)
    step = dataclasses.replace(step, op_graph=OpGraph(ops, step.op_graph.tensors))
    topology = topology_of(KEPLER, HOST)

    costs, provenance = estimate_costs(step, topology)

    op = step.op_graph.index_of_name["sum"]
    assert costs.compute_time_s[op, 0] == LAUNCH_S["GPU"]
    assert not Profile(step.op_graph, costs, topology, provenance).allowed[op, 0]


def test_an_overflow_of_the_cost_model_is_replaced_by_the_time_to_move_the_tensors():
    # 2 · 4e6³ = 1.28e20 operations do not fit 64 bits.
    step = matmul_step(4_000_000, 4_000_000, 4_000_000)
    op = step.op_graph.index_of_name["product"]

    work = count_work(step)
    costs, provenance = estimate_costs(step, topology_of(KEPLER))

    # Two inputs and the output of 6.4e13 bytes each, at 0.75 of 200e9 bytes/s.
    assert not work.estimated[op]
    assert work.moved_bytes[op] == 3 * 6.4e13
    assert costs.compute_time_s[op, 0] == pytest.approx(5e-6 + 3 * 6.4e13 / 150e9)
    assert provenance.facts["ops with no estimate (bytes only)"] == "1"


def test_an_op_the_cost_model_does_not_reach_counts_as_moving_its_tensors():
    with tf.Graph().as_default() as graph:
        read = variable("a", 1000)
        tf.tanh(read, name="wanted")
        tf.tanh(read, name="dead")
    step = step_of(graph, "wanted:0")

    costs, provenance = estimate_costs(step, topology_of(KEPLER))

    # 4,000 bytes in and 4,000 out at 150 GB/s.
    dead = step.op_graph.index_of_name["dead"]
    assert costs.compute_time_s[dead, 0] == pytest.approx(5e-6 + 8000 / 150e9)
    assert provenance.facts["ops with no estimate (bytes only)"] == "1"


def test_a_loop_is_counted_as_one_whose_inside_was_not_looked_at():
    with tf.Graph().as_default() as graph:
        read = variable("a", 64, 64)
        tf.while_loop(
            lambda x: tf.reduce_sum(x) > 0,
            lambda x: (tf.matmul(x, x),),
            [read],
            name="loop",
        )
    step = step_of(graph, "loop:0")

    _, provenance = estimate_costs(step, topology_of(KEPLER))

    assert count_work(step).operations[step.op_graph.index_of_name["loop"]] == 0
    assert provenance.facts["loops, branches and calls (bytes only)"] == "1"


def test_a_dimension_that_is_not_known_counts_as_one_and_is_told():
    with tf.Graph().as_default() as graph:
        batch = tf.compat.v1.placeholder(tf.float32, [None, 1000], name="batch")
        tf.matmul(batch, variable("b", 1000, 1000), name="product")
    step = step_of(graph, "product:0")

    work = count_work(step)
    _, provenance = estimate_costs(step, topology_of(KEPLER))

    # 2 · 1 · 1000 · 1000 operations.
    assert work.operations[step.op_graph.index_of_name["product"]] == 2_000_000
    assert provenance.facts["ops of unknown shape (taken as 1)"] == "2"


def test_ops_run_only_for_their_effect_are_estimated_through_the_targets():
    with tf.Graph().as_default() as graph:
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[1000], shared_name="v", name="v")
        tf.raw_ops.AssignSubVariableOp(resource=handle, value=tf.ones([1000]), name="update")
        tf.constant(0.0, name="loss")
    step = dataclasses.replace(step_of(graph, "loss:0"), targets=("update",))

    work = count_work(step)

    assert work.estimated[step.op_graph.index_of_name["update"]]


@settings(max_examples=15, deadline=None)
@given(batch=st.integers(1, 4096), more=st.integers(0, 4096), columns=st.integers(1, 4096))
def test_a_larger_batch_never_takes_less_time(batch, more, columns):
    topology = topology_of(KEPLER, HOST)

    small, _ = estimate_costs(matmul_step(batch, 512, columns), topology)
    large, _ = estimate_costs(matmul_step(batch + more, 512, columns), topology)

    assert (large.compute_time_s >= small.compute_time_s).all()


@given(
    num_cores=st.integers(1, 200),
    frequency_mhz=st.integers(1, 5000),
    architecture=st.sampled_from(["3.5", "5.2", "6.1", "7.5", "8.0", "8.6", "8.9", "9.0"]),
)
def test_dense_peaks_are_never_below_the_others_and_grow_with_cores(
    num_cores, frequency_mhz, architecture
):
    hardware = Hardware(
        num_cores=num_cores,
        frequency_mhz=frequency_mhz,
        architecture=architecture,
        memory_bandwidth_bytes_per_s=1e9,
    )
    wider = dataclasses.replace(hardware, num_cores=2 * num_cores)

    rates, wider_rates = DeviceRates.of(hardware, "GPU"), DeviceRates.of(wider, "GPU")

    assert rates.dense_flops_per_s >= rates.flops_per_s
    assert wider_rates.flops_per_s == pytest.approx(2 * rates.flops_per_s)


def test_a_type_that_is_not_described_is_refused_by_name():
    topology = DeviceTopology.uniform(2, Link(1e9))

    with pytest.raises(UnknownNameError, match=r"describe it in the topology.*'reference'"):
        estimate_costs(add_step(8), topology)


@pytest.mark.parametrize("architecture", ["", "4.0", "kepler"])
def test_a_gpu_of_unknown_architecture_is_refused_by_name(architecture):
    hardware = dataclasses.replace(KEPLER, architecture=architecture)

    with pytest.raises(UnknownNameError, match=f"GPU architecture '{architecture}'"):
        DeviceRates.of(hardware, "GPU")


def test_a_type_of_two_kinds_is_refused():
    topology = DeviceTopology(
        (Device("gpu:0", "GPU", "odd"), Device("cpu:0", "CPU", "odd")),
        {(0, 1): Link(1e9), (1, 0): Link(1e9)},
        {"odd": KEPLER},
    )

    with pytest.raises(InvalidValueError, match=r"'odd' must be of one kind.*'cpu:0' is a CPU"):
        estimate_costs(add_step(8), topology)


MACHINES = [name for name in packaged_topologies() if not load_topology(name).is_reference]


@pytest.mark.parametrize("name", MACHINES)
def test_every_packaged_machine_is_accepted(name):
    step = add_step(1_000_000)
    topology = load_topology(name)

    costs, _ = estimate_costs(step, topology)

    # 12 MB takes at least 12 MB / 4 TB/s, and every machine described has 30 GB/s and more.
    times_s = costs.compute_time_s[step.op_graph.index_of_name["sum"]]
    assert set(costs.device_types) == {device.type for device in topology.devices}
    assert ((times_s > 3e-6) & (times_s < 0.7e-3)).all()
