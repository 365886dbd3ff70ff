"""Strategies, and the driver that measures what they propose."""

import contextlib
import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.devices import Device, DeviceTopology, Link
from placer.environment import Measurement, Outcome
from placer.errors import InfeasibleError, InvalidValueError, UnknownNameError
from placer.group_ops import group_ops
from placer.grouping import Grouping
from placer.placement import Placement
from placer.policies.graph import pretrained
from placer.profile import OpCosts, Profile
from placer.search.climbing import hill_climbing, race
from placer.search.driver import run_search
from placer.search.elite import Elite
from placer.search.learned import advantages
from placer.search.local import annealing
from placer.search.memetic import Gains, share_of_turns, take_turns
from placer.search.methods import METHODS, search
from placer.search.space import SearchSpace, interchangeable_devices
from placer.simulator import SimulatedEnvironment, Simulator
from tests.builders import SECOND_PER_BYTE, make_profile, make_topology
from tests.grouped_profiles import chain_of, msr_profile, profiles, topology_of

TWO_CHAINS = [(0, (1,), 1), (2, (3,), 1)]
"""a -> b and c -> d, a byte each."""


def alone(profile):
    return Grouping(np.arange(profile.graph.num_ops))


def simulated(profile):
    return SimulatedEnvironment(Simulator(profile))


def two_chains(num_devices=2, **limits):
    return make_profile(
        [1.0, 1.0, 1.0, 1.0], TWO_CHAINS, make_topology(num_devices, **limits), [10] * 4
    )


class Counting:
    """An environment that keeps what it was asked to measure."""

    name = "counting"

    def __init__(self, environment):
        self.environment = environment
        self.placements: list[Placement] = []

    def measure(self, placements):
        self.placements += placements
        return self.environment.measure(placements)


@pytest.mark.parametrize("method", [method for method in METHODS if method != "random"])
def test_two_chains_end_on_a_device_each(method):
    # 4 s on one device; a chain on each device needs no transfer and takes 2 s, which is no
    # more than either chain takes in any case.
    profile = two_chains()

    found = search(method, profile, alone(profile), simulated(profile), num_trials=60)

    assert found.best_step_time_s == 2.0
    first, second, third, fourth = found.device_of_group
    assert first == second != third == fourth


@pytest.mark.parametrize("method", METHODS)
def test_a_method_finds_what_fits_from_a_start_that_does_not(method):
    # Each op holds 10 bytes and hands on one: a device with 25 bytes has room for two ops.
    profile = two_chains(memory_bytes=25)

    found = search(method, profile, alone(profile), simulated(profile), num_trials=40)

    assert found.best_step_time_s == 2.0


@pytest.mark.parametrize("method", METHODS)
def test_no_more_is_measured_than_was_asked_for_and_nothing_twice(method):
    profile = msr_profile("gnmt_training")
    grouping = group_ops(profile).grouping
    environment = Counting(simulated(profile))

    found = search(method, profile, grouping, environment, num_trials=70)

    assert len(environment.placements) == found.num_evaluations == 70
    assert len(set(environment.placements)) == 70


@pytest.mark.parametrize("method", METHODS)
def test_the_trajectory_is_the_best_of_what_was_measured(method):
    profile = two_chains(3)
    environment = Counting(simulated(profile))

    found = search(method, profile, alone(profile), environment, num_trials=20, seed=3)

    times_s = [m.step_time_s for m in environment.environment.measure(environment.placements)]
    assert found.trajectory_s == tuple(itertools.accumulate(times_s, min))
    assert found.best_step_time_s == found.trajectory_s[-1]
    best = Placement(found.device_of_group)
    assert environment.environment.measure([best])[0].step_time_s == found.best_step_time_s


@pytest.mark.parametrize("method", METHODS)
def test_the_seed_decides(method):
    profile = msr_profile("gnmt_training")
    grouping = group_ops(profile).grouping

    def run(seed):
        return search(method, profile, grouping, simulated(profile), num_trials=50, seed=seed)

    assert run(1) == run(1)
    assert run(1).trajectory_s != run(2).trajectory_s


@settings(max_examples=30, deadline=None)
@given(profiles(), st.sampled_from(sorted(METHODS)), st.integers(1, 30))
def test_only_permitted_devices_are_ever_proposed(profile, method, num_trials):
    grouping = alone(profile)
    if any(len(ops) > 1 for ops in profile.graph.colocations):
        grouping = Grouping(np.zeros(profile.graph.num_ops, dtype=np.int64))
        if len({op.device_kinds for op in profile.graph.ops}) > 1:
            return
    allowed = grouping.allowed(profile)
    environment = Counting(simulated(profile))

    found = search(method, profile, grouping, environment, num_trials=num_trials)

    assert 1 <= found.num_evaluations <= num_trials
    for placement in environment.placements:
        assert profile.allowed[np.arange(profile.graph.num_ops), placement.device_of_op].all()
    assert len(environment.placements) <= int(np.prod(allowed.sum(axis=1).astype(float)))


