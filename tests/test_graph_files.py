"""Profile files, and published graphs with costs."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.devices import Device, DeviceTopology, Hardware, Link
from placer.errors import FileFormatError
from placer.files import GraphFile, load_graph_file, save_profile
from placer.graph import Op, OpGraph, Tensor
from placer.grouping import Grouping
from placer.profile import OpCosts, Profile, Provenance

WORKLOADS = Path(__file__).parents[2] / "shared" / "workloads" / "msr"


def _topology() -> DeviceTopology:
    devices = (Device("cpu:0", "CPU", "haswell"), Device("gpu:0", "GPU", "k80", 12 * 10**9))
    links = {(0, 1): Link(12e9, 25e-6), (1, 0): Link(0.1 + 0.2, 1e-5)}
    hardware = Hardware(
        frequency_mhz=823,
        num_cores=13,
        memory_bandwidth_bytes_per_s=240e9,
        architecture="3.7",
        source="NVIDIA",
    )
    return DeviceTopology(devices, links, {"k80": hardware}, "desk")


def _profile() -> Profile:
    graph = OpGraph(
        (
            Op("w", "VarHandleOp", 4096, "w", ("CPU", "GPU"), "layer/1", ((),)),
            Op("read", "ReadVariableOp", 0, "w", ("GPU",), "layer/1", ((32, -1), (8,))),
            Op("loss", "Sum", 0, "", ("CPU",)),
        ),
        (Tensor(0, (1,), 8), Tensor(1, (2,), 4096), Tensor(0, (2,), 0), Tensor(2, (), 4)),
    )
    costs = OpCosts(
        device_types=("k80", "haswell"),
        compute_time_s=np.array([[0.1, 1 / 3], [5e-324, 1e-6], [0.0, 2.0]]),
        measured=np.array([[True, False], [False, False], [True, True]]),
        workspace_bytes=np.array([0, 7, 2**40]),
    )
    provenance = Provenance(
        method="trace", host="box", date="2026-01-02T03:04:05Z", facts={"steps": "15", "a": "b"}
    )
    return Profile(graph, costs, _topology(), provenance)


def _assert_holds(read: GraphFile, profile: Profile) -> None:
    assert read.graph == profile.graph
    assert read.costs.device_types == profile.costs.device_types
    for name in ("compute_time_s", "measured", "workspace_bytes"):
        ours, theirs = getattr(profile.costs, name), getattr(read.costs, name)
        assert ours.dtype == theirs.dtype
        assert np.array_equal(ours, theirs)
    assert read.topology == profile.topology
    assert read.provenance == profile.provenance


# Profiles


def test_a_profile_is_read_back_equal(tmp_path: Path) -> None:
    profile = _profile()

    save_profile(profile, tmp_path / "profile.json")
    read = load_graph_file(tmp_path / "profile.json")

    _assert_holds(read, profile)


def test_a_profile_keeps_its_fingerprint(tmp_path: Path) -> None:
    profile = _profile()

    save_profile(profile, tmp_path / "profile.json")
    read = load_graph_file(tmp_path / "profile.json")

    assert read.topology is not None
    again = Profile(read.graph, read.costs, read.topology, read.provenance)
    assert again.fingerprint == profile.fingerprint


def test_equal_profiles_are_written_as_equal_bytes(tmp_path: Path) -> None:
    one = _profile()
    facts = dict(reversed(one.provenance.facts.items()))
    turned = Provenance(method="trace", host="box", date=one.provenance.date, facts=facts)
    links = dict(reversed(one.topology.links.items()))
    topology = DeviceTopology(one.topology.devices, links, one.topology.hardware, "desk")

    save_profile(one, tmp_path / "one.json")
    save_profile(Profile(one.graph, one.costs, topology, turned), tmp_path / "two.json")

    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["one.json", "two.json"]


def test_a_profile_file_says_what_it_is(tmp_path: Path) -> None:
    save_profile(_profile(), tmp_path / "profile.json")

    document = json.loads((tmp_path / "profile.json").read_text())
    assert document["version"] == 1
    assert document["kind"] == "placer.profile"
    assert document["graph"]["names"] == ["w", "read", "loss"]
    assert document["costs"]["compute_time_s"] == [[0.1, 5e-324, 0.0], [1 / 3, 1e-6, 2.0]]


def test_a_profile_without_topology_is_read(tmp_path: Path) -> None:
    save_profile(_profile(), tmp_path / "profile.json")
    document = json.loads((tmp_path / "profile.json").read_text()) | {"topology": None}
    (tmp_path / "profile.json").write_text(json.dumps(document))

    assert load_graph_file(tmp_path / "profile.json").topology is None


def test_ten_thousand_ops_are_read_back(tmp_path: Path) -> None:
    # A ladder: op i feeds i + 1 and i + 2.
    count = 10_000
    ops = tuple(
        Op(f"block{i // 10}/op_{i}", "MatMul", i, output_shapes=((i, 3),)) for i in range(count)
    )
    tensors = tuple(Tensor(i, tuple(range(i + 1, min(i + 3, count))), 4 * i) for i in range(count))
    rng = np.random.default_rng(0)
    costs = OpCosts(
        device_types=("k80", "haswell"),
        compute_time_s=rng.exponential(1e-4, (count, 2)),
        measured=rng.random((count, 2)) < 0.5,
        workspace_bytes=np.arange(count),
    )
    profile = Profile(OpGraph(ops, tensors), costs, _topology())

    save_profile(profile, tmp_path / "profile.json")
    read = load_graph_file(tmp_path / "profile.json")

    _assert_holds(read, profile)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    names = draw(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=6, unique=True))
    sizes = st.integers(0, 2**50)
    ops = tuple(
        Op(
            name,
            draw(st.text(max_size=4)),
            draw(sizes),
            draw(st.sampled_from(["", "a", "b"])),
            draw(st.sampled_from([("CPU", "GPU"), ("GPU", "CPU"), ("CPU",), ("GPU",)])),
            draw(st.text(max_size=4)),
            tuple(
                tuple(shape)
                for shape in draw(st.lists(st.lists(st.integers(-1, 9), max_size=3), max_size=2))
            ),
        )
        for name in names
    )
    count = len(ops)
    tensors = []
    for producer in range(count):
        for _ in range(draw(st.integers(0, 2))):
            later = range(producer + 1, count)
            consumers = draw(st.lists(st.sampled_from(later), unique=True)) if later else []
            tensors.append(Tensor(producer, tuple(sorted(consumers)), draw(sizes)))
    times = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
    row = st.lists(times, min_size=2, max_size=2)
    costs = OpCosts(
        device_types=("k80", "haswell"),
        compute_time_s=np.array([draw(row) for _ in ops]),
        measured=np.array([[draw(st.booleans()), draw(st.booleans())] for _ in ops]),
        workspace_bytes=np.array([draw(sizes) for _ in ops], dtype=np.int64),
    )
    provenance = Provenance(
        method=draw(st.sampled_from(["trace", "estimate", "file"])),
        host=draw(st.text(max_size=4)),
        date=draw(st.text(max_size=4)),
        facts=draw(st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3)),
    )
    return Profile(OpGraph(ops, tuple(tensors)), costs, _topology(), provenance)


@given(profile=profiles())
def test_any_profile_survives_its_file(
    tmp_path_factory: pytest.TempPathFactory, profile: Profile
) -> None:
    path = tmp_path_factory.mktemp("profile") / "profile.json"

    save_profile(profile, path)
    read = load_graph_file(path)

    _assert_holds(read, profile)
    assert read.graph.fingerprint == profile.graph.fingerprint
    assert read.costs.fingerprint == profile.costs.fingerprint


# Published graphs


def _node(number: int, **changes: Any) -> dict[str, Any]:
    node: dict[str, Any] = {
        "id": number,
        "name": f"MatMul_{number}",
        "supportedOnFpga": True,
        "fpgaLatency": 1.5,
        "cpuLatency": 12,
        "isBackwardNode": False,
        "colorClass": number,
        "size": 1024.0,
    }
    return node | changes


def _edge(source: int, destination: int, size: float = 8.0) -> dict[str, Any]:
    return {"sourceId": source, "destId": destination, "size": size, "cost": 0.1}


def _published(path: Path, nodes: list[dict[str, Any]], edges: list[dict[str, Any]]) -> GraphFile:
    document = {
        "maxSizePerFPGA": 17e9,
        "maxFPGAs": 6,
        "maxCPUs": 1,
        "nodes": nodes,
        "edges": edges,
    }
    path.write_text(json.dumps(document))
    return load_graph_file(path)


def test_a_published_node_becomes_an_op(tmp_path: Path) -> None:
    read = _published(tmp_path / "graph.json", [_node(7), _node(3, supportedOnFpga=0)], [])

    assert read.graph.ops == (
        Op("MatMul_7", "MatMul", 1024, "class 7", ("CPU", "GPU")),
        Op("MatMul_3", "MatMul", 1024, "class 3", ("CPU",)),
    )


def test_published_times_are_whole_microseconds_on_two_types(tmp_path: Path) -> None:
    # 0.0004 ms is 0.4 us and rounds to 0; 0.0016 ms to 2 us; 2.5 us to even: 2 us.
    nodes = [
        _node(0, fpgaLatency=0.0004, cpuLatency=0.0016),
        _node(1, fpgaLatency=0.0025, cpuLatency=1000),
    ]

    costs = _published(tmp_path / "graph.json", nodes, []).costs

    assert costs.device_types == ("accelerator", "cpu")
    assert costs.compute_time_s.tolist() == [[0.0, 2e-6], [2e-6, 1.0]]
    assert not costs.measured.any()
    assert costs.workspace_bytes.tolist() == [0, 0]


def test_a_source_has_one_tensor_as_large_as_its_largest_edge(tmp_path: Path) -> None:
    nodes = [_node(30), _node(20), _node(10)]
    # Ids 30, 20, 10 are ops 0, 1, 2. An edge that is there twice is one consumer.
    edges = [_edge(30, 10, 5.0), _edge(20, 10, 1.0), _edge(30, 20, 9.0), _edge(30, 20, 2.0)]

    graph = _published(tmp_path / "graph.json", nodes, edges).graph

    assert graph.tensors == (Tensor(0, (1, 2), 9), Tensor(1, (2,), 1))


def test_a_published_graph_has_no_topology_and_its_file_as_provenance(tmp_path: Path) -> None:
    read = _published(tmp_path / "graph.json", [_node(0)], [])

    assert read.topology is None
    assert read.provenance == Provenance(method="file")


def test_a_node_without_a_class_stands_alone(tmp_path: Path) -> None:
    nodes = [_node(0, colorClass=5), _node(1, colorClass=5), _node(2), _node(3), _node(4)]
    del nodes[2]["colorClass"]
    nodes[3]["colorClass"] = None

    graph = _published(tmp_path / "graph.json", nodes, []).graph

    assert [op.colocation for op in graph.ops] == ["class 5", "class 5", "", "", "class 4"]
    assert graph.colocations == ((0, 1),)


def test_names_that_repeat_or_are_missing_become_unique(tmp_path: Path) -> None:
    nodes = [
        _node(0, name="Add"),
        _node(1, name="Add"),
        _node(2, name=""),
        _node(3, name=None),
        _node(4, name="Add#5"),
        _node(5, name="Add"),
        _node(6),
    ]
    del nodes[6]["name"]

    graph = _published(tmp_path / "graph.json", nodes, []).graph

    # Node 5 would be "Add#5", which is taken, and so "Add#5#5".
    names = [op.name for op in graph.ops]
    assert names == ["Add", "Add#1", "node2", "node3", "Add#5", "Add#5#5", "node6"]


@pytest.mark.parametrize(
    ("name", "type_"),
    [
        ("MatMul37_Grad/Gemm_7", "MatMul"),
        ("AdamOptimizer_96", "AdamOptimizer"),
        ("node12grad", "node"),
        ("96_transposed", "Op"),
        ("", "Op"),
        (None, "Op"),
    ],
)
def test_the_type_of_an_op_is_the_letters_its_name_starts_with(
    tmp_path: Path, name: str | None, type_: str
) -> None:
    graph = _published(tmp_path / "graph.json", [_node(0, name=name)], []).graph

    assert graph.ops[0].type == type_


@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [
        ([], [], "a graph must have at least one op"),
        ([_node(4), _node(4)], [], "two nodes have id 4"),
        ([_node(1)], [_edge(1, 9)], "the edge from node 1 to node 9: there is no node 9"),
        ([_node(1)], [_edge(8, 1)], "the edge from node 8 to node 1: there is no node 8"),
        ([_node(1)], [_edge(1, 1)], "the graph has a cycle through op 'MatMul_1'"),
        (
            [_node(1), _node(2), _node(3)],
            [_edge(1, 2), _edge(2, 3), _edge(3, 2)],
            r"the graph has a cycle through op 'MatMul_[23]'",
        ),
        (
            [_node(1, fpgaLatency=-0.5)],
            [],
            r"node 'MatMul_1' \(id 1\): fpgaLatency must be from 0 to 1e\+15, got -0.5",
        ),
        ([_node(1, cpuLatency=-1, name="")], [], "node 1: cpuLatency must be from 0 to .* got -1"),
        (
            [_node(1, cpuLatency=1e300)],
            [],
            r"\(id 1\): cpuLatency must be from 0 to .* got 1e\+300",
        ),
        ([_node(1, size=-4)], [], r"node 'MatMul_1' \(id 1\): size must be from 0 to"),
        ([_node(1, size=1e30)], [], r"node 'MatMul_1' \(id 1\): size must be from 0 to"),
        ([_node(1), _node(2)], [_edge(1, 2, -3)], "the edge from node 1 to node 2: size must be"),
        ([_node(1, size=2.0**61), _node(2, size=2.0**61)], [], r"sum to 4611686018427387904 bytes"),
        ([_node(1, fpgaLatency="2")], [], r"nodes\[0\].fpgaLatency should be a number, got '2'"),
        ([_node(1, fpgaLatency=None)], [], r"nodes\[0\].fpgaLatency should be a number, got None"),
        ([_node(1, supportedOnFpga=2)], [], r"nodes\[0\].supportedOnFpga should be a boolean"),
        ([_node(1, id="a")], [], r"nodes\[0\].id should be an integer, got 'a'"),
        ([{"id": 1}], [], r"nodes\[0\].fpgaLatency is missing"),
        ([_node(1)], [{"sourceId": 1}], r"edges\[0\].destId is missing"),
        ([_node(1), 5], [], r"nodes\[1\] should be an object of keys and values, got 5"),
    ],
)
def test_a_wrong_published_graph_is_told_in_one_line(
    tmp_path: Path, nodes: list[Any], edges: list[Any], message: str
) -> None:
    with pytest.raises(FileFormatError, match=message) as error:
        _published(tmp_path / "graph.json", nodes, edges)

    assert str(error.value).startswith(f"{tmp_path}/graph.json: ")
    assert "\n" not in str(error.value)


def test_a_time_that_overflows_is_told_with_its_node(tmp_path: Path) -> None:
    text = json.dumps({"nodes": [_node(1, fpgaLatency=77)], "edges": []})
    (tmp_path / "graph.json").write_text(text.replace("77", "1e999"))

    with pytest.raises(FileFormatError, match=r"'MatMul_1' \(id 1\): fpgaLatency .* got inf"):
        load_graph_file(tmp_path / "graph.json")


# The published workloads themselves; counts and sums are those of their description.

PUBLISHED = [
    ("gnmt_training", 192, 244, 96, 520_453, 337_430),
    ("bert_l-3_training", 600, 817, 142, 122_974, 113_406),
    ("bert_l-12_training", 2_012, 2_751, 456, 1_891_786, 1_333_503),
]


@pytest.mark.skipif(not WORKLOADS.is_dir(), reason=f"no published workloads in {WORKLOADS}")
@pytest.mark.parametrize(
    ("name", "num_ops", "num_edges", "num_groups", "total_us", "path_us"), PUBLISHED
)
def test_a_published_workload_has_the_published_counts_and_sums(
    name: str, num_ops: int, num_edges: int, num_groups: int, total_us: int, path_us: int
) -> None:
    read = load_graph_file(WORKLOADS / f"{name}.json")
    graph, times = read.graph, read.costs.compute_time_s[:, 0]

    keys = [op.colocation or str(index) for index, op in enumerate(graph.ops)]
    finish = np.zeros(graph.num_ops)
    for op in graph.topological_order:
        finish[op] = times[op] + max((finish[p] for p in graph.predecessors[op]), default=0.0)

    assert graph.num_ops == num_ops
    assert sum(len(tensor.consumers) for tensor in graph.tensors) == num_edges
    assert Grouping.in_topological_order(graph, keys).num_groups == num_groups
    assert round(times.sum() * 1e6) == total_us
    assert round(finish.max() * 1e6) == path_us


@pytest.mark.skipif(not WORKLOADS.is_dir(), reason=f"no published workloads in {WORKLOADS}")
def test_a_published_workload_can_be_kept_as_a_profile(tmp_path: Path) -> None:
    read = load_graph_file(WORKLOADS / "gnmt_training.json")
    topology = DeviceTopology.uniform(4, Link(7.6e9, 25e-6))
    profile = Profile(read.graph, read.costs, topology, read.provenance)

    save_profile(profile, tmp_path / "profile.json")

    _assert_holds(load_graph_file(tmp_path / "profile.json"), profile)
