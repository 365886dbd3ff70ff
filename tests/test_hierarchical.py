"""The hierarchical policy, in real TensorFlow, on problems of two to six units."""

import dataclasses
import itertools

import numpy as np
import pytest

from placer.environment import Measurement, Outcome
from placer.errors import InvalidValueError
from placer.graph import BoolArray, Op
from placer.grouping import Grouping
from placer.policies.first_groups import Units, first_groups, units_of
from placer.policies.hierarchical import STRAY, HierarchicalConfig, HierarchicalPolicy
from placer.policy import Policy
from placer.policy_gradient import reinforce_loss
from placer.reinforce import ReinforceConfig, ReinforceTrainer
from placer.training import train
from placer.trials import InMemoryTrialLog
from tests.grouped_profiles import chain_of, profile_of, topology_of
from tests.policies import PolicyContract

pytestmark = pytest.mark.slow

SMALL = HierarchicalConfig(
    unit_groups=2,
    hidden_size=6,
    attention_size=5,
    embedding_size=3,
    learning_rate=0.01,
    entropy_bonus=0.01,
    locality_prior=0.0,
    jit_compile=False,
)
SCALED = ("grouper/logits", "placer/logits", "placer/stay", "placer/pull")
"""Variables that stand for logits thirty times as large."""


def units_with(allowed: BoolArray) -> Units:
    """A chain of as many ops, each a unit, with other permissions."""
    units = units_of(chain_of(["m/p"] * len(allowed)), Grouping(range(len(allowed))))
    features = dataclasses.replace(units.features, allowed=allowed)
    return dataclasses.replace(units, features=features)


def make_policy(*, units=2, devices=2, seed=0, **settings) -> HierarchicalPolicy:
    chain = units_with(np.ones((units, devices), dtype=np.bool_))
    return HierarchicalPolicy(chain, dataclasses.replace(SMALL, **settings), seed=seed)


def all_actions(*, units, devices=2):
    return np.array(list(itertools.product(range(devices), repeat=units)), dtype=np.int32)


def leaders_of(policy):
    """The leader of each group: the unit that is in it for certain."""
    return [int(np.flatnonzero(column == 1)[0]) for column in policy.memberships().T]


def randomize(policy, seed=3):
    """Set all variables at random, so large that no part of the networks is without effect."""
    rng = np.random.default_rng(seed)
    state = policy.state()
    for name in state:
        if not name.startswith("adam/"):
            scale = 0.03 if name in SCALED else 1.0
            state[name] = (scale * rng.normal(size=state[name].shape)).astype(np.float32)
    policy.restore(state)
    return state


class TestHierarchicalPolicy(PolicyContract):
    def make_policy(self, allowed: BoolArray, *, seed: int = 0) -> Policy:
        return HierarchicalPolicy(units_with(allowed), SMALL, seed=seed)


class TestFirstGroups:
    def test_units_that_send_each_other_most_are_together(self):
        # a-c and b-d send 8 MB, a-b and c-d a byte: METIS cuts the bytes.
        tensors = [(0, (2,), 8_000_000), (1, (3,), 8_000_000), (0, (1,), 1), (2, (3,), 1)]
        profile = profile_of([Op(name, "MatMul") for name in "abcd"], tensors)

        groups = first_groups(units_of(profile, Grouping(range(4))), 2)

        assert groups.group_of_unit.tolist() == [0, 1, 0, 1]

    def test_the_leader_computes_longest_of_those_that_may_go_to_most_devices(self):
        ops = [Op(name, "MatMul") for name in "abcd"]
        profile = profile_of(ops, [(0, (1,), 1)], time_s=[1, 2, 2, 9])
        units = units_of(profile, Grouping(range(4)))
        allowed = np.ones((4, 3), dtype=np.bool_)
        allowed[3, 0] = False
        units = dataclasses.replace(
            units, features=dataclasses.replace(units.features, allowed=allowed)
        )

        # d computes longest but is the only one with a device less; b and c are equal.
        assert first_groups(units, 1).leader_of_group.tolist() == [1]

    def test_with_no_more_units_than_groups_each_unit_leads_itself(self):
        groups = first_groups(units_with(np.ones((3, 2), dtype=np.bool_)), 8)

        assert groups.group_of_unit.tolist() == [0, 1, 2]
        assert groups.leader_of_group.tolist() == [0, 1, 2]

    def test_closeness_is_one_plus_the_relative_transfer_time_both_ways(self):
        # Over a link of 1 ms and 1 GB/s: 2 ms and 4 ms, mean 3 ms.
        tensors = [(0, (2,), 1_000_000), (1, (2,), 3_000_000)]
        profile = profile_of([Op(name, "MatMul") for name in "abc"], tensors)

        closeness = units_of(profile, Grouping(range(3))).closeness

        expected = np.array([[0, 0, 5 / 3], [0, 0, 7 / 3], [5 / 3, 7 / 3, 0]])
        assert closeness == pytest.approx(expected)