def test_a_heuristic_is_a_method_of_one_evaluation():
    profile = two_chains()

    found = search("round-robin", profile, alone(profile), simulated(profile), num_trials=9)

    assert found.num_evaluations == 1
    assert found.device_of_group == (0, 1, 0, 1)


def test_zero_shot_is_the_likeliest_placement_of_the_pretrained_policy():
    profile = msr_profile("gnmt_training")
    grouping = group_ops(profile).grouping

    found = search("zero-shot", profile, grouping, simulated(profile), num_trials=9)

    assert found.num_evaluations == 1
    likeliest = SearchSpace(profile, grouping).canonical(
        pretrained(profile, grouping).greedy()[np.newaxis]
    )
    assert found.device_of_group == tuple(likeliest[0].tolist())


def test_a_race_ends_with_the_fastest_of_its_climbers():
    # The optimum is one move away from either start. Two climbers share 200 steps.
    profile = two_chains()
    space = SearchSpace(profile, alone(profile))
    elite = Elite()
    starts = np.array([[0, 1, 1, 1], [0, 0, 1, 1]], dtype=np.int32)
    elite.add(starts, np.array([3.0, 2.0]))

    def cost_of(actions):
        return 1.0 if actions.tolist() == [0, 1, 0, 1] else 2.5

    strategy = race(space, elite, num_steps=200, rng=np.random.default_rng(0))
    proposed = next(strategy)
    num_steps = 1
    with contextlib.suppress(StopIteration):
        while True:
            proposed = strategy.send(np.array([cost_of(proposed[0])]))
            num_steps += 1

    assert num_steps == 200
    assert elite.best[0] == 1.0
    assert elite.best[1].tolist() == [0, 1, 0, 1]


def test_a_heuristic_is_all_that_is_computed_of_the_heuristics(monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("another heuristic was computed")

    profile = two_chains()
    monkeypatch.setattr("placer.heuristics.catalog.metis_min_cut", refuse)

    assert search("heft", profile, alone(profile), simulated(profile), num_trials=9)
    with pytest.raises(InfeasibleError, match="the expert needs a graph whose ops name modules"):
        search("expert", profile, alone(profile), simulated(profile), num_trials=9)


def test_single_tries_every_device_alone():
    # Two chains of two ops, 1 s each, of which d takes 3 s on the first device.
    profile = two_chains()
    times_s = np.array([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0, 3.0]])
    costs = OpCosts(("fast", "slow"), times_s, times_s > 9, np.zeros(4, dtype=np.int64))
    devices = (Device("gpu:0", type="slow"), Device("gpu:1", type="fast"))
    topology = DeviceTopology(devices, profile.topology.links)
    profile = Profile(profile.graph, costs, topology)

    found = search("single", profile, alone(profile), simulated(profile), num_trials=9)

    assert found.trajectory_s == (6.0, 4.0)
    assert set(found.device_of_group) == {1}


def test_an_unknown_method_is_refused_and_the_nearest_named():
    profile = two_chains()

    with pytest.raises(UnknownNameError, match="'anealing'; did you mean 'annealing'"):
        search("anealing", profile, alone(profile), simulated(profile), num_trials=9)


def test_a_search_without_evaluations_is_refused():
    profile = two_chains()

    with pytest.raises(InvalidValueError, match="num_trials must be at least 1, got 0"):
        search("random", profile, alone(profile), simulated(profile), num_trials=0)


def test_where_nothing_runs_there_is_no_best():
    # An op of 10 bytes fits nowhere.
    profile = two_chains(memory_bytes=5)

    found = search("annealing", profile, alone(profile), simulated(profile), num_trials=5)

    assert found.device_of_group is None
    assert found.best_step_time_s is None
    assert found.trajectory_s == (None,) * 5


def test_a_placement_that_fails_costs_more_the_more_memory_it_lacks():
    # Four ops of 10 bytes and two tensors of a byte, 25 bytes a device: all on one lack more
    # than three on one do; both cost more than the failing signal, twice the work of 4 s.
    profile = two_chains(memory_bytes=25)
    costs = []

    def strategy():
        costs.append((yield np.array([[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 1]], dtype=np.int32)))

    space = SearchSpace(profile, alone(profile))
    run_search(strategy(), space, profile, alone(profile), simulated(profile), num_trials=9)

    all_on_one, three_on_one, fits = costs[0]
    assert all_on_one > three_on_one > 8.0
    assert fits == 2.0


