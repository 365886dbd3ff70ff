"""Lower bounds: worked out on paper, and never above any simulated makespan."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.bounds import (
    Bound,
    critical_path_s,
    lower_bound,
    one_machine,
    one_machine_s,
    work_s,
)
from placer.errors import InfeasibleError
from placer.graph import Op
from placer.group_ops import GroupingConfig, group_ops
from placer.grouping import Grouping
from placer.placement import Placement
from placer.profile import Profile
from placer.simulator import simulate
from tests.builders import make_profile, make_topology
from tests.grouped_profiles import msr_profile, profile_of, topology_of
from tests.strategies import groupings, profiles

JOBS = st.lists(st.tuples(*[st.integers(0, 6)] * 3), min_size=1, max_size=6)
"""Head, time and tail of each."""


def alone(profile: Profile) -> Grouping:
    return Grouping(range(profile.graph.num_ops))


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


class TestLowerBound:
    def test_of_equal_bounds_the_simplest_is_named(self, diamond: Profile) -> None:
        assert lower_bound(diamond, alone(diamond)) == Bound("critical path", 3.0)

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

    @given(st.data(), profiles())
    def test_no_placement_is_below_any_bound(self, data: st.DataObject, profile: Profile) -> None:
        grouping = data.draw(groupings(profile.graph))
        devices = [np.flatnonzero(row).tolist() for row in grouping.allowed(profile)]
        actions = [data.draw(st.sampled_from(choices)) for choices in devices]

        makespan_s = simulate(profile, Placement.from_groups(grouping, actions)).makespan_s

        assert makespan_s >= critical_path_s(profile, grouping)
        assert makespan_s >= work_s(profile, grouping)
        assert makespan_s >= one_machine_s(profile, grouping)
        assert makespan_s >= lower_bound(profile, grouping).seconds
