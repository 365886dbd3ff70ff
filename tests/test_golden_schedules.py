"""Whole schedules of three small graphs, as text that a person can check."""

from collections.abc import Callable

from placer.devices import Link
from placer.placement import Placement
from placer.profile import Profile
from placer.simulator import Schedule, simulate
from tests.builders import make_profile, make_topology

Golden = Callable[[str, str], None]


def as_text(profile: Profile, placement: Placement, schedule: Schedule) -> str:
    names = [device.name for device in profile.topology.devices]
    rows = []
    for op, device in enumerate(placement.device_of_op):
        span = (schedule.start_s[op], schedule.end_s[op])
        rows.append((*span, f"{names[device]:13} op {profile.graph.ops[op].name}"))
    for transfer in schedule.transfers:
        link = f"{names[transfer.source]}>{names[transfer.destination]}"
        producer = profile.graph.ops[profile.graph.tensors[transfer.tensor].producer].name
        text = f"{link:13} tensor {transfer.tensor} of {producer}"
        rows.append((transfer.start_s, transfer.end_s, text))
    lines = [f"{start:8.3f} {end:8.3f}  {text}" for start, end, text in sorted(rows)]
    for name, busy_s, peak in zip(names, schedule.busy_s, schedule.peak_memory_bytes, strict=True):
        lines.append(f"{name}: busy {busy_s:.3f} s, peak {peak} bytes")
    lines.append(f"makespan {schedule.makespan_s:.3f} s")
    return "\n".join(lines) + "\n"


def test_the_schedule_of_a_diamond_over_two_devices(diamond: Profile, golden: Golden) -> None:
    placement = Placement([0, 0, 1, 0])

    schedule = simulate(diamond, placement)

    golden("diamond.txt", as_text(diamond, placement, schedule))


def test_the_schedule_of_a_pipeline_of_three_micro_batches(golden: Golden) -> None:
    # Each micro-batch passes through one op on each of three devices; ops a to i.
    num_batches, num_stages = 3, 3
    compute_time_s, tensors, devices = [], [], []
    for batch in range(num_batches):
        for stage in range(num_stages):
            op = batch * num_stages + stage
            compute_time_s.append(1.0 + stage / 2)
            devices.append(stage)
            consumers = (op + 1,) if stage + 1 < num_stages else ()
            tensors.append((op, consumers, 4))
    topology = make_topology(3, Link(bandwidth_bytes_per_s=8.0, latency_s=0.25))
    profile = make_profile(compute_time_s, tensors, topology, memory_bytes=[10] * 9)

    schedule = simulate(profile, Placement(devices))

    golden("pipeline.txt", as_text(profile, Placement(devices), schedule))


def test_the_schedule_of_a_fan_out_with_control_edges_and_ties(golden: Golden) -> None:
    # a's two tensors go to everyone, control edges hold back f and g, b and c tie.
    tensors = [
        (0, (1, 2, 3, 4), 2),
        (0, (2, 4), 1),
        (1, (5,), 0),
        (2, (5, 6), 0),
        (3, (6,), 3),
        (4, (6,), 3),
    ]
    topology = make_topology(3, Link(bandwidth_bytes_per_s=1.0, latency_s=0.5))
    profile = make_profile([0.0, 1.0, 1.0, 2.0, 2.0, 1.0, 1.0], tensors, topology)
    placement = Placement([0, 1, 1, 2, 2, 0, 0])

    schedule = simulate(profile, placement)

    golden("fan_out.txt", as_text(profile, placement, schedule))