def test_a_strategy_that_ends_ends_the_search():
    profile = two_chains()
    space = SearchSpace(profile, alone(profile))

    def strategy():
        yield np.zeros((1, 4), dtype=np.int32)

    found = run_search(strategy(), space, profile, alone(profile), simulated(profile), num_trials=9)

    assert found.trajectory_s == (4.0,)


def test_a_space_that_is_exhausted_ends_the_search():
    profile = make_profile([1.0], [], make_topology(1))

    found = search("annealing", profile, alone(profile), simulated(profile), num_trials=9)

    assert found.trajectory_s == (1.0,)


def test_equal_devices_are_named_in_order_of_first_use():
    space = SearchSpace(two_chains(4), alone(two_chains(4)))

    named = space.canonical(np.array([[3, 1, 3, 0], [0, 1, 2, 3], [2, 2, 2, 2]], dtype=np.int32))

    assert named.tolist() == [[0, 1, 0, 2], [0, 1, 2, 3], [0, 0, 0, 0]]


def test_devices_of_different_speed_keep_their_names():
    profile = chain_of(["a"] * 4, topology_of("CPU", "GPU", "GPU"))

    assert interchangeable_devices(profile).tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    "other",
    [
        Link(2.0),
        Link(1.0, latency_s=0.5),
        Link(1.0, source_load=0.5),
        Link(1.0, destination_load=0.5),
    ],
)
def test_devices_with_a_link_of_their_own_keep_their_names(other):
    # 0 and 1 are joined by another link than 1 and 2, 0 and 2: these two pairs are alike.
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    links = {pair: other if set(pair) == {0, 1} else SECOND_PER_BYTE for pair in pairs}
    topology = DeviceTopology(make_topology(3).devices, links)
    profile = make_profile([1.0, 1.0], [(0, (1,), 1)], topology)

    assert interchangeable_devices(profile).tolist() == [0, 0, 2]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6))
def test_exchanging_equal_devices_takes_exactly_as_long(seed):
    profile = chain_of(["a", "b"] * 6, topology_of("CPU", "GPU", "GPU", "GPU"))
    space = SearchSpace(profile, alone(profile))
    given_actions = space.random(np.random.default_rng(seed), 2)

    makespans_s = (
        Simulator(profile)
        .run(np.concatenate([given_actions, space.canonical(given_actions)]))
        .makespan_s
    )

    assert makespans_s[:2].tolist() == makespans_s[2:].tolist()


@settings(max_examples=50, deadline=None)
@given(profiles(), st.integers(0, 10**6))
def test_a_neighbor_differs_and_is_permitted(profile, seed):
    grouping = alone(profile)
    if any(len(ops) > 1 for ops in profile.graph.colocations):
        return
    space = SearchSpace(profile, grouping)
    rng = np.random.default_rng(seed)
    (actions,) = space.random(rng, 1)

    neighbor = space.neighbor(actions, rng)

    assert space.allowed[np.arange(space.num_groups), neighbor].all()
    assert np.array_equal(neighbor, actions) == (not space.has_choices)


def drive(strategy, cost_of, num_proposals):
    """Return the first placements that a strategy proposes, all of them answered."""
    proposed = [next(strategy)[0]]
    while len(proposed) < num_proposals:
        proposed.append(strategy.send(np.array([cost_of(proposed[-1])]))[0])
    return np.array(proposed)


def ones(actions):
    """A cost: one, and one more for each group that is not on the first device."""
    return 1.0 + float(np.count_nonzero(actions))


def test_a_hill_climber_never_goes_on_from_what_is_worse():
    topology = make_topology(2)
    small = dataclasses.replace(topology.devices[1], memory_bytes=100)
    unlike = dataclasses.replace(topology, devices=(topology.devices[0], small))
    profile = make_profile([1.0, 1.0, 1.0, 1.0], TWO_CHAINS, unlike, [10] * 4)
    space = SearchSpace(profile, alone(profile))
    start = np.zeros(4, dtype=np.int32)

    proposed = drive(hill_climbing(space, start, seed=0), ones, 200)

    # All zero is the best of all: whatever is proposed is a neighbour of it, which the
    # moves make of one group or of up to two together.
    assert np.count_nonzero(proposed, axis=1).max() <= 2


