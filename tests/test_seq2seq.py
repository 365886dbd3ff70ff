"""The sequence-to-sequence policy, in real TensorFlow, on problems of two to six groups."""

import dataclasses

import numpy as np
import pytest
from tensorflow.python.framework import config as tf_config

from placer.environment import Measurement, Outcome
from placer.errors import InvalidValueError
from placer.features import GroupFeatures, group_features
from placer.graph import BoolArray, Op
from placer.grouping import Grouping
from placer.policies.seq2seq import Seq2SeqConfig, Seq2SeqPolicy
from placer.policy import Policy
from placer.policy_gradient import reinforce_loss
from placer.reinforce import ReinforceConfig, ReinforceTrainer
from placer.training import train
from placer.trials import InMemoryTrialLog
from tests.grouped_profiles import chain_of, profile_of, topology_of
from tests.policies import ALL_ACTIONS, PolicyContract

pytestmark = pytest.mark.slow

SMALL = Seq2SeqConfig(
    hidden_size=6,
    attention_size=5,
    embedding_size=3,
    learning_rate=0.03,
    entropy_bonus=0.01,
    locality_prior=0.0,
    jit_compile=False,
)


def features_of(allowed: BoolArray) -> GroupFeatures:
    """A chain of as many ops, each a group, with other permissions."""
    features = group_features(chain_of(["m/p"] * len(allowed)), Grouping(range(len(allowed))))
    return dataclasses.replace(features, allowed=allowed)


def make_policy(*, groups=2, devices=2, seed=0, **settings) -> Seq2SeqPolicy:
    features = features_of(np.ones((groups, devices), dtype=np.bool_))
    return Seq2SeqPolicy(features, dataclasses.replace(SMALL, **settings), seed=seed)


class TestSeq2SeqPolicy(PolicyContract):
    def make_policy(self, allowed: BoolArray, *, seed: int = 0) -> Policy:
        return Seq2SeqPolicy(features_of(allowed), SMALL, seed=seed)


def loss_of(policy, actions, advantages):
    """The objective, from log_probs alone: the entropy enumerated over all actions."""
    log_probs = policy.log_probs(actions)
    entropies = -np.sum(np.exp(log_probs_of_step(policy)) * log_probs_of_step(policy), axis=2)
    # The second group's entropy depends on the first one's device.
    bonus = entropies[0, 0] + entropies[1, actions[:, 0]]
    return reinforce_loss(log_probs, advantages) - policy.config.entropy_bonus * bonus.mean()


def log_probs_of_step(policy):
    """Log-probabilities, ``[G, first device, device]``, of the four actions."""
    table = policy.log_probs(ALL_ACTIONS).reshape(2, 2, 2)
    first = np.broadcast_to(table[:, 0, 0], (2, 2))
    return np.stack([first, table[:, :, 1]])


@pytest.mark.parametrize("settings", [{}, {"align_decoder": False, "locality_prior": 1.0}])
def test_the_gradient_agrees_with_finite_differences_of_the_loss(settings):
    # After one step of Adam its first moment is (1 - 0.9) times the gradient, here not clipped.
    policy = make_policy(
        entropy_bonus=0.3, gradient_clip_norm=1e6, logit_temperature=1.0, **settings
    )
    advantages = np.array([1.5, -1.0, 0.5, 2.0])
    rng = np.random.default_rng(3)
    start = policy.state()
    names = [name for name in start if not name.startswith("adam/")]
    # Large parameters, so that no part of the network has a gradient lost in rounding.
    start |= {name: rng.normal(size=start[name].shape).astype(np.float32) for name in names}
    directions = {name: rng.normal(size=start[name].shape) for name in names}
    slopes = {}
    for name in names:
        losses = []
        for sign in (1, -1):
            moved = start[name] + sign * 0.01 * directions[name]
            policy.restore(start | {name: moved.astype(np.float32)})
            losses.append(loss_of(policy, ALL_ACTIONS, advantages))
        slopes[name] = (losses[0] - losses[1]) / 0.02
    policy.restore(start)

    metrics = policy.update(ALL_ACTIONS, advantages)

    after = policy.state()
    norm = 0.0
    for name in names:
        (slot,) = [s for s in after if s == f"adam/{name.replace('/', '_')}_0_momentum"]
        gradient = 10 * after[slot]
        norm += float(np.sum(gradient**2))
        assert np.sum(gradient * directions[name]) == pytest.approx(
            slopes[name], rel=0.02, abs=3e-5
        ), name
    assert metrics["gradient_norm"] == pytest.approx(np.sqrt(norm), rel=1e-4)


