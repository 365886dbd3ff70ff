"""The simulator by examples small enough to be worked out on paper."""

import concurrent.futures
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from placer import event_loop
from placer.devices import Device, DeviceTopology, Link
from placer.environment import Outcome
from placer.errors import InvalidValueError
from placer.files import load_graph_file
from placer.graph import Op, OpGraph
from placer.placement import Placement
from placer.profile import OpCosts, Profile
from placer.simulator import SimulatedEnvironment, Simulator, Transfer, simulate
from tests.builders import make_costs, make_profile, make_topology

INSTANT = Link(bandwidth_bytes_per_s=1.0, latency_s=0.0)


class TestDevices:
    def test_on_one_device_ops_run_one_after_another(self, diamond: Profile) -> None:
        schedule = simulate(diamond, Placement([0, 0, 0, 0]))

        assert schedule.start_s == (0.0, 1.0, 2.0, 3.0)
        assert schedule.end_s == (1.0, 2.0, 3.0, 4.0)
        assert schedule.makespan_s == 4.0
        assert schedule.busy_s == (4.0, 0.0)

    def test_waiting_ops_start_in_the_order_they_became_ready(self) -> None:
        # a (3 s) on 0 keeps it busy; b becomes ready there at 2 through d, c at 1 through e.
        profile = make_profile(
            [3.0, 1.0, 1.0, 2.0, 1.0], [(3, (1,), 0), (4, (2,), 0)], make_topology(3, INSTANT)
        )

        schedule = simulate(profile, Placement([0, 0, 0, 1, 2]))

        assert schedule.start_s[2] == 3.0
        assert schedule.start_s[1] == 4.0

    def test_ops_ready_at_the_same_time_start_by_topological_index_not_by_op_index(self) -> None:
        # a waits for d and b for c; Kahn's order is c, b, d, a. c and d end at 1 elsewhere.
        profile = make_profile(
            [1.0, 1.0, 1.0, 1.0], [(3, (0,), 0), (2, (1,), 0)], make_topology(3, INSTANT)
        )

        schedule = simulate(profile, Placement([0, 0, 1, 2]))

        assert schedule.start_s == (2.0, 1.0, 0.0, 0.0)

    def test_a_running_op_is_not_interrupted(self) -> None:
        # c (5 s) runs on 1 from 0 on; b, before it in topological order, is ready at 1.
        profile = make_profile([1.0, 1.0, 5.0], [(0, (1,), 0)], make_topology(2, INSTANT))

        schedule = simulate(profile, Placement([0, 1, 1]))

        assert schedule.start_s == (0.0, 5.0, 0.0)

    def test_an_op_takes_the_time_of_the_device_it_is_on(self) -> None:
        devices = (Device("fast", type="v100"), Device("slow", type="k80"))
        links = {(0, 1): INSTANT, (1, 0): INSTANT}
        costs = OpCosts(
            ("v100", "k80"),
            np.array([[1.0, 7.0]]),
            np.zeros((1, 2), dtype=np.bool_),
            np.zeros(1, dtype=np.int64),
        )
        profile = Profile(OpGraph((Op("a", "MatMul"),), ()), costs, DeviceTopology(devices, links))

        batch = Simulator(profile).run(np.array([[0], [1]]))

        assert batch.makespan_s.tolist() == [1.0, 7.0]


