"""Which placements are measured to judge the simulation, and how predictions are judged."""

import dataclasses
import statistics
from collections.abc import Sequence

import pytest

from placer.environment import Measurement, Outcome
from placer.errors import InvalidValueError
from placer.fidelity import (
    Agreement,
    Fidelity,
    FidelityRow,
    fidelity_placements,
    measured_rows,
)
from placer.grouping import Grouping
from placer.placement import Placement
from placer.profile import CALIBRATION_PLACEMENTS, Profile, Provenance
from placer.sampled_placements import ChosenPlacement, Kind, reference_placement
from placer.statistics import Interval
from tests.grouped_profiles import chain_of, topology_of

MODULES = [f"layer_{i // 8}/step_{i % 8}" for i in range(24)]
EACH_ITS_OWN = Grouping(list(range(24)))


def chain(*kinds: str) -> Profile:
    """A chain of 24 ops of three layers on such devices."""
    return chain_of(MODULES, topology_of(*kinds))


def calibrated(profile: Profile, placements: Sequence[Placement]) -> Profile:
    names = " ".join(placement.fingerprint for placement in placements)
    provenance = Provenance(method="trace", facts={CALIBRATION_PLACEMENTS: names})
    return dataclasses.replace(profile, provenance=provenance)


def ok(step_time_s: float, samples_s: tuple[float, ...] = ()) -> Measurement:
    return Measurement(outcome=Outcome.OK, step_time_s=step_time_s, samples_s=samples_s)


def failed(detail: str = "full") -> Measurement:
    return Measurement(outcome=Outcome.OUT_OF_MEMORY, detail=detail)


def chosen(name: str, kind: Kind = Kind.RANDOM, device: int = 0) -> ChosenPlacement:
    return ChosenPlacement(name, kind, (device,), Placement([device]))


def timed(*samples_s: float) -> Measurement:
    return ok(statistics.median(samples_s), samples_s)


def row(name: str, predicted_s: float, measured_s: float, kind: Kind = Kind.RANDOM) -> FidelityRow:
    """Return a row beside whose placement no reference was measured."""
    return FidelityRow(chosen(name, kind), ok(predicted_s), ok(measured_s), ok(1.0), None)


def paired(
    name: str, predicted_s: float, samples_s: Sequence[float], reference_samples_s: Sequence[float]
) -> FidelityRow:
    """Return a row whose reference was predicted to take 1 s."""
    measured, beside = timed(*samples_s), timed(*reference_samples_s)
    return FidelityRow(chosen(name), ok(predicted_s), measured, ok(1.0), beside)


def fidelity(*pairs: tuple[float, float]) -> Fidelity:
    """Return the fidelity of (predicted, measured) pairs."""
    return Fidelity(tuple(row(f"p{i}", *pair) for i, pair in enumerate(pairs)))


class TableEnvironment:
    """Knows the answer for every device of a one-op graph; remembers what it was asked."""

    name = "table"

    def __init__(self, answers: Sequence[Measurement]) -> None:
        self.answers = answers
        self.asked: list[list[int]] = []

    def measure(self, placements: Sequence[Placement]) -> list[Measurement]:
        devices = [int(placement.device_of_op[0]) for placement in placements]
        self.asked.append(devices)
        return [self.answers[device] for device in devices]

    compare = measure


# Which placements.


def test_placements_that_the_profile_was_calibrated_with_are_left_out():
    profile = chain("CPU", "CPU")
    before = [each.placement for each in fidelity_placements(profile, EACH_ITS_OWN, 10)]

    found = fidelity_placements(calibrated(profile, before), EACH_ITS_OWN, 10)

    assert not {each.placement for each in found} & set(before)


# How they are measured.


def test_each_placement_is_measured_in_turns_with_the_reference_in_a_shuffled_order():
    several = [chosen(str(device), device=device) for device in range(20)]
    table = [timed(1.0 + device) for device in range(20)]
    real = TableEnvironment(table)

    rows = list(measured_rows(several, Placement([7]), TableEnvironment(table), real, seed=3))

    order = [first for first, _ in real.asked]
    assert sorted(order) == list(range(20))
    assert order != list(range(20))
    assert [second for _, second in real.asked] == [7] * 20
    assert [int(each.chosen.name) for each in rows] == order
    assert all(each.error == each.drift_corrected_error == 0 for each in rows)


