"""A plain policy for fast tests of trainers, and the contract that every policy keeps."""

import itertools
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest

from placer.errors import InvalidValueError
from placer.graph import BoolArray, FloatArray
from placer.policy import Actions, Policy
from placer.policy_gradient import gumbel_noise, reinforce_loss

EVERYWHERE = np.ones((2, 2), dtype=np.bool_)
"""Two groups, two devices, nothing forbidden: four actions in all."""

ALL_ACTIONS = np.array(list(itertools.product((0, 1), repeat=2)), dtype=np.int32)


class TablePolicy:
    """An independent softmax for each group, improved by plain gradient ascent."""

    def __init__(self, allowed: BoolArray, *, seed: int = 0, learning_rate: float = 1.0) -> None:
        self._forbidden = np.where(allowed, 0.0, -1e9)
        self._learning_rate = learning_rate
        self._logits = 0.1 * np.random.default_rng(seed).normal(size=allowed.shape)

    def sample(self, seed: int, trial_numbers: npt.NDArray[np.int64]) -> Actions:
        noise = gumbel_noise(seed, trial_numbers, self._logits.shape)
        return np.argmax(self._table() + noise, axis=2).astype(np.int32)

    def log_probs(self, actions: Actions) -> FloatArray:
        return self._table()[np.arange(actions.shape[1]), actions]

    def update(self, actions: Actions, advantages: FloatArray) -> Mapping[str, float]:
        # d log p(a) / d logits = onehot(a) - p.
        probs = np.exp(self._table())
        steps = np.eye(probs.shape[1])[actions] - probs
        gradient = np.mean(advantages[:, None, None] * steps, axis=0)
        loss = reinforce_loss(self.log_probs(actions), advantages)
        self._logits = self._logits + self._learning_rate * gradient
        return {
            "entropy": float(-np.sum(probs * np.log(np.maximum(probs, 1e-300)), axis=1).mean()),
            "gradient_norm": float(np.linalg.norm(gradient)),
            "loss": loss,
        }

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        return {"logits": self._logits.copy()}

    def restore(self, state: Mapping[str, npt.NDArray[np.generic]]) -> None:
        if state.keys() != {"logits"} or state["logits"].shape != self._logits.shape:
            raise InvalidValueError("the state is of another policy")
        self._logits = np.array(state["logits"], dtype=np.float64)

    def _table(self) -> FloatArray:
        logits = self._logits + self._forbidden
        top = logits.max(axis=1, keepdims=True)
        return logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))


class PolicyContract:
    """What every policy keeps; a test class inherits it and says how one is made."""

    def make_policy(self, allowed: BoolArray, *, seed: int = 0) -> Policy:
        raise NotImplementedError

    def test_the_probabilities_of_all_actions_sum_to_one(self) -> None:
        policy = self.make_policy(EVERYWHERE)

        log_probs = policy.log_probs(ALL_ACTIONS)

        assert log_probs.shape == (4, 2)
        assert np.exp(log_probs.sum(axis=1)).sum() == pytest.approx(1, abs=1e-5)

    def test_sampled_frequencies_agree_with_log_probs(self) -> None:
        policy = self.make_policy(EVERYWHERE)
        expected = 4000 * np.exp(policy.log_probs(ALL_ACTIONS).sum(axis=1))

        actions = policy.sample(1, np.arange(4000))

        counts = np.bincount(2 * actions[:, 0] + actions[:, 1], minlength=4)
        # Chi-square with three degrees of freedom exceeds 16.27 once in a thousand seeds.
        assert np.sum((counts - expected) ** 2 / expected) < 16.27

    def test_the_draws_of_a_trial_do_not_depend_on_its_batch(self) -> None:
        policy = self.make_policy(EVERYWHERE)

        together = policy.sample(1, np.array([4, 5, 6, 7]))
        apart = policy.sample(1, np.array([7, 20, 5, 3]))

        assert np.array_equal(together[[3, 1]], apart[[0, 2]])

    def test_another_seed_draws_other_actions(self) -> None:
        policy = self.make_policy(EVERYWHERE)
        numbers = np.arange(64)

        assert not np.array_equal(policy.sample(1, numbers), policy.sample(2, numbers))

    def test_only_permitted_devices_are_drawn(self) -> None:
        allowed = np.array([[True, True], [False, True]])
        policy = self.make_policy(allowed)

        actions = policy.sample(0, np.arange(64))

        assert set(actions[:, 0]) == {0, 1}
        assert set(actions[:, 1]) == {1}
        assert np.all(policy.log_probs(actions)[:, 1] == 0)

    def test_an_update_favours_what_had_a_positive_advantage(self) -> None:
        policy = self.make_policy(EVERYWHERE)
        before = policy.log_probs(ALL_ACTIONS).sum(axis=1)

        metrics = policy.update(ALL_ACTIONS, np.array([0.0, 0.0, 1.0, -1.0]))

        after = policy.log_probs(ALL_ACTIONS).sum(axis=1)
        assert after[2] - after[3] > before[2] - before[3]
        assert metrics.keys() == {"entropy", "gradient_norm", "loss"}
        assert 0 < metrics["entropy"] <= np.log(2) + 1e-6
        assert metrics["gradient_norm"] > 0

    def test_a_restored_policy_goes_on_exactly_as_the_first(self) -> None:
        first = self.make_policy(EVERYWHERE, seed=0)
        first.update(ALL_ACTIONS, np.array([1.0, 0.5, 0.0, -1.0]))
        second = self.make_policy(EVERYWHERE, seed=9)

        second.restore(first.state())
        for policy in (first, second):
            policy.update(ALL_ACTIONS, np.array([-1.0, 0.3, 0.2, 0.1]))

        states = first.state(), second.state()
        assert states[0].keys() == states[1].keys()
        for name, array in states[0].items():
            assert np.array_equal(array, states[1][name]), name
        numbers = np.arange(4)
        assert np.array_equal(first.sample(3, numbers), second.sample(3, numbers))

    def test_a_state_is_not_changed_by_later_updates(self) -> None:
        policy = self.make_policy(EVERYWHERE)
        state = policy.state()
        copies = {name: array.copy() for name, array in state.items()}

        policy.update(ALL_ACTIONS, np.array([1.0, 0.5, 0.0, -1.0]))

        assert all(np.array_equal(state[name], copy) for name, copy in copies.items())
        assert any(not np.array_equal(policy.state()[name], state[name]) for name in state)

    def test_the_state_of_another_policy_is_refused_and_changes_nothing(self) -> None:
        policy = self.make_policy(EVERYWHERE)
        state = policy.state()
        larger = self.make_policy(np.ones((3, 3), dtype=np.bool_)).state()
        nameless = dict(list(state.items())[1:])

        for wrong in (larger, nameless):
            with pytest.raises(InvalidValueError, match="another policy"):
                policy.restore(wrong)

        assert all(np.array_equal(policy.state()[name], state[name]) for name in state)