class TestTransfers:
    def test_a_tensor_is_sent_once_per_device_not_once_per_consumer(self, diamond: Profile) -> None:
        # a on 0; b, c, d on 1.  a: 0-1, transfer: 1-2, b: 2-3, c: 3-4, d: 4-5.
        schedule = simulate(diamond, Placement([0, 1, 1, 1]))

        assert schedule.start_s == (0.0, 2.0, 3.0, 4.0)
        assert schedule.transfers == (
            Transfer(tensor=0, source=0, destination=1, start_s=1.0, end_s=2.0),
        )

    def test_a_tensor_is_sent_once_to_each_of_several_devices_at_the_same_time(self) -> None:
        # a on 0 feeds b on 1 and c on 2: two links, which overlap.
        profile = make_profile([1.0, 1.0, 1.0], [(0, (1, 2), 4)], make_topology(3))

        schedule = simulate(profile, Placement([0, 1, 2]))

        assert schedule.start_s == (0.0, 5.0, 5.0)
        assert [(t.destination, t.start_s) for t in schedule.transfers] == [(1, 1.0), (2, 1.0)]

    def test_a_transfer_takes_latency_and_size_over_bandwidth(self) -> None:
        link = Link(bandwidth_bytes_per_s=4.0, latency_s=0.25)
        profile = make_profile([1.0, 1.0], [(0, (1,), 2)], make_topology(2, link))

        schedule = simulate(profile, Placement([0, 1]))

        assert schedule.transfers[0].end_s == 1.0 + 0.25 + 0.5

    def test_a_control_edge_costs_one_latency_across_devices_and_nothing_within_one(self) -> None:
        link = Link(bandwidth_bytes_per_s=1.0, latency_s=0.25)
        profile = make_profile([1.0, 1.0], [(0, (1,), 0)], make_topology(2, link))

        apart, together = (simulate(profile, Placement(p)) for p in ([0, 1], [0, 0]))

        assert apart.start_s == (0.0, 1.25)
        assert together.start_s == (0.0, 1.0)

    @pytest.mark.parametrize(
        ("load", "end_s"),
        # b has 2 s of work, and the transfer runs from 1 to 5.
        [(0.0, 3.0), (0.25, 1 + 2 / 0.75), (0.5, 5.0), (0.75, 6.0), (1.0, 7.0)],
    )
    def test_an_op_progresses_by_what_a_transfer_leaves_of_the_sending_device(
        self, load: float, end_s: float
    ) -> None:
        # a and b on 0; a's 4 bytes go to c on 1 while b runs.
        link = Link(bandwidth_bytes_per_s=1.0, source_load=load)
        profile = make_profile([1.0, 2.0, 1.0], [(0, (2,), 4)], make_topology(2, link))

        schedule = simulate(profile, Placement([0, 0, 1]))

        assert schedule.start_s == (0.0, 1.0, 5.0)
        assert schedule.end_s[1] == pytest.approx(end_s, abs=1e-12)
        assert schedule.busy_s[0] == pytest.approx(end_s, abs=1e-12)

    def test_an_op_that_runs_already_is_slowed_down_on_the_receiving_device(self) -> None:
        # d (3 s) runs on 1 from 0 on: 1 s until the transfer, 1 s in its 4 s, 1 s after it.
        link = Link(bandwidth_bytes_per_s=1.0, destination_load=0.75)
        profile = make_profile([1.0, 1.0, 3.0], [(0, (1,), 4)], make_topology(2, link))

        schedule = simulate(profile, Placement([0, 1, 1]))

        assert schedule.end_s == (1.0, 7.0, 6.0)

    def test_loads_of_transfers_in_both_directions_add_up(self) -> None:
        # a on 0 and b on 1 end at 1, and their tensors cross until 5.
        link = Link(bandwidth_bytes_per_s=1.0, source_load=0.5, destination_load=0.25)
        profile = make_profile(
            [1.0, 1.0, 2.0, 1.0, 1.0], [(0, (3,), 4), (1, (4,), 4)], make_topology(2, link)
        )

        schedule = simulate(profile, Placement([0, 1, 0, 1, 0]))

        # c has a quarter of its device from 1 to 5, hence 1 s of work left at 5.
        assert schedule.end_s[2] == 6.0

    def test_a_link_serves_by_the_time_the_producer_finished(self) -> None:
        # Both on 0: b ends at 1 (it comes first: a waits for it), a at 2. Link: 1-4, 4-7.
        profile = make_profile(
            [1.0, 1.0, 1.0, 1.0], [(0, (2,), 3), (1, (3,), 3), (1, (0,), 0)], make_topology(2)
        )

        schedule = simulate(profile, Placement([0, 0, 1, 1]))

        assert [(t.tensor, t.start_s) for t in schedule.transfers] == [(1, 1.0), (0, 4.0)]

    def test_tensors_of_one_producer_are_sent_by_their_index(self) -> None:
        profile = make_profile([1.0, 1.0, 1.0], [(0, (2,), 2), (0, (1,), 3)], make_topology(2))

        schedule = simulate(profile, Placement([0, 1, 1]))

        # Link: tensor 0 1-3, tensor 1 3-6; so c starts at 3, b at 6.
        assert schedule.start_s == (0.0, 6.0, 3.0)

    def test_producers_that_finish_together_on_a_device_send_by_topological_index(self) -> None:
        # b lasts no time and ends at 1 as a does; a's tensor has the greater index.
        profile = make_profile([1.0, 0.0, 0.0, 0.0], [(1, (2,), 5), (0, (3,), 5)], make_topology(2))

        schedule = simulate(profile, Placement([0, 0, 1, 1]))

        assert [(t.tensor, t.start_s) for t in schedule.transfers] == [(1, 1.0), (0, 6.0)]

    def test_the_two_directions_between_devices_are_two_links(self) -> None:
        links = {(0, 1): Link(1.0), (1, 0): Link(2.0)}
        devices = (Device("gpu:0"), Device("gpu:1"))
        profile = make_profile(
            [1.0, 1.0, 1.0, 1.0], [(0, (2,), 4), (1, (3,), 4)], DeviceTopology(devices, links)
        )

        schedule = simulate(profile, Placement([0, 1, 1, 0]))

        # Both leave at 1: 4 s one way, 2 s the other.
        assert schedule.start_s == (0.0, 0.0, 5.0, 3.0)

    def test_transfers_overlap_compute_on_both_devices(self) -> None:
        # a: 0-1, b: 1-6 on 0 and c: 0-5 on 1, while a's tensor travels 1-4.
        profile = make_profile([1.0, 5.0, 5.0, 1.0], [(0, (3,), 3)], make_topology(2))

        schedule = simulate(profile, Placement([0, 0, 1, 1]))

        assert schedule.start_s == (0.0, 1.0, 0.0, 5.0)
        assert schedule.transfers[0].end_s == 4.0

    def test_the_makespan_includes_nothing_after_the_last_op(self, diamond: Profile) -> None:
        # Every transfer has a consumer behind it, so that the last completion is an op's.
        schedule = simulate(diamond, Placement([0, 1, 0, 0]))

        # a 0-1, c 1-2; transfer 1-2, b 2-3, transfer 3-4, d 4-5.
        assert schedule.makespan_s == schedule.end_s[3] == 5.0