def test_the_reference_itself_is_measured_beside_itself():
    real = TableEnvironment([timed(1.0)])

    (found,) = measured_rows([chosen("a")], Placement([0]), TableEnvironment([ok(1.0)]), real)

    assert real.asked == [[0, 0]]
    assert found.measured_ratio == 1.0


def test_the_order_is_that_of_the_seed():
    several = [chosen(str(device), device=device) for device in range(20)]
    table = TableEnvironment([ok(1.0)] * 20)

    orders = [
        [
            each.chosen.name
            for each in measured_rows(several, Placement([0]), table, table, seed=seed)
        ]
        for seed in (3, 3, 4)
    ]

    assert orders[0] == orders[1] != orders[2]


def test_a_row_is_there_as_soon_as_it_is_measured():
    several = [chosen(str(device), device=device) for device in range(5)]
    table = [ok(1.0)] * 5
    real = TableEnvironment(table)

    next(measured_rows(several, Placement([0]), TableEnvironment(table), real))

    assert len(real.asked) == 1


def test_what_is_predicted_not_to_run_is_not_tried():
    several = [chosen("a", device=0), chosen("b", device=1)]
    real = TableEnvironment([ok(1.0), ok(1.0)])

    rows = list(measured_rows(several, Placement([0]), TableEnvironment([ok(1.0), failed()]), real))

    assert real.asked == [[0, 0]]
    assert [(each.chosen.name, each.measured is None) for each in rows] == [
        ("b", True), ("a", False),
    ]  # fmt: skip


def test_a_reference_that_is_predicted_not_to_run_leaves_placements_to_be_measured_alone():
    real = TableEnvironment([failed(), timed(2.0)])
    simulated = TableEnvironment([failed(), ok(3.0)])

    (found,) = measured_rows([chosen("a", device=1)], Placement([0]), simulated, real)

    assert real.asked == [[1]]
    assert (found.error, found.drift_corrected_error) == (0.5, None)


def test_the_reference_is_all_groups_on_the_first_device():
    profile = chain("CPU", "CPU")

    assert reference_placement(profile, EACH_ITS_OWN) == Placement([0] * 24)


# How they are judged.


def test_an_error_is_relative_to_the_measurement_and_signed():
    # 1.5 instead of 2 s: a quarter too fast. 3 instead of 2 s: half too slow.
    assert row("a", 1.5, 2.0).error == -0.25
    assert row("a", 3.0, 2.0).error == 0.5


def test_the_median_absolute_error_looks_at_sizes_alone():
    # Errors: -0.5, 0.1, 0.2.
    found = fidelity((1.0, 2.0), (1.1, 1.0), (2.4, 2.0))

    assert found.agreement.median_absolute_percentage_error == pytest.approx(0.2)


def test_nine_of_ten_errors_are_below_the_ninetieth_percentile():
    # Errors 0.0, 0.1, …, 1.0: eleven values, the tenth of them is 0.9.
    found = fidelity(*((1.0 + tenth / 10, 1.0) for tenth in range(11)))

    assert found.agreement.percentile_90_absolute_percentage_error == pytest.approx(0.9)


def test_spearman_is_1_where_the_order_is_right_however_wrong_the_times_are():
    assert fidelity((1.0, 5.0), (2.0, 6.0), (9.0, 7.0)).agreement.spearman == pytest.approx(1.0)
    assert fidelity((3.0, 5.0), (2.0, 6.0), (1.0, 7.0)).agreement.spearman == pytest.approx(-1.0)


def test_spearman_of_two_swapped_neighbours_among_four():
    # Ranks 1 2 3 4 against 1 3 2 4: 1 - 6·(0 + 1 + 1 + 0) / (4·15) = 0.8.
    found = fidelity((1.0, 1.0), (2.0, 3.0), (3.0, 2.0), (4.0, 4.0))

    assert found.agreement.spearman == pytest.approx(0.8)


@pytest.mark.parametrize(
    "pairs",
    [[(1.0, 2.0)], [(1.0, 2.0), (1.0, 3.0)], [(1.0, 2.0), (3.0, 2.0)]],
    ids=["one row", "equal predictions", "equal measurements"],
)
def test_without_ranks_there_is_no_rank_correlation(pairs):
    assert fidelity(*pairs).agreement.spearman is None


