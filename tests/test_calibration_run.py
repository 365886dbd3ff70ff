"""Calibration of a profile with placements that real workers ran."""

import numpy as np
import pytest

from placer.calibration import CalibrationSample
from placer.placement import Placement
from placer.profile import CALIBRATION_PLACEMENTS, Profile
from profiling.calibration import CalibrationRun, calibrated, measure_for_calibration
from profiling.links import local_topology
from profiling.trace import trace_costs
from tests.steps import two_layer_step

pytest_plugins = ["tests.local_cluster"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def step():
    return two_layer_step()


@pytest.fixture(scope="module")
def profile(step, cluster):
    topology = local_topology(cluster)
    costs, provenance = trace_costs(step, topology, cluster, steps=3)
    return Profile(step.op_graph, costs, topology, provenance)


@pytest.fixture(scope="module")
def run(step, profile, cluster):
    return measure_for_calibration(step, profile, cluster, 3, rounds=3)


def test_each_placement_is_measured_relative_to_all_ops_on_the_first_device(run, profile):
    assert run.reference == Placement([0] * profile.graph.num_ops)
    assert run.reference_s > 0
    assert len({sample.placement for sample in run.samples}) == 3
    assert all(sample.ratio > 0 for sample in run.samples)


def test_placements_that_use_one_device_tell_nothing_of_links_and_are_not_used(run):
    for sample in run.samples:
        assert len(set(sample.placement.device_of_op.tolist())) == 2


def test_the_profile_names_the_placements_it_was_calibrated_with(run, profile):
    facts = calibrated(profile, run).provenance.facts

    fingerprints = {sample.placement.fingerprint for sample in run.samples}
    assert set(facts[CALIBRATION_PLACEMENTS].split()) == fingerprints
    assert facts.keys() > profile.provenance.facts.keys()


def test_op_times_add_up_to_the_step_time_of_the_reference(profile):
    # The trace's steps took step_time_s; the reference is said to take twice as long.
    traced_s = float(profile.provenance.facts["step_time_s"])
    ops = np.arange(profile.graph.num_ops)
    sample = CalibrationSample(Placement(ops % 2), 1.0)
    run = CalibrationRun(Placement(0 * ops), 2 * traced_s, (sample,))

    found = calibrated(profile, run)

    np.testing.assert_allclose(
        found.costs.compute_time_s, 2 * profile.costs.compute_time_s, rtol=1e-9
    )
    assert float(found.provenance.facts["step_time_s"]) == pytest.approx(2 * traced_s, rel=1e-5)


def test_all_links_get_the_same_terms_on_top_of_their_own_bandwidth(run, profile):
    before, after = profile.topology.links, calibrated(profile, run).topology.links

    for pair, link in after.items():
        assert link.bandwidth_bytes_per_s == before[pair].bandwidth_bytes_per_s
        extra_s = link.latency_s - before[pair].latency_s
        assert extra_s == pytest.approx(after[0, 1].latency_s - before[0, 1].latency_s)
        assert link.source_load == after[0, 1].source_load
