"""HEFT, on the example of its paper and on others that fit on paper."""

from collections.abc import Sequence

import numpy as np
import pytest

from placer.devices import Device, DeviceTopology
from placer.graph import Op, OpGraph, Tensor
from placer.grouping import Grouping
from placer.heuristics.heft import Timeline, heft, upward_ranks_s
from placer.profile import OpCosts, Profile
from tests.builders import SECOND_PER_BYTE
from tests.grouped_profiles import profile_of, topology_of

# The example of Topcuoglu et al. (2002): times of tasks 1 to 10 on three processors, and edges.
PAPER_TIMES_S = [
    [14, 16, 9],
    [13, 19, 18],
    [11, 13, 19],
    [13, 8, 17],
    [12, 13, 10],
    [13, 16, 9],
    [7, 15, 11],
    [5, 11, 14],
    [18, 12, 20],
    [21, 7, 16],
]
PAPER_EDGES = [
    *[(1, 2, 18), (1, 3, 12), (1, 4, 9), (1, 5, 11), (1, 6, 14), (2, 8, 19), (2, 9, 16)],
    *[(3, 7, 23), (4, 8, 27), (4, 9, 23), (5, 9, 13), (6, 8, 15), (7, 10, 17), (8, 10, 11)],
    (9, 10, 13),
]


def costed(times_s: Sequence[Sequence[float]], edges: Sequence[tuple[int, int, int]]) -> Profile:
    """Return ops by their times on each device, and edges (from, to, seconds), from 0."""
    num_devices = len(times_s[0])
    types = tuple(f"type:{device}" for device in range(num_devices))
    devices = tuple(Device(f"gpu:{i}", type=type_) for i, type_ in enumerate(types))
    pairs = [(a, b) for a in range(num_devices) for b in range(num_devices) if a != b]
    times = np.array(times_s, dtype=float)
    return Profile(
        OpGraph(
            tuple(Op(f"op{i}", "Op") for i in range(len(times))),
            tuple(Tensor(source, (consumer,), size) for source, consumer, size in edges),
        ),
        OpCosts(
            types,
            times,
            np.zeros(times.shape, dtype=np.bool_),
            np.zeros(len(times), dtype=np.int64),
        ),
        DeviceTopology(devices, dict.fromkeys(pairs, SECOND_PER_BYTE)),
    )


def alone(profile: Profile) -> Grouping:
    return Grouping(range(profile.graph.num_ops))


@pytest.fixture
def paper() -> Profile:
    return costed(PAPER_TIMES_S, [(a - 1, b - 1, size) for a, b, size in PAPER_EDGES])


class TestUpwardRanks:
    def test_they_are_those_of_the_paper(self, paper: Profile) -> None:
        # Task 10, for example: (21 + 7 + 16) / 3; task 7: 11 + 17 + 14.667.
        expected = [108.0, 77.0, 80.0, 80.0, 69.0, 63.333, 42.667, 35.667, 44.333, 14.667]

        assert upward_ranks_s(paper, alone(paper)) == pytest.approx(expected, abs=1e-3)

    def test_within_a_group_nothing_is_sent(self) -> None:
        # 1 + 5 + 1 on two devices apart, 1 + 1 together.
        profile = costed([[1, 1], [1, 1]], [(0, 1, 5)])

        assert upward_ranks_s(profile, Grouping([0, 1])).tolist() == [7.0, 1.0]
        assert upward_ranks_s(profile, Grouping([0, 0])).tolist() == [2.0, 1.0]

    def test_times_are_the_mean_of_the_permitted_devices(self) -> None:
        # On the CPU 10 s, on the GPU 1 s.
        kinds = [("CPU", "GPU"), ("GPU",), ("CPU",)]
        ops = [Op(f"op{i}", "Op", device_kinds=kind) for i, kind in enumerate(kinds)]
        profile = profile_of(ops, [], topology_of("CPU", "GPU"))

        assert upward_ranks_s(profile, alone(profile)).tolist() == [5.5, 1.0, 10.0]


class TestTimeline:
    def test_the_first_gap_that_is_long_enough_is_taken(self) -> None:
        timeline = Timeline()
        timeline.occupy(6.0, 9.0)
        timeline.occupy(2.0, 4.0)

        # Free are 0 to 2, 4 to 6, and from 9.
        assert timeline.earliest_start_s(0.0, 2.0) == 0.0
        assert timeline.earliest_start_s(1.0, 2.0) == 4.0
        assert timeline.earliest_start_s(5.0, 1.0) == 5.0
        assert timeline.earliest_start_s(0.0, 3.0) == 9.0
        assert timeline.earliest_start_s(12.0, 3.0) == 12.0

    def test_work_of_no_duration_waits_for_what_runs_and_fills_nothing(self) -> None:
        timeline = Timeline()
        timeline.occupy(6.0, 9.0)
        timeline.occupy(3.0, 3.0)

        assert timeline.earliest_start_s(7.0, 0.0) == 9.0
        assert timeline.earliest_start_s(6.0, 0.0) == 6.0
        assert timeline.earliest_start_s(0.0, 6.0) == 0.0


class TestHeft:
    def test_the_papers_example_is_placed_as_in_the_paper(self, paper: Profile) -> None:
        # P1 runs tasks 2 and 8, P2 tasks 4, 6, 9 and 10, P3 the others: 80 s in all.
        expected = [2, 0, 2, 1, 2, 1, 2, 0, 1, 1]

        assert heft(paper, alone(paper)).tolist() == expected

    def test_a_short_op_fills_a_gap(self) -> None:
        # By rank: c, a, b, d. c: 0-2 on device 0; a: 0-1 on device 1. b belongs to a, and waits
        # on device 1 for the tensor of c: 5-9. d ends at 10 on device 0, and on device 1 at
        # 3 in the gap from 1 to 5, or at 11 behind b.
        times_s = [[9, 1], [99, 4], [2, 9], [8, 2]]
        profile = costed(times_s, [(0, 1, 3), (2, 1, 3)])

        assert heft(profile, Grouping([0, 0, 1, 2])).tolist() == [1, 0, 1]

    def test_a_slow_device_is_used_once_it_ends_sooner(self) -> None:
        # 1 s on the GPU, 2.5 s on the CPU. Ends: 1, 2, then 3 against 2.5, then 3 against 5.
        ops = [Op(f"op{i}", "Op") for i in range(4)]
        profile = profile_of(ops, [], topology_of("CPU", "GPU"), cpu_factor=2.5)

        assert heft(profile, alone(profile)).tolist() == [1, 1, 0, 1]

    def test_the_first_op_of_a_group_decides_by_the_work_of_all(self) -> None:
        # a alone: 1 s on device 0, 2 s on 1; then b ends at 10 s on 0, and at 1 + 1 + 1 on 1.
        # Together: 10 s on device 0, 3 s on 1.
        profile = costed([[1, 2], [9, 1]], [(0, 1, 1)])

        assert heft(profile, Grouping([0, 1])).tolist() == [0, 1]
        assert heft(profile, Grouping([0, 0])).tolist() == [1]

    def test_a_transfer_that_takes_longer_than_waiting_is_not_made(self) -> None:
        # b runs beside a from 1 to 3; then c would end at 5 there, and elsewhere at 13.
        profile = costed([[1, 1], [2, 2], [2, 2]], [(0, 1, 10), (0, 2, 10)])

        assert heft(profile, alone(profile)).tolist() == [0, 0, 0]
