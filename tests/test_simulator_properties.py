"""Laws of the simulator, and its agreement with the plain one."""

import dataclasses
import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.devices import DeviceTopology, Link
from placer.placement import Placement
from placer.profile import Profile
from placer.simulator import Schedule, Simulator, simulate
from tests.oracle import PlainSimulator, to_ps
from tests.strategies import placed_profiles, placements, profiles


@given(placed_profiles())
def test_the_schedule_is_that_of_the_plain_simulator(placed: tuple[Profile, Placement]) -> None:
    profile, placement = placed
    expected = PlainSimulator(profile, placement).run()

    schedule = simulate(profile, placement)

    num_ops = profile.graph.num_ops
    assert schedule.start_s == tuple(expected.op_spans[op][0] / 1e12 for op in range(num_ops))
    assert schedule.end_s == tuple(expected.op_spans[op][1] / 1e12 for op in range(num_ops))
    assert {(t.tensor, t.destination): (t.start_s, t.end_s) for t in schedule.transfers} == {
        which: (start / 1e12, end / 1e12) for which, (start, end) in expected.transfer_spans.items()
    }
    assert schedule.makespan_s == expected.makespan_ps / 1e12
    assert list(schedule.peak_memory_bytes) == expected.peak_memory_bytes


@settings(max_examples=40)
@given(placed_profiles(max_ops=20, max_devices=2))
def test_longer_queues_are_served_as_the_plain_simulator_serves_them(
    placed: tuple[Profile, Placement],
) -> None:
    profile, placement = placed
    expected = PlainSimulator(profile, placement).run()

    schedule = simulate(profile, placement)

    starts = [expected.op_spans[op][0] / 1e12 for op in range(profile.graph.num_ops)]
    assert list(schedule.start_s) == starts
    assert list(schedule.peak_memory_bytes) == expected.peak_memory_bytes


@given(st.data(), profiles())
def test_a_batch_gives_what_each_placement_gives_alone(
    data: st.DataObject, profile: Profile
) -> None:
    several = data.draw(st.lists(placements(profile), min_size=1, max_size=5))
    simulator = Simulator(profile)

    batch = simulator.run(np.stack([placement.device_of_op for placement in several]))

    alone = [simulator.schedule(placement) for placement in several]
    assert batch.makespan_s.tolist() == [schedule.makespan_s for schedule in alone]
    assert batch.peak_memory_bytes.tolist() == [list(s.peak_memory_bytes) for s in alone]
    assert [None if d < 0 else d for d in batch.out_of_memory_device.tolist()] == [
        schedule.out_of_memory_device for schedule in alone
    ]


@given(placed_profiles())
def test_the_makespan_is_at_least_the_critical_path(placed: tuple[Profile, Placement]) -> None:
    profile, placement = placed
    compute_ps = [
        to_ps(profile.compute_time_s[op, device])
        for op, device in enumerate(placement.device_of_op)
    ]
    earliest_end_ps = [0] * profile.graph.num_ops
    for op in profile.graph.topological_order:
        before = [earliest_end_ps[producer] for producer in profile.graph.predecessors[op]]
        earliest_end_ps[op] = max(before, default=0) + compute_ps[op]

    schedule = simulate(profile, placement)

    assert schedule.makespan_s >= max(earliest_end_ps) / 1e12


@given(placed_profiles())
def test_the_makespan_is_at_least_the_work_shared_by_all_devices(
    placed: tuple[Profile, Placement],
) -> None:
    profile, placement = placed
    work_ps = sum(
        to_ps(profile.compute_time_s[op, device])
        for op, device in enumerate(placement.device_of_op)
    )

    schedule = simulate(profile, placement)

    assert to_ps(schedule.makespan_s) * profile.topology.num_devices >= work_ps
    busy_ps = sum(map(to_ps, schedule.busy_s))
    # A transfer that loads a device only ever makes its ops last longer.
    assert busy_ps >= work_ps
    topology = profile.topology
    if not (topology.source_load.any() or topology.destination_load.any()):
        assert busy_ps == work_ps