class TestWorkOfNoDuration:
    def test_a_chain_of_ops_of_no_duration_ends_when_it_began(self) -> None:
        profile = make_profile(
            [0.0, 0.0, 0.0], [(0, (1,), 0), (1, (2,), 0)], make_topology(2, INSTANT)
        )

        schedule = simulate(profile, Placement([0, 1, 0]))

        assert schedule.start_s == (0.0, 0.0, 0.0)
        assert schedule.makespan_s == 0.0
        assert len(schedule.transfers) == 2

    def test_what_becomes_ready_later_in_the_same_instant_does_not_displace_what_runs(self) -> None:
        # At 0 first a starts on 0 and c on 1. a then completes, still at 0, and its
        # control edge arrives, still at 0: b is ready at 0 and before c in topological
        # order, but c runs.
        profile = make_profile([0.0, 1.0, 2.0], [(0, (1,), 0)], make_topology(2, INSTANT))

        schedule = simulate(profile, Placement([0, 1, 1]))

        assert schedule.start_s == (0.0, 2.0, 0.0)

    def test_a_device_takes_one_op_of_no_duration_after_another_at_the_same_time(self) -> None:
        # a and b last no time, then c (1 s); d waits for b alone and comes after c.
        profile = make_profile([0.0, 0.0, 1.0, 1.0], [(1, (3,), 0)], make_topology(1))

        schedule = simulate(profile, Placement([0, 0, 0, 0]))

        assert schedule.start_s == (0.0, 0.0, 0.0, 1.0)