def test_the_probabilities_of_all_placements_of_leaders_and_followers_sum_to_one():
    policy = make_policy(units=5)
    randomize(policy)

    log_probs = policy.log_probs(all_actions(units=5)).sum(axis=1)

    assert np.exp(log_probs).sum() == pytest.approx(1, abs=1e-5)


def test_a_probability_is_the_sum_over_all_groupings_of_the_units():
    policy = make_policy(units=5, devices=3)
    randomize(policy)
    memberships, leaders = policy.memberships(), leaders_of(policy)
    actions = np.array([[0, 1, 2, 0, 1], [2, 2, 1, 0, 2], [1, 1, 1, 1, 1]], dtype=np.int32)
    log_probs = policy.log_probs(actions)

    for action, of_units in zip(actions, log_probs, strict=True):
        total = 0.0
        for grouping in itertools.product(range(2), repeat=5):
            probability = 1.0
            for unit, group in enumerate(grouping):
                agrees = action[unit] == action[leaders[group]]
                followed = (1 - STRAY) * agrees + STRAY / 3
                probability *= memberships[unit, group] * (
                    followed if unit not in leaders else group == leaders.index(unit)
                )
            total += probability
        expected = total * np.exp(of_units[leaders].sum())
        assert np.exp(of_units.sum()) == pytest.approx(expected, rel=1e-4)


def test_frequencies_of_leaders_and_followers_agree_with_log_probs():
    policy = make_policy(units=3)
    randomize(policy)
    actions = all_actions(units=3)
    expected = 8000 * np.exp(policy.log_probs(actions).sum(axis=1))

    drawn = policy.sample(1, np.arange(8000))

    counts = np.bincount(drawn @ np.array([4, 2, 1]), minlength=8)
    # By the central limit theorem; 4.5 deviations happen to one of 8 counts once in 18,000.
    deviations = np.abs(counts - expected) / np.sqrt(np.maximum(expected, 4.0))
    assert deviations.max() < 4.5


def objective(policy, actions, advantages):
    """The loss, from log_probs alone: each unit's entropy enumerated over its devices."""
    log_probs = policy.log_probs(actions)
    entropies = np.zeros(actions.shape)
    for unit, device in itertools.product(range(actions.shape[1]), range(2)):
        moved = actions.copy()
        moved[:, unit] = device
        own = policy.log_probs(moved)[:, unit]
        entropies[:, unit] -= np.exp(own) * own
    bonus = policy.config.entropy_bonus * entropies.sum(axis=1).mean()
    return reinforce_loss(log_probs, advantages) - bonus


def test_the_gradient_agrees_with_finite_differences_of_the_loss():
    # After one step of Adam its first moment is (1 - 0.9) times the gradient, here not clipped.
    policy = make_policy(units=4, entropy_bonus=0.3, gradient_clip_norm=1e6, logit_temperature=1.0)
    rng = np.random.default_rng(5)
    actions = rng.integers(0, 2, (6, 4)).astype(np.int32)
    advantages = np.array([1.5, -1.0, 0.5, 2.0, -0.3, -1.2])
    start = randomize(policy)
    loss = objective(policy, actions, advantages)
    names = [name for name in start if not name.startswith("adam/")]
    directions, slopes = {}, {}
    for name in names:
        directions[name] = (0.03 if name in SCALED else 1) * rng.normal(size=start[name].shape)
        losses = []
        for sign in (1, -1):
            moved = start[name] + sign * 0.01 * directions[name]
            policy.restore(start | {name: moved.astype(np.float32)})
            losses.append(objective(policy, actions, advantages))
        slopes[name] = (losses[0] - losses[1]) / 0.02
    policy.restore(start)

    metrics = policy.update(actions, advantages)

    after = policy.state()
    assert metrics["loss"] == pytest.approx(loss, rel=1e-4)
    for name in names:
        (slot,) = [s for s in after if s == f"adam/{name.replace('/', '_')}_0_momentum"]
        gradient = 10 * after[slot]
        assert np.any(gradient != 0), name
        assert np.sum(gradient * directions[name]) == pytest.approx(
            slopes[name], rel=0.02, abs=2e-4
        ), name