@given(profiles())
def test_on_one_device_the_makespan_is_the_sum_of_compute_times(profile: Profile) -> None:
    device = 0  # a GPU, which every op of these profiles may use
    sum_ps = sum(to_ps(seconds) for seconds in profile.compute_time_s[:, device])

    schedule = simulate(profile, Placement([device] * profile.graph.num_ops))

    assert schedule.makespan_s == sum_ps / 1e12
    assert schedule.transfers == ()


@given(st.data(), profiles(), st.integers(1, 4))
def test_renaming_equal_devices_changes_nothing(
    data: st.DataObject, profile: Profile, num_devices: int
) -> None:
    equal = DeviceTopology.uniform(num_devices, Link(2.0, 0.5))
    costs = dataclasses.replace(profile.costs, device_types=("first", "second"))
    profile = Profile(profile.graph, costs, equal)
    placement = data.draw(placements(profile))
    new_name = np.array(data.draw(st.permutations(range(num_devices))))
    renamed = Placement(new_name[placement.device_of_op])

    before, after = simulate(profile, placement), simulate(profile, renamed)

    assert after.start_s == before.start_s
    assert after.makespan_s == before.makespan_s
    for device in range(num_devices):
        assert after.busy_s[new_name[device]] == before.busy_s[device]
        assert after.peak_memory_bytes[new_name[device]] == before.peak_memory_bytes[device]


@given(placed_profiles())
def test_nothing_overlaps_on_a_device_or_a_link(placed: tuple[Profile, Placement]) -> None:
    profile, placement = placed

    schedule = simulate(profile, placement)

    spans: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for op, device in enumerate(placement.device_of_op.tolist()):
        span = (schedule.start_s[op], schedule.end_s[op])
        spans.setdefault((device, device), []).append(span)
    for t in schedule.transfers:
        spans.setdefault((t.source, t.destination), []).append((t.start_s, t.end_s))
    for channel in spans.values():
        for (_, end_s), (start_s, _) in itertools.pairwise(sorted(channel)):
            assert start_s >= end_s


@given(placed_profiles())
def test_a_tensor_goes_once_to_each_device_that_lacks_it_and_nowhere_else(
    placed: tuple[Profile, Placement],
) -> None:
    profile, placement = placed
    device_of_op = placement.device_of_op.tolist()
    expected = sorted(
        (number, device_of_op[tensor.producer], destination)
        for number, tensor in enumerate(profile.graph.tensors)
        for destination in {device_of_op[op] for op in tensor.consumers}
        if destination != device_of_op[tensor.producer]
    )

    schedule = simulate(profile, placement)

    assert sorted((t.tensor, t.source, t.destination) for t in schedule.transfers) == expected


@given(placed_profiles())
def test_an_op_starts_when_its_inputs_are_there_and_its_device_is_free(
    placed: tuple[Profile, Placement],
) -> None:
    profile, placement = placed

    schedule = simulate(profile, placement)

    ready_s = _ready_times(profile, placement, schedule)
    for op, start_s in enumerate(schedule.start_s):
        neighbours = np.flatnonzero(placement.device_of_op == placement.device_of_op[op])
        ends_s = [schedule.end_s[other] for other in neighbours if other != op]
        assert start_s >= ready_s[op]
        assert start_s == ready_s[op] or start_s in ends_s  # never idle while an op waits


def _ready_times(profile: Profile, placement: Placement, schedule: Schedule) -> list[float]:
    arrival_s = {(t.tensor, t.destination): t.end_s for t in schedule.transfers}
    ready_s = [0.0] * profile.graph.num_ops
    for number, tensor in enumerate(profile.graph.tensors):
        for op in tensor.consumers:
            here = (number, int(placement.device_of_op[op]))
            there_s = arrival_s.get(here, schedule.end_s[tensor.producer])
            ready_s[op] = max(ready_s[op], there_s)
    return ready_s


@given(placed_profiles())
def test_peaks_lie_between_what_ops_hold_and_that_with_every_tensor(
    placed: tuple[Profile, Placement],
) -> None:
    profile, placement = placed
    num_devices = profile.topology.num_devices
    held = np.bincount(placement.device_of_op, profile.memory_bytes, minlength=num_devices)
    all_tensors = sum(tensor.size_bytes for tensor in profile.graph.tensors)

    peaks = np.array(simulate(profile, placement).peak_memory_bytes)

    assert (peaks >= held).all()
    assert (peaks <= held + all_tensors).all()