class TestTies:
    def test_times_equal_on_paper_are_equal_whatever_the_order_of_their_sum(self) -> None:
        # a then b end at 0.1 + 0.2 s, c ends at 0.3 s: floats say 0.30000000000000004 and
        # 0.3. d waits for b, e for c; both are ready on device 2 at the same time, and d
        # has the lower topological index.
        profile = make_profile(
            [0.1, 0.2, 0.3, 1.0, 1.0],
            [(0, (1,), 0), (1, (3,), 0), (2, (4,), 0)],
            make_topology(3, INSTANT),
        )

        schedule = simulate(profile, Placement([0, 0, 1, 2, 2]))

        assert schedule.start_s[3:] == (0.3, 1.3)

    def test_ready_ops_are_served_in_order_even_if_they_came_out_of_order(self) -> None:
        # Ops 0 to 7, each alone on a device, last no time and let ops 15 down to 8 start on
        # device 0, all at 0. In Kahn's order 0 to 7 come first and then 8, 9, … 15.
        num_pairs = 8
        profile = make_profile(
            [0.0] * num_pairs + [1.0] * num_pairs,
            [(op, (2 * num_pairs - 1 - op,), 0) for op in reversed(range(num_pairs))],
            make_topology(num_pairs + 1, INSTANT),
        )
        producers = list(range(1, num_pairs + 1))

        schedule = simulate(profile, Placement(producers + [0] * num_pairs))

        assert schedule.start_s[num_pairs:] == tuple(float(n) for n in range(num_pairs))


class TestMemory:
    def test_what_ops_hold_is_charged_for_the_whole_step(self) -> None:
        profile = make_profile([1.0, 1.0], [], make_topology(2), memory_bytes=[10, 20])

        together, apart = (simulate(profile, Placement(p)) for p in ([0, 0], [0, 1]))

        assert together.peak_memory_bytes == (30, 0)
        assert apart.peak_memory_bytes == (10, 20)

    def test_workspace_is_charged_like_variables(self) -> None:
        graph = OpGraph((Op("a", "MatMul", memory_bytes=10),), ())
        profile = Profile(graph, make_costs([1.0], workspace_bytes=[7]), make_topology(1))

        schedule = simulate(profile, Placement([0]))

        assert schedule.peak_memory_bytes == (17,)

    def test_a_tensor_stays_until_its_last_local_consumer_ends(self) -> None:
        # a's 5 bytes stay through b to the end of c; b's 3 bytes stay until b ends, as nobody
        # wants them; c's 4 bytes are there while c runs: 5, 5 + 3, 5 + 4.
        profile = make_profile(
            [1.0, 1.0, 1.0], [(0, (1, 2), 5), (1, (), 3), (2, (), 4)], make_topology(1)
        )

        schedule = simulate(profile, Placement([0, 0, 0]))

        assert schedule.peak_memory_bytes == (9,)

    def test_a_tensor_stays_until_its_last_outgoing_transfer_ends(self) -> None:
        # a's 5 bytes travel 1-6; meanwhile c (4 bytes) runs on 0 at 1-2: 9 bytes there.
        profile = make_profile([1.0, 1.0, 1.0], [(0, (1,), 5), (2, (), 4)], make_topology(2))

        schedule = simulate(profile, Placement([0, 1, 0]))

        assert schedule.peak_memory_bytes == (9, 5)

    def test_a_copy_is_resident_from_the_start_of_its_transfer(self) -> None:
        # The copy of a's 5 bytes is on 1 from 1 on; c (4 bytes) runs there at 0-2.
        profile = make_profile([1.0, 1.0, 2.0], [(0, (1,), 5), (2, (), 4)], make_topology(2))

        schedule = simulate(profile, Placement([0, 1, 1]))

        assert schedule.peak_memory_bytes == (5, 9)

    def test_a_copy_that_waits_for_its_link_is_not_yet_there(self) -> None:
        # a's and b's tensors of 2 and 1 bytes leave 0 at 1-3 and 3-4. On 1, c takes 3-4 (the
        # first copy goes at 4) and d 4-5 (the second one, there from 3, goes at 5).
        profile = make_profile([1.0, 1.0, 1.0, 1.0], [(0, (2,), 2), (1, (3,), 1)], make_topology(2))

        schedule = simulate(profile, Placement([0, 0, 1, 1]))

        assert schedule.peak_memory_bytes == (3, 3)

    def test_at_equal_times_frees_come_first(self) -> None:
        # a 0-1, b 1-2, c 2-3: a's 5 bytes go at 2, exactly when c's 6 come. Never 11.
        profile = make_profile(
            [1.0, 1.0, 1.0], [(0, (1,), 5), (1, (2,), 0), (2, (), 6)], make_topology(1)
        )

        schedule = simulate(profile, Placement([0, 0, 0]))

        assert schedule.peak_memory_bytes == (6,)

    def test_what_is_resident_for_no_time_is_not_counted(self) -> None:
        # a and b last no time: a's 100 bytes come and go at 0. c's 5 bytes are there 0-1.
        profile = make_profile(
            [0.0, 0.0, 1.0], [(0, (1,), 100), (1, (2,), 0), (2, (), 5)], make_topology(1)
        )

        schedule = simulate(profile, Placement([0, 0, 0]))

        assert schedule.peak_memory_bytes == (5,)

    def test_a_step_of_no_duration_still_holds_what_its_ops_hold(self) -> None:
        profile = make_profile([0.0], [(0, (), 9)], make_topology(1), memory_bytes=[4])

        schedule = simulate(profile, Placement([0]))

        assert schedule.peak_memory_bytes == (4,)

    def test_the_first_device_above_its_memory_is_named_and_the_makespan_given(self) -> None:
        topology = make_topology(3, memory_bytes=10)
        profile = make_profile([1.0, 1.0, 1.0], [], topology, memory_bytes=[10, 11, 12])

        schedule = simulate(profile, Placement([0, 1, 2]))

        assert schedule.out_of_memory_device == 1
        assert schedule.makespan_s == 1.0


