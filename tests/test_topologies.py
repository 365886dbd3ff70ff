"""Topology files, and the machines that the package describes."""

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.devices import UNLIMITED_BYTES, Device, DeviceTopology, Hardware, Link
from placer.errors import FileFormatError, MissingFileError, UnknownNameError
from placer.files import load_topology, packaged_topologies, save_topology
from placer.files.documents import check
from placer.files.topologies import TopologyDocument, topology_document

DESK = """
version = 1
name = "desk"

[[devices]]
name = "cpu:0"
kind = "CPU"
type = "haswell"

[[devices]]
name = "gpu:0"
kind = "GPU"
type = "k80"
memory_bytes = 12e9

[[devices]]
name = "gpu:1"
kind = "GPU"
type = "k80"
memory_bytes = 12_000_000_000

[[links]]
source = "*"
destination = "*"
bandwidth_bytes_per_s = 10e9
latency_s = 20e-6

[[links]]
source = "gpu:*"
destination = "gpu:*"
bandwidth_bytes_per_s = 5_000_000_000
latency_s = 0

[[links]]
source = "gpu:1"
destination = "gpu:0"
bandwidth_bytes_per_s = 1e9
latency_s = 1e-6

[hardware.k80]
frequency_mhz = 823
num_cores = 13
memory_bandwidth_bytes_per_s = 240e9
architecture = "3.7"
source = "the board specification"
"""


def _load(folder: Path, text: str) -> DeviceTopology:
    (folder / "desk.toml").write_text(text)
    return load_topology(str(folder / "desk.toml"))


# The long form


def test_devices_are_read_in_the_order_of_the_file(tmp_path: Path) -> None:
    topology = _load(tmp_path, DESK)

    assert topology.devices == (
        Device("cpu:0", "CPU", "haswell", UNLIMITED_BYTES),
        Device("gpu:0", "GPU", "k80", 12_000_000_000),
        Device("gpu:1", "GPU", "k80", 12_000_000_000),
    )


def test_patterns_select_pairs_and_later_entries_override_earlier_ones(tmp_path: Path) -> None:
    topology = _load(tmp_path, DESK)

    slow, fast = Link(10e9, 20e-6), Link(5e9, 0.0)
    assert topology.links == {
        (0, 1): slow,
        (0, 2): slow,
        (1, 0): slow,
        (2, 0): slow,
        (1, 2): fast,
        (2, 1): Link(1e9, 1e-6),
    }


def test_hardware_is_read_by_device_type(tmp_path: Path) -> None:
    topology = _load(tmp_path, DESK)

    assert topology.hardware == {
        "k80": Hardware(
            frequency_mhz=823,
            num_cores=13,
            memory_bandwidth_bytes_per_s=240e9,
            architecture="3.7",
            source="the board specification",
        )
    }


def test_a_topology_is_named_by_its_file_unless_it_names_itself(tmp_path: Path) -> None:
    assert _load(tmp_path, DESK).name == "desk"
    assert _load(tmp_path, DESK.replace('"desk"', '"my desk"')).name == "my desk"
    assert _load(tmp_path, DESK.replace('name = "desk"', "")).name == "desk"


