"""Link terms are fitted to ratios of step times; the right ones are known by construction."""

import math

import numpy as np
import pytest

from placer.calibration import (
    TERMS,
    CalibrationSample,
    LinkTerms,
    fit_terms,
    ratio_errors,
    with_terms,
)
from placer.devices import Link
from placer.errors import InvalidValueError, UnknownNameError
from placer.placement import Placement
from placer.profile import Profile
from placer.simulator import Simulator
from tests.builders import make_profile, make_topology

LINK = Link(bandwidth_bytes_per_s=1e9, latency_s=1e-4)

# Two chains of four ops of 10 ms each, a-b-c-d and e-f-g-h; every tensor is of 2 MB (2 ms).
TWO_CHAINS = [(op, (op + 1,), 2_000_000) for op in (0, 1, 2, 4, 5, 6)]
ALL_ON_FIRST = Placement([0] * 8)
CROSSED = [
    Placement(device_of_op)
    for device_of_op in (
        [0, 1, 0, 1, 0, 0, 0, 0],
        [0, 1, 0, 1, 1, 0, 1, 0],
        [0, 0, 1, 1, 0, 0, 0, 0],
        [0, 0, 1, 1, 1, 1, 0, 0],
        [1, 1, 1, 0, 0, 0, 0, 0],
        [0, 1, 1, 0, 0, 0, 1, 1],
    )
]


def two_chains() -> Profile:
    return make_profile([0.01] * 8, TWO_CHAINS, make_topology(2, LINK))


def samples_of(profile: Profile) -> list[CalibrationSample]:
    """What would be measured if this profile were the truth."""
    devices = np.stack([ALL_ON_FIRST.device_of_op, *(each.device_of_op for each in CROSSED)])
    makespan_s = Simulator(profile).run(devices).makespan_s
    ratios = (makespan_s[1:] / makespan_s[0]).tolist()
    return [CalibrationSample(*pair) for pair in zip(CROSSED, ratios, strict=True)]


def test_a_ratio_error_is_relative_to_the_measurement() -> None:
    # a, b on one device and c, d on the other, e to h on the first: 60 ms of work there, and
    # c, d overlap with it. All on one device: 80 ms. Simulated ratio 0.75, measured 0.6.
    sample = CalibrationSample(Placement([0, 0, 1, 1, 0, 0, 0, 0]), 0.6)

    errors = ratio_errors(Simulator(two_chains()), ALL_ON_FIRST, [sample])

    assert errors == pytest.approx([0.25])


def test_terms_are_added_to_every_link_as_it_was_measured_alone() -> None:
    terms = LinkTerms(extra_latency_s=1e-3, source_load=0.3, destination_load=0.7)

    topology = with_terms(two_chains(), terms).topology

    expected = Link(1e9, latency_s=1.1e-3, source_load=0.3, destination_load=0.7)
    assert set(topology.links.values()) == {expected}


def test_no_terms_are_the_plain_model() -> None:
    assert with_terms(two_chains(), LinkTerms()).fingerprint == two_chains().fingerprint


def test_the_terms_that_made_the_measurements_are_found() -> None:
    truth = LinkTerms(extra_latency_s=2e-3, source_load=0.4, destination_load=0.8)
    samples = samples_of(with_terms(two_chains(), truth))

    found = fit_terms(two_chains(), ALL_ON_FIRST, samples)

    # The penalty draws a little towards zero, and loads share what they take.
    assert found.extra_latency_s == pytest.approx(truth.extra_latency_s, rel=0.25)
    errors = ratio_errors(Simulator(with_terms(two_chains(), found)), ALL_ON_FIRST, samples)
    before = ratio_errors(Simulator(two_chains()), ALL_ON_FIRST, samples)
    assert np.abs(errors).max() < 0.02 < np.abs(before).max()


def test_measurements_that_the_plain_model_explains_leave_it_alone() -> None:
    found = fit_terms(two_chains(), ALL_ON_FIRST, samples_of(two_chains()))

    assert found == LinkTerms()


def test_one_wild_measurement_does_not_carry_the_others_away() -> None:
    samples = samples_of(two_chains())
    wild = [CalibrationSample(samples[0].placement, 3 * samples[0].ratio), *samples[1:]]

    found = fit_terms(two_chains(), ALL_ON_FIRST, wild)

    errors = ratio_errors(Simulator(with_terms(two_chains(), found)), ALL_ON_FIRST, samples)
    assert np.median(np.abs(errors)) < 0.05


@pytest.mark.parametrize("term", TERMS)
def test_a_term_that_is_not_fitted_stays_as_in_the_plain_model(term: str) -> None:
    truth = LinkTerms(extra_latency_s=2e-3, source_load=0.4, destination_load=0.8)
    samples = samples_of(with_terms(two_chains(), truth))

    found = fit_terms(two_chains(), ALL_ON_FIRST, samples, [name for name in TERMS if name != term])

    assert getattr(found, term) == 0


def test_with_nothing_to_fit_it_is_the_plain_model() -> None:
    assert fit_terms(two_chains(), ALL_ON_FIRST, samples_of(two_chains()), []) == LinkTerms()


def test_the_fit_is_the_same_every_time() -> None:
    samples = samples_of(with_terms(two_chains(), LinkTerms(destination_load=0.5)))

    first = fit_terms(two_chains(), ALL_ON_FIRST, samples)

    assert fit_terms(two_chains(), ALL_ON_FIRST, samples) == first


def test_no_samples_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="at least one measured placement, got none"):
        fit_terms(two_chains(), ALL_ON_FIRST, [])


def test_an_unknown_term_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="source_lod"):
        fit_terms(two_chains(), ALL_ON_FIRST, samples_of(two_chains()), ["source_lod"])


@pytest.mark.parametrize("ratio", [0.0, -1.0, math.inf, math.nan])
def test_a_ratio_that_no_measurement_gives_is_refused(ratio: float) -> None:
    with pytest.raises(InvalidValueError, match="ratio must be positive and finite"):
        CalibrationSample(ALL_ON_FIRST, ratio)