def test_a_hot_annealing_leaves_a_minimum_and_a_cold_one_stays():
    profile = two_chains()
    space = SearchSpace(profile, alone(profile))
    start = np.zeros(4, dtype=np.int32)

    def flat(actions):
        return 1.0 + 0.01 * float(np.count_nonzero(actions))

    proposed = drive(annealing(space, start, num_trials=400, seed=0), flat, 400)

    # At 3 % a step of 1 % is accepted with probability exp(-1/3) = 0.72; at 0.05 % with
    # exp(-20): then only neighbours of the minimum are proposed.
    far = np.count_nonzero(proposed, axis=1) > 2
    assert far[:100].any()
    assert not far[-50:].any()


def test_advantages_are_relative_to_the_median_and_bounded():
    # Median 2; differences 1, 0, -1, 0 and a root mean square of sqrt(1/2).
    found = advantages(np.array([1.0, 2.0, 3.0, 2.0]))

    assert found.tolist() == pytest.approx([2**0.5, 0, -(2**0.5), 0])
    assert advantages(np.array([5.0, 5.0])).tolist() == [0.0, 0.0]
    # One failure among 17: its own difference is sqrt(17) times the root mean square.
    assert advantages(np.array([1.0] * 16 + [1e6]))[-1] == -3.0


def test_the_elite_are_the_best_distinct_placements_in_order():
    elite = Elite(size=2)
    rows = np.array([[0, 0], [0, 1], [1, 1]], dtype=np.int32)

    assert elite.add(rows, np.array([3.0, 1.0, 2.0]))
    assert not elite.add(rows[1:2], np.array([1.0]))

    assert elite.actions.tolist() == [[0, 1], [1, 1]]
    assert elite.best[0] == 1.0


def test_outcomes_without_known_memory_cost_the_failing_signal():
    profile = two_chains()
    costs = []

    class Crashing:
        name = "crashing"

        def measure(self, placements):
            return [Measurement(outcome=Outcome.CRASHED) for _ in placements]

    def strategy():
        costs.append((yield np.zeros((1, 4), dtype=np.int32)))

    space = SearchSpace(profile, alone(profile))
    run_search(strategy(), space, profile, alone(profile), Crashing(), num_trials=9)

    # Twice the work of 4 s on one device.
    assert costs[0].tolist() == [8.0]


def turns(*times_s):
    gains = Gains()
    for before_s, after_s in itertools.pairwise(times_s):
        gains.forget()
        gains.add(before_s, after_s)
    return gains


def test_turns_go_to_whoever_gains_more_but_nobody_is_forgotten():
    halved, quartered, nothing = turns(4.0, 2.0), turns(4.0, 1.0), turns(4.0, 4.0)

    assert share_of_turns(halved, halved) == 0.5
    assert share_of_turns(quartered, halved) == pytest.approx(2 / 3)  # log 4 of log 8
    assert share_of_turns(halved, nothing) == 0.8
    assert share_of_turns(nothing, halved) == 0.2
    assert share_of_turns(nothing, Gains()) == 0.25


def test_what_was_gained_long_ago_counts_less():
    # 0.9 of a halving and then nothing, over 1.9 turns.
    assert turns(4.0, 2.0, 2.0).rate == pytest.approx(0.9 * np.log(2) / 1.9)
    assert turns(4.0, 2.0, 2.0, 2.0).rate < turns(4.0, 4.0, 4.0, 2.0).rate


def test_a_step_of_no_time_ends_the_gains():
    assert turns(1.0, 0.0, 0.0).rate == 0.0


class Fixed:
    """A policy that always proposes one placement, and remembers what it was taught."""

    def __init__(self, actions):
        self.actions, self.taught = actions, []

    def sample(self, _seed, trial_numbers):
        return np.tile(self.actions, (len(trial_numbers), 1))

    def update(self, actions, _advantages):
        self.taught.append(actions)
        return {}


def test_the_policy_is_taught_what_the_climber_found():
    # The policy insists on one device, 4 s. A chain on each is 2 s: only the climber finds it.
    profile = two_chains()
    space = SearchSpace(profile, alone(profile))
    policy, elite = Fixed(np.zeros(4, dtype=np.int32)), Elite()
    elite.add(policy.actions[np.newaxis], np.array([4.0]))
    strategy = take_turns(policy, space, elite, seed=0, rng=np.random.default_rng(0))

    found = run_search(strategy, space, profile, alone(profile), simulated(profile), num_trials=100)

    assert found.device_of_group == (0, 0, 1, 1)
    assert (policy.taught[-1] == [0, 0, 1, 1]).all(axis=1).any()