def test_the_metrics_are_those_of_the_policy_before_its_step():
    policy = make_policy(entropy_bonus=0.3)
    advantages = np.array([1.5, -1.0, 0.5, 2.0])
    loss = loss_of(policy, ALL_ACTIONS, advantages)
    steps = log_probs_of_step(policy)

    metrics = policy.update(ALL_ACTIONS, advantages)

    assert metrics["loss"] == pytest.approx(loss, rel=1e-5)
    # All four actions are in the batch, so each state is seen equally often.
    assert metrics["entropy"] == pytest.approx(-np.mean(np.sum(np.exp(steps) * steps, axis=2)))


def test_the_gradient_is_clipped_but_reported_whole():
    policy = make_policy(gradient_clip_norm=1e-3)

    metrics = policy.update(ALL_ACTIONS, np.array([5.0, -5.0, 5.0, -5.0]))

    moments = [array for name, array in policy.state().items() if name.endswith("_momentum")]
    clipped = 10 * np.sqrt(sum(np.sum(moment**2) for moment in moments))
    assert clipped == pytest.approx(1e-3, rel=1e-4)
    assert metrics["gradient_norm"] > 1e-2


def test_an_entropy_bonus_alone_makes_the_policy_more_uniform():
    policy = make_policy(entropy_bonus=1.0, locality_prior=2.0)

    entropies = [policy.update(ALL_ACTIONS, np.zeros(4))["entropy"] for _ in range(5)]

    assert entropies[4] > entropies[0]


def test_a_later_choice_depends_on_an_earlier_one():
    policy = make_policy()

    # The same second device after different first ones.
    log_probs = policy.log_probs(np.array([[0, 1], [1, 1]], dtype=np.int32))

    assert log_probs[0, 1] != log_probs[1, 1]


def test_an_earlier_choice_does_not_depend_on_a_later_one():
    policy = make_policy(groups=4, devices=3, locality_prior=1.0)

    log_probs = policy.log_probs(np.array([[2, 1, 0, 0], [2, 1, 2, 1]], dtype=np.int32))

    assert log_probs[0, :2] == pytest.approx(log_probs[1, :2], abs=1e-6)


def test_logits_stay_within_their_bound():
    # With C = 0.1 two logits differ by 0.2 at most, so p(1) >= 1 / (1 + e^0.2).
    policy = make_policy(logit_bound=0.1, logit_temperature=0.01)

    assert policy.log_probs(ALL_ACTIONS).min() >= -np.log(1 + np.exp(0.2)) - 1e-6


def test_without_a_prior_the_policy_starts_near_uniform():
    log_probs = make_policy(devices=4, groups=6).log_probs(np.zeros((1, 6), dtype=np.int32))

    assert log_probs == pytest.approx(np.full((1, 6), -np.log(4)), abs=0.1)


def test_the_prior_favours_the_previous_groups_device_and_the_producers():
    # In a chain the previous group is the only producer: the same device gains 2 twice over.
    policy = make_policy(groups=3, devices=2, locality_prior=2.0)

    log_probs = policy.log_probs(np.array([[0, 0, 1]], dtype=np.int32))[0]

    assert log_probs[0] == pytest.approx(-np.log(2), abs=0.2)
    assert log_probs[1] == pytest.approx(-np.log(1 + np.exp(-4)), abs=0.05)
    assert log_probs[2] == pytest.approx(-4, abs=0.3)