def test_one_device_needs_no_link(tmp_path: Path) -> None:
    text = 'version = 1\n[[devices]]\nname = "cpu:0"\nkind = "CPU"\ntype = "x"\n'

    assert _load(tmp_path, text).links == {}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version = 1", "version = 2", "expected version 1, got 2"),
        ("version = 1", "", "expected version 1, the file has none"),
        ("version = 1", "version = 1.0", "expected version 1, got 1.0"),
        ('kind = "CPU"', 'kind = "TPU"', r"devices\[0\].kind should be 'CPU' or 'GPU', got 'TPU'"),
        ('kind = "CPU"', "", r"devices\[0\].kind is missing"),
        ('kind = "CPU"', 'knd = "CPU"', r"devices\[0\]: unknown key 'knd'; did you mean 'kind'"),
        ('name = "cpu:0"', 'name = "gpu:0"', "two devices are called 'gpu:0'"),
        ('name = "gpu:1"', 'name = ""', "a device must have a name, got an empty one"),
        ("= 12e9", "= 12.5", r"devices\[1\].memory_bytes should be an integer, got 12.5"),
        ("= 12e9", "= 0", r"devices\[1\].memory_bytes should be greater than 0, got 0"),
        ("= 12e9", "= -5", r"devices\[1\].memory_bytes should be greater than 0, got -5"),
        ("= 12e9", "= 1e30", r"devices\[1\].memory_bytes should be less than or equal to"),
        ("= 12e9", "= inf", r"devices\[1\].memory_bytes should be an integer, got inf"),
        ("= 12e9", '= "12 GB"', r"devices\[1\].memory_bytes should be an integer, got '12 GB'"),
        ("= 10e9", "= nan", r"links\[0\].bandwidth_bytes_per_s should be a finite number, got nan"),
        ("= 10e9", "= inf", r"links\[0\].bandwidth_bytes_per_s should be a finite number, got inf"),
        ("= 10e9", "= 0", r"links\[0\].bandwidth_bytes_per_s should be greater than 0, got 0"),
        ("= 10e9", "= true", r"links\[0\].bandwidth_bytes_per_s should be a number, got True"),
        ("= 20e-6", "= -1", r"links\[0\].latency_s should be greater than or equal to 0, got -1"),
        ("= 20e-6", "= 1979-05-27", r"links\[0\].latency_s should be a number, got datetime.date"),
        ("latency_s = 20e-6", "", r"links\[0\].latency_s is missing"),
        (
            'source = "gpu:1"',
            'source = "gpu:4"',
            r"unknown device in links\[2\].source 'gpu:4'; did you mean 'gpu:1'",
        ),
        (
            'destination = "gpu:0"',
            'destination = "tpu*"',
            r"unknown device in links\[2\].destination 'tpu\*'; known: cpu:0, gpu:0, gpu:1",
        ),
        (
            'destination = "gpu:0"',
            'destination = "gpu:1"',
            r"links\[2\] joins no two devices: 'gpu:1' to 'gpu:1' are the same one",
        ),
        (
            'destination = "*"',
            'destination = "gpu:*"',
            "there is no link from device 'gpu:0' to 'cpu:0'",
        ),
        ("num_cores = 13", "num_cores = 0", "hardware.k80.num_cores should be greater than 0"),
        ("num_cores = 13", "cores = 13", "hardware.k80: unknown key 'cores'; did you mean"),
        ("[hardware.k80]", "[hardwear.k80]", "unknown key 'hardwear'; did you mean 'hardware'"),
        ("[hardware.k80]", "[hardware]", "hardware.frequency_mhz should be an object"),
    ],
)
def test_a_wrong_topology_is_told_in_one_line(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in DESK

    with pytest.raises(FileFormatError, match=message) as error:
        _load(tmp_path, DESK.replace(old, new, 1))

    assert str(error.value).startswith(f"{tmp_path}/desk.toml: ")
    assert "\n" not in str(error.value)


def test_a_topology_without_devices_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="a topology must have at least one device"):
        _load(tmp_path, "version = 1\n")


@pytest.mark.parametrize(
    "text", ["[[devices]", "devices = ", 'name = "', "a = 1\na = 2\n", "a = " + "[" * 100_000]
)
def test_text_that_is_no_toml_is_told_in_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(FileFormatError, match=r"desk.toml is not valid TOML: ") as error:
        _load(tmp_path, text)

    assert "\n" not in str(error.value)


# The short form


def test_the_short_form_is_of_equal_devices(tmp_path: Path) -> None:
    text = "[uniform]\ndevices = 4\nlatency_s = 25e-6\nbandwidth_bytes_per_s = 7.6e9\n"

    topology = _load(tmp_path, text)

    assert topology == DeviceTopology.uniform(4, Link(7.6e9, 25e-6), name="desk")
    assert [device.name for device in topology.devices] == [f"device:{i}" for i in range(4)]


def test_the_short_form_takes_memory_kind_name_and_version(tmp_path: Path) -> None:
    text = """version = 1
name = "two"
[uniform]
devices = 2
latency_s = 0
bandwidth_bytes_per_s = 1e9
memory_bytes = 16e9
kind = "CPU"
"""

    topology = _load(tmp_path, text)

    expected = DeviceTopology.uniform(
        2, Link(1e9, 0.0), memory_bytes=16_000_000_000, kind="CPU", name="two"
    )
    assert topology == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("devices = 0", "uniform.devices should be greater than or equal to 1, got 0"),
        ("devices = -3", "uniform.devices should be greater than or equal to 1, got -3"),
        ("devices = 2.0", "uniform.devices should be an integer, got 2.0"),
        ("devices = 1000000000", "uniform.devices should be less than or equal to 1024"),
        ("", "uniform.devices is missing"),
        ("devices = 2\nmemory = 5", "uniform: unknown key 'memory'; did you mean 'memory_bytes'"),
    ],
)
def test_a_wrong_short_form_is_told_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        _load(tmp_path, f"[uniform]\nlatency_s = 0\nbandwidth_bytes_per_s = 1e9\n{text}\n")


def test_the_short_form_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="expected version 1, got 3"):
        _load(tmp_path, "version = 3\n[uniform]\ndevices = 1\n")


def test_the_two_forms_do_not_mix(tmp_path: Path) -> None:
    text = DESK + "[uniform]\ndevices = 1\nlatency_s = 0\nbandwidth_bytes_per_s = 1\n"

    with pytest.raises(FileFormatError, match=r"the short form \[uniform\] stands alone"):
        _load(tmp_path, text)