def test_a_drift_that_hits_placement_and_reference_alike_is_taken_out():
    # Predicted: 2 s, twice the reference's 1 s. In the three rounds the machine is 1, 2 and 3
    # times slower than the one that was profiled: medians are 4 s and 2 s, ratios are all 2.
    found = paired("a", 2.0, (2.0, 4.0, 6.0), (1.0, 2.0, 3.0))

    assert found.error == -0.5
    assert found.reference_s == 2.0
    assert (found.predicted_ratio, found.measured_ratio) == (2.0, 2.0)
    assert found.drift_corrected_error == 0.0


def test_a_measured_ratio_is_the_median_of_the_rounds_and_not_the_ratio_of_the_medians():
    # Ratios by round: 4, 1, 1.5. The medians would give 4 / 3. Predicted: 3, twice as much.
    found = paired("a", 3.0, (4.0, 3.0, 6.0), (1.0, 3.0, 4.0))

    assert found.ratios == (4.0, 1.0, 1.5)
    assert found.measured_ratio == 1.5
    assert found.drift_corrected_error == 1.0
    assert found.ratio_interval == Interval(1.0, 4.0)


def test_both_agreements_are_told_each_with_its_own_figures():
    # Times: 2 for 4 s, 3 for 2 s, 4 for 4 s are errors of -0.5, 0.5, 0.
    # Ratios: 2 for 2, 3 for 2.5, 4 for 4 are errors of 0, 0.2, 0.
    # The 90th percentile of three lies 0.8 of the way from the second to the third:
    # of (0, 0.5, 0.5) that is 0.5, of (0, 0, 0.2) it is 0.16.
    # Ranks of predictions are 1 2 3. Those of times are 2.5 1 2.5, whose covariance with them
    # is -1·0.5 + 0·(-1) + 1·0.5 = 0; those of ratios are 1 2 3.
    found = Fidelity(
        (
            paired("a", 2.0, [4.0], [2.0]),
            paired("b", 3.0, [2.0], [0.8]),
            paired("c", 4.0, [4.0], [1.0]),
        )
    )

    document = found.document()

    assert found.agreement == Agreement(0.5, pytest.approx(0.5), pytest.approx(0.0))
    assert found.drift_corrected == Agreement(
        pytest.approx(0.0), pytest.approx(0.16), pytest.approx(1.0)
    )
    assert document["median_absolute_percentage_error"] == 0.5
    assert document["drift_corrected"] == dataclasses.asdict(found.drift_corrected)
    assert document["predicted_reference_s"] == 1.0


def test_a_reference_that_fails_leaves_the_error_of_the_step_time():
    found = FidelityRow(chosen("a"), ok(1.0), timed(2.0), ok(1.0), failed())

    assert (found.error, found.drift_corrected_error) == (-0.5, None)
    assert (found.ratios, found.measured_ratio, found.ratio_interval) == ((), None, None)
    assert Fidelity((found,)).drift_corrected == Agreement(None, None, None)


def test_the_answer_has_the_figures_of_both_kinds():
    # Errors 0.25 and 0; relative to the reference 0 and 0.
    found = Fidelity(
        (
            paired("a", 1.0, [0.8], [0.8]),
            paired("b", 2.0, [2.0], [1.0]),
            FidelityRow(chosen("c"), ok(1.0), failed(), ok(1.0), timed(1.0)),
        )
    )

    assert found.answer("rnnlm", "local") == (
        "rnnlm on local, simulated against measured: 2 placements judged, median error 12.5%"
        " (0.0% with the machine's drift taken out), rank correlation 1.000 (1.000), 1 failed."
    )


def test_the_answer_has_one_figure_of_each_where_the_reference_did_not_run():
    assert fidelity((1.0, 0.8), (2.0, 2.0)).answer("rnnlm", "local") == (
        "rnnlm on local, simulated against measured: 2 placements judged, median error 12.5%,"
        " rank correlation 1.000."
    )


def test_the_signed_error_is_told_for_each_kind_that_was_judged():
    found = Fidelity(
        (
            row("a", 1.1, 1.0, Kind.RANDOM),
            row("b", 0.5, 1.0, Kind.ONE_DEVICE),
            row("c", 1.3, 1.0, Kind.RANDOM),
            FidelityRow(chosen("d", Kind.CUT), ok(1.0), failed(), ok(1.0), timed(1.0)),
        )
    )

    assert found.median_error_by_kind == {
        "one device": pytest.approx(-0.5),
        "random": pytest.approx(0.2),
    }