def test_producers_vote_by_their_share_of_what_a_group_receives():
    # c receives 100 bytes (+ 1) from a and 300 (+ 1) from b, which is also the group before.
    ops = [Op(name, "MatMul") for name in "abc"]
    profile = profile_of(ops, [(0, (2,), 100), (1, (2,), 300)], topology_of("GPU", "GPU"))
    config = dataclasses.replace(SMALL, locality_prior=1.0, logit_bound=1e-6)
    policy = Seq2SeqPolicy(group_features(profile, Grouping([0, 1, 2])), config, seed=0)

    log_probs = policy.log_probs(np.array([[0, 1, 0]], dtype=np.int32))[0]

    # Device 0 has a's vote; device 1 has b's vote and 1 for staying.
    difference = 101 / 402 - (301 / 402 + 1)
    assert log_probs[2] == pytest.approx(-np.log(1 + np.exp(-difference)), abs=1e-4)


def test_the_initial_parameters_depend_on_the_seed_alone():
    states = [make_policy(seed=seed).state() for seed in (0, 0, 1)]

    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])
    assert not np.array_equal(states[0]["output"], states[2]["output"])


def test_compiled_by_xla_it_is_the_same_policy():
    compiled, plain = make_policy(jit_compile=True), make_policy(jit_compile=False)
    advantages = np.array([1.0, -1.0, 0.5, 0.0])

    metrics = [policy.update(ALL_ACTIONS, advantages) for policy in (compiled, plain)]

    assert metrics[0] == pytest.approx(metrics[1], rel=1e-4)
    assert compiled.log_probs(ALL_ACTIONS) == pytest.approx(plain.log_probs(ALL_ACTIONS), abs=1e-3)
    numbers = np.arange(4)
    assert np.array_equal(compiled.sample(0, numbers), plain.sample(0, numbers))


@pytest.mark.parametrize("shape", [(4,), (4, 3)])
def test_actions_of_another_number_of_groups_are_refused(shape):
    with pytest.raises(InvalidValueError, match=r"actions must have shape \[B, 2\]"):
        make_policy().log_probs(np.zeros(shape, dtype=np.int32))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", 0),
        ("learning_rate", float("nan")),
        ("logit_temperature", 0.0),
        ("entropy_bonus", -0.1),
        ("locality_prior", float("inf")),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(field, value):
    with pytest.raises(InvalidValueError, match=field):
        Seq2SeqConfig(**{field: value})


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
    trainer = ReinforceTrainer(make_policy(seed=policy_seed), config)
    environment = OneSecondForEachOnDevice0()
    for _ in train(
        trainer, environment, Grouping([0, 1]), log, num_trials=num_trials, checkpoint_every=5
    ):
        pass
    return trainer


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_learns_the_best_of_four_placements(seed):
    trainer = train_on_bandit(InMemoryTrialLog(), num_trials=640, policy_seed=seed, seed=seed)

    probabilities = np.exp(trainer.policy.log_probs(ALL_ACTIONS).sum(axis=1))
    assert probabilities[3] > 0.8
    assert trainer.best.device_of_group == (1, 1)


def test_a_training_that_is_continued_asks_for_the_very_same_trials():
    whole, parts = InMemoryTrialLog(), InMemoryTrialLog()
    train_on_bandit(whole, num_trials=96, policy_seed=0)

    train_on_bandit(parts, num_trials=44, policy_seed=0)
    # Another initial policy: everything must come from the checkpoint.
    train_on_bandit(parts, num_trials=96, policy_seed=7)

    actions = [[trial.device_of_group for trial in log.trials()] for log in (whole, parts)]
    assert actions[0] == actions[1]


def test_ops_are_deterministic_for_the_policy_and_the_process_stays_as_it_was() -> None:
    policy = make_policy()
    seen = []
    sampled = policy._sample

    def watched(noise: object) -> object:
        seen.append(tf_config.is_op_determinism_enabled())
        return sampled(noise)

    policy._sample = watched
    policy.sample(0, np.arange(2))

    assert seen == [True]
    assert not tf_config.is_op_determinism_enabled()
