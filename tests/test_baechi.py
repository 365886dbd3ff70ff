"""m-TOPO, m-ETF and m-SCT on paper and beside a plain second ETF; the laws of list schedulers."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.bounds import lower_bound
from placer.devices import Device, DeviceTopology
from placer.errors import InfeasibleError
from placer.graph import Op
from placer.group_ops import GroupingConfig, group_ops
from placer.grouping import Grouping
from placer.heuristics import heft, m_etf, m_sct, m_topo
from placer.heuristics.partial_schedule import accelerator_choices, group_bytes
from placer.placement import Placement
from placer.policy import Actions
from placer.profile import Profile
from placer.simulator import simulate
from tests.builders import SECOND_PER_BYTE, make_profile, make_topology
from tests.grouped_profiles import msr_profile, profile_of, topology_of
from tests.grouped_profiles import profiles as roomy_profiles
from tests.strategies import groupings, profiles

Rule = Callable[[Profile, Grouping], Actions]
RULES: dict[str, Rule] = {"m-topo": m_topo, "m-etf": m_etf, "m-sct": m_sct, "heft": heft}
CHAIN = [(0, (1,), 0), (1, (2,), 0), (2, (3,), 0)]
"""a -> b -> c -> d, control edges."""


def alone(profile: Profile) -> Grouping:
    return Grouping(range(profile.graph.num_ops))


def two_gpus(*memory_bytes: int) -> DeviceTopology:
    """Return two GPUs of this memory, a second a byte between them."""
    devices = tuple(
        Device(f"gpu:{i}", memory_bytes=size_bytes) for i, size_bytes in enumerate(memory_bytes)
    )
    return DeviceTopology(devices, {(0, 1): SECOND_PER_BYTE, (1, 0): SECOND_PER_BYTE})


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
class TestEveryListScheduler:
    @given(st.data(), profiles())
    def test_groups_go_to_permitted_devices_with_room_and_always_to_the_same(
        self, rule: Rule, data: st.DataObject, profile: Profile
    ) -> None:
        grouping = data.draw(groupings(profile.graph))
        size_bytes = group_bytes(profile, grouping)
        memory_bytes = profile.topology.memory_bytes
        try:
            actions = rule(profile, grouping)
        except InfeasibleError:
            takes_all = accelerator_choices(profile, grouping).all(axis=0)
            assert not (takes_all & (memory_bytes >= size_bytes.sum())).any()
            return

        taken_bytes = np.zeros_like(memory_bytes)
        np.add.at(taken_bytes, actions, size_bytes)
        assert actions.dtype == np.int32
        assert grouping.allowed(profile)[np.arange(grouping.num_groups), actions].all()
        assert (taken_bytes <= memory_bytes).all()
        assert np.array_equal(actions, rule(profile, grouping))

    @given(profile=roomy_profiles(), max_groups=st.integers(1, 12))
    def test_without_limits_of_memory_every_group_is_placed(
        self, rule: Rule, profile: Profile, max_groups: int
    ) -> None:
        config = GroupingConfig(method="colocation", max_groups=max_groups)
        grouping = group_ops(profile, config).grouping

        actions = rule(profile, grouping)

        assert grouping.allowed(profile)[np.arange(grouping.num_groups), actions].all()

    def test_what_fits_nowhere_is_refused_and_named(self, rule: Rule) -> None:
        # a takes 10 of 15 bytes on one device, b on the other.
        profile = make_profile([1.0] * 3, [], two_gpus(15, 15), [10] * 3)

        message = r"group 2 \(op 'c'\) needs 10 bytes, but free are 5 on 'gpu:0', 5 on 'gpu:1'"
        with pytest.raises(InfeasibleError, match=message):
            rule(profile, alone(profile))

    def test_tensors_count_as_memory_of_the_group_that_makes_them(self, rule: Rule) -> None:
        # a and b hold 4 bytes each; b makes a tensor of 8: 16 are needed, and 15 are there.
        profile = make_profile([1.0] * 3, [(1, (2,), 8)], two_gpus(15, 3), [4, 4, 0])

        message = r"group 0 \(op 'a' and 2 more\) needs 16 bytes"
        with pytest.raises(InfeasibleError, match=message):
            rule(profile, Grouping([0, 0, 0]))

    def test_groups_may_wait_for_each_other(self, rule: Rule) -> None:
        # a -> b -> c, where a and c are a group: a byte each way would take a second. Both groups
        # make one byte, for which there is room on one device.
        tensors = [(0, (1,), 1), (1, (2,), 1)]
        profile = make_profile([1.0] * 3, tensors, two_gpus(2, 2))

        assert rule(profile, Grouping([0, 1, 0])).tolist() == [0, 0]

    def test_a_graph_that_needs_the_cpu_goes_there(self, rule: Rule) -> None:
        ops = [Op(f"op{i}", "Op", device_kinds=("CPU",)) for i in range(3)]
        profile = profile_of(ops, [], topology_of("GPU", "CPU"))

        assert rule(profile, alone(profile)).tolist() == [1, 1, 1]

    def test_a_published_graph_is_placed_better_than_not_at_all(self, rule: Rule) -> None:
        profile = msr_profile("gnmt_training")
        grouping = group_ops(profile, GroupingConfig(method="colocation")).grouping
        total_s = profile.compute_time_s[:, 0].sum()

        actions = rule(profile, grouping)

        makespan_s = simulate(profile, Placement.from_groups(grouping, actions)).makespan_s
        assert makespan_s >= lower_bound(profile, grouping).seconds
        assert len(set(actions.tolist())) > 1
        # m-TOPO looks at no times, m-SCT waits for favourite children, and HEFT knows of no
        # queues at links: all three lose to one device on this graph, by 0.2 to 1.2 %.
        assert makespan_s < (total_s if rule is m_etf else 1.02 * total_s)


class TestMTopo:
    def test_devices_take_their_share_and_the_largest_group(self) -> None:
        # 40 bytes on two devices, 10 in the largest: up to 30 on the first.
        profile = make_profile([1.0] * 4, CHAIN, make_topology(2), [10] * 4)

        assert m_topo(profile, alone(profile)).tolist() == [0, 0, 0, 1]

    def test_tensors_count_as_bytes(self) -> None:
        # a, b and c make 10 bytes each, d nothing: up to 30 / 2 + 10 on the first.
        tensors = [(0, (1,), 10), (1, (2,), 10), (2, (3,), 10)]
        profile = make_profile([1.0] * 4, tensors, make_topology(2))

        assert m_topo(profile, alone(profile)).tolist() == [0, 0, 1, 1]

    def test_without_bytes_compute_time_is_shared(self) -> None:
        # 11 s on two devices, 4 s in the longest: up to 9.5 on the first, and a, b and c are 7.
        profile = make_profile([1.0, 2.0, 4.0, 4.0], CHAIN, make_topology(2))

        assert m_topo(profile, alone(profile)).tolist() == [0, 0, 0, 1]

    def test_the_order_is_that_of_the_ops_and_not_of_the_groups(self) -> None:
        profile = make_profile([1.0] * 4, CHAIN, make_topology(2), [10] * 4)

        # d, the last of the chain, is group 0.
        assert m_topo(profile, Grouping([3, 2, 1, 0])).tolist() == [1, 0, 0, 0]

    def test_the_cpu_gets_what_needs_it_and_has_no_share(self) -> None:
        # 30 bytes for two GPUs, devices 1 and 2: up to 25 on the first.
        kinds = [("CPU", "GPU"), ("CPU",), ("CPU", "GPU"), ("CPU", "GPU")]
        ops = [Op(f"op{i}", "Op", 10, device_kinds=kind) for i, kind in enumerate(kinds)]
        profile = profile_of(ops, [], topology_of("CPU", "GPU", "GPU"))

        assert m_topo(profile, alone(profile)).tolist() == [1, 0, 1, 2]

    def test_a_device_without_room_is_left_early(self) -> None:
        # Its share and the largest group would be 20.
        profile = make_profile([1.0] * 2, [], two_gpus(15, 15), [10] * 2)

        assert m_topo(profile, alone(profile)).tolist() == [0, 1]

    def test_what_finds_no_room_ahead_goes_back(self) -> None:
        # a: 4 of 10 bytes on the first device. b: 10 need the second. c: 4 fit on the first.
        profile = make_profile([1.0] * 3, [], two_gpus(10, 10), [4, 10, 4])

        assert m_topo(profile, alone(profile)).tolist() == [0, 1, 0]


class TestMEtf:
    def test_two_chains_go_to_a_device_each(self) -> None:
        # a: 0-1 and c: 0-1 on two devices; b and d would wait a second longer elsewhere.
        profile = make_profile([1.0] * 4, [(0, (1,), 1), (2, (3,), 1)], make_topology(2))

        assert m_etf(profile, alone(profile)).tolist() == [0, 0, 1, 1]

    def test_an_op_is_sent_where_it_starts_sooner_than_if_it_waited(self) -> None:
        # a: 0-1, b: 1-4 on the first device. c starts there at 4, elsewhere at 2.
        profile = make_profile([1.0, 3.0, 3.0], [(0, (1, 2), 1)], make_topology(2))

        assert m_etf(profile, alone(profile)).tolist() == [0, 0, 1]

    def test_an_op_waits_if_its_tensor_would_take_longer(self) -> None:
        # As above, but c starts elsewhere at 11.
        profile = make_profile([1.0, 3.0, 3.0], [(0, (1, 2), 10)], make_topology(2))

        assert m_etf(profile, alone(profile)).tolist() == [0, 0, 0]

    def test_a_link_carries_one_tensor_at_a_time(self) -> None:
        # a: 0-1, b: 1-4 on the first device; c's tensor is on the link from 1 to 3, and c
        # runs elsewhere from 3 to 3.5. d's would be there at 5: it starts at 4 beside b.
        tensors = [(0, (1,), 2), (0, (2,), 2), (0, (3,), 2)]
        profile = make_profile([1.0, 3.0, 0.5, 3.0], tensors, make_topology(2))

        assert m_etf(profile, alone(profile)).tolist() == [0, 0, 1, 0]

    def test_a_tensor_is_sent_once_to_a_device(self) -> None:
        # As above, but d needs the tensor that came for c: it starts there at 3.5.
        profile = make_profile([1.0, 3.0, 0.5, 3.0], [(0, (1, 2, 3), 2)], make_topology(2))

        assert m_etf(profile, alone(profile)).tolist() == [0, 0, 1, 1]

    def test_an_op_follows_its_group(self) -> None:
        # Two chains as above, but d belongs to a: it starts at 2 on the first device.
        profile = make_profile([1.0] * 4, [(0, (1,), 1), (2, (3,), 1)], make_topology(2))

        assert m_etf(profile, Grouping([0, 1, 2, 0])).tolist() == [0, 0, 1]

    def test_a_full_device_takes_nothing_more(self) -> None:
        # A chain of two groups of 10 bytes on devices of 15.
        profile = make_profile([1.0] * 2, [(0, (1,), 0)], two_gpus(15, 15), [10] * 2)

        assert m_etf(profile, alone(profile)).tolist() == [0, 1]

    def test_an_idle_cpu_gets_nothing_that_may_run_on_a_gpu(self) -> None:
        ops = [Op(f"op{i}", "Op") for i in range(3)]
        profile = profile_of(ops, [], topology_of("CPU", "GPU", "GPU"))

        assert m_etf(profile, alone(profile)).tolist() == [1, 2, 1]

    @given(st.data(), profiles())
    def test_it_is_what_trying_every_ready_op_on_every_device_gives(
        self, data: st.DataObject, profile: Profile
    ) -> None:
        grouping = data.draw(groupings(profile.graph))
        expected = plain_etf(profile, grouping)
        try:
            actions = m_etf(profile, grouping).tolist()
        except InfeasibleError:
            actions = None

        assert actions == expected


def plain_etf(profile: Profile, grouping: Grouping) -> list[int] | None:
    """Schedule by trying everything at every step; None if a group fits nowhere."""
    graph, topology = profile.graph, profile.topology
    group_of_op = grouping.group_of_op.tolist()
    choices = accelerator_choices(profile, grouping)
    size_bytes, free_bytes = group_bytes(profile, grouping), topology.memory_bytes.copy()
    device_of_group: dict[int, int] = {}
    end_s: dict[int, float] = {}
    device_free_s = [0.0] * topology.num_devices
    link_free_s = dict.fromkeys(topology.links, 0.0)
    copies_s: dict[tuple[int, int], float] = {}

    def arrivals(op: int, device: int) -> tuple[float, dict[int, float], dict[int, float]]:
        """Return when the inputs are there, and new copies and ends of links by source."""
        inputs = sorted(
            (end_s[tensor.producer], number, device_of_group[group_of_op[tensor.producer]])
            for number, tensor in enumerate(graph.tensors)
            if op in tensor.consumers
        )
        latest_s, copied, links = 0.0, {}, {}
        for made_s, tensor, source in inputs:
            there_s = made_s
            if source != device and (tensor, device) in copies_s:
                there_s = copies_s[tensor, device]
            elif source != device:
                link = topology.links[source, device]
                sent_s = max(made_s, links.get(source, link_free_s[source, device]))
                sending_s = graph.tensors[tensor].size_bytes / link.bandwidth_bytes_per_s
                there_s = copied[tensor] = links[source] = sent_s + (link.latency_s + sending_s)
            latest_s = max(latest_s, there_s)
        return latest_s, copied, links

    while len(end_s) < graph.num_ops:
        starts = []
        for op in graph.topological_order.tolist():
            group = group_of_op[op]
            if op in end_s or not all(producer in end_s for producer in graph.predecessors[op]):
                continue
            for device in range(topology.num_devices):
                fits = choices[group, device] and size_bytes[group] <= free_bytes[device]
                if device_of_group.get(group, device if fits else None) == device:
                    start_s = max(arrivals(op, device)[0], device_free_s[device])
                    ended_s = start_s + float(profile.compute_time_s[op, device])
                    index = int(graph.topological_index[op])
                    starts.append((start_s, index, ended_s, device, op))
        if not starts:
            return None
        _, _, ended_s, device, op = min(starts)
        _, copied, links = arrivals(op, device)
        copies_s |= {(tensor, device): there_s for tensor, there_s in copied.items()}
        link_free_s |= {(source, device): there_s for source, there_s in links.items()}
        if group_of_op[op] not in device_of_group:
            device_of_group[group_of_op[op]] = device
            free_bytes[device] -= size_bytes[group_of_op[op]]
        end_s[op] = device_free_s[device] = ended_s
    return [device_of_group[group] for group in range(grouping.num_groups)]


def kept_for_a_favorite(*memory_bytes: int, other_bytes: int, last_bytes: int) -> Profile:
    """Return i and j of 2 s, f of 20 s that needs both, and x of 10 s that needs i.

    i sends 8 bytes to f and 2 to x, j sends ``other_bytes`` to f: to wait for these takes
    less than to send 8, so that f is the favourite child of i. x holds ``last_bytes``.
    """
    tensors = [(0, (2,), 8), (0, (3,), 2), (1, (2,), other_bytes)]
    times_s = [2.0, 2.0, 20.0, 10.0]
    return make_profile(times_s, tensors, two_gpus(*memory_bytes), [0, 0, 0, last_bytes])


class TestMSct:
    def test_a_device_is_kept_free_for_a_favorite_child(self) -> None:
        # i and j: 0-2 on a device each. f can start beside i at 3; x could at 2, but is not
        # urgent before 4. So f: 3-23, and x elsewhere: 4-14.
        profile = kept_for_a_favorite(100, 100, other_bytes=1, last_bytes=0)

        assert m_sct(profile, alone(profile)).tolist() == [0, 1, 0, 1]
        # Plain ETF takes x: 2-12, and f waits elsewhere for 8 bytes: 10-30.
        assert m_etf(profile, alone(profile)).tolist() == [0, 1, 1, 0]

    def test_an_urgent_op_goes_elsewhere_if_it_can_start_there_as_soon(self) -> None:
        # f can start beside i at 7. x is urgent from 4 on, and starts at 4 beside j.
        profile = kept_for_a_favorite(100, 100, other_bytes=5, last_bytes=0)

        assert m_sct(profile, alone(profile)).tolist() == [0, 1, 0, 1]

    def test_an_urgent_op_is_not_kept_waiting(self) -> None:
        # As above, but x finds no room beside j: it runs beside i from 4 to 14, so that f starts
        # elsewhere at 10.
        profile = kept_for_a_favorite(100, 40, other_bytes=5, last_bytes=50)

        assert m_sct(profile, alone(profile)).tolist() == [0, 1, 1, 0]

    def test_an_op_whose_group_is_there_is_not_kept_waiting(self) -> None:
        # As in the first test, but x belongs to i: it runs at 2, and f elsewhere at 10.
        profile = kept_for_a_favorite(100, 100, other_bytes=1, last_bytes=0)

        assert m_sct(profile, Grouping([0, 1, 2, 0])).tolist() == [0, 1, 1]

    @given(st.data(), profiles())
    def test_without_bytes_it_is_etf(self, data: st.DataObject, profile: Profile) -> None:
        tensors = tuple(dataclasses.replace(t, size_bytes=0) for t in profile.graph.tensors)
        graph = dataclasses.replace(profile.graph, tensors=tensors)
        profile = dataclasses.replace(profile, graph=graph)
        grouping = data.draw(groupings(graph))

        def placed(rule: Rule) -> Sequence[int] | str:
            try:
                actions: list[int] = rule(profile, grouping).tolist()
            except InfeasibleError as error:
                return str(error)
            return actions

        assert placed(m_sct) == placed(m_etf)
