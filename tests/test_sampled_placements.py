"""Placements of every kind: distinct, permitted, made as their names say, and reproducible."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.errors import InfeasibleError, InvalidValueError
from placer.graph import Op
from placer.grouping import Grouping
from placer.profile import Profile
from placer.sampled_placements import Kind, sample_placements
from tests.grouped_profiles import BOTH, chain_of, profile_of, profiles, topology_of

MODULES = [f"layer_{i // 8}/step_{i % 8}" for i in range(24)]
EACH_ITS_OWN = Grouping(list(range(24)))


def chain(*kinds: str) -> Profile:
    """A chain of 24 ops of three layers on such devices."""
    return chain_of(MODULES, topology_of(*kinds))


@pytest.mark.parametrize("count", [1, 6, 30, 100])
def test_there_are_as_many_placements_as_were_asked_for_all_distinct(count):
    found = sample_placements(chain("CPU", "CPU"), EACH_ITS_OWN, count)

    assert len(found) == count
    assert len({each.placement for each in found}) == count
    assert len({each.name for each in found}) == count


def test_thirty_placements_are_of_all_kinds_and_none_is_rare():
    found = sample_placements(chain("CPU", "CPU"), EACH_ITS_OWN, 30)

    kinds = [each.kind for each in found]
    # Two devices there are, and eight heuristics, some of which find the same placement; the
    # other four kinds share the other places.
    assert kinds.count(Kind.ONE_DEVICE) == 2
    assert 2 <= kinds.count(Kind.HEURISTIC) <= 8
    for kind in (Kind.CUT, Kind.BLOCKS, Kind.MIXTURE, Kind.RANDOM):
        assert 5 <= kinds.count(kind) <= 8


def test_every_single_device_is_among_them():
    found = sample_placements(chain("GPU", "GPU", "GPU"), EACH_ITS_OWN, 30)

    singles = {each.name: each.device_of_group for each in found if each.kind == Kind.ONE_DEVICE}
    assert singles == {f"single gpu:{device}": (device,) * 24 for device in range(3)}


def test_a_cut_gives_each_device_one_run_of_groups():
    found = sample_placements(chain("GPU", "GPU", "GPU"), EACH_ITS_OWN, 40)

    cuts = [each for each in found if each.kind == Kind.CUT]
    assert cuts
    for cut in cuts:
        changes = np.count_nonzero(np.diff(cut.device_of_group))
        assert changes == len(set(cut.device_of_group)) - 1


def test_a_cut_follows_the_order_of_the_ops_and_not_the_numbers_of_the_groups():
    # Group 23 comes first, group 0 last: a cut is still one run in the order of the chain.
    backwards = Grouping(list(range(23, -1, -1)))

    found = sample_placements(chain("CPU", "CPU"), backwards, 30)

    for cut in (each for each in found if each.kind == Kind.CUT):
        assert np.count_nonzero(np.diff(cut.placement.device_of_op)) == 1


def test_blocks_are_runs_of_the_length_that_their_name_says():
    found = sample_placements(chain("CPU", "CPU"), EACH_ITS_OWN, 30)

    blocks = [each for each in found if each.kind == Kind.BLOCKS]
    assert len({each.name.rpartition("of ")[2] for each in blocks}) > 2
    for each in blocks:
        length = int(each.name.split("of ")[1].split()[0])
        changes = np.flatnonzero(np.diff(each.device_of_group)) + 1
        assert changes.tolist() == list(range(length, 24, length))


def test_a_mixture_differs_from_its_base_in_the_share_that_its_name_says():
    found = sample_placements(chain("CPU", "CPU"), EACH_ITS_OWN, 30)

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
    first = sample_placements(chain("CPU", "CPU"), EACH_ITS_OWN, 30, seed=1)

    again = sample_placements(chain("CPU", "CPU"), EACH_ITS_OWN, 30, seed=1)
    other = sample_placements(chain("CPU", "CPU"), EACH_ITS_OWN, 30, seed=2)

    assert again == first
    assert len({each.placement for each in other} - {each.placement for each in first}) > 15


def test_more_placements_begin_with_the_fewer():
    few = sample_placements(chain("CPU", "CPU"), EACH_ITS_OWN, 12)

    many = sample_placements(chain("CPU", "CPU"), EACH_ITS_OWN, 30)

    assert many[:12] == few


def test_only_the_kinds_that_were_asked_for_take_turns():
    kinds = {Kind.ONE_DEVICE, Kind.CUT, Kind.RANDOM}

    found = sample_placements(chain("CPU", "CPU"), EACH_ITS_OWN, 12, kinds=kinds)

    # Two single devices there are; cuts and random ones share the other ten places.
    of_kind = [each.kind for each in found]
    assert [of_kind.count(kind) for kind in Kind] == [2, 0, 5, 0, 0, 5]


def test_excluded_placements_are_replaced_by_the_next_ones():
    profile = chain("CPU", "CPU")
    first = sample_placements(profile, EACH_ITS_OWN, 20)
    excluded = [each.placement.fingerprint for each in first[:5]]

    found = sample_placements(profile, EACH_ITS_OWN, 15, exclude=excluded)

    assert found == first[5:]


def test_all_placements_that_there_are_can_be_had():
    # Two groups on two devices: four placements.
    profile = chain_of(["a/1", "b/1"], topology_of("CPU", "CPU"))

    found = sample_placements(profile, Grouping([0, 1]), 4)

    assert {each.device_of_group for each in found} == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_more_placements_than_there_are_are_refused_with_their_number():
    profile = chain_of(["a/1", "b/1"], topology_of("CPU", "CPU"))

    with pytest.raises(InfeasibleError, match=r"5 placements .* only 4 .* 2 groups on 2 devices"):
        sample_placements(profile, Grouping([0, 1]), 5)


def test_one_device_leaves_nothing_to_choose():
    with pytest.raises(InvalidValueError, match="has one device"):
        sample_placements(chain("CPU"), EACH_ITS_OWN, 1)


def test_no_placements_are_refused():
    with pytest.raises(InvalidValueError, match="count must be at least 1, got 0"):
        sample_placements(chain("CPU", "CPU"), EACH_ITS_OWN, 0)


@given(profiles(), st.integers(0, 2**31 - 1))
def test_every_group_is_on_a_permitted_device(profile, seed):
    grouping = Grouping.in_topological_order(
        profile.graph, [op.colocation or op.name for op in profile.graph.ops]
    )
    allowed = grouping.allowed(profile)
    num_distinct = math.prod(allowed.sum(axis=1).tolist())
    if profile.topology.num_devices == 1:
        return

    found = sample_placements(profile, grouping, min(num_distinct, 8), seed=seed)

    for each in found:
        assert allowed[np.arange(grouping.num_groups), list(each.device_of_group)].all()


def test_groups_for_cpus_alone_stay_there_in_placements_of_every_kind():
    ops = [Op(f"op{i}", "Op", device_kinds=BOTH if i % 3 else ("CPU",)) for i in range(24)]
    profile = profile_of(ops, [(i, (i + 1,), 10) for i in range(23)])

    found = sample_placements(profile, EACH_ITS_OWN, 40)

    for each in found:
        assert set(each.device_of_group[::3]) == {0}
