import dataclasses
import itertools

import pytest

from placer.environment import Measurement, Outcome
from placer.errors import InvalidValueError, StoreError
from placer.grouping import Grouping
from placer.placement import Placement
from placer.reinforce import ReinforceConfig, ReinforceTrainer
from placer.training import train
from placer.trials import InMemoryTrialLog
from tests.policies import EVERYWHERE, TablePolicy

GROUPING = Grouping([0, 1, 1])
BATCH = 4


class CountingEnvironment:
    """1, 2 or 3 seconds by the ops on device 1; all on device 0 does not fit."""

    name = "counting"

    def __init__(self):
        self.measured = []

    def measure(self, placements):
        self.measured += placements
        return [self._measure(placement) for placement in placements]

    @staticmethod
    def _measure(placement):
        ops_there = int(placement.device_of_op.sum())
        if ops_there == 0:
            return Measurement(outcome=Outcome.OUT_OF_MEMORY)
        return Measurement(outcome=Outcome.OK, step_time_s=float(ops_there))


class BrokenEnvironment(CountingEnvironment):
    """Stops the training, as a kill would, once it has measured so many placements."""

    def __init__(self, after):
        super().__init__()
        self._after = after

    def measure(self, placements):
        if len(self.measured) >= self._after:
            raise KeyboardInterrupt
        return super().measure(placements)


def make_trainer(*, seed=0):
    config = ReinforceConfig(failing_step_time_s=10.0, batch_size=BATCH, seed=seed)
    return ReinforceTrainer(TablePolicy(EVERYWHERE), config)


def run(log, *, num_trials, environment=None, trainer=None, checkpoint_every=2):
    return list(
        train(
            trainer or make_trainer(),
            environment or CountingEnvironment(),
            GROUPING,
            log,
            num_trials=num_trials,
            checkpoint_every=checkpoint_every,
        )
    )


def content(log):
    """What must not depend on interruptions: everything but the clock."""
    return [dataclasses.replace(trial, finished_at_s=0) for trial in log.trials()]


def test_the_log_holds_exactly_the_trials_wanted_measured_and_numbered():
    log, environment = InMemoryTrialLog(), CountingEnvironment()

    run(log, num_trials=12, environment=environment)

    trials = log.trials()
    assert [trial.number for trial in trials] == list(range(12))
    assert [trial.update for trial in trials] == [0] * 4 + [1] * 4 + [2] * 4
    assert {trial.environment for trial in trials} == {"counting"}
    assert all(trial.finished_at_s > 0 for trial in trials)
    placements = [Placement.from_groups(GROUPING, trial.device_of_group) for trial in trials]
    assert environment.measured == placements
    assert [trial.measurement for trial in trials] == CountingEnvironment().measure(placements)


def test_progress_is_told_before_any_work_and_after_each_update():
    log = InMemoryTrialLog()

    steps = run(log, num_trials=12)

    assert [step.num_trials for step in steps] == [0, 4, 8, 12]
    assert [step.update for step in steps] == [0, 1, 2, 3]
    assert (steps[0].best, steps[0].best_step_time_s) == (None, None)
    assert [dict(step.metrics) for step in steps[1:]] == log.metrics
    assert "reward_mean" in steps[1].metrics
    assert all(step.trials_per_s > 0 for step in steps[1:])


def test_progress_tells_the_best_and_the_invalid_share_of_all_trials():
    log = InMemoryTrialLog()

    steps = run(log, num_trials=40)

    trials = log.trials()
    for step in steps[1:]:
        so_far = trials[: step.num_trials]
        times_s = [trial.measurement.step_time_s for trial in so_far]
        ran_s = [time_s for time_s in times_s if time_s is not None]
        assert step.best_step_time_s == min(ran_s)
        assert step.best == so_far[times_s.index(min(ran_s))]
        assert step.invalid_share == times_s.count(None) / len(so_far)
    assert steps[-1].best_step_time_s == 1
    assert 0 < steps[-1].invalid_share < 1


def test_a_batch_that_is_cut_is_measured_and_logged_and_makes_no_update():
    log = InMemoryTrialLog()

    steps = run(log, num_trials=10)

    assert len(log.trials()) == 10
    assert (steps[-1].num_trials, steps[-1].update, dict(steps[-1].metrics)) == (10, 2, {})
    assert log.metrics[-1] == {}


@pytest.mark.parametrize("first", [1, 3, 4, 7, 8, 13])
def test_continuing_a_training_gives_the_very_trials_of_an_uninterrupted_one(first):
    whole, parts = InMemoryTrialLog(), InMemoryTrialLog()
    run(whole, num_trials=20)

    run(parts, num_trials=first)
    environment = CountingEnvironment()
    steps = run(parts, num_trials=20, environment=environment)

    assert content(parts) == content(whole)
    assert len(environment.measured) == 20 - first
    assert steps[0].num_trials == first
    metrics = [metrics for metrics in parts.metrics if metrics]
    assert metrics == whole.metrics


@pytest.mark.parametrize("kill_after", [4, 8, 12, 16])
@pytest.mark.parametrize("checkpoint_every", [1, 3, 100])
def test_a_killed_training_measures_nothing_twice(kill_after, checkpoint_every):
    whole, killed = InMemoryTrialLog(), InMemoryTrialLog()
    run(whole, num_trials=20)
    with pytest.raises(KeyboardInterrupt):
        run(
            killed,
            num_trials=20,
            environment=BrokenEnvironment(kill_after),
            checkpoint_every=checkpoint_every,
        )

    environment = CountingEnvironment()
    run(killed, num_trials=20, environment=environment, checkpoint_every=checkpoint_every)

    assert content(killed) == content(whole)
    assert len(environment.measured) == 20 - kill_after


