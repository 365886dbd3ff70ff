"""A training that goes through two environments, and is killed wherever it can be.

In the simulation here the placements with more ops on device 1 are faster; on the devices it
is the other way round, and everything is slower.
"""

import dataclasses
import itertools
import math

import pytest

from placer.environment import Measurement, Outcome
from placer.errors import InvalidValueError
from placer.grouping import Grouping
from placer.reinforce import ReinforceConfig, ReinforceTrainer
from placer.training import train
from placer.trials import InMemoryTrialLog
from tests.policies import EVERYWHERE, TablePolicy

GROUPING = Grouping([0, 1, 1])
BATCH = 4
SIMULATED = 8
TOTAL = 18  # ten real trials: two whole batches and half of one


class Killed(BaseException):
    """A kill: nothing may be written while it passes."""


class Switch:
    """Counts what happens in a training, and kills it at the chosen event."""

    def __init__(self, kill_at=math.inf):
        self.num_events = 0
        self._kill_at = kill_at

    def __call__(self):
        if self.num_events == self._kill_at:
            raise Killed
        self.num_events += 1


class FakeEnvironment:
    """A step time by the ops on device 1; counts what it measures."""

    def __init__(self, name, times_s, switch=lambda: None):
        self.name = name
        self.num_measured = 0
        self._times_s = times_s
        self._switch = switch

    def measure(self, placements):
        self._switch()
        found = [self._times_s[int(placement.device_of_op.sum())] for placement in placements]
        self.num_measured += len(placements)
        self._switch()
        return [
            Measurement(outcome=Outcome.OUT_OF_MEMORY)
            if time_s is None
            else Measurement(outcome=Outcome.OK, step_time_s=time_s)
            for time_s in found
        ]


def simulated(switch=lambda: None):
    return FakeEnvironment("simulated", [None, 0.3, 0.2, 0.1], switch)


def real(switch=lambda: None):
    return FakeEnvironment("real", [1.0, 2.0, None, 4.0], switch)


class KillableLog(InMemoryTrialLog):
    """Outlives the training; a kill comes before or after something was kept."""

    def __init__(self):
        super().__init__()
        self.switch = lambda: None

    def append(self, trials, metrics):
        self.switch()
        super().append(trials, metrics)
        self.switch()

    def save_checkpoint(self, checkpoint):
        self.switch()
        super().save_checkpoint(checkpoint)
        self.switch()


def make_trainer():
    config = ReinforceConfig(failing_step_time_s=10.0, batch_size=BATCH)
    return ReinforceTrainer(TablePolicy(EVERYWHERE), config)


def stage(trainer, environment, log, num_trials, checkpoint_every, at_once):
    return list(
        train(
            trainer,
            environment,
            GROUPING,
            log,
            num_trials=num_trials,
            checkpoint_every=checkpoint_every,
            at_once=at_once,
        )
    )


def run(log, *, switch=lambda: None, checkpoint_every=1):
    """Train as the flow does; return the trainer, both environments and the real progress."""
    trainer, simulation, devices = make_trainer(), simulated(switch), real(switch)
    log.switch = switch
    stage(trainer, simulation, log, SIMULATED, checkpoint_every, None)
    steps = stage(trainer, devices, log, TOTAL, checkpoint_every, 1)
    return trainer, simulation, devices, steps


def content(log):
    """What must not depend on interruptions: everything but the clock."""
    return [dataclasses.replace(trial, finished_at_s=0) for trial in log.trials()]


def metrics_of(log):
    return [metrics for metrics in log.metrics if metrics]


@pytest.fixture(scope="module")
def whole():
    """The training that nobody interrupts."""
    log = KillableLog()
    trainer, *_ = run(log)
    return log, trainer


def test_every_trial_names_its_environment_and_no_batch_has_two(whole):
    log, _ = whole

    environments = [trial.environment for trial in log.trials()]

    assert environments == ["simulated"] * SIMULATED + ["real"] * (TOTAL - SIMULATED)


def num_events(checkpoint_every):
    switch = Switch()
    run(KillableLog(), switch=switch, checkpoint_every=checkpoint_every)
    return switch.num_events


@pytest.mark.parametrize("checkpoint_every", [1, 2, 100])
def test_a_training_killed_at_any_point_ends_as_the_one_left_alone(whole, checkpoint_every):
    whole_log, whole_trainer = whole

    for kill_at in range(num_events(checkpoint_every)):
        log = KillableLog()
        with pytest.raises(Killed):
            run(log, switch=Switch(kill_at), checkpoint_every=checkpoint_every)
        kept = len(log.trials())
        trainer, simulation, devices, _ = run(log, checkpoint_every=checkpoint_every)

        assert content(log) == content(whole_log), kill_at
        assert metrics_of(log) == metrics_of(whole_log), kill_at
        assert simulation.num_measured + devices.num_measured == TOTAL - kept, kill_at
        assert trainer.best.number == whole_trainer.best.number, kill_at
        for name, array in whole_trainer.policy.state().items():
            assert (trainer.policy.state()[name] == array).all(), kill_at


