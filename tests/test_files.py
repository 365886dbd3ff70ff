"""Writing that is never half done, and the files of groupings and placements."""

import json
import math
import os
import resource
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.devices import DeviceTopology, Link
from placer.environment import Outcome
from placer.errors import FileFormatError, InvalidValueError, StoreError
from placer.files import (
    atomic_write,
    load_grouping,
    load_placement,
    placement_document,
    save_grouping,
    save_placement,
    write_json,
)
from placer.files.documents import read_json
from placer.graph import Op, OpGraph, Tensor
from placer.grouping import Grouping
from placer.placement import Placement


@pytest.fixture
def graph() -> OpGraph:
    """A chain of three; the first two are colocated."""
    return OpGraph(
        (
            Op("read", "ReadVariableOp", 8, "v"),
            Op("assign", "AssignVariableOp", 0, "v"),
            Op("loss", "Sum"),
        ),
        (Tensor(0, (1,), 4), Tensor(1, (2,), 0)),
    )


@pytest.fixture
def topology() -> DeviceTopology:
    return DeviceTopology.uniform(3, Link(1e9, 1e-6))


# Atomic writing


def test_a_file_holds_exactly_the_bytes_that_were_written(tmp_path: Path) -> None:
    content = bytes(range(256))

    atomic_write(tmp_path / "file", content)

    assert (tmp_path / "file").read_bytes() == content


def test_a_second_write_replaces_the_first_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    atomic_write(path, b"a long first content")

    atomic_write(path, b"second")

    assert path.read_bytes() == b"second"
    assert os.listdir(tmp_path) == ["file"]


def test_missing_folders_are_made(tmp_path: Path) -> None:
    atomic_write(tmp_path / "a" / "b" / "file", b"x")

    assert (tmp_path / "a" / "b" / "file").read_bytes() == b"x"


def test_a_write_that_fails_in_the_middle_leaves_the_old_content(tmp_path: Path) -> None:
    # The system refuses files beyond 1,000 bytes, as a full disk would.
    path = tmp_path / "file"
    path.write_bytes(b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(StoreError, match=r"cannot write .*file: File too large"):
            atomic_write(path, b"x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_written_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")

    atomic_write(tmp_path / "atomic", b"")

    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "atomic")]
    assert modes[0] == modes[1]


def test_a_symbolic_link_stays_one_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "target")

    atomic_write(tmp_path / "link", b"x")

    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "target").read_bytes() == b"x"


def test_a_pipe_is_never_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(StoreError, match=r"cannot write .*pipe: it is not a regular file"):
        atomic_write(tmp_path / "pipe", b"x")

    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_folder_is_never_replaced_by_a_file(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="it is not a regular file"):
        atomic_write(tmp_path, b"x")

    assert tmp_path.is_dir()


def test_a_folder_that_is_a_file_is_a_store_error_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(StoreError) as error:
        atomic_write(tmp_path / "file" / "inside", b"x")

    assert str(error.value).startswith(f"cannot write {tmp_path}/file/inside: ")
    assert "\n" not in str(error.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write to a read-only folder")
def test_a_read_only_folder_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir(mode=0o555)

    with pytest.raises(StoreError, match="Permission denied"):
        atomic_write(tmp_path / "folder" / "file", b"x")


# JSON for people


def test_json_is_indented_and_keeps_the_order_of_keys(tmp_path: Path) -> None:
    write_json({"outcome": "OK", "makespan_s": 0.5}, tmp_path / "file")

    assert (tmp_path / "file").read_text() == '{\n  "outcome": "OK",\n  "makespan_s": 0.5\n}\n'


def test_numpy_values_and_outcomes_are_written_as_plain_json(tmp_path: Path) -> None:
    value = {
        "count": np.int64(3),
        "time": np.float32(0.5),
        "row": np.array([1.0, 2.0]),
        "outcome": Outcome.OUT_OF_MEMORY,
        "flag": np.bool_(True),
    }

    write_json(value, tmp_path / "file")

    assert json.loads((tmp_path / "file").read_text()) == {
        "count": 3,
        "time": 0.5,
        "row": [1.0, 2.0],
        "outcome": "OUT_OF_MEMORY",
        "flag": True,
    }


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_refused_by_name_and_nothing_is_written(
    tmp_path: Path, number: float
) -> None:
    value = {"devices": [{"busy_s": 0.0}, {"busy_s": number}]}

    with pytest.raises(InvalidValueError, match=rf"devices\[1\].busy_s is {number}") as error:
        write_json(value, tmp_path / "file")

    assert "\n" not in str(error.value)
    assert os.listdir(tmp_path) == []


def test_a_number_that_is_not_finite_is_found_within_an_array(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"times\[1\] is nan"):
        write_json({"times": np.array([0.0, np.nan])}, tmp_path / "file")


def test_a_value_that_json_cannot_say_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="a set is not among the values of JSON"):
        write_json({"names": {"a"}}, tmp_path / "file")

    assert os.listdir(tmp_path) == []