def test_a_leader_depends_on_earlier_leaders_alone_and_a_follower_on_all():
    policy = make_policy(units=6, unit_groups=3)
    randomize(policy)
    leaders = leaders_of(policy)
    follower = min(set(range(6)) - set(leaders))
    zeros = np.zeros((1, 6), dtype=np.int32)
    later, earlier, follows = zeros.copy(), zeros.copy(), zeros.copy()
    later[0, leaders[2]] = earlier[0, leaders[0]] = follows[0, follower] = 1

    before, *moved = [policy.log_probs(each)[0] for each in (zeros, later, earlier, follows)]

    assert moved[0][leaders[:2]] == pytest.approx(before[leaders[:2]], abs=1e-6)
    assert moved[1][leaders[1]] != before[leaders[1]]
    assert moved[0][follower] < before[follower]
    others = [unit for unit in range(6) if unit != follower]
    assert moved[2][others] == pytest.approx(before[others], abs=1e-6)


def test_a_follower_goes_where_it_may_even_if_no_group_is_there():
    allowed = np.array([[True, True, True], [False, False, True], [True, True, False]])
    policy = HierarchicalPolicy(
        units_with(allowed), dataclasses.replace(SMALL, unit_groups=1), seed=0
    )

    # The leader is unit 0. Unit 1 has one device; unit 2 has two, and shares the stray evenly.
    log_probs = policy.log_probs(np.array([[0, 2, 1], [2, 2, 1]], dtype=np.int32))

    assert leaders_of(policy) == [0]
    assert np.all(log_probs[:, 1] == 0)
    stray = STRAY / 3
    assert log_probs[0, 2] == pytest.approx(np.log(stray / (1 - STRAY + 2 * stray)), rel=1e-4)
    assert log_probs[1, 2] == pytest.approx(np.log(1 / 2), abs=1e-5)
    actions = policy.sample(0, np.arange(200))
    assert np.all(allowed[np.arange(3), actions])


def test_the_prior_keeps_units_in_their_first_groups_but_for_a_few():
    units = units_with(np.ones((40, 2), dtype=np.bool_))
    config = dataclasses.replace(SMALL, unit_groups=4, locality_prior=2.0, strays=2.0)
    own = first_groups(units, 4).group_of_unit

    memberships = HierarchicalPolicy(units, config, seed=0).memberships()

    # A straying unit of a chain is mostly near its own group, so fewer than 2 are elsewhere.
    elsewhere = 40 - memberships[np.arange(40), own].sum()
    assert 0.2 < elsewhere < 2.0
    assert memberships.sum(axis=1) == pytest.approx(1, abs=1e-5)


def test_without_a_prior_groups_and_devices_start_near_uniform():
    policy = make_policy(units=12, devices=4, unit_groups=3)
    memberships, leaders = policy.memberships(), leaders_of(policy)
    followers = sorted(set(range(12)) - set(leaders))

    log_probs = policy.log_probs(np.zeros((1, 12), dtype=np.int32))[0]

    assert log_probs[leaders] == pytest.approx(-np.log(4), abs=0.5)
    assert memberships[followers] == pytest.approx(1 / 3, abs=0.3)


def test_the_prior_favours_the_device_before_and_those_of_placed_neighbours():
    # c receives 1 MB from a and 3 MB from b, which is also the group before: by the transfer
    # times of 2 and 4 ms a has a share of 5/12 and b of 7/12 (see closeness above).
    ops = [Op(name, "MatMul") for name in "abc"]
    tensors = [(0, (2,), 1_000_000), (1, (2,), 3_000_000)]
    units = units_of(profile_of(ops, tensors, topology_of("GPU", "GPU")), Grouping(range(3)))
    config = dataclasses.replace(SMALL, unit_groups=3, locality_prior=1.5, logit_bound=1e-6)

    log_probs = HierarchicalPolicy(units, config, seed=0).log_probs(
        np.array([[0, 1, 0]], dtype=np.int32)
    )[0]

    assert log_probs[0] == pytest.approx(-np.log(2), abs=1e-5)
    # b has no placed neighbour: only a's device, as the one before.
    assert log_probs[1] == pytest.approx(-np.log(1 + np.exp(1.5)), abs=1e-4)
    difference = 1.5 * (5 / 12 - (7 / 12 + 1))
    assert log_probs[2] == pytest.approx(-np.log(1 + np.exp(-difference)), abs=1e-4)


