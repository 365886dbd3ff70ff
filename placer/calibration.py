"""Calibration: what a transfer costs while devices compute, from a few measured placements.

Links that are measured alone tell how long a transfer takes between idle devices. How much
longer it takes between busy ones, and what it takes of their time, shows only in whole steps.
So a few placements are measured in turns with a reference, and a few terms, the same for all
links, are fitted to the ratios of their step times. Ratios, because a machine that is slower
than it was makes both slower.

A term that the measurements say nothing of stays where the plain model has it: so small a
penalty draws it there that any real evidence outweighs it.

Array shapes: S samples, N ops.
"""

import dataclasses
import math
from collections.abc import Collection, Sequence

import numpy as np
import scipy.optimize

from placer.devices import Link
from placer.errors import InvalidValueError, UnknownNameError
from placer.graph import FloatArray
from placer.placement import Placement
from placer.profile import Profile
from placer.simulator import Simulator

_TYPICAL_ERROR = 0.05
"""Of a ratio: errors well above count by their size instead of its square."""

_PENALTY = 0.02
_POPULATION_PER_TERM = 6
_GENERATIONS = 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LinkTerms:
    """What is added to every link as it was measured alone; by default nothing.

    Attributes:
        extra_latency_s: Seconds more before the first byte arrives: the threads that send
            and receive must first get hold of a busy core.
        source_load: See ``Link``.
        destination_load: See ``Link``.
    """

    extra_latency_s: float = 0.0
    source_load: float = 0.0
    destination_load: float = 0.0

    def apply(self, link: Link) -> Link:
        """Return the link with these terms."""
        return Link(
            bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
            latency_s=link.latency_s + self.extra_latency_s,
            source_load=self.source_load,
            destination_load=self.destination_load,
        )


TERMS = tuple(field.name for field in dataclasses.fields(LinkTerms))
"""Names of all terms."""

_LARGEST = LinkTerms(extra_latency_s=5e-3, source_load=1.0, destination_load=1.0)


@dataclasses.dataclass(frozen=True, slots=True)
class CalibrationSample:
    """A measured placement.

    Attributes:
        placement: As measured.
        ratio: Its step time over that of the reference, measured in turns.

    Raises:
        InvalidValueError: If the ratio is not positive and finite.
    """

    placement: Placement
    ratio: float

    def __post_init__(self) -> None:
        if not 0 < self.ratio < math.inf:
            raise InvalidValueError(f"ratio must be positive and finite, got {self.ratio}")


def with_terms(profile: Profile, terms: LinkTerms) -> Profile:
    """Return the profile with these terms on all links."""
    topology = dataclasses.replace(profile.topology, links=_links(profile, terms))
    return dataclasses.replace(profile, topology=topology)


def fit_terms(
    profile: Profile,
    reference: Placement,
    samples: Sequence[CalibrationSample],
    terms: Collection[str] = TERMS,
) -> LinkTerms:
    """Return the terms with which simulated ratios are closest to the measured ones.

    The logarithms of the ratios are compared, by a loss that is linear in large errors
    (pseudo-Huber); the minimum is sought by differential evolution with a fixed seed.

    Args:
        profile: With its links as measured alone.
        reference: What the ratios are relative to.
        samples: At least one.
        terms: Those to fit; the others stay as in the plain model.

    Raises:
        InvalidValueError: If there is no sample.
        UnknownNameError: If there is no such term.
    """
    if not samples:
        raise InvalidValueError("terms are fitted to at least one measured placement, got none")
    for term in terms:
        if term not in TERMS:
            raise UnknownNameError("term", term, TERMS)
    fitted = [term for term in TERMS if term in terms]
    if not fitted:
        return LinkTerms()

    def terms_at(point: FloatArray) -> LinkTerms:
        return LinkTerms(**dict(zip(fitted, point.tolist(), strict=True)))

    largest = np.array([getattr(_LARGEST, term) for term in fitted])

    simulator = Simulator(profile)

    def loss(point: FloatArray) -> float:
        changed = simulator.with_links(_links(profile, terms_at(point)))
        errors = np.log1p(ratio_errors(changed, reference, samples))
        departure = point / largest
        huber = np.sqrt(1 + (errors / _TYPICAL_ERROR) ** 2) - 1
        return float(huber.sum() + _PENALTY * (departure @ departure))

    found = scipy.optimize.differential_evolution(
        loss,
        scipy.optimize.Bounds(np.zeros(len(fitted)), largest),
        x0=np.zeros(len(fitted)),
        popsize=_POPULATION_PER_TERM,
        maxiter=_GENERATIONS,
        rng=0,
    )
    return terms_at(found.x)


def ratio_errors(
    simulator: Simulator, reference: Placement, samples: Sequence[CalibrationSample]
) -> FloatArray:
    """Return (simulated - measured) / measured of each sample's ratio, ``[S]``."""
    placements = [reference, *(sample.placement for sample in samples)]
    devices = np.stack([placement.device_of_op for placement in placements])
    makespan_s = simulator.run(devices).makespan_s
    measured = np.array([sample.ratio for sample in samples])
    return np.asarray(makespan_s[1:] / makespan_s[0] / measured - 1)


def _links(profile: Profile, terms: LinkTerms) -> dict[tuple[int, int], Link]:
    return {pair: terms.apply(link) for pair, link in profile.topology.links.items()}