def test_a_value_that_contains_itself_is_refused(tmp_path: Path) -> None:
    value: list[object] = []
    value.append(value)

    with pytest.raises(InvalidValueError, match="as JSON"):
        write_json(value, tmp_path / "file")


_scalars = st.none() | st.booleans() | st.integers() | st.text()
_values = st.recursive(
    _scalars | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(document=st.dictionaries(st.text(), _values, max_size=5))
def test_what_was_written_is_read_back_to_the_last_digit(
    tmp_path_factory: pytest.TempPathFactory, document: dict[str, object]
) -> None:
    path = tmp_path_factory.mktemp("json") / "file.json"

    write_json(document, path)

    assert read_json(path) == document


def test_the_same_content_gives_the_same_bytes(
    tmp_path: Path, graph: OpGraph, topology: DeviceTopology
) -> None:
    for name in ("one", "two"):
        save_grouping(Grouping([0, 0, 1]), graph, tmp_path / f"{name}.grouping")
        save_placement(Placement([0, 0, 1]), graph, topology, tmp_path / f"{name}.placement")

    for ending in ("grouping", "placement"):
        one, two = (tmp_path / f"{name}.{ending}" for name in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


# Groupings


def test_a_grouping_is_read_back_equal(tmp_path: Path, graph: OpGraph) -> None:
    grouping = Grouping([1, 1, 0])

    save_grouping(grouping, graph, tmp_path / "grouping.json")
    read = load_grouping(tmp_path / "grouping.json", graph)

    assert read.group_of_op.tolist() == [1, 1, 0]
    assert read.fingerprint == grouping.fingerprint


def test_a_grouping_file_says_what_it_is_and_of_which_graph(tmp_path: Path, graph: OpGraph) -> None:
    save_grouping(Grouping([0, 0, 1]), graph, tmp_path / "grouping.json")

    assert json.loads((tmp_path / "grouping.json").read_text()) == {
        "version": 1,
        "kind": "placer.grouping",
        "graph": graph.fingerprint,
        "group_of_op": [0, 0, 1],
    }


def test_a_grouping_that_parts_colocated_ops_is_not_written(tmp_path: Path, graph: OpGraph) -> None:
    with pytest.raises(InvalidValueError, match="colocated as 'v' are in different groups"):
        save_grouping(Grouping([0, 1, 1]), graph, tmp_path / "grouping.json")

    assert os.listdir(tmp_path) == []


def _grouping_file(path: Path, graph: OpGraph, changes: dict[str, object]) -> Path:
    document = {
        "version": 1,
        "kind": "placer.grouping",
        "graph": graph.fingerprint,
        "group_of_op": [0, 0, 1],
    }
    path.write_text(json.dumps(document | changes))
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "placer.profile"}, "expected kind 'placer.grouping', got 'placer.profile'"),
        ({"version": 2}, "expected version 1, got 2"),
        ({"graph": "0123"}, "is a grouping of graph '0123', expected "),
        ({"group_of_op": [0, 0]}, "the grouping is of 2 ops, the graph has 3"),
        ({"group_of_op": [0, 1, 1]}, "ops colocated as 'v' are in different groups"),
        ({"group_of_op": [0, 0, 2]}, "groups must be numbered from 0 without a gap"),
        ({"group_of_op": []}, "a grouping names one group an op"),
        ({"group_of_op": [0, 0, -1]}, r"group_of_op\[2\] should be greater than or equal to 0"),
        ({"group_of_op": [0, 0, 1e0]}, r"group_of_op\[2\] should be an integer, got 1.0"),
        ({"group_of_op": [0, 0, 10**30]}, r"group_of_op\[2\] should be less than"),
        ({"group_of_op": {"a": 1}}, "group_of_op should be a list"),
        ({"groups": 2}, "unknown key 'groups'; did you mean"),
    ],
)
def test_a_wrong_grouping_is_told_in_one_line(
    tmp_path: Path, graph: OpGraph, changes: dict[str, object], message: str
) -> None:
    path = _grouping_file(tmp_path / "grouping.json", graph, changes)

    with pytest.raises(FileFormatError, match=message) as error:
        load_grouping(path, graph)

    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


# Placements


def test_a_placement_is_read_back_equal(
    tmp_path: Path, graph: OpGraph, topology: DeviceTopology
) -> None:
    placement = Placement([2, 2, 0])

    save_placement(placement, graph, topology, tmp_path / "placement.json")

    assert load_placement(tmp_path / "placement.json", graph, topology) == placement


