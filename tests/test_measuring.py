"""Trials are measured in order, one environment or several, here or ahead."""

import threading

import pytest

from placer.environment import Measurement, Outcome
from placer.errors import InvalidValueError
from placer.grouping import Grouping
from placer.measuring import Measuring
from placer.trials import Trial

GROUPING = Grouping([0, 1, 1])


class StepTimeByPlacement:
    """One second and one more for each op on device 1."""

    def __init__(self, name="fake"):
        self.name = name
        self.calls = []

    def measure(self, placements):
        self.calls.append(len(placements))
        return [
            Measurement(outcome=Outcome.OK, step_time_s=1.0 + float(p.device_of_op.sum()))
            for p in placements
        ]


class WaitsFor(StepTimeByPlacement):
    """Measures nothing before an event."""

    def __init__(self, event):
        super().__init__()
        self._event = event

    def measure(self, placements):
        assert self._event.wait(30)
        return super().measure(placements)


class Breaks(StepTimeByPlacement):
    def measure(self, placements):
        super().measure(placements)
        raise KeyboardInterrupt


def trials_of(numbers, batch=4):
    return [
        Trial(number=number, update=number // batch, device_of_group=(number % 2, 1))
        for number in numbers
    ]


def measuring_on(*environments, at_once=None, is_ahead=False):
    return Measuring(environments, GROUPING, at_once=at_once, is_ahead=is_ahead)


def test_nothing_is_measured_before_it_is_wanted():
    environment = StepTimeByPlacement()

    with measuring_on(environment) as measuring:
        measuring.begin(trials_of(range(8)))
        before = list(environment.calls)
        first = measuring.next()

    assert before == []
    assert [trial.number for trial in first] == [0, 1, 2, 3]
    assert environment.calls == [4]


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_portion_is_of_one_update_and_of_so_many_trials(is_ahead):
    environment = StepTimeByPlacement()

    with measuring_on(environment, at_once=3, is_ahead=is_ahead) as measuring:
        measuring.begin(trials_of(range(2, 12)))
        portions = [[trial.number for trial in measuring.next()] for _ in range(5)]

    assert portions == [[2, 3], [4, 5, 6], [7], [8, 9, 10], [11]]


def test_what_was_begun_is_not_begun_again():
    environment = StepTimeByPlacement()

    with measuring_on(environment) as measuring:
        measuring.begin(trials_of(range(4)))
        measuring.begin(trials_of(range(8)))
        numbers = [trial.number for _ in range(2) for trial in measuring.next()]

    assert numbers == list(range(8))


@pytest.mark.parametrize("is_ahead", [False, True])
def test_trials_come_back_measured_with_their_environment_and_time(is_ahead):
    with measuring_on(StepTimeByPlacement(), is_ahead=is_ahead) as measuring:
        measuring.begin(trials_of(range(4)))
        found = measuring.next()

    # Group 0 is one op, group 1 two of them, always on device 1.
    assert [trial.measurement.step_time_s for trial in found] == [3, 4, 3, 4]
    assert {trial.environment for trial in found} == {"fake"}
    assert all(trial.finished_at_s > 0 for trial in found)


def test_ahead_is_measured_while_the_caller_does_something_else():
    release = threading.Event()

    with measuring_on(WaitsFor(release), is_ahead=True) as measuring:
        measuring.begin(trials_of(range(4)))  # returns though nothing can be measured yet
        release.set()
        assert len(measuring.next()) == 4


def test_the_order_is_that_of_the_numbers_when_the_first_returns_last():
    # Whoever takes the first portion waits until the other has measured all that is left.
    done = threading.Event()

    class TellsWhenDone(StepTimeByPlacement):
        def measure(self, placements):
            found = super().measure(placements)
            if len(self.calls) == 7:
                done.set()
            return found

    with measuring_on(WaitsFor(done), TellsWhenDone(), at_once=1) as measuring:
        measuring.begin(trials_of(range(8)))
        numbers = [measuring.next()[0].number for _ in range(8)]

    assert numbers == list(range(8))
    assert done.is_set()


def test_each_environment_measures_one_portion_at_a_time():
    class Alone(StepTimeByPlacement):
        is_busy = False

        def measure(self, placements):
            assert not self.is_busy
            self.is_busy = True
            found = super().measure(placements)
            self.is_busy = False
            return found

    environments = [Alone(), Alone(), Alone()]

    with measuring_on(*environments, at_once=1) as measuring:
        measuring.begin(trials_of(range(100)))
        for _ in range(100):
            measuring.next()

    assert sum(len(environment.calls) for environment in environments) == 100


@pytest.mark.parametrize("is_ahead", [False, True])
def test_what_stops_a_measurement_stops_the_caller(is_ahead):
    with measuring_on(Breaks(), is_ahead=is_ahead) as measuring:
        measuring.begin(trials_of(range(4)))

        with pytest.raises(KeyboardInterrupt):
            measuring.next()


def test_the_end_of_the_block_drops_what_only_waits():
    started, release = threading.Event(), threading.Event()

    class TellsWhenStarted(WaitsFor):
        def measure(self, placements):
            started.set()
            return super().measure(placements)

    environment = TellsWhenStarted(release)
    with measuring_on(environment, at_once=1, is_ahead=True) as measuring:
        measuring.begin(trials_of(range(8)))
        assert started.wait(30)
        # Freed only when the block is about to end, or has ended.
        threading.Timer(0.05, release.set).start()

    assert environment.calls == [1]


@pytest.mark.parametrize("environments", [[], [StepTimeByPlacement("a"), StepTimeByPlacement("b")]])
def test_environments_of_one_name_are_needed(environments):
    with pytest.raises(InvalidValueError, match=r"environments of one name, got \["):
        measuring_on(*environments)