def test_a_training_killed_again_and_again_ends_as_the_one_left_alone(whole):
    log, switch = KillableLog(), Switch(5)

    for _ in itertools.count():
        try:
            run(log, switch=switch)
            break
        except Killed:
            switch = Switch(5)

    assert content(log) == content(whole[0])
    assert metrics_of(log) == metrics_of(whole[0])


def test_a_kill_loses_one_real_measurement_at_most():
    for kill_at in range(num_events(checkpoint_every=1)):
        log, switch = KillableLog(), Switch(kill_at)
        trainer, simulation, devices = make_trainer(), simulated(), real(switch)
        stage(trainer, simulation, log, SIMULATED, 1, None)
        log.switch = switch
        try:
            stage(trainer, devices, log, TOTAL, 1, 1)
        except Killed:
            kept = len(log.trials()) - SIMULATED
            assert devices.num_measured - kept in (0, 1)


def test_real_trials_are_kept_and_told_of_one_by_one():
    log = KillableLog()

    *_, steps = run(log)

    assert [step.num_trials for step in steps] == list(range(SIMULATED, TOTAL + 1))
    assert [step.update for step in steps] == [2, *[2] * 3, *[3] * 4, *[4] * 3]
    assert [bool(step.metrics) for step in steps] == [
        False,
        *([False] * 3 + [True]) * 2,
        *[False] * 2,
    ]


def test_the_best_is_a_simulated_trial_until_a_real_one_ran():
    log = KillableLog()

    trainer, _, _, steps = run(log)

    trials = log.trials()
    assert steps[0].best.environment == "simulated"
    for step in steps[1:]:
        tried = [trial.measurement for trial in trials[SIMULATED : step.num_trials]]
        ran_s = [found.step_time_s for found in tried if found.outcome is Outcome.OK]
        if ran_s:
            assert (step.best.environment, step.best_step_time_s) == ("real", min(ran_s))
        else:
            assert step.best == steps[0].best
    assert trainer.best.environment == "real"


def test_with_the_first_real_batch_the_baseline_starts_anew_from_its_mean(whole):
    log, _ = whole

    metrics = metrics_of(log)[SIMULATED // BATCH]

    first = log.trials()[SIMULATED : SIMULATED + BATCH]
    times_s = [trial.measurement.step_time_s or 10.0 for trial in first]
    mean = sum(-math.sqrt(time_s) for time_s in times_s) / BATCH
    assert metrics["baseline"] == pytest.approx(mean)
    assert metrics["reward_mean"] == pytest.approx(mean)


def test_a_policy_taught_by_a_wrong_simulation_is_put_right_by_the_devices():
    log, trainer = InMemoryTrialLog(), make_trainer()

    stage(trainer, simulated(), log, 160, 10, None)
    misled = trainer.policy.state()["logits"].copy()
    stage(trainer, real(), log, 640, 10, 1)
    taught = trainer.policy.state()["logits"]

    # Column 1 is device 1: best in the simulation, slowest in truth.
    assert (misled[:, 1] > misled[:, 0]).all()
    assert (taught[:, 0] > taught[:, 1]).all()


def test_a_part_that_ends_inside_a_batch_cannot_go_on_elsewhere():
    log, trainer = InMemoryTrialLog(), make_trainer()
    stage(trainer, simulated(), log, 6, 1, None)

    with pytest.raises(InvalidValueError, match=r"one environment, got .*'real', 'simulated'"):
        stage(trainer, real(), log, 12, 1, 1)


def test_a_training_may_be_real_from_the_start():
    log, environment = InMemoryTrialLog(), real()

    stage(make_trainer(), environment, log, 8, 1, 1)

    assert {trial.environment for trial in log.trials()} == {"real"}
    # The baseline of a beginner starts at the failing signal, 10 s.
    assert metrics_of(log)[0]["baseline"] == -math.sqrt(10)
    assert environment.num_measured == 8


def test_measuring_in_parts_changes_no_trial_and_no_update():
    logs = []
    for at_once in (None, 1, 3, 100):
        logs.append(InMemoryTrialLog())
        stage(make_trainer(), real(), logs[-1], TOTAL, 2, at_once)

    assert all(content(log) == content(logs[0]) for log in logs)
    assert all(metrics_of(log) == metrics_of(logs[0]) for log in logs)


def test_no_trials_at_once_are_refused():
    with pytest.raises(InvalidValueError, match="at_once must be at least 1, got 0"):
        stage(make_trainer(), real(), InMemoryTrialLog(), 8, 1, 0)
