"""The graph policy: its contract, its schedule, its gradient, and what must not matter to it."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.devices import DeviceTopology, Link
from placer.errors import FileFormatError, InvalidValueError, MissingFileError
from placer.generated_graphs import FAMILIES, generated_profile
from placer.graph import BoolArray, Op, OpGraph
from placer.group_ops import group_ops
from placer.grouping import Grouping
from placer.heuristics import random_placement
from placer.policies.adam import Adam
from placer.policies.graph import GraphConfig, GraphPolicy, pretrained
from placer.policies.graph_decoder import INPUTS
from placer.policies.graph_features import NUM_FEATURES
from placer.policies.graph_model import (
    PRETRAINED,
    GraphTerms,
    gradient_of,
    load_parameters,
    new_parameters,
    sampled,
)
from placer.policies.graph_problem import GraphProblem
from placer.policies.graph_schedule import fill_gap, first_gap, new_schedule, place
from placer.policy_gradient import gumbel_noise
from placer.simulator import Simulator
from tests.builders import make_profile, make_topology
from tests.grouped_profiles import profile_of, profiles, topology_of
from tests.policies import PolicyContract


class TestContract(PolicyContract):
    def make_policy(self, allowed: BoolArray, *, seed: int = 0) -> GraphPolicy:
        # A chain on a CPU and GPUs; a group that the first device is closed to needs a GPU.
        num_groups, num_devices = allowed.shape
        kinds = [("CPU", "GPU") if row[0] else ("GPU",) for row in allowed]
        ops = [Op(f"op{i}", "MatMul", device_kinds=kind) for i, kind in enumerate(kinds)]
        tensors = [(i, (i + 1,), 1000) for i in range(num_groups - 1)]
        topology = topology_of("CPU", *["GPU"] * (num_devices - 1))
        profile = profile_of(ops, tensors, topology, cpu_factor=1.5)
        policy = GraphPolicy(profile, Grouping(np.arange(num_groups)))
        rng = np.random.default_rng(seed)
        policy.restore(policy.state() | {"table": 0.1 * rng.normal(size=allowed.shape)})
        return policy


def parameters_with(**weights):
    """Return variables with which the network adds these weights of inputs, everywhere."""
    parameters = {name: np.zeros_like(value) for name, value in new_parameters().items()}
    for name, weight in weights.items():
        parameters["weights_bias"][INPUTS.index(name.replace("_", " "))] = weight
    return parameters


def log_odds(policy, actions, group):
    """Return log p(device 0) - log p(device 1) of a group, after these actions."""
    rows = np.array([actions, actions], dtype=np.int32)
    rows[:, group] = 0, 1
    first, second = policy.log_probs(rows)[:, group]
    return first - second


def random_parameters(seed):
    rng = np.random.default_rng(seed)
    return {
        name: value + 0.3 * rng.normal(size=value.shape) / np.sqrt(value.shape[0])
        for name, value in new_parameters(seed).items()
    }


class TestScore:
    # With two groups on two devices the prior is log(1 + 1 · 1), since 2 / 8 - 1 is below 1.
    PRIOR = np.log(2)

    def chain(self, **limits):
        """Return a and b of a second each, with a byte between that takes a second."""
        return make_profile([1.0, 1.0], [(0, (1,), 1)], make_topology(2, **limits))

    def odds_of_b(self, profile, **weights):
        parameters = parameters_with(**weights)
        policy = GraphPolicy(profile, Grouping([0, 1]), parameters=parameters)
        return log_odds(policy, [0, 0], 1)

    def test_untrained_it_stays_and_follows_its_neighbors(self):
        # Device 0 has stay 0.4 and pull 0.6, device 1 has nothing.
        expected = 10 * np.tanh(self.PRIOR / 10)

        assert self.odds_of_b(self.chain()) == pytest.approx(expected)

    @pytest.mark.parametrize(
        ("name", "difference"),
        [
            ("strongest", 1),
            ("last", 1),
            # b ends at 2 on device 0; on device 1 its input is there at 2, and it ends at 3.
            ("late", 1 / 2),
            ("very_late", 1 / 11),
            ("wait", 1 / 2),
            ("sending", 1 / 2),
            # Everything so far ends at 1: b is longer by 1 or 2, 1/2 or 2/3 when bounded.
            ("longer", 2 / 3 - 1 / 2),
            # a is half of all work: the mean device has as much.
            ("load", -1),
            ("unused", -1),
            ("slow", 0),
            # What b shares with a takes a second.
            ("cut", 1 / 2),
            ("memory", 0),
            ("crowded", 0),
            ("full", 0),
        ],
    )
    def test_an_input_is_the_difference_that_is_found_on_paper(self, name, difference):
        first = self.PRIOR * 1.0
        second = self.PRIOR * 0.0
        # Only differences are asserted, to first order: a weight so small that tanh is straight.
        weight = 1e-4

        changed = self.odds_of_b(self.chain(), **{name: weight})

        slope = 1 - np.tanh(first / 10) ** 2 if difference > 0 else 1 - np.tanh(second / 10) ** 2
        found = (changed - self.odds_of_b(self.chain())) / (self.PRIOR * weight * slope)
        assert found == pytest.approx(difference, rel=0.02, abs=1e-6)

    def test_a_device_that_is_full_is_avoided(self):
        # a and b hold a byte and make one or none: device 0 would hold 3 of its 2 bytes.
        profile = make_profile(
            [1.0, 1.0], [(0, (1,), 1)], make_topology(2, memory_bytes=2), memory_bytes=[1, 1]
        )

        # Full: 0.4 + 0.6 - 1, beside memory of 3/2 and 1/2 that has no weight untrained.
        assert self.odds_of_b(profile) == pytest.approx(0)
        assert self.odds_of_b(profile, memory=1.0) == pytest.approx(
            10 * np.tanh(-1.5 * self.PRIOR / 10) + 10 * np.tanh(0.5 * self.PRIOR / 10)
        )

    def test_a_device_with_copies_of_what_was_made_elsewhere_may_be_crowded(self):
        # Of 4 bytes each: a on 0 makes 2 and sends them to b on 1, which holds 1; c needs 2.
        # Device 0 would hold 4, device 1 3 and the copy of 2.
        profile = make_profile(
            [1.0] * 3, [(0, (1,), 2)], make_topology(2, memory_bytes=4), memory_bytes=[0, 1, 2]
        )
        policy = GraphPolicy(profile, Grouping([0, 1, 2]), parameters=parameters_with(crowded=1))

        # Device 1 has stay 0.4, and 1 against it for being crowded.
        expected = -10 * np.tanh((0.4 - 1) * self.PRIOR / 10)
        assert log_odds(policy, [0, 1, 0], 2) == pytest.approx(expected)

    def test_the_slower_device_counts_by_the_logarithm(self):
        profile = profile_of([Op("a", "MatMul")], [], topology_of("CPU", "GPU"), cpu_factor=10)
        policy = GraphPolicy(profile, Grouping([0]), parameters=parameters_with())

        # One group, two devices: prior log 2, and the first has the logarithm of 10 against it.
        expected = 10 * np.tanh(-self.PRIOR * np.log(10) / 10)
        assert log_odds(policy, [0], 0) == pytest.approx(expected)


class TestSchedule:
    def scheduled(self, profile, grouping, actions):
        problem = GraphProblem(profile, grouping)
        schedule = new_schedule(problem.program)
        chosen = np.asarray(actions, dtype=np.int32)[problem.order]
        for group in range(problem.num_groups):
            place(problem.program, schedule, chosen, group)
        return problem, schedule

    @settings(deadline=None, max_examples=50)
    @given(profiles(), st.integers(0, 2**32 - 1))
    def test_every_op_is_scheduled_after_its_inputs_and_nothing_overlaps(self, profile, seed):
        grouping = group_ops(profile).grouping
        actions = random_placement(profile, grouping, seed=seed)

        problem, schedule = self.scheduled(profile, grouping, actions)

        program, num_ops = problem.program, profile.graph.num_ops
        device_of_op = actions[problem.order][program.group_of_op]
        spans = []
        for op in range(num_ops):
            compute = program.compute[op, device_of_op[op]]
            start = schedule.end[op] - compute
            for at in range(program.first_input[op], program.first_input[op + 1]):
                tensor = program.inputs[at]
                source = program.producer[tensor]
                there = schedule.end[source]
                if device_of_op[source] != device_of_op[op]:
                    there = schedule.arrival[tensor, device_of_op[op]]
                    pair = device_of_op[source], device_of_op[op]
                    sent = (
                        program.latency[pair] + program.size_bytes[tensor] * program.per_byte[pair]
                    )
                    assert there >= (schedule.end[source] + sent) * (1 - 1e-12)
                assert start >= there - 1e-9 * max(1, there)
            if compute > 0:
                spans.append((device_of_op[op], start, schedule.end[op]))
        spans.sort()
        for before, after in itertools.pairwise(spans):
            if before[0] == after[0]:
                assert after[1] >= before[2] - 1e-9 * max(1, before[2])

    @settings(deadline=None, max_examples=50)
    @given(profiles())
    def test_opening_ops_wait_for_placed_groups_alone_and_none_is_left_out(self, profile):
        problem = GraphProblem(profile, group_ops(profile).grouping)
        program = problem.program

        assert program.first_op[-1] == profile.graph.num_ops
        for group in range(problem.num_groups):
            first, opened = program.first_op[group], program.end_of_opening[group]
            last = program.first_op[group + 1]
            assert set(program.group_of_op[first:opened]) <= {group}
            assert (program.group_of_op[first:last] <= group).all()
            for op in range(first, last):
                inputs = program.inputs[program.first_input[op] : program.first_input[op + 1]]
                assert (program.producer[inputs] < op).all()

    def test_weights_are_placed_right_before_their_first_user(self):
        # Read of weights w, then a chain a - b - c; c reads w.
        profile = make_profile(
            [0.0, 1.0, 1.0, 1.0], [(0, (3,), 1), (1, (2,), 1), (2, (3,), 1)], make_topology(2)
        )

        problem = GraphProblem(profile, Grouping([0, 1, 2, 3]))

        assert problem.order.tolist() == [1, 2, 0, 3]

    def test_on_one_device_everything_ends_after_all_work(self):
        profile = generated_profile(np.random.default_rng(3), max_groups=60, family="inception")
        grouping = group_ops(profile).grouping
        problem, schedule = self.scheduled(
            profile, grouping, np.full(grouping.num_groups, profile.topology.num_devices - 1)
        )

        assert schedule.latest[0] == pytest.approx(problem.program.compute[:, -1].sum())

    @given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=25))
    def test_gaps_are_those_of_a_plain_list_of_busy_seconds(self, jobs):
        busy: set[int] = set()
        starts, ends = np.zeros((1, 48)), np.zeros((1, 48))
        counts = np.zeros(1, dtype=np.int64)

        for ready, duration in jobs:
            expected = ready
            while any(second in busy for second in range(expected, expected + max(duration, 1))):
                expected += 1
            if duration == 0:  # ends where it starts, as soon as nothing else runs
                expected = ready
                while expected in busy and expected - 1 in busy:
                    expected += 1
            found = first_gap(starts, ends, counts, 0, float(ready), float(duration))
            assert found == expected
            fill_gap(starts, ends, counts, 0, found, found + duration)
            busy.update(range(expected, expected + duration))

    def test_if_there_are_too_many_gaps_the_first_is_given_up(self):
        starts, ends = np.zeros((1, 3)), np.zeros((1, 3))
        counts = np.zeros(1, dtype=np.int64)

        for start in (2.0, 4.0, 6.0):
            fill_gap(starts, ends, counts, 0, start, start + 1)

        # From 3 to 4 nothing fits any more, but from 5 to 6.
        assert first_gap(starts, ends, counts, 0, 2.0, 1.0) == 5.0


class TestGradient:
    @pytest.mark.parametrize(("entropy_bonus", "temperature"), [(0.0, 1.0), (0.3, 0.5)])
    def test_it_agrees_with_finite_differences(self, entropy_bonus, temperature):
        rng = np.random.default_rng(0)
        profile = generated_profile(np.random.default_rng(12), min_groups=20, max_groups=20)
        problem = GraphProblem(profile, group_ops(profile).grouping)
        parameters, terms = random_parameters(1), GraphTerms.zeros(problem)
        for own in (terms.table, terms.shift):
            own[:] = 0.3 * rng.normal(size=own.shape)
        noise = gumbel_noise(0, np.arange(5), terms.table.shape)
        actions = sampled(parameters, problem, terms, noise)
        advantages = rng.normal(size=5)

        def objective():
            found = gradient_of(
                parameters,
                problem,
                terms,
                actions,
                advantages,
                entropy_bonus=entropy_bonus,
                temperature=temperature,
            )
            gained = (advantages * found.log_probs.sum(axis=1)).mean()
            return gained + entropy_bonus * found.entropies.sum(axis=1).mean(), found

        _, found = objective()
        own = {"table": terms.table, "shift": terms.shift}
        gradient = found.shared | {"table": found.terms.table, "shift": found.terms.shift}
        assert gradient.keys() == (parameters | own).keys()
        for name, values in (parameters | own).items():
            for _ in range(3):
                index = tuple(rng.integers(size) for size in values.shape)
                kept, slopes = values[index], []
                for change in (1e-6, -1e-6):
                    values[index] = kept + change
                    slopes.append(objective()[0] / (2 * change))
                values[index] = kept
                assert gradient[name][index] == pytest.approx(sum(slopes), rel=1e-4, abs=1e-6)

    def test_a_low_temperature_draws_the_likeliest_placement(self):
        profile = generated_profile(np.random.default_rng(2), max_groups=60)
        problem = GraphProblem(profile, group_ops(profile).grouping)
        parameters, terms = random_parameters(1), GraphTerms.zeros(problem)
        noise = gumbel_noise(0, np.arange(4), terms.table.shape)

        cold = sampled(parameters, problem, terms, noise, temperature=1e-9)

        # But for the names of equal devices, among which chance decides.
        likeliest = sampled(parameters, problem, terms, np.zeros_like(noise))
        found = gradient_of(
            parameters, problem, terms, np.concatenate([cold, likeliest]), np.zeros(8)
        ).log_probs
        assert found[:4] == pytest.approx(found[4:])

    def test_actions_of_another_graph_are_refused(self):
        profile = make_profile([1.0, 1.0], [], make_topology(2))
        policy = GraphPolicy(profile, Grouping([0, 1]))

        with pytest.raises(InvalidValueError, match=r"actions must have shape \[B, 2\]"):
            policy.log_probs(np.zeros((1, 3), dtype=np.int32))


class TestAdam:
    def test_the_first_step_is_the_learning_rate_in_the_direction_of_the_gradient(self):
        variables = {"a": np.array([1.0, 1.0]), "b": np.array([5.0])}
        adam = Adam(variables, {"a": 0.1, "b": 0.5})

        norm = adam.climb({"a": np.array([3.0, -4.0]), "b": np.array([0.0])}, scale=0.5)

        assert norm == 5
        assert variables["a"] == pytest.approx([1.05, 0.95])
        assert variables["b"] == pytest.approx([5.0])

    def test_a_gradient_that_is_too_long_is_scaled_down_before_it_counts(self):
        # A hundredth of (3, 4) is (0.03, 0.04); Adam keeps a tenth of it as the mean.
        adam = Adam({"a": np.zeros(2)}, {"a": 1.0}, largest_norm=0.05)

        adam.climb({"a": np.array([3.0, 4.0])})

        assert adam.state()["adam/mean/a"] == pytest.approx(np.array([0.003, 0.004]))


class TestWhatMustNotMatter:
    def log_probs(self, profile, grouping, actions):
        policy = GraphPolicy(profile, grouping, parameters=random_parameters(4))
        return policy.log_probs(actions)

    @pytest.fixture
    def case(self):
        profile = generated_profile(np.random.default_rng(8), family="layered", max_groups=60)
        link = Link(bandwidth_bytes_per_s=1e9, latency_s=1e-5)
        profile = dataclasses.replace(
            profile,
            topology=DeviceTopology.uniform(4, link),
            graph=OpGraph(
                tuple(
                    dataclasses.replace(op, device_kinds=("CPU", "GPU")) for op in profile.graph.ops
                ),
                profile.graph.tensors,
            ),
        )
        grouping = group_ops(profile).grouping
        actions = np.random.default_rng(0).integers(4, size=(3, grouping.num_groups))
        return profile, grouping, actions.astype(np.int32)

    def test_the_names_of_equal_devices(self, case):
        profile, grouping, actions = case
        names = np.array([2, 0, 3, 1], dtype=np.int32)

        assert self.log_probs(profile, grouping, names[actions]) == pytest.approx(
            self.log_probs(profile, grouping, actions)
        )

    def test_the_unit_of_time(self, case):
        profile, grouping, actions = case
        slow = dataclasses.replace(
            profile,
            costs=dataclasses.replace(
                profile.costs, compute_time_s=1024 * profile.costs.compute_time_s
            ),
            topology=DeviceTopology.uniform(4, Link(1e9 / 1024, 1024e-5)),
        )

        assert self.log_probs(slow, grouping, actions) == pytest.approx(
            self.log_probs(profile, grouping, actions)
        )

    def test_the_numbers_of_groups(self, case):
        profile, grouping, actions = case
        numbers = np.random.default_rng(1).permutation(grouping.num_groups)
        renumbered = Grouping(numbers[grouping.group_of_op])
        moved = np.empty_like(actions)
        moved[:, numbers] = actions

        expected = self.log_probs(profile, grouping, actions)

        assert self.log_probs(profile, renumbered, moved)[:, numbers] == pytest.approx(expected)


@settings(deadline=None, max_examples=30)
@given(profiles())
def test_features_are_finite_whatever_the_graph(profile):
    features = GraphProblem(profile, group_ops(profile).grouping).features

    assert features.shape[1] == NUM_FEATURES
    assert np.isfinite(features).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_greedy_placement_is_permitted_and_the_likeliest_of_all_samples(family):
    profile = generated_profile(np.random.default_rng(6), family=family, max_groups=40)
    grouping = group_ops(profile).grouping
    policy = pretrained(profile, grouping)

    greedy = policy.greedy()

    assert grouping.allowed(profile)[np.arange(grouping.num_groups), greedy].all()
    # Each choice is the likeliest given those before it.
    assert (
        np.exp(policy.log_probs(greedy[np.newaxis])) * profile.topology.num_devices >= 1 - 1e-9
    ).all()


class TestWeights:
    def test_on_families_that_were_held_out_they_beat_an_untrained_policy(self):
        ratios = []
        for number, family in enumerate(["transformer", "encoder-decoder"] * 4):
            rng = np.random.default_rng([77, number])
            profile = generated_profile(rng, family=family, max_groups=120)
            grouping = group_ops(profile).grouping
            policies = pretrained(profile, grouping), GraphPolicy(profile, grouping)
            actions = np.stack([policy.greedy() for policy in policies])
            found = Simulator(profile).run(actions[:, grouping.group_of_op])
            ratios.append(found.makespan_s[0] / found.makespan_s[1])

        assert np.exp(np.mean(np.log(ratios))) < 0.9

    def test_they_are_small_and_say_how_they_were_made(self):
        assert PRETRAINED.stat().st_size < 1_000_000
        assert load_parameters(PRETRAINED).keys() == new_parameters().keys()

    def test_those_of_another_network_are_refused_by_name(self, tmp_path):
        weights = new_parameters()
        np.savez(tmp_path / "other.npz", **(weights | {"embed": weights["embed"][1:]}))

        with pytest.raises(FileFormatError, match=r"other\.npz.*differs in 'embed'"):
            load_parameters(tmp_path / "other.npz")
        with pytest.raises(MissingFileError, match="no file of weights"):
            load_parameters(tmp_path / "none.npz")


@pytest.mark.parametrize(
    ("field", "value"),
    [("own_learning_rate", 0.0), ("shared_learning_rate", np.inf), ("entropy_bonus", -0.1)],
)
def test_settings_that_cannot_be_are_refused_by_name(field, value):
    with pytest.raises(InvalidValueError, match=f"{field} must be"):
        GraphConfig(**{field: value})