def test_placements_that_failed_are_listed_and_counted_but_not_judged():
    crashed = Measurement(outcome=Outcome.CRASHED, detail="worker 1 is gone")
    found = Fidelity(
        (
            row("ran", 1.0, 1.0),
            FidelityRow(chosen("crashed"), ok(1.0), crashed, ok(1.0), ok(1.0)),
            FidelityRow(chosen("never tried"), failed("too large"), None, ok(1.0), None),
        )
    )

    document = found.document()

    assert [each.chosen.name for each in found.failed] == ["crashed", "never tried"]
    assert (document["num_judged"], document["num_failed"]) == (1, 2)
    assert found.agreement.median_absolute_percentage_error == 0
    assert [(each["outcome"], each["detail"]) for each in document["rows"]] == [
        ("OK", ""), ("CRASHED", "worker 1 is gone"), ("OUT_OF_MEMORY", "too large"),
    ]  # fmt: skip


def test_where_everything_failed_no_figure_is_defined():
    found = Fidelity((FidelityRow(chosen("a"), ok(1.0), failed(), ok(1.0), timed(1.0)),))

    assert found.agreement == found.drift_corrected == Agreement(None, None, None)
    assert found.median_error_by_kind == {}


def test_the_interval_is_that_of_the_median_of_the_samples():
    # Six samples: only their range holds the median with 95 % confidence.
    measured = ok(3.5, samples_s=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0))
    found = FidelityRow(chosen("a"), ok(3.0), measured, ok(1.0), None)

    assert found.interval == Interval(1.0, 6.0)
    assert found.document()["interval_s"] == [1.0, 6.0]
    assert row("a", 1.0, 1.0).interval is None


def test_a_document_has_all_that_is_needed_to_measure_the_row_again():
    document = row("a", 1.0, 2.0, Kind.CUT).document()

    assert document["placement"] == Placement([0]).fingerprint
    assert document["device_of_group"] == [0]
    assert (document["name"], document["kind"]) == ("a", "cut")
    assert (document["predicted_s"], document["measured_s"]) == (1.0, 2.0)


def test_a_document_has_what_the_placement_was_compared_with():
    document = paired("a", 3.0, (2.0, 4.0), (1.0, 2.0)).document()

    assert (document["reference_s"], document["reference_samples_s"]) == (1.5, [1.0, 2.0])
    assert (document["predicted_ratio"], document["measured_ratio"]) == (3.0, 2.0)
    assert document["ratio_interval"] == [2.0, 2.0]
    assert document["drift_corrected_error"] == 0.5


def test_a_step_that_took_no_time_is_refused():
    with pytest.raises(InvalidValueError, match="'a': a measured step took 0 s"):
        row("a", 1.0, 0.0)


def test_a_reference_that_took_no_time_is_refused():
    with pytest.raises(InvalidValueError, match="'a': the reference is predicted to take 0 s"):
        FidelityRow(chosen("a"), ok(1.0), None, ok(0.0), None)
    with pytest.raises(InvalidValueError, match="'a': a step of the reference took 0 s"):
        paired("a", 1.0, (1.0, 1.0), (1.0, 0.0))


def test_samples_that_make_no_pairs_are_refused():
    with pytest.raises(InvalidValueError, match="'a': 2 samples are paired with 1 of the ref"):
        paired("a", 1.0, (1.0, 1.0), (1.0,))


def test_a_fidelity_of_nothing_or_of_two_rows_of_a_name_is_refused():
    with pytest.raises(InvalidValueError, match="at least one placement, got none"):
        Fidelity(())
    with pytest.raises(InvalidValueError, match="two placements are called 'a'"):
        Fidelity((row("a", 1.0, 1.0), row("a", 1.0, 2.0)))


def test_rows_with_different_references_are_refused():
    other = FidelityRow(chosen("b"), ok(1.0), ok(1.0), ok(2.0), None)

    with pytest.raises(InvalidValueError, match="one reference"):
        Fidelity((row("a", 1.0, 1.0), other))
