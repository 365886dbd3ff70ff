"""PPO's own arithmetic; what it shares with other trainers is in test_trainers.py."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from placer.errors import InvalidValueError
from placer.policy_gradient import (
    clipped_advantages,
    clipped_surrogate,
    divergence_of_choices,
    truncated_importance,
)
from placer.ppo import PpoConfig
from tests.policies import ALL_ACTIONS, EVERYWHERE, TablePolicy
from tests.test_trainers import make_trainer, make_updates, measured

LOG_RATIOS = arrays.arrays(np.float64, (4, 3), elements=st.floats(-3, 3))
ADVANTAGES = arrays.arrays(np.float64, 4, elements=st.floats(-3, 3))


def test_the_surrogate_of_a_few_placements_is_that_of_the_paper():
    # Two groups: mean ratios 1.5 and 0.5, clipped to 1.2 and 0.8.
    log_ratios = np.log([[1.5, 1.5], [0.25, 1.0]])

    # min(1.5 * 1, 1.2 * 1) and min(0.5 * -2, 0.8 * -2); the mean, times two groups.
    value = clipped_surrogate(log_ratios, np.array([1.0, -2.0]), clip=0.2)
    # The other way round the ratio itself is the smaller: 1.5 * -2 and 0.5 * 1.
    other = clipped_surrogate(log_ratios, np.array([-2.0, 1.0]), clip=0.2)

    assert value == pytest.approx(1.2 - 1.6)
    assert other == pytest.approx(-3 + 0.5)


@given(LOG_RATIOS, ADVANTAGES)
def test_the_surrogate_never_promises_more_than_the_ratio_does(log_ratios, advantages):
    unclipped = 3 * np.mean(np.exp(log_ratios.mean(axis=1)) * advantages)

    assert clipped_surrogate(log_ratios, advantages, clip=0.2) <= unclipped + 1e-9


@pytest.mark.parametrize("seed", [0, 1, 2, 4, 5, 7])
def test_an_update_by_clipped_advantages_climbs_the_clipped_surrogate(seed):
    # A step of TablePolicy is its gradient; compared with differences of the surrogate.
    rng = np.random.default_rng(seed)
    advantages = rng.normal(size=4)
    sampled = TablePolicy(EVERYWHERE, seed=seed).log_probs(ALL_ACTIONS)
    policy = TablePolicy(EVERYWHERE)
    logits = rng.normal(size=(2, 2))

    def surrogate(moved):
        policy.restore({"logits": moved})
        return clipped_surrogate(policy.log_probs(ALL_ACTIONS) - sampled, advantages, clip=0.2)

    gradient = np.zeros((2, 2))
    for index in np.ndindex(2, 2):
        step = np.zeros((2, 2))
        step[index] = 1e-6
        gradient[index] = (surrogate(logits + step) - surrogate(logits - step)) / 2e-6

    policy.restore({"logits": logits})
    log_ratios = policy.log_probs(ALL_ACTIONS) - sampled
    pushing = clipped_advantages(log_ratios, advantages, clip=0.2)
    policy.update(ALL_ACTIONS, pushing)

    assert policy.state()["logits"] - logits == pytest.approx(gradient, abs=1e-6)
    assert (pushing == 0).any()  # the case is not one without any clip


def test_only_what_went_too_far_in_its_own_direction_is_clipped():
    ratios = np.array([1.5, 1.5, 0.5, 0.5, 1.1, 0.9])
    advantages = np.array([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])

    found = clipped_advantages(np.log(ratios)[:, None], advantages, clip=0.2)

    assert found == pytest.approx([0, -1.5, 0.5, 0, 1.1, -0.9])


@given(LOG_RATIOS)
def test_the_divergence_is_never_negative_and_zero_for_the_same_policy(log_ratios):
    assert divergence_of_choices(log_ratios) >= 0
    assert divergence_of_choices(np.zeros((4, 3))) == 0


def test_the_divergence_estimates_that_of_kullback_and_leibler():
    # All actions of one group, weighted by their probability: 1/4 and 3/4 by repetition.
    old, new = np.array([0.25, 0.75]), np.array([0.5, 0.5])
    drawn = np.array([0, 1, 1, 1])

    found = divergence_of_choices(np.log(new / old)[drawn][:, None])

    assert found == pytest.approx(np.sum(old * np.log(old / new)))


def test_importance_is_truncated_at_one():
    assert truncated_importance(np.log([0.25, 1.0, 4.0])) == pytest.approx([0.25, 1, 1])
    assert truncated_importance(np.array([1e6, -1e6])).tolist() == [1, 0]


def test_one_epoch_is_reinforce():
    ppo, reinforce = make_trainer("ppo", epochs=1), make_trainer("reinforce")

    make_updates(ppo, 3)
    make_updates(reinforce, 3)

    states = [trainer.policy.state()["logits"] for trainer in (ppo, reinforce)]
    assert np.array_equal(*states)


def test_further_epochs_climb_the_surrogate_of_the_policy_that_drew():
    trainer = make_trainer("ppo", epochs=3, largest_divergence=100.0, learning_rate=0.1)
    by_hand = TablePolicy(EVERYWHERE, learning_rate=0.1)
    batch = measured(trainer.ask())
    actions = np.array([trial.device_of_group for trial in batch], dtype=np.int32)
    rewards = np.array([-math.sqrt(t.measurement.step_time_s or 100.0) for t in batch])
    advantages = rewards + 10  # the baseline begins at the failing signal
    advantages /= np.sqrt(np.mean(advantages**2))
    sampled = by_hand.log_probs(actions)
    for _ in range(3):
        log_ratios = by_hand.log_probs(actions) - sampled
        by_hand.update(actions, clipped_advantages(log_ratios, advantages, clip=0.2))

    metrics = trainer.tell(batch)

    assert trainer.policy.state()["logits"] == pytest.approx(by_hand.state()["logits"])
    log_ratios = by_hand.log_probs(actions) - sampled
    assert metrics["epochs"] == 3
    assert metrics["divergence"] == pytest.approx(divergence_of_choices(log_ratios))


def test_the_epochs_end_once_the_policy_has_moved_too_far():
    free = make_trainer("ppo", epochs=5, largest_divergence=100.0)
    bound = make_trainer("ppo", epochs=5, largest_divergence=1e-9)

    metrics = [make_updates(trainer, 1)[0] for trainer in (free, bound)]

    assert [each["epochs"] for each in metrics] == [5, 1]
    assert metrics[1]["divergence"] > 1e-9


def test_a_placement_beyond_the_clip_pushes_no_further():
    trainer = make_trainer("ppo", epochs=50, largest_divergence=100.0, clip=0.01)

    metrics = make_updates(trainer, 1)[0]

    assert metrics["clipped_share"] > 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("clip", 0),
        ("clip", 1),
        ("epochs", 0),
        ("largest_divergence", 0),
        ("largest_divergence", math.inf),
        ("baseline_decay", 1),
        ("batch_size", 0),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(field, value):
    with pytest.raises(InvalidValueError, match=field):
        PpoConfig(**{"failing_step_time_s": 1.0} | {field: value})
