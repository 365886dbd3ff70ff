import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from placer.environment import Measurement, Outcome
from placer.errors import InvalidValueError
from placer.graph import BoolArray
from placer.policy import Policy
from placer.policy_gradient import (
    advantages_of,
    gumbel_noise,
    moving_baseline,
    reinforce_loss,
    reward_of_step_time,
    rewards_of,
)
from tests.policies import ALL_ACTIONS, EVERYWHERE, PolicyContract, TablePolicy

TIMES_S = st.floats(1e-6, 1e3)
REWARDS = arrays.arrays(np.float64, st.integers(1, 8), elements=st.floats(-30, -0.001))


class TestTablePolicy(PolicyContract):
    def make_policy(self, allowed: BoolArray, *, seed: int = 0) -> Policy:
        return TablePolicy(allowed, seed=seed)


def test_the_reward_is_minus_the_root_of_the_step_time():
    assert reward_of_step_time(0.25) == -0.5
    assert reward_of_step_time(0) == 0


@given(TIMES_S, TIMES_S)
def test_a_shorter_step_never_earns_less(one_s, other_s):
    shorter_s, longer_s = sorted((one_s, other_s))

    assert reward_of_step_time(shorter_s) >= reward_of_step_time(longer_s)


@pytest.mark.parametrize("step_time_s", [-1.0, math.inf, math.nan])
def test_a_step_time_that_cannot_be_is_refused(step_time_s):
    with pytest.raises(InvalidValueError, match="finite and not negative"):
        reward_of_step_time(step_time_s)


def test_whatever_could_not_run_earns_the_failing_signal():
    measurements = [
        Measurement(outcome=Outcome.OK, step_time_s=4.0),
        Measurement(outcome=Outcome.OUT_OF_MEMORY),
        Measurement(outcome=Outcome.CRASHED),
    ]

    assert rewards_of(measurements, 9.0).tolist() == [-2, -3, -3]


def test_the_baseline_moves_a_tenth_of_the_way_to_the_mean_reward():
    # 0.9 * -10 + 0.1 * (-2 - 4) / 2 = -9.3
    assert moving_baseline(-10, np.array([-2.0, -4.0]), decay=0.9) == pytest.approx(-9.3)


def test_the_baseline_stays_where_no_reward_counts():
    assert moving_baseline(-10, np.array([]), decay=0.9) == -10


@given(REWARDS, st.floats(-30, 0), st.floats(0, 0.99))
def test_the_baseline_stays_between_where_it_was_and_the_mean_reward(rewards, baseline, decay):
    low, high = sorted((baseline, float(rewards.mean())))

    assert low - 1e-9 <= moving_baseline(baseline, rewards, decay=decay) <= high + 1e-9


def test_advantages_are_differences_from_the_baseline_in_units_of_their_spread():
    # Differences 1, -1 and 2: the root of (1 + 1 + 4) / 3 is the root of 2.
    advantages = advantages_of(np.array([-4.0, -6.0, -3.0]), -5.0, np.ones(3, dtype=np.bool_))

    assert advantages * math.sqrt(2) == pytest.approx([1, -1, 2])


def test_what_does_not_count_has_no_advantage_and_no_part_in_the_spread():
    counted = np.array([True, False, True])

    advantages = advantages_of(np.array([-4.0, -100.0, -6.0]), -5.0, counted)

    assert advantages.tolist() == [1, 0, -1]


@pytest.mark.parametrize("counted", [True, False])
def test_where_nothing_differs_or_nothing_counts_there_is_nothing_to_learn(counted):
    mask = np.full(2, counted)

    assert advantages_of(np.array([-5.0, -5.0]), -5.0, mask).tolist() == [0, 0]


@given(REWARDS, st.floats(-30, -0.001), st.floats(1e-3, 1e3))
def test_advantages_do_not_depend_on_the_unit_of_time(rewards, baseline, factor):
    # A baseline that equals every reward is a difference of rounding errors alone.
    baseline -= 100
    counted = np.ones(len(rewards), dtype=np.bool_)

    scaled = advantages_of(factor * rewards, factor * baseline, counted)

    assert scaled == pytest.approx(advantages_of(rewards, baseline, counted), rel=1e-6)


def test_the_loss_is_minus_the_mean_of_advantage_times_log_probability():
    # -(2 * (-1 - 3) + -1 * (-2 - 2)) / 2 = 2
    log_probs = np.array([[-1.0, -3.0], [-2.0, -2.0]])

    assert reinforce_loss(log_probs, np.array([2.0, -1.0])) == 2


@pytest.mark.parametrize("shape", [(3,), (2, 1), ()])
def test_the_loss_refuses_another_number_of_advantages(shape):
    with pytest.raises(InvalidValueError, match="must share B"):
        reinforce_loss(np.zeros((2, 4)), np.zeros(shape))


def test_the_table_policy_climbs_the_gradient_of_the_loss():
    # An independent check of the tests' own policy: finite differences of reinforce_loss.
    advantages = np.array([1.0, -0.5, 0.25, 2.0])
    policy = TablePolicy(EVERYWHERE)
    start = policy.state()["logits"]
    slopes = np.zeros_like(start)
    for index in np.ndindex(start.shape):
        losses = []
        for sign in (1, -1):
            moved = start.copy()
            moved[index] += sign * 1e-5
            policy.restore({"logits": moved})
            losses.append(reinforce_loss(policy.log_probs(ALL_ACTIONS), advantages))
        slopes[index] = (losses[0] - losses[1]) / 2e-5
    policy.restore({"logits": start})

    policy.update(ALL_ACTIONS, advantages)

    assert policy.state()["logits"] - start == pytest.approx(-slopes, abs=1e-8)


def test_the_noise_of_a_trial_depends_on_seed_and_number_alone():
    together = gumbel_noise(7, np.array([0, 1, 2]), (3, 2))
    alone = gumbel_noise(7, np.array([2]), (3, 2))

    assert together.shape == (3, 3, 2)
    assert np.array_equal(together[2], alone[0])
    assert not np.array_equal(together[1], together[2])
    assert not np.array_equal(gumbel_noise(8, np.array([2]), (3, 2)), alone)


def test_noise_is_distributed_as_gumbel():
    noise = gumbel_noise(0, np.arange(100), (200,)).ravel()

    # Mean: Euler's constant; variance: pi^2 / 6. Four standard errors of 20,000 draws.
    assert noise.mean() == pytest.approx(np.euler_gamma, abs=4 * math.sqrt(1.645 / 20_000))
    # P(noise < x) = exp(-exp(-x)): e^-1 at zero.
    assert (noise < 0).mean() == pytest.approx(math.exp(-1), abs=4 * 0.5 / math.sqrt(20_000))
