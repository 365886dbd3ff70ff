"""Measurements behind a calibration: placements in turns with all ops on one device."""

import dataclasses
import logging
import statistics

from placer.calibration import CalibrationSample, fit_terms, ratio_errors, with_terms
from placer.environment import Measurement, Outcome
from placer.errors import InfeasibleError
from placer.group_ops import group_ops
from placer.placement import Placement
from placer.profile import CALIBRATION_PLACEMENTS, EXTRA_LATENCY_S, OpCosts, Profile
from placer.sampled_placements import Kind, reference_placement, sample_placements
from placer.simulator import Simulator
from placer.statistics import paired_ratios
from profiling.cluster import Cluster
from profiling.real_environment import MeasurementConfig, RealEnvironment
from profiling.step import CapturedStep

_log = logging.getLogger(__name__)

_KINDS = (Kind.CUT, Kind.BLOCKS, Kind.MIXTURE, Kind.RANDOM)
"""What people would choose is left for judging the simulation."""

_SEED = 2**31
_ROUNDS = 6


@dataclasses.dataclass(frozen=True, slots=True)
class CalibrationRun:
    """What was measured for a calibration.

    Attributes:
        reference: All ops on the first device that may be there.
        reference_s: Its median step time.
        samples: Of the placements that ran, relative to it.
    """

    reference: Placement
    reference_s: float
    samples: tuple[CalibrationSample, ...]


def measure_for_calibration(
    step: CapturedStep, profile: Profile, cluster: Cluster, count: int, *, rounds: int = _ROUNDS
) -> CalibrationRun:
    """Measure placements of many kinds, each in turns with the reference.

    Args:
        step: The step that was profiled.
        profile: On the cluster's devices.
        cluster: The workers.
        count: How many placements.
        rounds: Timed steps of each.

    Raises:
        InvalidValueError: If there is one device only.
        InfeasibleError: If there are not as many placements, or none ran.
        WorkerError: If a lost worker cannot be replaced, or ops ran elsewhere than placed.
    """
    grouping = group_ops(profile).grouping
    chosen = sample_placements(profile, grouping, count, kinds=_KINDS, seed=_SEED)
    reference = reference_placement(profile, grouping)
    environment = RealEnvironment(step, profile.topology, cluster, MeasurementConfig())
    samples: list[CalibrationSample] = []
    reference_s: list[float] = []
    for each in chosen:
        measured, beside = environment.compare([each.placement, reference], rounds=rounds)
        if _ran(measured) and _ran(beside):
            ratio = statistics.median(paired_ratios(measured.samples_s, beside.samples_s))
            samples.append(CalibrationSample(each.placement, ratio))
            reference_s += beside.samples_s
            _log.debug("%s: %.3f times the step time of the reference", each.name, ratio)
        else:
            failed = measured if not _ran(measured) else beside
            _log.warning("%s is not calibrated with: %s", each.name, failed.detail)
    if not samples:
        raise InfeasibleError(f"none of the {count} placements to calibrate with ran")
    return CalibrationRun(reference, statistics.median(reference_s), tuple(samples))


def calibrated(profile: Profile, run: CalibrationRun) -> Profile:
    """Return the profile with its links fitted to a calibration run.

    Op times are scaled to the step time of the reference, which was timed more often, and
    over a longer while, than when ops were traced.

    Returns:
        The profile. Its provenance has more facts: ``calibration_placements`` (fingerprints),
        ``extra_latency_s`` (contained in each link's latency; the loads are plain to see),
        and the median errors of their simulated ratios, ``calibration_error_before`` and
        ``calibration_error``. Those are of the very placements that were fitted.
    """
    before = ratio_errors(Simulator(profile), run.reference, run.samples)
    terms = fit_terms(profile, run.reference, run.samples)
    fitted = with_terms(profile, terms)
    after = ratio_errors(Simulator(fitted), run.reference, run.samples)
    traced_s = float(profile.provenance.facts["step_time_s"])
    facts = {
        **profile.provenance.facts,
        "step_time_s": f"{run.reference_s:.6g}",
        CALIBRATION_PLACEMENTS: " ".join(each.placement.fingerprint for each in run.samples),
        EXTRA_LATENCY_S: f"{terms.extra_latency_s:.9g}",
        "calibration_error_before": f"{statistics.median(abs(before)):.3g}",
        "calibration_error": f"{statistics.median(abs(after)):.3g}",
    }
    return dataclasses.replace(
        fitted,
        costs=_scaled(profile.costs, run.reference_s / traced_s),
        provenance=dataclasses.replace(profile.provenance, facts=facts),
    )


def _ran(measurement: Measurement) -> bool:
    return measurement.outcome is Outcome.OK


def _scaled(costs: OpCosts, factor: float) -> OpCosts:
    return dataclasses.replace(costs, compute_time_s=costs.compute_time_s * factor)