def test_in_the_greedy_placement_no_unit_prefers_another_device():
    policy = make_policy(units=6, unit_groups=3)
    randomize(policy)

    greedy = policy.greedy()

    chosen = policy.log_probs(greedy[None])[0]
    for unit in range(6):
        moved = greedy.copy()
        moved[unit] = 1 - moved[unit]
        assert policy.log_probs(moved[None])[0, unit] <= chosen[unit]


def test_the_initial_parameters_depend_on_the_seed_alone():
    states = [make_policy(seed=seed).state() for seed in (0, 0, 1)]

    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])
    assert not np.array_equal(states[0]["placer/output"], states[2]["placer/output"])


def test_compiled_by_xla_it_is_the_same_policy():
    compiled, plain = (make_policy(units=3, jit_compile=jit) for jit in (True, False))
    actions = all_actions(units=3)[:4]

    metrics = [
        policy.update(actions, np.array([1.0, -1.0, 0.5, 0.0])) for policy in (compiled, plain)
    ]

    assert metrics[0] == pytest.approx(metrics[1], rel=1e-4)
    assert compiled.log_probs(actions) == pytest.approx(plain.log_probs(actions), abs=1e-3)
    numbers = np.arange(4)
    assert np.array_equal(compiled.sample(0, numbers), plain.sample(0, numbers))


@pytest.mark.parametrize("shape", [(4,), (4, 3)])
def test_actions_of_another_number_of_units_are_refused(shape):
    with pytest.raises(InvalidValueError, match=r"actions must have shape \[B, 2\]"):
        make_policy().log_probs(np.zeros(shape, dtype=np.int32))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("unit_groups", 0),
        ("learning_rate", float("nan")),
        ("strays", 0.0),
        ("entropy_bonus", -0.1),
        ("locality_prior", float("inf")),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(field, value):
    with pytest.raises(InvalidValueError, match=field):
        HierarchicalConfig(**{field: value})


class OneSecondForEachOnDevice0:
    """The best placement has every op on device 1: one second; each on device 0 adds one."""

    name = "bandit"

    def measure(self, placements):
        return [
            Measurement(outcome=Outcome.OK, step_time_s=1 + float(np.sum(p.device_of_op == 0)))
            for p in placements
        ]


def train_on_bandit(log, *, num_trials, policy_seed, seed=0):
    config = ReinforceConfig(failing_step_time_s=10.0, batch_size=8, seed=seed)
    trainer = ReinforceTrainer(make_policy(units=4, seed=policy_seed), config)
    environment, grouping = OneSecondForEachOnDevice0(), Grouping(range(4))
    for _ in train(trainer, environment, grouping, log, num_trials=num_trials, checkpoint_every=5):
        pass
    return trainer


@pytest.mark.parametrize("seed", [0, 1])
def test_it_learns_the_best_placement_of_leaders_and_followers(seed):
    trainer = train_on_bandit(InMemoryTrialLog(), num_trials=640, policy_seed=seed, seed=seed)

    best = trainer.policy.log_probs(np.ones((1, 4), dtype=np.int32)).sum()
    assert np.exp(best) > 0.8
    assert trainer.best.device_of_group == (1, 1, 1, 1)


def test_a_unit_learns_to_leave_its_group():
    # Leaders on different devices; the follower is told again and again to be with the other.
    policy = make_policy(units=3, locality_prior=2.0, strays=0.2, entropy_bonus=0.0)
    leaders = leaders_of(policy)
    (follower,) = set(range(3)) - set(leaders)
    own = int(np.argmax(policy.memberships()[follower]))
    action = np.zeros((1, 3), dtype=np.int32)
    action[0, leaders[1 - own]] = action[0, follower] = 1

    for _ in range(40):
        policy.update(action, np.array([1.0]))

    assert np.argmax(policy.memberships()[follower]) == 1 - own


def test_a_training_that_is_continued_asks_for_the_very_same_trials():
    whole, parts = InMemoryTrialLog(), InMemoryTrialLog()
    train_on_bandit(whole, num_trials=96, policy_seed=0)

    train_on_bandit(parts, num_trials=44, policy_seed=0)
    # Another initial policy: everything must come from the checkpoint.
    train_on_bandit(parts, num_trials=96, policy_seed=7)

    actions = [[trial.device_of_group for trial in log.trials()] for log in (whole, parts)]
    assert actions[0] == actions[1]
