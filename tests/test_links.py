"""Links: the fit on numbers with a known answer, and real transfers."""

import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from tensorflow.core.framework import step_stats_pb2

from placer.errors import WorkerError
from profiling.links import SIZES_BYTES, fit_link, hop_times_s, local_topology, measure_links

pytest_plugins = ["tests.local_cluster"]
pytestmark = pytest.mark.slow


# The fit.


def test_a_line_through_two_transfers_is_found():
    # 1 ms for nothing, 3 ms for 2 MB: 1 ms latency, 1 GB/s.
    link = fit_link([0, 2_000_000], [1e-3, 3e-3])

    np.testing.assert_allclose(link.latency_s, 1e-3)
    np.testing.assert_allclose(link.bandwidth_bytes_per_s, 1e9)


@hypothesis.given(
    latency_s=st.floats(1e-6, 1e-2),
    bandwidth_bytes_per_s=st.floats(1e7, 1e11),
)
def test_latency_and_bandwidth_are_found_again_from_exact_times(latency_s, bandwidth_bytes_per_s):
    times_s = [latency_s + size / bandwidth_bytes_per_s for size in SIZES_BYTES]

    link = fit_link(SIZES_BYTES, times_s)

    predicted_s = [link.latency_s + size / link.bandwidth_bytes_per_s for size in SIZES_BYTES]
    np.testing.assert_allclose(predicted_s, times_s, rtol=1e-6)


@hypothesis.given(times_s=st.lists(st.floats(1e-7, 10), min_size=4, max_size=4))
def test_whatever_was_measured_the_link_is_possible(times_s):
    link = fit_link(SIZES_BYTES, times_s)

    assert 0 <= link.latency_s < math.inf
    assert 0 < link.bandwidth_bytes_per_s < math.inf


def test_small_transfers_count_as_much_as_large_ones():
    # The 8 MiB transfer was disturbed: 12 ms instead of 8.5. Were absolute errors squared,
    # the latency would be pulled below zero and held there; 100 µs must stay near it.
    times_s = [100e-6, 100e-6 + 2**16 / 1e9, 100e-6 + 2**20 / 1e9, 12e-3]

    link = fit_link(SIZES_BYTES, times_s)

    assert link.latency_s == pytest.approx(100e-6, rel=0.1)


def test_transfers_of_equal_time_have_a_latency_and_no_limit_to_speak_of():
    link = fit_link(SIZES_BYTES, [2e-3] * 4)

    assert link.latency_s == pytest.approx(2e-3)
    assert 2**23 / link.bandwidth_bytes_per_s < 1e-6


# Hops in a trace.


def trace_of_hops(starts_ns, op_ns):
    trace = step_stats_pb2.StepStats()
    for hop, start_ns in enumerate(starts_ns):
        device = f"/job:worker/replica:0/task:{hop % 2}/device:CPU:0"
        trace.dev_stats.add(device=device).node_stats.add(
            node_name=f"hop_{hop}",
            all_start_nanos=10**18 + start_ns - 5,
            op_start_rel_nanos=5,
            op_end_rel_nanos=5 + op_ns,
        )
    return trace


def test_a_hop_lasts_from_the_end_of_one_op_to_the_start_of_the_next():
    # Ops of 10 ns, alternately 100 and 200 ns apart; the first two hops wake the workers up.
    starts_ns = np.cumsum([0, 9999, 8888, 110, 210, 110, 210, 110, 210])

    times_s = hop_times_s(trace_of_hops([int(start) for start in starts_ns], op_ns=10))

    np.testing.assert_allclose(times_s, np.array([100, 200, 100, 200, 100, 200]) * 1e-9)


def test_a_clock_that_is_behind_shows_a_hop_of_negative_time():
    # Every hop starts at 0 and ends at 10 ns, as its own clock shows it.
    times_s = hop_times_s(trace_of_hops([0] * 9, op_ns=10))

    np.testing.assert_allclose(times_s, -10e-9)


def test_a_trace_that_lacks_a_hop_is_an_error():
    with pytest.raises(WorkerError, match="lacks 'hop_8'"):
        hop_times_s(trace_of_hops(range(8), op_ns=1))


# Real transfers.


@pytest.fixture(scope="module")
def local(cluster):
    return local_topology(cluster)


def test_both_directions_of_every_pair_have_a_link(local):
    assert set(local.links) == {(0, 1), (1, 0)}
    for link in local.links.values():
        assert 0 <= link.latency_s < math.inf
        assert 0 < link.bandwidth_bytes_per_s < math.inf


def test_the_local_topology_names_the_workers_and_shares_the_memory(local, cluster):
    assert local.name == "local"
    assert [device.name for device in local.devices] == ["cpu:0", "cpu:1"]
    assert {device.kind for device in local.devices} == {"CPU"}
    assert {device.type for device in local.devices} == {"cpu-core"}
    assert {device.memory_bytes for device in local.devices} == {cluster.memory_bytes}
    cluster.check(local)


def test_a_large_tensor_takes_longer_than_a_scalar(cluster):
    links = measure_links(cluster, sizes_bytes=(4, 2**24), steps=3)

    # Else the fit would have put all time into the latency, and capped the bandwidth.
    for link in links.values():
        assert 2**24 / link.bandwidth_bytes_per_s > link.latency_s
