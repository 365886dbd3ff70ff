"""Which placements are measured to judge the simulation, and how predictions are judged."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.environment import Measurement, Outcome
from placer.errors import InfeasibleError, InvalidValueError
from placer.fidelity import (
    CALIBRATION_PLACEMENTS,
    ChosenPlacement,
    Fidelity,
    FidelityRow,
    Kind,
    fidelity_placements,
    measured_rows,
)
from placer.graph import Op
from placer.grouping import Grouping
from placer.placement import Placement
from placer.profile import Profile, Provenance
from placer.statistics import Interval
from tests.grouped_profiles import BOTH, chain_of, profile_of, profiles, topology_of

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


def row(name: str, predicted_s: float, measured_s: float, kind: Kind = Kind.RANDOM) -> FidelityRow:
    return FidelityRow(chosen(name, kind), ok(predicted_s), ok(measured_s))


def fidelity(*pairs: tuple[float, float]) -> Fidelity:
    """Return the fidelity of (predicted, measured) pairs."""
    return Fidelity(tuple(row(f"p{i}", *pair) for i, pair in enumerate(pairs)))


class TableEnvironment:
    """Knows the answer for every device of a one-op graph; remembers what it was asked."""

    name = "table"

    def __init__(self, answers: Sequence[Measurement]) -> None:
        self.answers = answers
        self.asked: list[int] = []

    def measure(self, placements: Sequence[Placement]) -> list[Measurement]:
        devices = [int(placement.device_of_op[0]) for placement in placements]
        self.asked += devices
        return [self.answers[device] for device in devices]


# Which placements.


@pytest.mark.parametrize("count", [1, 6, 30, 100])
def test_there_are_as_many_placements_as_were_asked_for_all_distinct(count):
    found = fidelity_placements(chain("CPU", "CPU"), EACH_ITS_OWN, count)

    assert len(found) == count
    assert len({each.placement for each in found}) == count
    assert len({each.name for each in found}) == count


def test_thirty_placements_are_of_all_kinds_and_none_is_rare():
    found = fidelity_placements(chain("CPU", "CPU"), EACH_ITS_OWN, 30)

    kinds = [each.kind for each in found]
    # Two devices and four heuristics there are; the other four kinds share the other places.
    assert kinds.count(Kind.ONE_DEVICE) == 2
    assert 2 <= kinds.count(Kind.HEURISTIC) <= 4
    for kind in (Kind.CUT, Kind.BLOCKS, Kind.MIXTURE, Kind.RANDOM):
        assert 5 <= kinds.count(kind) <= 8


def test_every_single_device_is_among_them():
    found = fidelity_placements(chain("GPU", "GPU", "GPU"), EACH_ITS_OWN, 30)

    singles = {each.name: each.device_of_group for each in found if each.kind == Kind.ONE_DEVICE}
    assert singles == {f"single gpu:{device}": (device,) * 24 for device in range(3)}


def test_a_cut_gives_each_device_one_run_of_groups():
    found = fidelity_placements(chain("GPU", "GPU", "GPU"), EACH_ITS_OWN, 40)

    cuts = [each for each in found if each.kind == Kind.CUT]
    assert cuts
    for cut in cuts:
        changes = np.count_nonzero(np.diff(cut.device_of_group))
        assert changes == len(set(cut.device_of_group)) - 1


def test_a_cut_follows_the_order_of_the_ops_and_not_the_numbers_of_the_groups():
    # Group 23 comes first, group 0 last: a cut is still one run in the order of the chain.
    backwards = Grouping(list(range(23, -1, -1)))

    found = fidelity_placements(chain("CPU", "CPU"), backwards, 30)

    for cut in (each for each in found if each.kind == Kind.CUT):
        assert np.count_nonzero(np.diff(cut.placement.device_of_op)) == 1


def test_blocks_are_runs_of_the_length_that_their_name_says():
    found = fidelity_placements(chain("CPU", "CPU"), EACH_ITS_OWN, 30)

    blocks = [each for each in found if each.kind == Kind.BLOCKS]
    assert len({each.name.rpartition("of ")[2] for each in blocks}) > 2
    for each in blocks:
        length = int(each.name.split("of ")[1].split()[0])
        changes = np.flatnonzero(np.diff(each.device_of_group)) + 1
        assert changes.tolist() == list(range(length, 24, length))


def test_a_mixture_differs_from_its_base_in_the_share_that_its_name_says():
    found = fidelity_placements(chain("CPU", "CPU"), EACH_ITS_OWN, 30)

    actions_of = {each.name: each.device_of_group for each in found}
    mixtures = [each for each in found if each.kind == Kind.MIXTURE]
    bases = set()
    for each in mixtures:
        base, share = each.name.partition(": ")[2].removesuffix(" moved").split(", ")
        bases.add(base)
        moved = np.count_nonzero(np.not_equal(each.device_of_group, actions_of[base]))
        assert abs(moved / 24 - float(share.rstrip("%")) / 100) < 0.03
    assert {"expert", "metis"} < bases


def test_the_same_seed_gives_the_same_placements_and_another_seed_others():
    first = fidelity_placements(chain("CPU", "CPU"), EACH_ITS_OWN, 30, seed=1)

    again = fidelity_placements(chain("CPU", "CPU"), EACH_ITS_OWN, 30, seed=1)
    other = fidelity_placements(chain("CPU", "CPU"), EACH_ITS_OWN, 30, seed=2)

    assert again == first
    assert len({each.placement for each in other} - {each.placement for each in first}) > 15


def test_more_placements_begin_with_the_fewer():
    few = fidelity_placements(chain("CPU", "CPU"), EACH_ITS_OWN, 12)

    many = fidelity_placements(chain("CPU", "CPU"), EACH_ITS_OWN, 30)

    assert many[:12] == few


def test_placements_that_the_profile_was_calibrated_with_are_left_out():
    profile = chain("CPU", "CPU")
    before = [each.placement for each in fidelity_placements(profile, EACH_ITS_OWN, 10)]

    found = fidelity_placements(calibrated(profile, before), EACH_ITS_OWN, 10)

    assert not {each.placement for each in found} & set(before)


def test_all_placements_that_there_are_can_be_had():
    # Two groups on two devices: four placements.
    profile = chain_of(["a/1", "b/1"], topology_of("CPU", "CPU"))

    found = fidelity_placements(profile, Grouping([0, 1]), 4)

    assert {each.device_of_group for each in found} == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_more_placements_than_there_are_are_refused_with_their_number():
    profile = chain_of(["a/1", "b/1"], topology_of("CPU", "CPU"))

    with pytest.raises(InfeasibleError, match=r"5 placements .* only 4 .* 2 groups on 2 devices"):
        fidelity_placements(profile, Grouping([0, 1]), 5)


def test_one_device_leaves_nothing_to_choose():
    with pytest.raises(InvalidValueError, match="has one device"):
        fidelity_placements(chain("CPU"), EACH_ITS_OWN, 1)


def test_no_placements_are_refused():
    with pytest.raises(InvalidValueError, match="count must be at least 1, got 0"):
        fidelity_placements(chain("CPU", "CPU"), EACH_ITS_OWN, 0)


@given(profiles(), st.integers(0, 2**31 - 1))
def test_every_group_is_on_a_permitted_device(profile, seed):
    grouping = Grouping.in_topological_order(
        profile.graph, [op.colocation or op.name for op in profile.graph.ops]
    )
    allowed = grouping.allowed(profile)
    num_distinct = math.prod(allowed.sum(axis=1).tolist())
    if profile.topology.num_devices == 1:
        return

    found = fidelity_placements(profile, grouping, min(num_distinct, 8), seed=seed)

    for each in found:
        assert allowed[np.arange(grouping.num_groups), list(each.device_of_group)].all()


def test_groups_for_cpus_alone_stay_there_in_placements_of_every_kind():
    ops = [Op(f"op{i}", "Op", device_kinds=BOTH if i % 3 else ("CPU",)) for i in range(24)]
    profile = profile_of(ops, [(i, (i + 1,), 10) for i in range(23)])

    found = fidelity_placements(profile, EACH_ITS_OWN, 40)

    for each in found:
        assert set(each.device_of_group[::3]) == {0}


# How they are measured.


def test_placements_are_measured_one_after_the_other_in_a_shuffled_order():
    several = [chosen(str(device), device=device) for device in range(20)]
    table = [ok(1.0 + device) for device in range(20)]
    real = TableEnvironment(table)

    rows = list(measured_rows(several, TableEnvironment(table), real, seed=3))

    assert sorted(real.asked) == list(range(20))
    assert real.asked != list(range(20))
    assert [int(each.chosen.name) for each in rows] == real.asked
    assert all(each.error == 0 for each in rows)


def test_the_order_is_that_of_the_seed():
    several = [chosen(str(device), device=device) for device in range(20)]
    table = TableEnvironment([ok(1.0)] * 20)

    orders = [
        [each.chosen.name for each in measured_rows(several, table, table, seed=seed)]
        for seed in (3, 3, 4)
    ]

    assert orders[0] == orders[1] != orders[2]


def test_a_row_is_there_as_soon_as_it_is_measured():
    several = [chosen(str(device), device=device) for device in range(5)]
    real = TableEnvironment([ok(1.0)] * 5)

    next(measured_rows(several, TableEnvironment([ok(1.0)] * 5), real))

    assert len(real.asked) == 1


def test_what_is_predicted_not_to_run_is_not_tried():
    several = [chosen("a", device=0), chosen("b", device=1)]
    real = TableEnvironment([ok(1.0), ok(1.0)])

    rows = list(measured_rows(several, TableEnvironment([ok(1.0), failed()]), real))

    assert real.asked == [0]
    assert [(each.chosen.name, each.measured is None) for each in rows] == [
        ("b", True), ("a", False),
    ]  # fmt: skip


# How they are judged.


def test_an_error_is_relative_to_the_measurement_and_signed():
    # 1.5 instead of 2 s: a quarter too fast. 3 instead of 2 s: half too slow.
    assert row("a", 1.5, 2.0).error == -0.25
    assert row("a", 3.0, 2.0).error == 0.5


def test_the_median_absolute_error_looks_at_sizes_alone():
    # Errors: -0.5, 0.1, 0.2.
    found = fidelity((1.0, 2.0), (1.1, 1.0), (2.4, 2.0))

    assert found.median_absolute_percentage_error == pytest.approx(0.2)


def test_nine_of_ten_errors_are_below_the_ninetieth_percentile():
    # Errors 0.0, 0.1, …, 1.0: eleven values, the tenth of them is 0.9.
    found = fidelity(*((1.0 + tenth / 10, 1.0) for tenth in range(11)))

    assert found.percentile_90_absolute_percentage_error == pytest.approx(0.9)


def test_spearman_is_1_where_the_order_is_right_however_wrong_the_times_are():
    assert fidelity((1.0, 5.0), (2.0, 6.0), (9.0, 7.0)).spearman == pytest.approx(1.0)
    assert fidelity((3.0, 5.0), (2.0, 6.0), (1.0, 7.0)).spearman == pytest.approx(-1.0)


def test_spearman_of_two_swapped_neighbours_among_four():
    # Ranks 1 2 3 4 against 1 3 2 4: 1 - 6·(0 + 1 + 1 + 0) / (4·15) = 0.8.
    found = fidelity((1.0, 1.0), (2.0, 3.0), (3.0, 2.0), (4.0, 4.0))

    assert found.spearman == pytest.approx(0.8)


@pytest.mark.parametrize(
    "pairs",
    [[(1.0, 2.0)], [(1.0, 2.0), (1.0, 3.0)], [(1.0, 2.0), (3.0, 2.0)]],
    ids=["one row", "equal predictions", "equal measurements"],
)
def test_without_ranks_there_is_no_rank_correlation(pairs):
    assert fidelity(*pairs).spearman is None


def test_the_signed_error_is_told_for_each_kind_that_was_judged():
    found = Fidelity(
        (
            row("a", 1.1, 1.0, Kind.RANDOM),
            row("b", 0.5, 1.0, Kind.ONE_DEVICE),
            row("c", 1.3, 1.0, Kind.RANDOM),
            FidelityRow(chosen("d", Kind.CUT), ok(1.0), failed()),
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
            FidelityRow(chosen("crashed"), ok(1.0), crashed),
            FidelityRow(chosen("never tried"), failed("too large"), None),
        )
    )

    document = found.document()

    assert [each.chosen.name for each in found.failed] == ["crashed", "never tried"]
    assert (document["num_judged"], document["num_failed"]) == (1, 2)
    assert found.median_absolute_percentage_error == 0
    assert [(each["outcome"], each["detail"]) for each in document["rows"]] == [
        ("OK", ""), ("CRASHED", "worker 1 is gone"), ("OUT_OF_MEMORY", "too large"),
    ]  # fmt: skip


def test_where_everything_failed_no_figure_is_defined():
    found = Fidelity((FidelityRow(chosen("a"), ok(1.0), failed()),))

    assert found.median_absolute_percentage_error is None
    assert found.percentile_90_absolute_percentage_error is None
    assert found.spearman is None
    assert found.median_error_by_kind == {}


def test_the_interval_is_that_of_the_median_of_the_samples():
    # Six samples: only their range holds the median with 95 % confidence.
    measured = ok(3.5, samples_s=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0))
    found = FidelityRow(chosen("a"), ok(3.0), measured)

    assert found.interval == Interval(1.0, 6.0)
    assert found.document()["interval_s"] == [1.0, 6.0]
    assert row("a", 1.0, 1.0).interval is None


def test_a_document_has_all_that_is_needed_to_measure_the_row_again():
    document = row("a", 1.0, 2.0, Kind.CUT).document()

    assert document["placement"] == Placement([0]).fingerprint
    assert document["device_of_group"] == [0]
    assert (document["name"], document["kind"]) == ("a", "cut")
    assert (document["predicted_s"], document["measured_s"]) == (1.0, 2.0)


def test_a_step_that_took_no_time_is_refused():
    with pytest.raises(InvalidValueError, match="'a': a measured step took 0 s"):
        row("a", 1.0, 0.0)


def test_a_fidelity_of_nothing_or_of_two_rows_of_a_name_is_refused():
    with pytest.raises(InvalidValueError, match="at least one placement, got none"):
        Fidelity(())
    with pytest.raises(InvalidValueError, match="two placements are called 'a'"):
        Fidelity((row("a", 1.0, 1.0), row("a", 1.0, 2.0)))
