"""Lower bounds: worked out on paper, and never above any simulated makespan."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.bounds import (
    Bound,
    critical_path_s,
    cut_s,
    lower_bound,
    one_machine,
    one_machine_s,
    program_s,
    work_s,
)
from placer.errors import InfeasibleError
from placer.graph import Op
from placer.group_ops import GroupingConfig, group_ops
from placer.grouping import Grouping
from placer.placement import Placement
from placer.profile import Profile
from placer.simulator import Simulator, simulate
from tests.builders import make_costs, make_profile, make_topology
from tests.grouped_profiles import msr_profile, profile_of, topology_of
from tests.strategies import groupings, op_graphs, profiles

JOBS = st.lists(st.tuples(*[st.integers(0, 6)] * 3), min_size=1, max_size=6)
"""Head, time and tail of each."""


def alone(profile: Profile) -> Grouping:
    return Grouping(range(profile.graph.num_ops))


@st.composite
def profiles_of_equal_devices(draw: st.DrawFn) -> Profile:
    """Few ops on devices that can exchange their names, often too small for all ops."""
    graph = draw(op_graphs(max_ops=5))
    times = st.lists(st.integers(0, 4), min_size=graph.num_ops, max_size=graph.num_ops)
    limit = draw(st.sampled_from([1, 4, 1000]))
    topology = make_topology(draw(st.integers(1, 3)), memory_bytes=limit)
    return Profile(graph, make_costs([float(time_s) for time_s in draw(times)]), topology)


def best_s(profile: Profile, grouping: Grouping) -> float:
    """Return the least makespan of all placements that fit; infinite if none does."""
    devices = [np.flatnonzero(row).tolist() for row in grouping.allowed(profile)]
    actions = np.array(list(itertools.product(*devices)))
    batch = Simulator(profile).run(actions[:, grouping.group_of_op])
    return float(batch.makespan_s[batch.fits].min(initial=math.inf))


class TestCriticalPath:
    def test_it_is_the_longest_chain_without_transfers(self, diamond: Profile) -> None:
        # a, b or c, d: a second each. The second that a transfer would take does not count.
        assert critical_path_s(diamond, alone(diamond)) == 3.0

    def test_each_op_is_on_its_fastest_device(self) -> None:
        # 1 s on the GPU, 10 s on the CPU.
        ops = [Op("a", "Op"), Op("b", "Op")]
        profile = profile_of(ops, [(0, (1,), 8)], topology_of("CPU", "GPU"))

        assert critical_path_s(profile, alone(profile)) == 2.0

    def test_an_op_grouped_with_one_for_the_cpu_takes_as_long_as_there(self) -> None:
        # a could run on the GPU, but not without b: 10 s each.
        ops = [Op("a", "Op"), Op("b", "Op", device_kinds=("CPU",))]
        profile = profile_of(ops, [(0, (1,), 8)], topology_of("CPU", "GPU"))

        assert critical_path_s(profile, Grouping([0, 0])) == 20.0
        assert critical_path_s(profile, alone(profile)) == 11.0

    @pytest.mark.parametrize(
        ("name", "critical_path", "best_known"),
        [
            ("gnmt_training", 0.337430, 0.348043),
            ("bert_l-3_training", 0.113406, 0.120699),
            ("bert_l-12_training", 1.333503, 1.852740),
        ],
    )
    def test_it_is_that_of_the_published_graphs_and_no_bound_is_above_the_best_known(
        self, name: str, critical_path: float, best_known: float
    ) -> None:
        profile = msr_profile(name)
        grouping = group_ops(profile, GroupingConfig(method="colocation")).grouping
        total_s = profile.compute_time_s[:, 0].sum()

        bound = lower_bound(profile, grouping)

        assert critical_path_s(profile, grouping) == pytest.approx(critical_path, abs=1e-12)
        assert work_s(profile, grouping) == pytest.approx(total_s / 4, abs=1e-11)
        assert critical_path <= bound.seconds <= best_known + 1e-6


class TestWork:
    def test_equal_devices_share_it_equally(self, diamond: Profile) -> None:
        # Four seconds on two devices.
        assert work_s(diamond, alone(diamond)) == 2.0

    def test_what_does_not_divide_is_rounded_up_to_a_picosecond(self) -> None:
        profile = make_profile([1e-12, 1e-12, 1e-12], [], make_topology(2))

        assert work_s(profile, alone(profile)) == 2e-12

    def test_a_slow_device_gets_the_smaller_part(self) -> None:
        # 12 s of work on the GPU, 36 s on the CPU: three quarters here and one there, 9 s.
        ops = [Op(f"op{i}", "Op") for i in range(12)]
        profile = profile_of(ops, [], topology_of("GPU", "CPU"), cpu_factor=3)

        assert work_s(profile, alone(profile)) == pytest.approx(9.0, rel=1e-6)

    def test_work_that_needs_one_device_is_not_shared(self) -> None:
        # Four ops of 10 s need the CPU, and a GPU does nothing for them.
        ops = [Op(f"op{i}", "Op", device_kinds=("CPU",)) for i in range(4)]
        profile = profile_of(ops, [], topology_of("CPU", "GPU"))

        assert work_s(profile, alone(profile)) == pytest.approx(40.0, rel=1e-6)

    def test_without_times_there_is_no_work(self) -> None:
        ops = [Op("a", "Op"), Op("b", "Op")]
        profile = profile_of(ops, [], topology_of("CPU", "GPU"), time_s=[0, 0])

        assert work_s(profile, alone(profile)) == 0.0


class TestOneMachine:
    def test_ops_of_a_group_run_one_after_another_between_head_and_tail(
        self, diamond: Profile
    ) -> None:
        # a: 1 s, then b and c on one device: 2 s, then d: 1 s. Met by one device.
        grouping = Grouping([0, 1, 1, 2])

        bound_s = one_machine_s(diamond, grouping)

        assert bound_s == simulate(diamond, Placement([0] * 4)).makespan_s == 4.0

    def test_an_op_that_waits_for_nothing_does_not_weaken_it(self) -> None:
        # a: 2 s, then b and c, 3 s each, then d: 4 s: 12 s. With e of 1 s in the group of b and
        # c, least head and least tail of the whole group are 0, and its work is 7 s.
        tensors = [(0, (1, 2), 1), (1, (3,), 1), (2, (3,), 1)]
        profile = make_profile([2.0, 3.0, 3.0, 4.0, 1.0], tensors, make_topology(2))

        assert one_machine_s(profile, Grouping([0, 1, 1, 2, 1])) == 12.0

    def test_the_group_is_where_it_takes_least(self) -> None:
        # Two ops of 1 s on the GPU, 10 s on the CPU.
        profile = profile_of([Op("a", "Op"), Op("b", "Op")], [], topology_of("CPU", "GPU"))

        assert one_machine_s(profile, Grouping([0, 0])) == 2.0

    def test_a_job_of_a_longer_tail_interrupts(self) -> None:
        # The first runs from 0 to 1 and 3 to 6, the second from 1 to 3: 6 + 1 and 3 + 5.
        assert one_machine(heads=[0, 1], times=[4, 2], tails=[1, 5]) == 8

    @given(JOBS)
    def test_it_is_the_largest_over_subsets_of_head_and_work_and_tail(
        self, jobs: list[tuple[int, int, int]]
    ) -> None:
        subsets = itertools.chain.from_iterable(
            itertools.combinations(jobs, size) for size in range(1, len(jobs) + 1)
        )
        expected = max(
            min(head for head, _, _ in subset)
            + sum(time for _, time, _ in subset)
            + min(tail for _, _, tail in subset)
            for subset in subsets
        )

        heads, times, tails = zip(*jobs, strict=True)

        assert one_machine(heads, times, tails) == expected

    @given(st.data(), profiles())
    def test_it_is_never_below_the_critical_path(
        self, data: st.DataObject, profile: Profile
    ) -> None:
        grouping = data.draw(groupings(profile.graph))

        assert one_machine_s(profile, grouping) >= critical_path_s(profile, grouping)


class TestCut:
    def test_where_sending_costs_more_than_one_device_saves_all_is_kept_together(self) -> None:
        # a, then b and c, then d, a second each. Sending takes 10 s, any tensor's path 13 s; one
        # device takes 4 s, the critical path 3 s.
        tensors = [(0, (1,), 10), (0, (2,), 10), (1, (3,), 10), (2, (3,), 10)]
        profile = make_profile([1.0] * 4, tensors, make_topology(2))

        assert cut_s(profile, alone(profile)) == best_s(profile, alone(profile)) == 4.0
        assert critical_path_s(profile, alone(profile)) == 3.0

    def test_one_device_or_the_path_of_the_cheapest_cut(self) -> None:
        # a of 1 s, then b and c of 3 s each: 7 s on one device. Apart, 1 + 2 + 3.
        profile = make_profile([1.0, 3.0, 3.0], [(0, (1, 2), 2)], make_topology(2))

        assert cut_s(profile, alone(profile)) == best_s(profile, alone(profile)) == 6.0

    def test_what_does_not_fit_one_device_must_be_cut(self) -> None:
        # a and b of 6 bytes each on devices of 10: they are apart, 1 + 5 + 1.
        topology = make_topology(2, memory_bytes=10)
        profile = make_profile([1.0, 1.0], [(0, (1,), 3)], topology, memory_bytes=[6, 6])

        assert cut_s(profile, alone(profile)) == best_s(profile, alone(profile)) == 5.0
        assert one_machine_s(profile, alone(profile)) == 2.0

    @pytest.mark.parametrize(
        ("memory_bytes", "bound_s"), [([9, 9, 9], 3.0), ([12, 9, 9], 4.0), ([9, 18, 18], 12.0)]
    )
    def test_of_the_cuts_that_memory_permits_the_cheapest_counts(
        self, memory_bytes: list[int], bound_s: float
    ) -> None:
        # A chain of three, 1 s each. Between a and b 1 s is sent, between b and c 9 s. All fit a
        # device of 29 bytes: 3 s. All but one: c stays with b, 1 + 1 + 1 + 1. If b and c
        # do not fit: 1 + 1 + 9 + 1.
        topology = make_topology(2, memory_bytes=29)
        tensors = [(0, (1,), 1), (1, (2,), 9)]
        profile = make_profile([1.0] * 3, tensors, topology, memory_bytes)

        assert cut_s(profile, alone(profile)) == bound_s

    def test_a_cut_is_between_permitted_devices_alone(self) -> None:
        # a on the CPU for 10 s, then 2 ms to a GPU, then b for 1 s there.
        ops = [Op("a", "Op", device_kinds=("CPU",)), Op("b", "Op", device_kinds=("GPU",))]
        profile = profile_of(ops, [(0, (1,), 10**6)], topology_of("CPU", "GPU", "GPU"))

        assert cut_s(profile, alone(profile)) == best_s(profile, alone(profile)) == 11.002

    def test_it_is_infinite_where_no_placement_fits(self) -> None:
        topology = make_topology(1, memory_bytes=10)
        profile = make_profile([1.0, 1.0], [(0, (1,), 3)], topology, memory_bytes=[6, 6])

        assert cut_s(profile, alone(profile)) == math.inf

    @given(st.data(), profiles(max_ops=5, max_devices=3))
    def test_no_placement_that_fits_is_below(self, data: st.DataObject, profile: Profile) -> None:
        grouping = data.draw(groupings(profile.graph))

        assert cut_s(profile, grouping) <= best_s(profile, grouping)

    @given(st.data(), profiles_of_equal_devices())
    def test_nor_of_equal_devices(self, data: st.DataObject, profile: Profile) -> None:
        grouping = data.draw(groupings(profile.graph))

        assert cut_s(profile, grouping) <= best_s(profile, grouping)


class TestProgram:
    def test_work_that_does_not_divide_is_proved(self) -> None:
        # Three ops of 2 s on two devices: 4 s, where half of the work is 3 s.
        profile = make_profile([2.0] * 3, [], make_topology(2))

        assert program_s(profile, alone(profile)) == pytest.approx(4.0, rel=1e-4)
        assert work_s(profile, alone(profile)) == 3.0
        assert best_s(profile, alone(profile)) == 4.0

    def test_ops_of_one_device_run_one_after_another(self) -> None:
        # a, then b and c, then d: on one device 2 + 3 + 3 + 2 = 10; with c and d on the other,
        # c waits for a second and what b makes is there before c ends: 2 + 1 + 3 + 2.
        tensors = [(0, (1, 2), 1), (1, (3,), 1), (2, (3,), 1)]
        profile = make_profile([2.0, 3.0, 3.0, 2.0], tensors, make_topology(2))

        found = program_s(profile, alone(profile))

        assert found == pytest.approx(8.0, rel=1e-4)
        assert best_s(profile, alone(profile)) == 8.0
        assert one_machine_s(profile, alone(profile)) == 7.0

    def test_a_link_sends_all_that_it_is_given(self) -> None:
        # Four sources for the GPU, which takes 10 s there for each and no time on the CPU, feed ops
        # that need the CPU: three seconds of sending each, and the last of 1 s.
        ops = [Op(f"source{i}", "Op", device_kinds=("GPU",)) for i in range(4)]
        ops += [Op(f"sink{i}", "Op", device_kinds=("CPU",)) for i in range(4)]
        tensors = [(i, (4 + i,), 3 * 10**9) for i in range(4)]
        profile = profile_of(ops, tensors, topology_of("CPU", "GPU"), time_s=[0.0] * 4 + [0.1] * 4)

        # 4 (0.001 + 3) s on the link, beside which other bounds see one transfer alone.
        assert program_s(profile, alone(profile)) == pytest.approx(12.004, rel=1e-3)
        assert cut_s(profile, alone(profile)) < 7.1

    def test_a_tensor_is_sent_once_to_a_device(self) -> None:
        # To three ops of the CPU goes one copy: 3.001 s, then 0.1 s each.
        ops = [Op("source", "Op", device_kinds=("GPU",))]
        ops += [Op(f"sink{i}", "Op", device_kinds=("CPU",)) for i in range(3)]
        profile = profile_of(
            ops, [(0, (1, 2, 3), 3 * 10**9)], topology_of("CPU", "GPU"), time_s=[0.0] + [0.01] * 3
        )

        found = program_s(profile, alone(profile))

        assert found == pytest.approx(3.301, rel=1e-3)
        assert found <= best_s(profile, alone(profile))

    def test_it_is_infinite_where_no_placement_fits(self) -> None:
        # Three halves of a device's memory and a bit more do not fit two devices.
        topology = make_topology(2, memory_bytes=10)
        profile = make_profile([1.0] * 3, [], topology, memory_bytes=[6, 6, 6])

        assert program_s(profile, alone(profile)) == math.inf

    def test_it_goes_on_from_a_known_bound_and_repeats(self) -> None:
        times = [3.0, 5.0, 2.0, 7.0, 4.0, 6.0, 3.0, 5.0, 4.0, 2.0, 6.0, 5.0]
        tensors = [(i, (i + 3,), 1) for i in range(9)]
        profile = make_profile(times, tensors, make_topology(3))
        known_s = work_s(profile, alone(profile))

        found = [program_s(profile, alone(profile), known_s=known_s, max_nodes=5) for _ in range(2)]

        assert found[0] == found[1] >= known_s * (1 - 1e-4)

    def test_more_nodes_prove_no_less(self) -> None:
        times = [3.0, 5.0, 2.0, 7.0, 4.0, 6.0, 3.0]
        profile = make_profile(times, [(0, (4,), 1), (2, (6,), 2)], make_topology(2))

        few, many = (program_s(profile, alone(profile), max_nodes=number) for number in (1, 2000))

        # 30 s of work in all; 15 s on each are 3 + 5 + 7 and 2 + 4 + 6 + 3.
        assert few <= many * (1 + 1e-9)
        assert many == pytest.approx(best_s(profile, alone(profile)), rel=1e-4)

    def test_without_times_it_is_zero(self) -> None:
        profile = make_profile([0.0, 0.0], [], make_topology(2))

        assert program_s(profile, alone(profile)) == 0.0

    @given(st.data(), profiles(max_ops=5, max_devices=3))
    def test_no_placement_that_fits_is_below(self, data: st.DataObject, profile: Profile) -> None:
        grouping = data.draw(groupings(profile.graph))

        assert program_s(profile, grouping) <= best_s(profile, grouping)

    @given(st.data(), profiles_of_equal_devices())
    def test_nor_of_equal_devices(self, data: st.DataObject, profile: Profile) -> None:
        grouping = data.draw(groupings(profile.graph))

        assert program_s(profile, grouping) <= best_s(profile, grouping)


class TestLowerBound:
    def test_of_equal_bounds_the_simplest_is_named(self) -> None:
        profile = make_profile([1.0, 1.0], [(0, (1,), 1)], make_topology(2))

        assert lower_bound(profile, alone(profile)) == Bound("critical path", 2.0)

    def test_the_sharpest_is_named(self, diamond: Profile) -> None:
        assert lower_bound(diamond, Grouping([0, 1, 1, 2])) == Bound("one machine", 4.0)

    def test_ops_that_wait_for_nothing_are_bound_by_work(self) -> None:
        profile = make_profile([1.0] * 6, [], make_topology(2))

        assert lower_bound(profile, alone(profile)) == Bound("work", 3.0)

    def test_a_group_without_a_device_has_no_bound(self) -> None:
        ops = [Op("a", "Op", device_kinds=("CPU",)), Op("b", "Op", device_kinds=("GPU",))]
        profile = profile_of(ops, [], topology_of("CPU", "GPU"))

        with pytest.raises(InfeasibleError, match="group 0 has no permitted device"):
            lower_bound(profile, Grouping([0, 0]))

    def test_a_small_graph_is_solved(self) -> None:
        profile = make_profile([2.0] * 3, [], make_topology(2))

        bound = lower_bound(profile, alone(profile))

        assert bound.name == "program"
        assert bound.gap(4.0) == pytest.approx(0.0, abs=1e-4)

    def test_where_nothing_fits_the_bounds_that_know_no_memory_are_left(self) -> None:
        topology = make_topology(2, memory_bytes=10)
        profile = make_profile([1.0] * 3, [(0, (1,), 1)], topology, memory_bytes=[6, 6, 60])

        assert lower_bound(profile, alone(profile)) == Bound("critical path", 2.0)

    @pytest.mark.parametrize(
        ("seconds", "makespan_s", "gap"), [(2.0, 2.5, 0.25), (2.0, 2.0, 0.0), (2.0, None, None)]
    )
    def test_a_gap_is_a_share_of_the_bound(
        self, seconds: float, makespan_s: float | None, gap: float | None
    ) -> None:
        assert Bound("work", seconds).gap(makespan_s) == gap

    def test_a_bound_of_zero_leaves_no_gap(self) -> None:
        assert Bound("work", 0.0).gap(1.0) is None

    @given(st.data(), profiles())
    def test_no_placement_is_below_any_bound(self, data: st.DataObject, profile: Profile) -> None:
        grouping = data.draw(groupings(profile.graph))
        devices = [np.flatnonzero(row).tolist() for row in grouping.allowed(profile)]
        actions = [data.draw(st.sampled_from(choices)) for choices in devices]

        schedule = simulate(profile, Placement.from_groups(grouping, actions))

        assert schedule.makespan_s >= critical_path_s(profile, grouping)
        assert schedule.makespan_s >= work_s(profile, grouping)
        assert schedule.makespan_s >= one_machine_s(profile, grouping)
        if schedule.out_of_memory_device is None:
            assert schedule.makespan_s >= cut_s(profile, grouping)
            assert schedule.makespan_s >= lower_bound(profile, grouping).seconds