class TestBatches:
    def test_placements_of_a_batch_do_not_touch_each_other(self, diamond: Profile) -> None:
        simulator = Simulator(diamond)

        batch = simulator.run(np.array([[0, 0, 0, 0], [0, 1, 1, 1], [0, 0, 0, 0]]))

        assert batch.makespan_s.tolist() == [4.0, 5.0, 4.0]
        # All three tensors, 1 MB each, are there while c runs.
        assert batch.peak_memory_bytes[:, 0].tolist() == [3 * 10**6, 10**6, 3 * 10**6]
        assert batch.peak_memory_bytes[:, 1].tolist() == [0, 3 * 10**6, 0]
        assert batch.fits.all()

    def test_an_empty_batch_has_empty_results(self, diamond: Profile) -> None:
        batch = Simulator(diamond).run(np.empty((0, 4), dtype=np.int32))

        assert batch.makespan_s.shape == (0,)
        assert batch.peak_memory_bytes.shape == (0, 2)

    def test_one_simulator_may_be_used_from_several_threads(self, diamond: Profile) -> None:
        simulator = Simulator(diamond)
        placements = np.array([[0, 1, 1, 1], [0, 0, 0, 0]] * 200)

        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            batches = list(threads.map(simulator.run, [placements] * 16))

        for batch in batches:
            assert batch.makespan_s.tolist() == [5.0, 4.0] * 200

    def test_the_event_loop_is_compiled_once_whatever_the_arrays_are(
        self, diamond: Profile
    ) -> None:
        simulator = Simulator(diamond)

        simulator.run(np.zeros((1, 4), dtype=np.int64))
        simulator.run(np.zeros((4, 3), dtype=np.uint8, order="F").repeat(2, axis=1)[:, :4])
        simulator.schedule(Placement([0, 1, 0, 1]))
        Simulator(make_profile([1.0], [], make_topology(1))).run(np.zeros((3, 1), dtype=np.int32))

        assert len(event_loop.run_steps.signatures) == 1