# Names and paths


def test_an_unknown_name_is_told_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="'haswel-2xk80'; did you mean 'haswell-2xk80'"):
        load_topology("haswel-2xk80")


def test_local_is_among_the_names_that_are_offered() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'local'"):
        load_topology("locale")


@pytest.mark.parametrize("name", ["", "..", "haswell-2xk80 ", "HASWELL-2XK80"])
def test_a_name_must_be_exact(name: str) -> None:
    with pytest.raises(UnknownNameError):
        load_topology(name)


def test_loads_of_a_link_are_read_and_written_and_zero_if_absent(tmp_path: Path) -> None:
    (tmp_path / "desk.toml").write_text(
        DESK.replace("latency_s = 20e-6", "latency_s = 20e-6\ndestination_load = 0.7")
    )

    topology = load_topology(str(tmp_path / "desk.toml"))
    save_topology(topology, tmp_path / "again.toml")

    assert {link.destination_load for link in topology.links.values()} == {0.0, 0.7}
    assert {link.source_load for link in topology.links.values()} == {0.0}
    assert load_topology(str(tmp_path / "again.toml")).links == topology.links


def test_a_name_with_a_separator_or_the_ending_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "desk.toml").write_text(DESK)
    (tmp_path / "haswell-2xk80").write_text(DESK)

    assert load_topology("desk.toml").num_devices == 3
    assert load_topology("./haswell-2xk80").name == "desk"


def test_a_missing_file_is_told_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"there is no file .*/none.toml"):
        load_topology(str(tmp_path / "none.toml"))


# The described machines


EXPECTED = {
    "1xp100": ("p100", 1),
    "4xa100-nvlink": ("a100", 4),
    "4xp100-pcie": ("p100", 4),
    "4xv100-nvlink": ("v100", 4),
    "8xh100-nvlink": ("h100", 8),
    "haswell-1xk80": ("k80", 1),
    "haswell-2xk80": ("k80", 2),
    "haswell-4xk80": ("k80", 4),
}


def test_the_package_describes_these_machines() -> None:
    assert packaged_topologies() == sorted([*EXPECTED, "4xequal"])


def test_the_setting_of_the_published_graphs_is_four_equal_devices() -> None:
    topology = load_topology("4xequal")

    assert (topology.num_devices, topology.is_reference) == (4, True)
    assert set(topology.links.values()) == {Link(7.6e9, 25e-6)}
    assert set(topology.memory_bytes.tolist()) == {UNLIMITED_BYTES}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_described_machine_has_one_host_and_its_gpus(name: str) -> None:
    gpu_type, num_gpus = EXPECTED[name]

    topology = load_topology(name)

    assert topology.name == name
    names = [device.name for device in topology.devices]
    assert names == ["cpu:0", *(f"gpu:{gpu}" for gpu in range(num_gpus))]
    assert [device.kind for device in topology.devices] == ["CPU"] + ["GPU"] * num_gpus
    assert {device.type for device in topology.devices[1:]} == {gpu_type}


@pytest.mark.parametrize("name", EXPECTED)
def test_every_type_of_a_described_machine_has_hardware_with_a_source(name: str) -> None:
    topology = load_topology(name)

    assert set(topology.hardware) == {device.type for device in topology.devices}
    for device in topology.devices:
        hardware = topology.hardware[device.type]
        assert len(hardware.source) > 20
        # TensorFlow's cost model needs a GPU's compute capability.
        assert bool(hardware.architecture) == (device.kind == "GPU")


# Peak of 32-bit multiply-adds, TFLOPS, from the makers' datasheets: 2 x cores x clock. The K80's
# 8.73 are of two GPUs at 875 MHz: 8.73 / 2 x 823 / 875 = 4.11. TensorFlow counts 192 units in
# each multiprocessor of a 3.x GPU and 64 in one of 6.0 or later: half of what an H100 has (67).
PEAK_TFLOPS = {"k80": 4.11, "p100": 9.5, "v100": 15.7, "a100": 19.5, "h100": 67 / 2}


@pytest.mark.parametrize("name", EXPECTED)
def test_clock_and_cores_multiply_to_the_published_peak(name: str) -> None:
    gpu_type, _ = EXPECTED[name]
    hardware = load_topology(name).hardware[gpu_type]

    units = 192 if hardware.architecture.startswith("3") else 64
    peak = 2 * units * hardware.num_cores * hardware.frequency_mhz * 1e6 / 1e12

    assert peak == pytest.approx(PEAK_TFLOPS[gpu_type], rel=0.01)


