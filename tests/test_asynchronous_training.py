"""A training that measures several batches at once, on several environments, late and mixed up."""

import dataclasses
import random
import threading
import time

import pytest

from placer.environment import Measurement, Outcome
from placer.errors import InvalidValueError
from placer.grouping import Grouping
from placer.simulator import SimulatedEnvironment, Simulator
from placer.training import train
from placer.trials import InMemoryTrialLog
from tests.grouped_profiles import chain_of
from tests.test_trainers import TRAINERS, make_trainer

GROUPING = Grouping([0, 1, 1])
TOTAL = 30  # seven whole batches and half of one


class Late:
    """Measures after a random delay; the step time depends on the placement alone."""

    name = "late"

    def __init__(self, seed, *, breaks_after=None):
        self._random = random.Random(seed)  # noqa: S311 - a delay
        self._breaks_after = breaks_after
        self.num_measured = 0

    def measure(self, placements):
        time.sleep(self._random.uniform(0, 0.002))
        self.num_measured += len(placements)
        if self._breaks_after is not None and self.num_measured > self._breaks_after:
            raise KeyboardInterrupt
        return [
            Measurement(outcome=Outcome.OK, step_time_s=4.0 - float(p.device_of_op.sum()))
            for p in placements
        ]


def run(log, environments, *, kind="reinforce", in_flight=3, num_trials=TOTAL, **settings):
    trainer = make_trainer(kind, in_flight=in_flight)
    first, *others = environments
    options = {"checkpoint_every": 2, "at_once": 1} | settings
    steps = list(
        train(trainer, first, GROUPING, log, num_trials=num_trials, also_on=others, **options)
    )
    return trainer, steps


def content(log):
    """What must not depend on the order of returns: everything but the clock."""
    return [dataclasses.replace(trial, finished_at_s=0) for trial in log.trials()]


@pytest.fixture(params=TRAINERS)
def kind(request):
    return request.param


@pytest.fixture
def whole(kind):
    log = InMemoryTrialLog()
    run(log, [Late(0)], kind=kind)
    return log


@pytest.mark.parametrize("num_environments", [1, 2, 4])
@pytest.mark.parametrize("at_once", [1, 3, None])
def test_the_training_is_the_same_however_its_measurements_return(
    kind, whole, num_environments, at_once
):
    log = InMemoryTrialLog()

    run(log, [Late(seed) for seed in range(num_environments)], kind=kind, at_once=at_once)

    assert content(log) == content(whole)
    assert [each for each in log.metrics if each] == [each for each in whole.metrics if each]


def test_all_trials_wanted_are_measured_and_no_other(kind):
    log, environments = InMemoryTrialLog(), [Late(seed) for seed in range(3)]

    trainer, steps = run(log, environments, kind=kind)

    assert [trial.number for trial in log.trials()] == list(range(TOTAL))
    assert sum(each.num_measured for each in environments) == TOTAL
    assert trainer.update == TOTAL // 4
    assert steps[-1].num_trials == TOTAL


@pytest.mark.parametrize("breaks_after", [0, 1, 5, 12, 13, 27])
@pytest.mark.parametrize("checkpoint_every", [1, 100])
def test_a_training_that_was_stopped_goes_on_to_the_same_end(
    kind, whole, breaks_after, checkpoint_every
):
    log = InMemoryTrialLog()
    with pytest.raises(KeyboardInterrupt):
        run(
            log,
            [Late(1, breaks_after=breaks_after)],
            kind=kind,
            checkpoint_every=checkpoint_every,
        )
    kept = len(log.trials())
    environments = [Late(2), Late(3)]

    run(log, environments, kind=kind, checkpoint_every=checkpoint_every)

    assert kept == breaks_after  # one environment, one trial at a time: nothing else was lost
    assert content(log) == content(whole)
    assert sum(each.num_measured for each in environments) == TOTAL - kept


@pytest.mark.parametrize("first", [1, 4, 9, 16, 29])
def test_a_training_in_parts_is_that_of_one_piece(kind, whole, first):
    log = InMemoryTrialLog()

    run(log, [Late(1)], kind=kind, num_trials=first)
    run(log, [Late(2), Late(3)], kind=kind)

    assert content(log) == content(whole)


def test_a_checkpoint_is_not_needed(kind, whole):
    log = InMemoryTrialLog()
    log.append(whole.trials()[:17], {})

    run(log, [Late(1), Late(2)], kind=kind)

    assert content(log) == content(whole)


def test_batches_in_flight_are_measured_before_the_first_is_told():
    # The first trial returns only when one of the third batch was measured.
    third_batch = threading.Event()

    class FirstWaits(Late):
        num_seen = 0
        lock = threading.Lock()

        def measure(self, placements):
            with self.lock:
                number = FirstWaits.num_seen
                FirstWaits.num_seen += 1
            if number >= 8:
                third_batch.set()
            if number == 0:
                assert third_batch.wait(30)
            return super().measure(placements)

    log = InMemoryTrialLog()

    run(log, [FirstWaits(0), FirstWaits(1)])

    assert len(log.trials()) == TOTAL


def test_several_environments_may_share_the_trials_of_a_synchronous_training(kind):
    alone, together = InMemoryTrialLog(), InMemoryTrialLog()
    environments = [Late(seed) for seed in range(3)]

    run(alone, [Late(0)], kind=kind, in_flight=1)
    run(together, environments, kind=kind, in_flight=1)

    assert content(together) == content(alone)


def test_a_staged_training_takes_what_is_in_flight_to_the_devices():
    def staged(environments):
        log, trainer = InMemoryTrialLog(), make_trainer("reinforce", in_flight=3)
        options = {"checkpoint_every": 1}
        list(train(trainer, environments[0], GROUPING, log, num_trials=16, **options))
        first, *others = environments[1:]
        for _ in train(
            trainer, first, GROUPING, log, num_trials=TOTAL, at_once=1, also_on=others, **options
        ):
            pass
        return log

    class Real(Late):
        name = "real"

    one, two = staged([Late(0), Real(1)]), staged([Late(0), Real(2), Real(3)])

    assert [trial.environment for trial in one.trials()] == ["late"] * 16 + ["real"] * 14
    assert content(one) == content(two)


def test_the_simulator_may_be_asked_by_several_threads_at_once():
    profile = chain_of(["a", "b", "c"])
    logs = []
    for num_environments in (1, 3):
        logs.append(InMemoryTrialLog())
        environments = [SimulatedEnvironment(Simulator(profile)) for _ in range(num_environments)]
        run(logs[-1], environments, num_trials=80)

    assert content(logs[0]) == content(logs[1])


def test_environments_of_other_kinds_are_refused():
    class Other(Late):
        name = "other"

    with pytest.raises(InvalidValueError, match=r"one name, got \['late', 'other'\]"):
        run(InMemoryTrialLog(), [Late(0), Other(1)])
