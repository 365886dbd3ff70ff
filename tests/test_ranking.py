"""Which trial is the best: real ones before simulated ones."""

import itertools

import pytest

from placer.environment import Measurement, Outcome
from placer.ranking import fastest, fastest_first, step_time_s, without_outdated
from placer.trials import Trial


def trial(number, time_s, environment="simulated", actions=(0,)):
    """Return a measured trial; one without a time did not fit."""
    outcome = Outcome.OUT_OF_MEMORY if time_s is None else Outcome.OK
    return Trial(
        number=number,
        update=0,
        device_of_group=actions,
        environment=environment,
        measurement=Measurement(outcome=outcome, step_time_s=time_s),
    )


def test_the_step_time_is_that_of_a_trial_that_ran():
    assert step_time_s(trial(0, 2.0)) == 2.0
    assert step_time_s(trial(0, None)) is None
    assert step_time_s(Trial(number=0, update=0, device_of_group=(0,))) is None
    assert step_time_s(None) is None


def test_of_one_environment_the_shortest_step_time_is_the_best_and_the_first_of_equals():
    trials = [trial(0, 3.0), trial(1, None), trial(2, 1.0), trial(3, 1.0)]

    assert fastest(trials) == trials[2]


def test_a_real_trial_is_better_than_a_simulated_one_of_any_time():
    trials = [trial(0, 1.0), trial(1, 5.0, "real"), trial(2, 4.0, "real"), trial(3, 0.5)]

    assert [one.number for one in fastest_first(trials)] == [2, 1, 3, 0]


def test_where_no_real_trial_ran_the_fastest_simulated_one_is_the_best():
    trials = [trial(0, 2.0), trial(1, 1.0), trial(2, None, "real")]

    assert fastest(trials) == trials[1]


@pytest.mark.parametrize("trials", [[], [None], [trial(0, None)]])
def test_no_trial_is_the_best_if_none_ran(trials):
    assert fastest(trials) is None


def test_the_best_so_far_can_be_found_trial_by_trial_in_any_order():
    trials = [trial(0, 1.0), trial(1, 2.0), trial(2, 5.0, "real"), trial(3, None, "real")]

    for order in itertools.permutations(trials):
        best = None
        for one in order:
            best = fastest([best, one])
        assert best == trials[2]


def test_what_real_trials_tried_counts_by_them_alone():
    trials = [
        trial(0, 1.0, actions=(0,)),
        trial(1, 1.0, actions=(1,)),
        trial(2, 1.0, actions=(2,)),
        trial(3, 4.0, "real", actions=(0,)),
        trial(4, None, "real", actions=(1,)),
    ]

    assert [one.number for one in without_outdated(trials)] == [2, 3, 4]
