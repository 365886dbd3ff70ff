"""Devices, links, and the topology they form."""

import math

import numpy as np
import pytest
from hypothesis import given

from placer.devices import UNLIMITED_BYTES, Device, DeviceTopology, Hardware, Link
from placer.errors import InvalidValueError, UnknownNameError
from tests.strategies import topologies

LINK = Link(bandwidth_bytes_per_s=1e9, latency_s=1e-5)


class TestDevice:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"name": ""}, "a device must have a name"),
            ({"kind": "TPU"}, "device 'gpu:0': kind must be one of .* got 'TPU'"),
            ({"memory_bytes": 0}, "device 'gpu:0': memory_bytes must be positive .* got 0"),
            ({"memory_bytes": 2**62 + 1}, f"memory_bytes must be at most {2**62}"),
        ],
    )
    def test_wrong_contents_are_refused(self, fields: dict[str, object], message: str) -> None:
        with pytest.raises(InvalidValueError, match=message):
            Device(**{"name": "gpu:0", **fields})


class TestLink:
    @pytest.mark.parametrize("bandwidth", [0.0, -1.0, math.inf, math.nan])
    def test_a_bandwidth_that_is_not_positive_and_finite_is_refused(self, bandwidth: float) -> None:
        with pytest.raises(InvalidValueError, match="bandwidth_bytes_per_s must be positive"):
            Link(bandwidth)

    @pytest.mark.parametrize("latency", [-1e-9, math.inf, math.nan])
    def test_a_latency_that_is_negative_or_not_finite_is_refused(self, latency: float) -> None:
        with pytest.raises(InvalidValueError, match="latency_s must be finite and not negative"):
            Link(1.0, latency)

    @pytest.mark.parametrize("load", [-0.1, 1.001, math.nan])
    @pytest.mark.parametrize("field", ["source_load", "destination_load"])
    def test_a_load_is_a_share(self, field: str, load: float) -> None:
        with pytest.raises(InvalidValueError, match=f"{field} must be between 0 and 1, got"):
            Link(1.0, **{field: load})

    def test_loads_are_whole_thousandths(self) -> None:
        link = Link(1.0, source_load=0.12345, destination_load=1)

        assert (link.source_load, link.destination_load) == (0.123, 1.0)


@pytest.mark.parametrize("field", ["frequency_mhz", "num_cores", "memory_bandwidth_bytes_per_s"])
def test_hardware_figures_must_be_positive(field: str) -> None:
    figures = {"frequency_mhz": 900, "num_cores": 13, "memory_bandwidth_bytes_per_s": 2.4e11}

    with pytest.raises(InvalidValueError, match=f"hardware: {field} must be positive"):
        Hardware(**{**figures, field: 0})


class TestDeviceTopology:
    def test_a_topology_without_devices_is_refused(self) -> None:
        with pytest.raises(InvalidValueError, match="at least one device"):
            DeviceTopology((), {})

    def test_two_devices_of_one_name_are_refused(self) -> None:
        with pytest.raises(InvalidValueError, match="two devices are called 'a'"):
            DeviceTopology((Device("a"), Device("a")), {(0, 1): LINK, (1, 0): LINK})

    def test_a_missing_link_is_named_by_its_devices(self) -> None:
        with pytest.raises(InvalidValueError, match="no link from device 'b' to 'a'"):
            DeviceTopology((Device("a"), Device("b")), {(0, 1): LINK})

    @pytest.mark.parametrize("pair", [(0, 0), (0, 2), (-1, 0)])
    def test_a_link_that_joins_no_two_devices_is_refused(self, pair: tuple[int, int]) -> None:
        links = {(0, 1): LINK, (1, 0): LINK, pair: LINK}

        with pytest.raises(InvalidValueError, match="does not join two devices"):
            DeviceTopology((Device("a"), Device("b")), links)

    def test_a_uniform_topology_has_equal_devices_and_links(self) -> None:
        topology = DeviceTopology.uniform(3, LINK, memory_bytes=10, kind="CPU")

        assert [d.name for d in topology.devices] == ["device:0", "device:1", "device:2"]
        assert {(d.kind, d.memory_bytes) for d in topology.devices} == {("CPU", 10)}
        assert len(topology.links) == 6
        assert set(topology.links.values()) == {LINK}

    def test_a_uniform_topology_of_no_devices_is_refused(self) -> None:
        with pytest.raises(InvalidValueError, match="devices must be at least 1, got 0"):
            DeviceTopology.uniform(0, LINK)

    def test_matrices_run_from_row_to_column(self) -> None:
        there = Link(1.0, 0.1, source_load=0.3)
        back = Link(2.0, 0.2, destination_load=0.7)

        topology = DeviceTopology((Device("a"), Device("b")), {(0, 1): there, (1, 0): back})

        assert topology.latency_s.tolist() == [[0.0, 0.1], [0.2, 0.0]]
        assert topology.source_load.tolist() == [[0.0, 0.3], [0.0, 0.0]]
        assert topology.destination_load.tolist() == [[0.0, 0.0], [0.7, 0.0]]
        assert topology.bandwidth_bytes_per_s.tolist() == [[math.inf, 1.0], [2.0, math.inf]]

    def test_memory_is_unlimited_unless_said(self) -> None:
        topology = DeviceTopology.uniform(2, LINK)

        assert topology.memory_bytes.tolist() == [UNLIMITED_BYTES, UNLIMITED_BYTES]
        assert topology.memory_bytes.dtype == np.int64

    def test_a_device_is_found_by_name_and_a_wrong_name_gets_the_nearest(self) -> None:
        topology = DeviceTopology.uniform(2, LINK)

        assert topology.index("device:1") == 1
        with pytest.raises(UnknownNameError, match="unknown device 'device:9'; did you mean"):
            topology.index("device:9")

    @given(topologies())
    def test_every_ordered_pair_of_devices_has_a_link(self, topology: DeviceTopology) -> None:
        assert len(topology.links) == topology.num_devices * (topology.num_devices - 1)


class TestFingerprint:
    def test_the_name_is_no_part_of_it(self) -> None:
        first = DeviceTopology.uniform(2, LINK, name="one")
        second = DeviceTopology.uniform(2, LINK, name="two")

        assert first.fingerprint == second.fingerprint

    def test_the_order_in_which_links_are_given_is_no_part_of_it(self) -> None:
        devices = (Device("a"), Device("b"))
        first = DeviceTopology(devices, {(0, 1): Link(1.0), (1, 0): Link(2.0)})
        second = DeviceTopology(devices, {(1, 0): Link(2.0), (0, 1): Link(1.0)})

        assert first.fingerprint == second.fingerprint

    @pytest.mark.parametrize(
        "other",
        [
            DeviceTopology.uniform(3, LINK),
            DeviceTopology.uniform(2, Link(1e9)),
            DeviceTopology.uniform(2, LINK, memory_bytes=5),
            DeviceTopology.uniform(2, LINK, kind="CPU"),
        ],
    )
    def test_devices_and_links_are(self, other: DeviceTopology) -> None:
        assert DeviceTopology.uniform(2, LINK).fingerprint != other.fingerprint


def test_equal_devices_without_a_description_are_a_reference_topology() -> None:
    assert DeviceTopology.uniform(2, LINK).is_reference


def test_one_described_device_makes_a_topology_no_reference() -> None:
    devices = (Device("gpu:0"), Device("gpu:1", type="k80"))

    assert not DeviceTopology(devices, {(0, 1): LINK, (1, 0): LINK}).is_reference