class TestWrongQuestions:
    def test_a_placement_of_another_number_of_ops_is_refused(self, diamond: Profile) -> None:
        with pytest.raises(InvalidValueError, match=r"each of 4 ops, got .* shape \(1, 3\)"):
            simulate(diamond, Placement([0, 0, 0]))

    def test_a_flat_array_is_refused(self, diamond: Profile) -> None:
        with pytest.raises(InvalidValueError, match=r"shape \(4,\)"):
            Simulator(diamond).run(np.zeros(4, dtype=np.int32))

    def test_indices_that_are_no_whole_numbers_are_refused(self, diamond: Profile) -> None:
        with pytest.raises(InvalidValueError, match="must be whole numbers, got float64"):
            Simulator(diamond).run(np.zeros((1, 4)))

    @pytest.mark.parametrize("device", [2, -1])
    def test_a_device_that_does_not_exist_is_refused(self, diamond: Profile, device: int) -> None:
        with pytest.raises(InvalidValueError, match=rf"op 'b' .* device {device}, .* 0 to 1"):
            Simulator(diamond).run(np.array([[0, device, 0, 0]]))

    def test_an_op_without_a_kernel_for_its_device_is_refused(self) -> None:
        devices = (Device("cpu:0", kind="CPU"), Device("gpu:0", kind="GPU"))
        links = {(0, 1): INSTANT, (1, 0): INSTANT}
        graph = OpGraph((Op("a", "MatMul"), Op("lookup", "Hash", device_kinds=("CPU",))), ())
        profile = Profile(graph, make_costs([1.0, 1.0]), DeviceTopology(devices, links))

        with pytest.raises(
            InvalidValueError, match=r"op 'lookup' needs .* CPU.* 'gpu:0' of kind GPU"
        ):
            simulate(profile, Placement([1, 1]))

        assert simulate(profile, Placement([1, 0])).makespan_s == 1.0

    def test_times_whose_sum_could_overflow_are_refused(self) -> None:
        profile = make_profile([3e6, 3e6], [], make_topology(1))

        with pytest.raises(InvalidValueError, match=r"at most 4611686 s, got 6e\+06 s"):
            Simulator(profile)

    def test_transfer_times_whose_sum_could_overflow_are_refused(self) -> None:
        profile = make_profile([1.0, 1.0], [(0, (1,), 10**7)], make_topology(2))

        with pytest.raises(InvalidValueError, match="at most 4611686 s"):
            Simulator(profile)

    def test_an_op_that_is_too_long_to_be_slowed_down_is_refused(self) -> None:
        topology = make_topology(2, Link(bandwidth_bytes_per_s=1.0, source_load=0.5))
        profile = make_profile([5e3], [], topology)

        with pytest.raises(InvalidValueError, match="an op must take at most 4612 s, got 5000 s"):
            Simulator(profile)

    def test_sizes_whose_sum_could_overflow_are_refused(self) -> None:
        profile = make_profile([1.0, 1.0], [(0, (1,), 2**62), (0, (1,), 2**62)], make_topology(1))

        with pytest.raises(InvalidValueError, match=f"at most {2**62} bytes, got {2**63}"):
            Simulator(profile)

    def test_op_memory_whose_sum_could_overflow_is_refused(self) -> None:
        profile = make_profile([1.0, 1.0], [], make_topology(1), memory_bytes=[2**61, 2**64])

        with pytest.raises(InvalidValueError, match=f"at most {2**62} bytes, got {2**61 + 2**64}"):
            Simulator(profile)

    def test_a_slow_link_that_no_tensor_can_take_is_no_reason_to_refuse(self) -> None:
        profile = make_profile([1.0], [(0, (), 2**40)], make_topology(2, Link(1e-9)))

        assert simulate(profile, Placement([0])).makespan_s == 1.0


