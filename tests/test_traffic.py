import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.graph import Op
from placer.grouping import Grouping
from placer.profile import Profile
from placer.traffic import group_compute_time_s, group_edges, group_traffic
from tests.grouped_profiles import profile_of, profiles, topology_of


@pytest.fixture
def fan_out() -> Profile:
    """Op 0 sends a megabyte to ops 1, 2 and 3 and holds op 3 back; op 1 sends 5 bytes to 3."""
    ops = [Op(f"op{i}", "Op", memory_bytes=10**i) for i in range(4)]
    tensors = [(0, (1, 2, 3), 10**6), (0, (3,), 0), (1, (3,), 5)]
    return profile_of(ops, tensors, time_s=[1, 2, 3, 4])


class TestGroupEdges:
    def test_a_tensor_counts_once_for_each_group_it_goes_to(self, fan_out: Profile) -> None:
        # Groups {0}, {1, 2}, {3}: ops 1 and 2 share the megabyte, op 3 has its own.
        edges = group_edges(fan_out.graph, np.array([0, 1, 1, 2]))

        assert edges.sources.tolist() == [0, 0, 1]
        assert edges.destinations.tolist() == [1, 2, 2]
        assert edges.size_bytes.tolist() == [10**6, 10**6, 5]

    def test_a_control_edge_is_a_tensor_of_no_bytes(self, fan_out: Profile) -> None:
        edges = group_edges(fan_out.graph, np.array([0, 1, 1, 2]))

        # From group 0 to group 2: the megabyte and the control edge.
        assert edges.num_tensors.tolist() == [1, 2, 1]

    def test_what_stays_within_a_group_is_no_traffic(self, fan_out: Profile) -> None:
        edges = group_edges(fan_out.graph, np.zeros(4, dtype=np.int64))

        assert edges.sources.size == edges.size_bytes.size == 0

    def test_a_graph_without_tensors_has_no_edges(self) -> None:
        profile = profile_of([Op("a", "Op"), Op("b", "Op")], [])

        edges = group_edges(profile.graph, np.array([0, 1]))

        assert edges.sources.size == edges.num_tensors.size == 0

    @given(profile=profiles(), seed=st.integers(0, 2**32 - 1))
    def test_edges_agree_with_counting_tensor_by_tensor(self, profile: Profile, seed: int) -> None:
        rng = np.random.default_rng(seed)
        groups = np.unique(rng.integers(0, 4, profile.graph.num_ops), return_inverse=True)[1]
        expected: dict[tuple[int, int], list[int]] = {}
        for tensor in profile.graph.tensors:
            for destination in {int(groups[op]) for op in tensor.consumers}:
                pair = (int(groups[tensor.producer]), destination)
                if pair[0] != destination:
                    expected.setdefault(pair, []).append(tensor.size_bytes)

        edges = group_edges(profile.graph, groups)

        pairs = list(zip(edges.sources.tolist(), edges.destinations.tolist(), strict=True))
        assert pairs == sorted(expected)
        assert edges.size_bytes.tolist() == [sum(expected[pair]) for pair in pairs]
        assert edges.num_tensors.tolist() == [len(expected[pair]) for pair in pairs]


class TestGroupTraffic:
    def test_times_and_memory_of_a_group_are_sums_over_its_ops(self, fan_out: Profile) -> None:
        traffic = group_traffic(fan_out, Grouping([0, 1, 1, 2]))

        # Devices: a CPU that takes ten times as long, and two GPUs.
        assert traffic.compute_time_s.tolist() == [[10, 1, 1], [50, 5, 5], [40, 4, 4]]
        assert traffic.memory_bytes.tolist() == [1, 110, 1000]

    def test_a_transfer_takes_a_latency_for_each_tensor_and_its_bytes(
        self, fan_out: Profile
    ) -> None:
        traffic = group_traffic(fan_out, Grouping([0, 1, 1, 2]))

        # 1 ms a tensor and 1 ms a megabyte: 1 + 1; 2 + 1; 1 and 5 ns.
        assert traffic.transfer_time_s == pytest.approx([2e-3, 3e-3, 1e-3 + 5e-9])

    def test_on_one_device_no_transfer_takes_time(self) -> None:
        profile = profile_of([Op("a", "Op"), Op("b", "Op")], [(0, (1,), 9)], topology_of("GPU"))

        traffic = group_traffic(profile, Grouping([0, 1]))

        assert traffic.transfer_time_s.tolist() == [0]

    def test_the_partition_graph_weighs_edges_by_transfer_time(self, fan_out: Profile) -> None:
        traffic = group_traffic(fan_out, Grouping([0, 1, 1, 2]))

        graph = traffic.partition_graph(traffic.compute_time_s[:, 1])

        # 2 ms, 3 ms and 1 ms between the groups; 1 s, 5 s and 4 s in them.
        weights = graph.adjacency.toarray()
        assert weights[0, 2] / weights[0, 1] == pytest.approx(1.5, rel=1e-5)
        assert weights[0, 1] / weights[1, 2] == pytest.approx(2, rel=1e-5)
        assert graph.vertex_weights / graph.vertex_weights[0] == pytest.approx([1, 5, 4], rel=1e-5)

    @given(profile=profiles())
    def test_however_ops_are_grouped_their_times_add_up_to_the_same(self, profile: Profile) -> None:
        alone = group_compute_time_s(profile, Grouping(range(profile.graph.num_ops)))
        together = group_compute_time_s(profile, Grouping([0] * profile.graph.num_ops))

        assert np.array_equal(alone, profile.compute_time_s)
        assert together[0] == pytest.approx(alone.sum(axis=0))
