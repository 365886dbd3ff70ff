"""Files that are missing, cut short, not text, of another kind, or wrong inside."""

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.devices import DeviceTopology, Link
from placer.errors import FileFormatError, MissingFileError, PlacerError
from placer.files import (
    load_graph_file,
    load_grouping,
    load_placement,
    load_topology,
    save_grouping,
    save_placement,
    save_profile,
    save_topology,
)
from placer.graph import Op, OpGraph, Tensor
from placer.grouping import Grouping
from placer.placement import Placement
from placer.profile import OpCosts, Profile

GRAPH = OpGraph(
    (Op("a", "MatMul", 4), Op("b", "Add"), Op("c", "Sum")),
    (Tensor(0, (1, 2), 16), Tensor(1, (2,), 8)),
)
TOPOLOGY = DeviceTopology.uniform(2, Link(1e9, 1e-6))
PROFILE = Profile(
    GRAPH,
    OpCosts(
        device_types=("k80", "haswell"),
        compute_time_s=np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
        measured=np.zeros((3, 2), dtype=np.bool_),
        workspace_bytes=np.zeros(3, dtype=np.int64),
    ),
    TOPOLOGY,
)

READERS: dict[str, Callable[[Path], object]] = {
    "profile.json": load_graph_file,
    "grouping.json": lambda path: load_grouping(path, GRAPH),
    "placement.json": lambda path: load_placement(path, GRAPH, TOPOLOGY),
    "topology.toml": lambda path: load_topology(str(path)),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one good file of each kind."""
    save_profile(PROFILE, tmp_path / "profile.json")
    save_grouping(Grouping([0, 0, 1]), GRAPH, tmp_path / "grouping.json")
    save_placement(Placement([0, 0, 1]), GRAPH, TOPOLOGY, tmp_path / "placement.json")
    save_topology(TOPOLOGY, tmp_path / "topology.toml")
    return tmp_path


def _told(read: Callable[[], object]) -> str:
    """Return the line that a reader complains with; empty if it reads the file."""
    try:
        read()
    except FileFormatError as error:
        return str(error)
    return ""


every_kind = pytest.mark.parametrize("name", READERS)
every_json = pytest.mark.parametrize("name", [name for name in READERS if name.endswith("json")])


@every_kind
def test_the_good_files_are_read(folder: Path, name: str) -> None:
    assert READERS[name](folder / name) is not None


@every_kind
def test_a_missing_file_is_told_by_its_path(folder: Path, name: str) -> None:
    os.remove(folder / name)

    with pytest.raises(MissingFileError) as error:
        READERS[name](folder / name)

    assert str(error.value) == f"there is no file {folder / name}"


@every_kind
def test_a_link_to_nowhere_is_a_missing_file(folder: Path, name: str) -> None:
    os.remove(folder / name)
    (folder / name).symlink_to(folder / "nowhere")

    with pytest.raises(MissingFileError):
        READERS[name](folder / name)


@every_kind
def test_a_folder_is_told_to_be_one(folder: Path, name: str) -> None:
    os.remove(folder / name)
    os.mkdir(folder / name)

    with pytest.raises(FileFormatError, match=f"cannot read .*/{name}: Is a directory"):
        READERS[name](folder / name)


@every_kind
def test_a_path_through_a_file_is_told(folder: Path, name: str) -> None:
    with pytest.raises(FileFormatError, match=r"cannot read .*: Not a directory"):
        READERS[name](folder / "profile.json" / name)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read every file")
@every_kind
def test_a_file_that_may_not_be_read_is_told(folder: Path, name: str) -> None:
    (folder / name).chmod(0)

    with pytest.raises(FileFormatError, match=r"cannot read .*: Permission denied"):
        READERS[name](folder / name)


@every_kind
def test_a_binary_file_is_told_to_be_no_text(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"\x89PNG\r\n\x1a\n\x00")

    with pytest.raises(FileFormatError, match=f"{name} is not a text file: byte 0 is not UTF-8"):
        READERS[name](folder / name)


@every_kind
def test_a_byte_order_mark_does_no_harm(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(b"\xef\xbb\xbf" + content)

    assert READERS[name](folder / name) is not None


# A file cut at any place. All but the last newline of a JSON file is needed.


@every_json
def test_an_empty_file_is_told_to_end_too_early(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"")

    with pytest.raises(FileFormatError, match="is not valid JSON: it ends too early; is it trunc"):
        READERS[name](folder / name)


@every_json
def test_a_file_cut_in_half_is_told_to_end_too_early(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])

    with pytest.raises(FileFormatError, match="is not valid JSON: "):
        READERS[name](folder / name)


@every_json
def test_a_json_file_cut_anywhere_is_told_in_one_line(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()

    for length in range(0, len(content) - 1, 3):
        (folder / name).write_bytes(content[:length])
        with pytest.raises(FileFormatError, match="is not valid JSON") as error:
            READERS[name](folder / name)
        assert "\n" not in str(error.value)


def test_a_topology_cut_anywhere_is_read_or_told_in_one_line(folder: Path) -> None:
    # TOML can be cut between two lines and still be TOML; what is left is no other error.
    path = folder / "topology.toml"
    content = path.read_bytes()

    for length in range(len(content)):
        path.write_bytes(content[:length])
        assert "\n" not in _told(lambda: load_topology(str(path)))


# Whatever a file holds, its reader raises one of Placer's own errors or reads it.


@given(junk=st.binary(max_size=60))
def test_no_bytes_at_all_make_a_reader_fail_otherwise(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes
) -> None:
    folder = tmp_path_factory.mktemp("junk")

    for name, read in READERS.items():
        (folder / name).write_bytes(junk)
        with pytest.raises(PlacerError):
            read(folder / name)


_junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from([10**400, -(2**63), 2**64, 1e308, "CPU", "a", -1, [], {}]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(data=st.data(), junk=_junk)
def test_no_value_in_any_place_of_a_profile_makes_the_reader_fail_otherwise(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, junk: object
) -> None:
    path = tmp_path_factory.mktemp("junk") / "profile.json"
    save_profile(PROFILE, path)
    document = json.loads(path.read_text())
    places = list(_places(document, ()))
    *parents, last = data.draw(st.sampled_from(places))
    target: Any = document
    for key in parents:
        target = target[key]
    target[last] = junk
    path.write_text(json.dumps(document))

    told = _told(lambda: load_graph_file(path))

    assert "\n" not in told
    assert len(told) < 400
    if not told:
        # What was let in is a graph with costs that can be used.
        read = load_graph_file(path)
        assert read.graph.memory_bytes.sum() >= 0
        assert np.isfinite(read.costs.compute_time_s).all()


def _places(value: object, at: tuple[Any, ...]) -> Any:
    if at:
        yield at
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, item in items:
        yield from _places(item, (*at, key))


# What is strict about JSON


@every_json
@pytest.mark.parametrize("content", ["[]", "3", '"text"', "null", "[[1]]"])
def test_a_file_must_hold_an_object(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content)

    with pytest.raises(FileFormatError, match=f"{name} should hold a JSON object, got "):
        READERS[name](folder / name)


@every_json
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_does_not_know_are_refused_with_their_place(
    folder: Path, name: str, number: str
) -> None:
    (folder / name).write_text(f'{{"version": 1, "graph": [0, {{"time": {number}}}]}}')

    with pytest.raises(FileFormatError, match=r"graph\[1\].time is -?(nan|inf), which is no num"):
        READERS[name](folder / name)


@every_json
def test_a_key_that_is_there_twice_is_refused(folder: Path, name: str) -> None:
    (folder / name).write_text('{"version": 1, "version": 1}')

    with pytest.raises(FileFormatError, match="the key 'version' is there twice"):
        READERS[name](folder / name)


@every_json
@pytest.mark.parametrize("content", ['{"a": 1,}', "{'a': 1}", "{} {}", '{"a": 01}', '{"a" 1}'])
def test_what_is_nearly_json_is_told_with_line_and_column(
    folder: Path, name: str, content: str
) -> None:
    (folder / name).write_text(content)

    with pytest.raises(FileFormatError, match=r"is not valid JSON: .* at line 1, column \d+$"):
        READERS[name](folder / name)


@every_json
def test_brackets_without_end_are_told_in_one_line(folder: Path, name: str) -> None:
    (folder / name).write_text('{"a": ' + "[" * 200_000)

    with pytest.raises(FileFormatError, match="is not valid JSON: ") as error:
        READERS[name](folder / name)

    assert len(str(error.value)) < 300


@every_json
@pytest.mark.parametrize("inner", ["NaN", '"\\ud83d"', "1"])
@pytest.mark.parametrize("depth", [400, 900, 980])
def test_what_is_nested_deep_is_told_in_one_line(
    folder: Path, name: str, inner: str, depth: int
) -> None:
    (folder / name).write_text('{"version": ' + "[" * depth + inner + "]" * depth + "}")

    with pytest.raises(FileFormatError) as error:
        READERS[name](folder / name)

    assert "\n" not in str(error.value)


@every_json
def test_a_number_without_end_is_told_in_one_line(folder: Path, name: str) -> None:
    (folder / name).write_text('{"version": ' + "9" * 10_000 + "}")

    with pytest.raises(FileFormatError, match="is not valid JSON: ") as error:
        READERS[name](folder / name)

    assert len(str(error.value)) < 300


@every_json
def test_half_of_a_character_is_refused(folder: Path, name: str) -> None:
    (folder / name).write_text('{"version": 1, "kind": "\\ud83d"}')

    with pytest.raises(FileFormatError, match=r"'.ud83d' is half of a Unicode character"):
        READERS[name](folder / name)


@every_json
def test_a_file_of_another_version_is_told_which_is_expected(folder: Path, name: str) -> None:
    document = json.loads((folder / name).read_text()) | {"version": 2}
    (folder / name).write_text(json.dumps(document))

    with pytest.raises(FileFormatError) as error:
        READERS[name](folder / name)

    assert str(error.value) == f"{folder / name}: expected version 1, got 2"


@every_json
def test_a_file_without_version_is_told_which_is_expected(folder: Path, name: str) -> None:
    document = json.loads((folder / name).read_text())
    del document["version"]
    (folder / name).write_text(json.dumps(document))

    with pytest.raises(FileFormatError, match="expected version 1, the file has none"):
        READERS[name](folder / name)


@pytest.mark.parametrize(
    ("name", "other", "message"),
    [
        ("profile.json", "grouping.json", "expected kind 'placer.profile', got 'placer.grouping'"),
        ("profile.json", "placement.json", "expected kind 'placer.profile', the file has none"),
        ("grouping.json", "profile.json", "expected kind 'placer.grouping', got 'placer.profile'"),
        ("grouping.json", "placement.json", "expected kind 'placer.grouping', the file has none"),
        ("placement.json", "profile.json", "expected a placement, got a file of 'placer.profile'"),
        ("placement.json", "grouping.json", "expected a placement, got a file of 'placer.group"),
    ],
)
def test_a_file_of_another_kind_is_told_which_is_expected(
    folder: Path, name: str, other: str, message: str
) -> None:
    with pytest.raises(FileFormatError, match=message):
        READERS[name](folder / other)


@pytest.mark.parametrize("name", ["grouping.json", "placement.json"])
def test_a_file_of_another_graph_is_told(folder: Path, name: str) -> None:
    other = OpGraph(GRAPH.ops, GRAPH.tensors[:1])
    readers = {
        "grouping.json": lambda path: load_grouping(path, other),
        "placement.json": lambda path: load_placement(path, other, TOPOLOGY),
    }

    with pytest.raises(FileFormatError) as error:
        readers[name](folder / name)

    kind = name.removesuffix(".json")
    assert str(error.value) == (
        f"{folder / name} is a {kind} of graph {GRAPH.fingerprint!r},"
        f" expected {other.fingerprint!r}"
    )


# Wrong values within a profile


def _change(document: dict[str, Any], where: str, value: object) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    *parents, last = (int(key) if key.isdigit() else key for key in where.split("."))
    target: Any = changed
    for key in parents:
        target = target[key]
    target[last] = value
    return changed


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        ("graph.names.1", "a", "two ops are called 'a'"),
        ("graph.names.1", "", "an op must have a name, got an empty one"),
        ("graph.names.1", 5, r"graph.names\[1\] should be a string, got 5"),
        ("graph.names", ["a"], "graph: types must have one entry for each of 1 ops, got 3"),
        ("graph.names", "abc", "graph.names should be a list, got 'abc'"),
        ("graph.types", [], "graph: types must have one entry for each of 3 ops, got 0"),
        ("graph.memory_bytes.2", -1, r"graph.memory_bytes\[2\] should be greater than or equal to"),
        ("graph.memory_bytes.2", 0.5, r"graph.memory_bytes\[2\] should be an integer, got 0.5"),
        ("graph.memory_bytes.2", True, r"graph.memory_bytes\[2\] should be an integer, got True"),
        ("graph.memory_bytes.2", 2**63, r"graph.memory_bytes\[2\] should be less than or equal to"),
        ("graph.memory_bytes", [2**61, 2**61, 0], r"all sizes sum to \d+ bytes, which must be le"),
        ("graph.device_kinds.0", [], "op 'a' has no kind of device that can run it"),
        ("graph.device_kinds.0", ["TPU"], "op 'a': device kinds must be among .* got .'TPU'"),
        ("graph.output_shapes.0", [["x"]], r"output_shapes\[0\]\[0\]\[0\] should be an integer"),
        ("graph.tensors.producers.0", 7, "a tensor names op 7, but the graph has ops 0 to 2"),
        ("graph.tensors.producers.0", -1, "a tensor names op -1, but the graph has ops 0 to 2"),
        ("graph.tensors.producers", [0], "graph.tensors: consumers must have one entry for each"),
        ("graph.tensors.consumers.0", [2, 1], "consumers must ascend without repetition"),
        ("graph.tensors.consumers.0", [0], "the graph has a cycle through op 'a'"),
        ("graph.tensors.consumers.1", [0], "the graph has a cycle through op '[ab]'"),
        ("graph.tensors.size_bytes.1", -8, r"graph.tensors.size_bytes\[1\] should be greater than"),
        ("graph.extra", 1, "graph: unknown key 'extra'"),
        ("costs.compute_time_s.0.1", -3.0, r"compute_time_s\[0\]\[1\] should be greater than or"),
        ("costs.compute_time_s.0.1", "3", r"compute_time_s\[0\]\[1\] should be a number, got '3'"),
        (
            "costs.compute_time_s.0.1",
            None,
            r"compute_time_s\[0\]\[1\] should be a number, got None",
        ),
        ("costs.compute_time_s.0", [1.0], r"costs: compute_time_s\[0\] must have one entry for"),
        ("costs.compute_time_s", [], "costs: compute_time_s must have one entry for each of 2 dev"),
        ("costs.measured.0.0", 1, r"costs.measured\[0\]\[0\] should be a boolean, got 1"),
        ("costs.device_types", ["k80", "k80"], "device types must be distinct and at least one"),
        ("costs.workspace_bytes.0", -1, r"costs.workspace_bytes\[0\] should be greater than or"),
        ("topology.devices.0.kind", "TPU", r"topology.devices\[0\].kind should be 'CPU' or 'GPU'"),
        ("topology.devices", [], "unknown device in links"),
        ("topology.links", [], "there is no link from device 'device:0' to 'device:1'"),
        ("topology.links.0.latency_s", -1, r"topology.links\[0\].latency_s should be greater than"),
        ("topology", 5, "topology should be an object of keys and values, got 5"),
        ("provenance.facts", {"a\nb": 5}, r"provenance.facts.'a.nb' should be a string, got 5"),
        ("provenance.facts", {"steps": 5}, "provenance.facts.steps should be a string, got 5"),
        ("provenance", None, "provenance should be an object of keys and values, got None"),
        ("costs", [], r"costs should be an object of keys and values, got \[\]"),
        ("groups", [], "unknown key 'groups'; did you mean 'graph'"),
    ],
)
def test_a_wrong_value_in_a_profile_is_told_in_one_line(
    folder: Path, where: str, value: object, message: str
) -> None:
    path = folder / "profile.json"
    path.write_text(json.dumps(_change(json.loads(path.read_text()), where, value)))

    with pytest.raises(FileFormatError, match=message) as error:
        load_graph_file(path)

    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)
    assert "pydantic" not in str(error.value)


@pytest.mark.parametrize("key", ["graph", "costs", "topology", "provenance"])
def test_every_part_of_a_profile_must_be_there(folder: Path, key: str) -> None:
    path = folder / "profile.json"
    document = json.loads(path.read_text())
    del document[key]
    path.write_text(json.dumps(document))

    with pytest.raises(FileFormatError) as error:
        load_graph_file(path)

    assert str(error.value) == f"{path}: {key} is missing"


def test_costs_of_another_number_of_ops_are_refused(folder: Path) -> None:
    path = folder / "profile.json"
    document = json.loads(path.read_text())
    costs = document["costs"]
    costs["workspace_bytes"] = [0, 0]
    costs["compute_time_s"] = [[1.0, 1.0], [1.0, 1.0]]
    costs["measured"] = [[True, True], [True, True]]
    path.write_text(json.dumps(document))

    with pytest.raises(FileFormatError, match="costs are of 2 ops, but the graph has 3"):
        load_graph_file(path)


def test_only_the_first_of_many_errors_is_told_and_a_long_value_is_cut(folder: Path) -> None:
    path = folder / "profile.json"
    document = json.loads(path.read_text())
    document["graph"]["memory_bytes"] = ["x" * 5000] * 3
    path.write_text(json.dumps(document))

    with pytest.raises(FileFormatError) as error:
        load_graph_file(path)

    assert str(error.value).count("memory_bytes") == 1
    assert str(error.value).endswith("xxx...")
    assert len(str(error.value)) < len(str(path)) + 130