@pytest.mark.parametrize("name", EXPECTED)
def test_links_are_equal_in_both_directions_and_slower_than_the_memory(name: str) -> None:
    topology = load_topology(name)
    gpu_type, _ = EXPECTED[name]

    for (a, b), link in topology.links.items():
        assert topology.links[b, a] == link
        assert link.bandwidth_bytes_per_s < topology.hardware[gpu_type].memory_bandwidth_bytes_per_s
        assert 1e-6 < link.latency_s < 1e-4


def test_two_k80_of_one_board_are_nearer_than_two_of_different_boards() -> None:
    links = load_topology("haswell-4xk80").links

    # Devices 1 and 2 are gpu:0 and gpu:1, on one board; 3 and 4 are on the other.
    for near in ((1, 2), (3, 4)):
        for far in ((1, 3), (2, 4)):
            assert links[near].bandwidth_bytes_per_s > links[far].bandwidth_bytes_per_s


def test_every_described_figure_of_a_link_has_a_comment_above_it() -> None:
    folder = Path(__file__).parents[1] / "placer" / "topologies"

    for path in folder.glob("*.toml"):
        blocks = path.read_text().split("\n\n")
        for block in blocks:
            if "[[links]]" in block:
                assert block.lstrip().startswith("#"), f"{path.name}: {block}"


# Round trips


def test_a_saved_topology_is_read_back_equal(tmp_path: Path) -> None:
    topology = _load(tmp_path, DESK)

    save_topology(topology, tmp_path / "saved.toml")
    read = load_topology(str(tmp_path / "saved.toml"))

    assert read == topology
    assert read.fingerprint == topology.fingerprint


def test_a_saved_topology_says_its_common_link_once(tmp_path: Path) -> None:
    save_topology(DeviceTopology.uniform(16, Link(1e9)), tmp_path / "saved.toml")

    text = (tmp_path / "saved.toml").read_text()
    assert text.count("[[links]]") == 1
    assert text.count("[[devices]]") == 16


def test_equal_topologies_are_saved_as_equal_bytes(tmp_path: Path) -> None:
    topology = _load(tmp_path, DESK)
    turned = DeviceTopology(
        topology.devices,
        dict(reversed(topology.links.items())),
        dict(reversed(topology.hardware.items())),
        topology.name,
    )

    save_topology(topology, tmp_path / "one.toml")
    save_topology(turned, tmp_path / "two.toml")

    assert (tmp_path / "one.toml").read_bytes() == (tmp_path / "two.toml").read_bytes()


# Names full of what TOML, JSON and patterns treat specially.
_names = st.text(st.sampled_from("ab*?[]!-\\\"'\n\t\x00\x1b\x7f#.:/ äß😀"), min_size=1, max_size=6)
_positive = st.floats(min_value=5e-324, allow_infinity=False)
_links = st.builds(Link, _positive, st.floats(min_value=0, allow_infinity=False))
_hardware = st.builds(
    Hardware,
    frequency_mhz=st.integers(1, 10**5),
    num_cores=st.integers(1, 10**5),
    memory_bandwidth_bytes_per_s=_positive,
    architecture=st.text(max_size=3),
    source=st.text(max_size=10),
)


@st.composite
def topologies(draw: st.DrawFn) -> DeviceTopology:
    names = draw(st.lists(_names, min_size=1, max_size=4, unique=True))
    devices = tuple(
        Device(
            name,
            draw(st.sampled_from(["CPU", "GPU"])),
            draw(st.text(max_size=4)),
            draw(st.just(UNLIMITED_BYTES) | st.integers(1, UNLIMITED_BYTES)),
        )
        for name in names
    )
    pairs = [(a, b) for a in range(len(names)) for b in range(len(names)) if a != b]
    few = draw(st.lists(_links, min_size=1, max_size=3))
    links = {pair: draw(st.sampled_from(few)) for pair in pairs}
    hardware = draw(st.dictionaries(st.text(max_size=4), _hardware, max_size=2))
    return DeviceTopology(devices, links, hardware, draw(st.text(max_size=6)))


@given(topology=topologies())
def test_any_topology_survives_toml(
    tmp_path_factory: pytest.TempPathFactory, topology: DeviceTopology
) -> None:
    path = tmp_path_factory.mktemp("topology") / "saved.toml"

    save_topology(topology, path)
    read = load_topology(str(path))

    assert read == topology
    assert read.fingerprint == topology.fingerprint


@given(topology=topologies())
def test_any_topology_survives_json(topology: DeviceTopology) -> None:
    document = json.loads(json.dumps(topology_document(topology)))

    read = check(TopologyDocument, document, "file").topology("custom")

    assert read == topology


def test_saving_leaves_no_other_file(tmp_path: Path) -> None:
    save_topology(DeviceTopology.uniform(2, Link(1e9)), tmp_path / "saved.toml")

    assert os.listdir(tmp_path) == ["saved.toml"]
    assert not re.search(r"\binf\b|\bnan\b", (tmp_path / "saved.toml").read_text())
