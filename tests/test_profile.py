"""Costs, and the profile that joins them to a graph and a topology."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given

from placer.devices import Device, DeviceTopology, Link
from placer.errors import InfeasibleError, InvalidValueError, UnknownNameError
from placer.graph import Op, OpGraph
from placer.profile import OpCosts, Profile, Provenance
from tests.builders import make_costs, make_graph, make_profile, make_topology
from tests.strategies import profiles

LINK = Link(1.0)
PAIR = {(0, 1): LINK, (1, 0): LINK}


def costs_of_two_types() -> OpCosts:
    return OpCosts(
        ("fast", "slow"),
        np.array([[1.0, 10.0], [2.0, 20.0]]),
        np.array([[True, False], [True, False]]),
        np.array([5, 6]),
    )


class TestOpCosts:
    @pytest.mark.parametrize("types", [(), ("a", "a")])
    def test_device_types_must_be_distinct_and_at_least_one(self, types: tuple[str, ...]) -> None:
        times = np.zeros((1, len(types)))

        with pytest.raises(InvalidValueError, match="device types must be distinct"):
            OpCosts(types, times, times.astype(np.bool_), np.zeros(1, dtype=np.int64))

    @pytest.mark.parametrize("field", ["compute_time_s", "measured"])
    def test_shapes_must_agree(self, field: str) -> None:
        wrong = np.zeros((2, 3), dtype=getattr(costs_of_two_types(), field).dtype)

        with pytest.raises(InvalidValueError, match=rf"{field} must have shape \(2, 2\), got"):
            dataclasses.replace(costs_of_two_types(), **{field: wrong})

    @pytest.mark.parametrize("time_s", [-1.0, math.nan, math.inf])
    def test_a_time_that_is_negative_or_not_finite_is_named(self, time_s: float) -> None:
        times = np.array([[1.0, 10.0], [2.0, time_s]])

        with pytest.raises(InvalidValueError, match=f"op 1 on 'slow': .* got {time_s}"):
            dataclasses.replace(costs_of_two_types(), compute_time_s=times)

    def test_a_negative_workspace_is_named(self) -> None:
        with pytest.raises(InvalidValueError, match=r"op 1: workspace_bytes .* got -6"):
            dataclasses.replace(costs_of_two_types(), workspace_bytes=np.array([5, -6]))

    def test_the_fingerprint_is_of_the_contents(self) -> None:
        costs = costs_of_two_types()
        slower = dataclasses.replace(costs, compute_time_s=costs.compute_time_s + 1.0)

        assert costs.fingerprint == costs_of_two_types().fingerprint
        assert costs.fingerprint != slower.fingerprint


class TestProfile:
    def test_costs_of_another_number_of_ops_are_refused(self) -> None:
        with pytest.raises(InvalidValueError, match="costs are of 3 ops, but the graph has 2"):
            Profile(make_graph(2, []), make_costs([1.0] * 3), make_topology(1))

    def test_a_device_type_without_costs_is_refused_with_the_nearest_name(self) -> None:
        topology = DeviceTopology((Device("gpu:0", type="slowe"),), {})

        with pytest.raises(UnknownNameError, match="'slowe'; did you mean 'slow'"):
            Profile(make_graph(2, []), costs_of_two_types(), topology)

    def test_an_op_without_a_permitted_device_is_named(self) -> None:
        graph = OpGraph((Op("a", "A"), Op("lookup", "Hash", device_kinds=("CPU",))), ())

        with pytest.raises(InfeasibleError, match=r"'lookup' \(Hash\) needs a device of kind CPU"):
            Profile(graph, make_costs([1.0, 1.0]), make_topology(2))

    def test_times_are_those_of_each_devices_type(self) -> None:
        devices = (Device("a", type="slow"), Device("b", type="fast"))

        profile = Profile(make_graph(2, []), costs_of_two_types(), DeviceTopology(devices, PAIR))

        assert profile.compute_time_s.tolist() == [[10.0, 1.0], [20.0, 2.0]]

    def test_a_device_of_the_reference_type_takes_the_times_of_the_first(self) -> None:
        profile = Profile(make_graph(2, []), costs_of_two_types(), make_topology(2))

        assert profile.compute_time_s.tolist() == [[1.0, 1.0], [2.0, 2.0]]

    def test_allowed_follows_the_kinds_of_ops_and_devices(self) -> None:
        graph = OpGraph((Op("a", "A"), Op("b", "B", device_kinds=("GPU",))), ())
        devices = (Device("cpu:0", kind="CPU"), Device("gpu:0"))

        profile = Profile(graph, make_costs([1.0, 1.0]), DeviceTopology(devices, PAIR))

        assert profile.allowed.tolist() == [[True, True], [False, True]]

    def test_memory_is_that_of_variables_and_workspace(self) -> None:
        graph = make_graph(2, [], memory_bytes=[100, 200])

        profile = Profile(graph, costs_of_two_types(), make_topology(1))

        assert profile.memory_bytes.tolist() == [105, 206]

    @given(profiles())
    def test_every_op_has_a_permitted_device(self, profile: Profile) -> None:
        assert profile.allowed.any(axis=1).all()
        assert profile.allowed.shape == profile.compute_time_s.shape


class TestFingerprint:
    def test_provenance_is_no_part_of_it(self) -> None:
        profile = make_profile([1.0], [], make_topology(1))
        traced = dataclasses.replace(profile, provenance=Provenance(method="trace", host="here"))

        assert profile.fingerprint == traced.fingerprint

    def test_graph_costs_topology_and_memory_are(self) -> None:
        tensors = [(0, (1,), 1)]
        one = make_topology(1)

        fingerprints = {
            make_profile([1.0, 1.0], tensors, one).fingerprint,
            make_profile([1.0, 2.0], tensors, one).fingerprint,
            make_profile([1.0, 1.0], [], one).fingerprint,
            make_profile([1.0, 1.0], tensors, make_topology(2)).fingerprint,
            make_profile([1.0, 1.0], tensors, one, memory_bytes=[1, 0]).fingerprint,
        }

        assert len(fingerprints) == 5