def strike_third(call, *, late):
    """Return the call, which ends the process the third time: before its work, or after it."""
    count = itertools.count(1)

    def struck(*arguments):
        is_third = next(count) == 3
        if is_third and not late:
            raise SystemExit
        result = call(*arguments)
        if is_third:
            raise SystemExit
        return result

    return struck


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("place", "checkpointed"),
    [("measure", 2), ("update", None), ("append", None)],
)
def test_an_interruption_saves_what_is_settled_and_nothing_else(
    place, checkpointed, late, monkeypatch
):
    # The third update is struck: with its trials only measured, the first two are settled; within
    # the update, or before the log is sure to hold its trials, nothing is.
    whole, log = InMemoryTrialLog(), InMemoryTrialLog()
    run(whole, num_trials=20)
    trainer, environment = make_trainer(), CountingEnvironment()
    struck = {"measure": environment, "update": trainer.policy, "append": log}[place]
    with monkeypatch.context() as patch:
        patch.setattr(struck, place, strike_third(getattr(struck, place), late=late))
        with pytest.raises(SystemExit):
            run(log, num_trials=20, trainer=trainer, environment=environment, checkpoint_every=100)

    saved = log.load_checkpoint()
    assert (saved and saved.update) == checkpointed
    run(log, num_trials=20)
    assert content(log) == content(whole)


def test_what_ends_a_training_is_told_and_not_that_its_checkpoint_cannot_be_saved(monkeypatch):
    log = InMemoryTrialLog()

    def refuse(_checkpoint):
        raise StoreError("away")

    monkeypatch.setattr(log, "save_checkpoint", refuse)
    with pytest.raises(KeyboardInterrupt):
        run(log, num_trials=20, environment=BrokenEnvironment(8), checkpoint_every=100)


def test_a_caller_who_stops_iterating_finds_what_was_done_in_the_log():
    log = InMemoryTrialLog()
    steps = train(
        make_trainer(), CountingEnvironment(), GROUPING, log, num_trials=20, checkpoint_every=100
    )

    list(itertools.islice(steps, 3))
    steps.close()

    assert len(log.trials()) == 8
    assert log.load_checkpoint().num_trials == 8


def test_a_training_that_is_complete_tells_its_result_and_measures_nothing():
    log = InMemoryTrialLog()
    earlier = run(log, num_trials=12)
    environment = CountingEnvironment()

    steps = run(log, num_trials=12, environment=environment)

    assert environment.measured == []
    assert [step.num_trials for step in steps] == [12]
    assert steps[0].best == earlier[-1].best
    assert len(log.trials()) == 12


def test_a_training_with_more_trials_than_wanted_stays_as_it_is():
    log = InMemoryTrialLog()
    run(log, num_trials=12)
    environment = CountingEnvironment()

    steps = run(log, num_trials=6, environment=environment)

    assert environment.measured == []
    assert steps[-1].num_trials == len(log.trials()) == 12


def test_checkpoints_are_saved_at_their_distance_and_at_the_end():
    class NotingLog(InMemoryTrialLog):
        def __init__(self):
            super().__init__()
            self.saved = []

        def save_checkpoint(self, checkpoint):
            super().save_checkpoint(checkpoint)
            self.saved.append((checkpoint.update, len(self.trials())))

    log = NotingLog()

    run(log, num_trials=22, checkpoint_every=2)

    # The trials are in the log before the checkpoint that knows them; the last batch was
    # cut, so the end adds the checkpoint of update 5.
    assert log.saved == [(2, 8), (4, 16), (5, 22)]


def test_a_log_without_its_checkpoint_is_enough():
    whole, log = InMemoryTrialLog(), InMemoryTrialLog()
    run(whole, num_trials=20)
    log.append(whole.trials()[:12], {})
    environment = CountingEnvironment()

    run(log, num_trials=20, environment=environment)

    assert content(log) == content(whole)
    assert len(environment.measured) == 8


def test_a_checkpoint_that_knows_more_than_the_log_is_not_used(caplog):
    whole, log = InMemoryTrialLog(), InMemoryTrialLog()
    run(whole, num_trials=20)
    log.append(whole.trials()[:6], {})
    log.save_checkpoint(whole.load_checkpoint())

    run(log, num_trials=20)

    assert content(log) == content(whole)
    assert "checkpoint is of 20 trials, the log holds 6" in caplog.text


def test_a_log_of_another_seed_is_refused_and_the_trial_is_named():
    log = InMemoryTrialLog()
    other = InMemoryTrialLog()
    run(other, num_trials=20, trainer=make_trainer(seed=1))
    log.append(other.trials(), {})

    with pytest.raises(InvalidValueError, match=r"trial \d+ is not what this policy proposes"):
        run(log, num_trials=40)

    assert len(log.trials()) == 20


def test_a_log_with_a_gap_is_refused():
    whole, log = InMemoryTrialLog(), InMemoryTrialLog()
    run(whole, num_trials=8)
    log.append(whole.trials()[:3] + whole.trials()[4:], {})

    with pytest.raises(InvalidValueError, match="trial 4 where 3 belongs"):
        run(log, num_trials=8)


@pytest.mark.parametrize(("num_trials", "checkpoint_every"), [(0, 1), (1, 0)])
def test_numbers_below_one_are_refused(num_trials, checkpoint_every):
    with pytest.raises(InvalidValueError, match="at least 1"):
        run(InMemoryTrialLog(), num_trials=num_trials, checkpoint_every=checkpoint_every)
