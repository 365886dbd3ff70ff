"""Policies that know something before their first trial."""

import numpy as np
import pytest

from placer.environment import Measurement, Outcome
from placer.errors import InfeasibleError, InvalidValueError, UnknownNameError
from placer.grouping import Grouping
from placer.heuristics import heuristic_placements
from placer.placement import Placement
from placer.policies.locality import LocalityPolicy, placed_neighbors
from placer.simulator import SimulatedEnvironment, Simulator
from placer.warm_start import (
    BEST_HEURISTIC,
    imitate,
    placement_to_imitate,
    restore_policy,
)
from tests.grouped_profiles import chain_of, topology_of
from tests.policies import EVERYWHERE, TablePolicy
from tests.test_trainers import make_trainer, make_updates

PROFILE = chain_of([f"m{i}" for i in range(6)], topology_of("GPU", "GPU"))
GROUPING = Grouping(range(6))
PLACEMENT = np.array([0, 1, 0, 1, 1, 0], dtype=np.int32)


class Counting:
    """Prefers what has many ops on device 1; all on device 0 does not run."""

    name = "counting"

    def __init__(self, *, runs=True):
        self.num_measured = 0
        self._runs = runs

    def measure(self, placements):
        self.num_measured += len(placements)
        return [
            Measurement(outcome=Outcome.OK, step_time_s=10.0 - float(p.device_of_op.sum()))
            if self._runs and p.device_of_op.any()
            else Measurement(outcome=Outcome.OUT_OF_MEMORY)
            for p in placements
        ]


def locality_policy(profile=PROFILE, grouping=GROUPING):
    allowed = np.ones((grouping.num_groups, profile.topology.num_devices), dtype=np.bool_)
    return LocalityPolicy(placed_neighbors(profile, grouping), allowed)


def to_imitate(name, environment=None):
    return placement_to_imitate(name, PROFILE, GROUPING, environment or Counting(), seed=0)


@pytest.mark.parametrize("name", ["single gpu:1", "round-robin", "heft"])
def test_a_heuristic_is_found_by_its_name_and_nothing_is_measured(name):
    environment = Counting()

    actions = to_imitate(name, environment)

    assert np.array_equal(actions, heuristic_placements(PROFILE, GROUPING)[name])
    assert environment.num_measured == 0


def test_the_best_heuristic_is_the_one_that_the_environment_finds_fastest():
    environment = Counting()

    actions = to_imitate(BEST_HEURISTIC, environment)

    assert actions.tolist() == [1] * 6
    assert environment.num_measured == len(heuristic_placements(PROFILE, GROUPING))


def test_in_the_simulation_the_best_heuristic_is_no_slower_than_any():
    environment = SimulatedEnvironment(Simulator(PROFILE))
    placements = heuristic_placements(PROFILE, GROUPING)

    best = to_imitate(BEST_HEURISTIC, environment)

    times_s = [
        found.step_time_s
        for found in environment.measure(
            [Placement.from_groups(GROUPING, each) for each in (best, *placements.values())]
        )
    ]
    assert times_s[0] == min(times_s)


def test_an_unknown_heuristic_is_refused_with_one_like_it():
    with pytest.raises(UnknownNameError, match="unknown warm start 'metiss'; did you mean 'metis'"):
        to_imitate("metiss")


def test_where_no_heuristic_runs_there_is_nothing_to_imitate():
    with pytest.raises(InfeasibleError, match="nothing to imitate"):
        to_imitate(BEST_HEURISTIC, Counting(runs=False))


def test_imitation_ends_when_a_mean_choice_is_made_nine_times_in_ten():
    policy = locality_policy()

    num_updates = imitate(policy, PLACEMENT, max_updates=500, batch_size=4)

    probability = float(np.exp(policy.log_probs(PLACEMENT[None]).mean()))
    assert 0 < num_updates < 500
    assert 0.9 <= probability < 0.97
    # So that samples are that placement with a few groups elsewhere, but not always itself.
    agreement = (policy.sample(0, np.arange(500)) == PLACEMENT).mean()
    assert 0.85 < agreement < 0.97


def test_imitation_ends_in_any_case():
    policy = locality_policy()

    assert imitate(policy, PLACEMENT, max_updates=3, batch_size=4) == 3


def test_what_is_likely_already_is_not_imitated():
    policy = locality_policy()
    imitate(policy, PLACEMENT, max_updates=500, batch_size=4)
    before = policy.state()

    assert imitate(policy, PLACEMENT, max_updates=500, batch_size=4) == 0
    assert all(np.array_equal(before[name], array) for name, array in policy.state().items())


def test_imitation_is_the_same_every_time_and_for_every_batch_size():
    policies = [locality_policy() for _ in range(3)]

    for policy, batch_size in zip(policies, (4, 4, 9), strict=True):
        imitate(policy, PLACEMENT, max_updates=500, batch_size=batch_size)

    states = [policy.state() for policy in policies]
    for name, array in states[0].items():
        assert np.array_equal(array, states[1][name])
        assert array == pytest.approx(states[2][name])


def test_a_policy_begins_where_an_earlier_training_ended():
    trainer = make_trainer("reinforce", in_flight=2)
    make_updates(trainer, 5)
    policy = TablePolicy(EVERYWHERE, seed=9)

    restore_policy(policy, trainer.checkpoint(), run_id="abc")

    assert np.array_equal(policy.state()["logits"], trainer.policy.state()["logits"])


def test_a_training_of_other_sizes_is_refused_by_its_id_and_changes_nothing():
    trainer = make_trainer("reinforce")
    trainer.policy = locality_policy()
    larger = chain_of([f"m{i}" for i in range(7)], topology_of("GPU", "GPU"))
    policy = locality_policy(larger, Grouping(range(7)))
    before = policy.state()

    with pytest.raises(
        InvalidValueError,
        match=r"training abc cannot be the start: .*'table' must have shape \(7, 2\), got \(6, 2\)",
    ):
        restore_policy(policy, trainer.checkpoint(), run_id="abc")

    assert all(np.array_equal(before[name], array) for name, array in policy.state().items())


def test_a_training_without_a_checkpoint_is_refused_by_its_id():
    with pytest.raises(InvalidValueError, match="training abc cannot be the start: it has no"):
        restore_policy(TablePolicy(EVERYWHERE), None, run_id="abc")
