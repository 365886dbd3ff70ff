"""The small policy of the search: its probabilities, its gradient, where it starts."""

import numpy as np
import pytest

from placer.errors import InvalidValueError
from placer.graph import BoolArray
from placer.grouping import Grouping
from placer.policies.locality import (
    LocalityConfig,
    LocalityPolicy,
    PlacedNeighbors,
    placed_neighbors,
)
from tests.builders import make_profile, make_topology
from tests.policies import PolicyContract

NO_PRIOR = LocalityConfig(stay=0.0, pull=0.0, bias=0.0)


def chain(num_groups):
    """Each group has the one before as its only neighbour."""
    groups = np.arange(num_groups - 1)
    first = np.concatenate([[0], np.arange(num_groups)])
    return PlacedNeighbors(first, groups, np.ones(num_groups - 1))


class TestContract(PolicyContract):
    def make_policy(self, allowed: BoolArray, *, seed: int = 0) -> LocalityPolicy:
        policy = LocalityPolicy(chain(len(allowed)), allowed)
        state = policy.state()
        rng = np.random.default_rng(seed)
        policy.restore(state | {"table": 0.1 * rng.normal(size=allowed.shape)})
        return policy


def log_odds(policy, actions, group):
    """Return log p(first device) - log p(second), of a group with two, after the actions."""
    rows = np.array([actions, actions], dtype=np.int32)
    rows[:, group] = 0, 1
    first, second = policy.log_probs(rows)[:, group]
    return first - second


def test_the_logit_is_the_bounded_sum_of_bias_stay_and_pull():
    # Group 2 receives from groups 0 and 1; by the shares 1/4 of it from 0, 3/4 from 1.
    neighbors = PlacedNeighbors(np.array([0, 0, 0, 2]), np.array([0, 1]), np.array([0.25, 0.75]))
    config = LocalityConfig(stay=0.5, pull=2.0, bias=1.0, logit_bound=4.0)
    policy = LocalityPolicy(neighbors, np.ones((3, 2), dtype=np.bool_), config)

    # After (0, 1): the first device has bias 1 and pull 2/4, the second stay 0.5 and pull 6/4.
    expected = 4 * np.tanh(1.5 / 4) - 4 * np.tanh(2.0 / 4)
    assert log_odds(policy, [0, 1, 0], 2) == pytest.approx(expected)
    # The very first group has the bias alone.
    assert log_odds(policy, [0, 0, 0], 0) == pytest.approx(4 * np.tanh(1 / 4))


def test_neighbors_count_by_one_plus_their_relative_transfer_time():
    # c receives 1 byte from a and 3 from b, a second each, and a hands its byte to b as well:
    # transfers a-b 1 s, a-c 1 s, b-c 3 s, mean 5/3 s. Weights 1.6 and 2.8.
    profile = make_profile([1.0, 1.0, 1.0], [(0, (1, 2), 1), (1, (2,), 3)], make_topology(2))

    found = placed_neighbors(profile, Grouping(np.arange(3)))

    assert found.first.tolist() == [0, 0, 1, 3]
    assert found.groups.tolist() == [0, 0, 1]
    assert found.shares.tolist() == pytest.approx([1.0, 1.6 / 4.4, 2.8 / 4.4])


def test_groups_that_send_to_each_other_are_one_pair():
    # Groups {a, c} and {b}: a -> b and b -> c.
    profile = make_profile([1.0] * 3, [(0, (1,), 1), (1, (2,), 1)], make_topology(2))

    found = placed_neighbors(profile, Grouping(np.array([0, 1, 0])))

    assert found.first.tolist() == [0, 0, 1]
    assert found.shares.tolist() == [1.0]


@pytest.mark.parametrize("entropy_bonus", [0.0, 0.3])
def test_the_gradient_agrees_with_finite_differences(entropy_bonus):
    rng = np.random.default_rng(0)
    allowed = np.array([[True, True, True], [True, False, True], [True, True, True]])
    neighbors = PlacedNeighbors(
        np.array([0, 0, 1, 3]), np.array([0, 0, 1]), np.array([1, 0.3, 0.7])
    )
    config = LocalityConfig(entropy_bonus=entropy_bonus, learning_rate=0.1)
    start = LocalityPolicy(neighbors, allowed, config).state()
    start |= {name: rng.normal(size=start[name].shape) for name in ("table", "stay", "pull")}
    actions = np.array([[0, 2, 1], [1, 0, 1], [2, 2, 0]], dtype=np.int32)
    advantages = np.array([1.0, -0.5, 0.25])

    def loss(name, index, change):
        policy = LocalityPolicy(neighbors, allowed, config)
        moved = start[name].copy()
        moved[index] += change
        policy.restore(start | {name: moved})
        return policy.update(actions, advantages)["loss"]

    policy = LocalityPolicy(neighbors, allowed, config)
    policy.restore(start)
    policy.update(actions, advantages)
    # After one update from zero, Adam's mean is a tenth of the gradient of the objective.
    for name in ("table", "stay", "pull"):
        gradient = 10 * policy.state()[f"adam/mean/{name}"]
        for index in np.ndindex(gradient.shape):
            slope = (loss(name, index, 1e-5) - loss(name, index, -1e-5)) / 2e-5
            assert gradient[index] == pytest.approx(-slope, abs=1e-6)


def test_the_first_step_of_adam_is_the_learning_rate_in_the_direction_of_the_gradient():
    policy = LocalityPolicy(chain(2), np.ones((2, 2), dtype=np.bool_), NO_PRIOR)

    policy.update(np.array([[1, 1]], dtype=np.int32), np.array([1.0]))

    # All gradients are one half in size, but for the stay and pull of the first group.
    assert policy.state()["table"] == pytest.approx(np.array([[-0.1, 0.1], [-0.1, 0.1]]))
    assert policy.state()["stay"] == pytest.approx(np.array([0.0, 0.1]))


def test_the_greedy_placement_follows_the_likeliest_devices():
    policy = LocalityPolicy(chain(3), np.array([[True, True], [False, True], [True, True]]))

    # The bias puts the first on 0, the second must be on 1, and the third stays there.
    assert policy.greedy().tolist() == [0, 1, 1]


def test_only_what_ran_before_is_asked_for_again_after_restoring():
    allowed = np.ones((4, 3), dtype=np.bool_)
    trained, other = LocalityPolicy(chain(4), allowed), LocalityPolicy(chain(4), allowed)
    actions = trained.sample(0, np.arange(8))
    trained.update(actions, np.linspace(-1, 1, 8))

    other.restore(trained.state())

    for policy in (trained, other):
        policy.update(actions, np.linspace(1, -1, 8))
    assert np.array_equal(trained.sample(5, np.arange(20)), other.sample(5, np.arange(20)))


@pytest.mark.parametrize(
    ("field", "value"),
    [("logit_bound", 0.0), ("learning_rate", -1.0), ("stay", -0.1), ("entropy_bonus", np.inf)],
)
def test_settings_that_cannot_be_are_refused_by_name(field, value):
    with pytest.raises(InvalidValueError, match=f"{field} must be"):
        LocalityConfig(**{field: value})