def test_a_placement_file_holds_names_only(
    tmp_path: Path, graph: OpGraph, topology: DeviceTopology
) -> None:
    save_placement(Placement([2, 2, 0]), graph, topology, tmp_path / "placement.json")

    assert json.loads((tmp_path / "placement.json").read_text()) == {
        "version": 1,
        "graph": graph.fingerprint,
        "devices": ["device:0", "device:1", "device:2"],
        "device_of_op": {"read": "device:2", "assign": "device:2", "loss": "device:0"},
    }


def test_a_placement_file_for_any_graph_fits_one_with_the_same_names(
    tmp_path: Path, graph: OpGraph, topology: DeviceTopology
) -> None:
    document = placement_document(Placement([2, 2, 0]), graph, topology) | {"graph": None}
    write_json(document, tmp_path / "placement.json")

    assert load_placement(tmp_path / "placement.json", graph, topology) == Placement([2, 2, 0])


def test_a_placement_finds_its_devices_by_name_in_a_topology_of_another_order(
    tmp_path: Path, graph: OpGraph, topology: DeviceTopology
) -> None:
    save_placement(Placement([2, 2, 0]), graph, topology, tmp_path / "placement.json")
    turned = DeviceTopology(topology.devices[::-1], topology.links)

    read = load_placement(tmp_path / "placement.json", graph, turned)

    assert read == Placement([0, 0, 2])


def test_a_placement_of_another_number_of_ops_is_not_written(
    tmp_path: Path, graph: OpGraph, topology: DeviceTopology
) -> None:
    with pytest.raises(InvalidValueError, match="the placement is of 2 ops, the graph has 3"):
        save_placement(Placement([0, 0]), graph, topology, tmp_path / "placement.json")


def test_a_placement_on_a_device_that_is_not_there_is_not_written(
    tmp_path: Path, graph: OpGraph, topology: DeviceTopology
) -> None:
    with pytest.raises(InvalidValueError, match="names device 3, but the topology has devices 0"):
        save_placement(Placement([0, 0, 3]), graph, topology, tmp_path / "placement.json")


_FITTING = {"read": "device:0", "assign": "device:0", "loss": "device:1"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "expected version 1, got 2"),
        ({"version": "1"}, "expected version 1, got '1'"),
        ({"version": True}, "expected version 1, got True"),
        ({"kind": "placer.profile"}, "expected a placement, got a file of 'placer.profile'"),
        ({"graph": "0123"}, "is a placement of graph '0123', expected "),
        ({"graph": 5}, "graph should be a string, got 5"),
        ({"devices": ["device:0", "gpu:7"]}, "unknown device 'gpu:7'; known: device:0, "),
        ({"devices": ["device:0", "devise:1"]}, "unknown device 'devise:1'; did you mean 'dev"),
        ({"devices": ["device:0"]}, "unknown device of op 'loss' 'device:1'; did you mean"),
        ({"devices": "device:0"}, "devices should be a list, got 'device:0'"),
        ({"device_of_op": _FITTING | {"los": "device:0"}}, "unknown op 'los'; did you mean 'loss'"),
        ({"device_of_op": {"read": "device:0"}}, "op 'assign' of the graph has no device"),
        ({"device_of_op": _FITTING | {"loss": 1}}, "device_of_op.loss should be a string, got 1"),
        ({"device_of_op": ["device:0"]}, "device_of_op should be a"),
        ({"devises": []}, "unknown key 'devises'; did you mean 'devices'"),
    ],
)
def test_a_wrong_placement_is_told_in_one_line(
    tmp_path: Path,
    graph: OpGraph,
    topology: DeviceTopology,
    changes: dict[str, object],
    message: str,
) -> None:
    path = tmp_path / "placement.json"
    document = placement_document(Placement([0, 0, 1]), graph, topology)
    path.write_text(json.dumps(document | changes))

    with pytest.raises(FileFormatError, match=message) as error:
        load_placement(path, graph, topology)

    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["version", "graph", "devices", "device_of_op"])
def test_every_key_of_a_placement_must_be_there(
    tmp_path: Path, graph: OpGraph, topology: DeviceTopology, key: str
) -> None:
    document = placement_document(Placement([0, 0, 1]), graph, topology)
    del document[key]
    (tmp_path / "placement.json").write_text(json.dumps(document))

    expected = "expected version 1, the file has none" if key == "version" else f"{key} is missing"
    with pytest.raises(FileFormatError, match=expected):
        load_placement(tmp_path / "placement.json", graph, topology)


def test_an_op_that_is_placed_twice_is_told(
    tmp_path: Path, graph: OpGraph, topology: DeviceTopology
) -> None:
    path = tmp_path / "placement.json"
    path.write_text(
        '{"version": 1, "graph": null, "devices": ["device:0"],'
        ' "device_of_op": {"read": "device:0", "assign": "device:0", "read": "device:0"}}'
    )

    with pytest.raises(FileFormatError, match="the key 'read' is there twice"):
        load_placement(path, graph, topology)