class TestSimulatedEnvironment:
    def test_it_measures_makespans_and_peaks_in_order(self, diamond: Profile) -> None:
        environment = SimulatedEnvironment(Simulator(diamond))

        measurements = environment.measure([Placement([0, 1, 1, 1]), Placement([0, 0, 0, 0])])

        assert environment.name == "simulated"
        assert [m.outcome for m in measurements] == [Outcome.OK, Outcome.OK]
        assert [m.step_time_s for m in measurements] == [5.0, 4.0]
        assert measurements[1].peak_memory_bytes == (3 * 10**6, 0)
        assert measurements[0].samples_s == ()

    def test_out_of_memory_is_an_outcome_that_names_device_peak_and_limit(self) -> None:
        topology = make_topology(2, memory_bytes=100)
        profile = make_profile([1.0, 1.0], [], topology, memory_bytes=[60, 70])
        environment = SimulatedEnvironment(Simulator(profile))

        fits, full = environment.measure([Placement([0, 1]), Placement([1, 1])])

        assert fits.outcome is Outcome.OK
        assert full.outcome is Outcome.OUT_OF_MEMORY
        assert full.step_time_s is None
        assert full.peak_memory_bytes == (0, 130)
        assert full.detail == "device 'gpu:1' needs 130 bytes at its peak and has 100"

    def test_memory_that_is_exactly_enough_is_enough(self) -> None:
        profile = make_profile([1.0], [], make_topology(1, memory_bytes=60), memory_bytes=[60])

        (measurement,) = SimulatedEnvironment(Simulator(profile)).measure([Placement([0])])

        assert measurement.outcome is Outcome.OK

    def test_no_placements_give_no_measurements(self, diamond: Profile) -> None:
        assert SimulatedEnvironment(Simulator(diamond)).measure([]) == []

    def test_a_placement_of_another_graph_is_refused(self, diamond: Profile) -> None:
        environment = SimulatedEnvironment(Simulator(diamond))

        with pytest.raises(InvalidValueError, match="is of 5 ops, but the graph has 4"):
            environment.measure([Placement([0] * 4), Placement([0] * 5)])

    def test_a_placement_on_a_device_that_does_not_exist_is_refused(self, diamond: Profile) -> None:
        environment = SimulatedEnvironment(Simulator(diamond))

        with pytest.raises(InvalidValueError, match="op 'd' is placed on device 2"):
            environment.measure([Placement([0, 0, 0, 2])])


@pytest.mark.parametrize(
    ("name", "all_on_one_s"),
    [
        ("gnmt_training", 0.520453),
        ("bert_l-3_training", 0.122974),
        ("bert_l-12_training", 1.891786),
    ],
)
def test_all_on_one_device_takes_the_published_time(
    msr: Callable[[str], Path], name: str, all_on_one_s: float
) -> None:
    file = load_graph_file(msr(name))
    link = Link(bandwidth_bytes_per_s=7.6e9, latency_s=25e-6)
    profile = Profile(file.graph, file.costs, DeviceTopology.uniform(4, link))

    schedule = simulate(profile, Placement([0] * file.graph.num_ops))

    assert schedule.makespan_s == pytest.approx(all_on_one_s, abs=1e-9)
    assert schedule.busy_s == pytest.approx((all_on_one_s, 0, 0, 0), abs=1e-9)
    assert schedule.transfers == ()


def test_the_event_loop_is_there_even_where_its_machine_code_cannot_be_kept(tmp_path: Path) -> None:
    # A file where the folder of the cache should be, next to the module and at home.
    module = tmp_path / "event_loop.py"
    module.write_bytes(Path(event_loop.__file__).read_bytes())
    (tmp_path / "__pycache__").touch()
    nowhere = str(tmp_path / "__pycache__")

    subprocess.run(
        [sys.executable, "-c", "import event_loop"],
        cwd=tmp_path,
        env={"HOME": nowhere, "XDG_CACHE_HOME": nowhere, "PYTHONPATH": str(tmp_path)},
        check=True,
    )


def test_other_links_are_those_of_a_new_simulator() -> None:
    # a on gpu:0 takes 1 s, its tensor of 3 bytes 3 s at 1 byte/s, b on gpu:1 1 s: 5 s. At half
    # the bandwidth the tensor takes 6 s.
    profile = make_profile([1.0, 1.0], [(0, (1,), 3)], make_topology(2))
    simulator = Simulator(profile)

    slower = simulator.with_links(dict.fromkeys(profile.topology.links, Link(0.5)))

    placement = Placement([0, 1])
    assert slower.schedule(placement).makespan_s == 8
    assert simulator.schedule(placement).makespan_s == 5


def test_other_links_must_be_of_every_pair() -> None:
    simulator = Simulator(make_profile([1.0, 1.0], [(0, (1,), 3)], make_topology(2)))

    with pytest.raises(InvalidValueError, match="no link from device 'gpu:1' to 'gpu:0'"):
        simulator.with_links({(0, 1): Link(1.0)})
