import dataclasses
import json
import math

import numpy as np
import pytest

from placer.batch_trainer import check_same_proposal
from placer.environment import Measurement, Outcome
from placer.errors import InvalidValueError
from placer.graph import Op
from placer.reinforce import ReinforceConfig, ReinforceTrainer, failing_step_time_s
from placer.trials import Checkpoint, Trial
from tests.grouped_profiles import profile_of
from tests.policies import ALL_ACTIONS, EVERYWHERE, TablePolicy

FAILED = Measurement(outcome=Outcome.OUT_OF_MEMORY, detail="gpu:0 is full")


def ok(step_time_s):
    return Measurement(outcome=Outcome.OK, step_time_s=step_time_s)


def make_trainer(*, policy_seed=0, **settings):
    defaults = {"failing_step_time_s": 100.0, "batch_size": 4}
    policy = TablePolicy(EVERYWHERE, seed=policy_seed)
    return ReinforceTrainer(policy, ReinforceConfig(**defaults | settings))


def measured(trials, measurement_of):
    return [
        dataclasses.replace(trial, measurement=measurement_of(trial.device_of_group))
        for trial in trials
    ]


def bandit(device_of_group):
    """Four placements; the last is the best: 16, 9, 4 and 1 seconds."""
    return ok(float((4 - 2 * device_of_group[0] - device_of_group[1]) ** 2))


def test_trials_are_numbered_without_a_gap_and_know_their_update():
    trainer = make_trainer()

    first = trainer.ask()
    trainer.tell(measured(first, bandit))
    second = trainer.ask()

    assert [trial.number for trial in first + second] == list(range(8))
    assert {trial.update for trial in first} == {0}
    assert {trial.update for trial in second} == {1}
    assert (trainer.update, trainer.num_trials) == (1, 4)


def test_asking_again_before_telling_gives_the_same_trials():
    trainer = make_trainer()

    assert trainer.ask() == trainer.ask()
    assert trainer.ask() == make_trainer().ask()


def test_another_seed_asks_for_other_trials():
    assert make_trainer(batch_size=32).ask() != make_trainer(batch_size=32, seed=1).ask()


def test_the_metrics_are_those_of_the_batch():
    trainer = make_trainer(failing_step_time_s=25.0)
    asked = trainer.ask()
    told = [
        dataclasses.replace(trial, measurement=found)
        for trial, found in zip(asked, [ok(4.0), ok(16.0), FAILED, ok(9.0)], strict=True)
    ]

    metrics = trainer.tell(told)

    # Rewards -2, -4, -5 and -3; the baseline starts at the failing signal, -5.
    assert metrics["reward_mean"] == -3.5
    assert metrics["baseline"] == -5
    assert metrics["invalid_share"] == 0.25
    assert metrics.keys() == {
        "reward_mean", "baseline", "invalid_share", "entropy", "gradient_norm", "loss"
    }  # fmt: skip


def test_the_baseline_moves_after_the_update_it_was_used_in():
    trainer = make_trainer(failing_step_time_s=25.0)
    trainer.tell(measured(trainer.ask(), lambda _: ok(4.0)))

    metrics = trainer.tell(measured(trainer.ask(), lambda _: ok(4.0)))

    # 0.9 * -5 + 0.1 * -2
    assert metrics["baseline"] == pytest.approx(-4.7)


def test_the_baseline_may_start_at_the_first_rewards_instead():
    trainer = make_trainer(start_from_failing=False)
    before = trainer.policy.state()["logits"]

    metrics = trainer.tell(measured(trainer.ask(), lambda _: ok(4.0)))

    assert metrics["baseline"] == -2
    # Every reward equals the baseline: there was nothing to learn.
    assert np.array_equal(trainer.policy.state()["logits"], before)


def test_at_first_a_failed_placement_teaches_as_one_of_the_failing_step_time():
    failing, slow = make_trainer(failing_step_time_s=25.0), make_trainer(failing_step_time_s=25.0)

    failing.tell(measured(failing.ask(), lambda action: FAILED if action[1] else ok(4.0)))
    slow.tell(measured(slow.ask(), lambda action: ok(25.0 if action[1] else 4.0)))

    assert np.array_equal(failing.policy.state()["logits"], slow.policy.state()["logits"])


def test_later_only_runnable_placements_move_the_policy_and_the_baseline():
    trainer = make_trainer(runnable_only_after=0, failing_step_time_s=25.0)
    found = [ok(4.0), FAILED, ok(9.0), FAILED]
    by_hand = TablePolicy(EVERYWHERE)
    asked = trainer.ask()
    # Rewards -2 and -3 against a baseline of -5: 3 and 2, their root mean square the root of 6.5.
    actions = np.array([trial.device_of_group for trial in asked], dtype=np.int32)
    by_hand.update(actions, np.array([3, 0, 2, 0]) / math.sqrt(6.5))

    trainer.tell(
        [
            dataclasses.replace(trial, measurement=measurement)
            for trial, measurement in zip(asked, found, strict=True)
        ]
    )
    next_metrics = trainer.tell(measured(trainer.ask(), lambda _: FAILED))

    assert trainer.policy.state()["logits"] == pytest.approx(by_hand.state()["logits"])
    # 0.9 * -5 + 0.1 * -2.5; and a batch of failures alone moved nothing.
    assert next_metrics["baseline"] == pytest.approx(-4.75)
    assert next_metrics["gradient_norm"] == 0


def of(environment, trials, measurement_of):
    return [
        dataclasses.replace(trial, environment=environment)
        for trial in measured(trials, measurement_of)
    ]


def test_where_the_environment_changes_the_baseline_starts_anew_from_the_first_mean():
    trainer = make_trainer(failing_step_time_s=25.0)
    trainer.tell(of("simulated", trainer.ask(), lambda _: ok(4.0)))

    first = trainer.tell(of("real", trainer.ask(), lambda _: ok(16.0)))
    second = trainer.tell(of("real", trainer.ask(), lambda _: ok(9.0)))
    third = trainer.tell(of("real", trainer.ask(), lambda _: ok(9.0)))

    # Rewards -4, then -3; the decay is 0.9.
    assert first["baseline"] == -4
    assert second["baseline"] == pytest.approx(-4)
    assert third["baseline"] == pytest.approx(-3.9)


def test_a_first_batch_elsewhere_of_equal_times_teaches_nothing():
    trainer = make_trainer(failing_step_time_s=25.0)
    trainer.tell(of("simulated", trainer.ask(), bandit))
    before = trainer.policy.state()["logits"]

    trainer.tell(of("real", trainer.ask(), lambda _: ok(16.0)))

    assert np.array_equal(trainer.policy.state()["logits"], before)


def test_an_update_of_two_environments_is_refused_and_changes_nothing():
    trainer = make_trainer()
    asked = of("real", trainer.ask(), bandit)
    asked[0] = dataclasses.replace(asked[0], environment="simulated")

    with pytest.raises(InvalidValueError, match=r"one environment, got .*'real', 'simulated'"):
        trainer.tell(asked)

    assert trainer.update == 0


def test_a_restored_trainer_knows_which_environment_it_learned_from():
    first, second = make_trainer(failing_step_time_s=25.0), make_trainer(failing_step_time_s=25.0)
    first.tell(of("simulated", first.ask(), lambda _: ok(4.0)))

    second.restore(through_json(first.checkpoint()))

    metrics = second.tell(of("real", second.ask(), lambda _: ok(16.0)))
    assert metrics["baseline"] == -4


def test_a_failure_is_never_rewarded_above_what_ran_beside_it():
    trainer = make_trainer(failing_step_time_s=4.0)
    told = [
        dataclasses.replace(trial, measurement=found)
        for trial, found in zip(trainer.ask(), [ok(36.0), FAILED, ok(4.0), ok(9.0)], strict=True)
    ]

    metrics = trainer.tell(told)

    # Rewards -6, -6, -2 and -3: slower than the failing signal is as bad as a failure.
    assert metrics["reward_mean"] == -4.25


def test_the_best_trial_is_the_fastest_told_and_the_first_of_equals():
    trainer = make_trainer(batch_size=16)
    first = measured(trainer.ask(), bandit)
    trainer.tell(first)
    trainer.tell(measured(trainer.ask(), bandit))

    times_s = [trial.measurement.step_time_s for trial in first]
    assert min(times_s) == 1
    assert trainer.best == first[times_s.index(1)]


def test_no_trial_is_the_best_if_none_ran():
    trainer = make_trainer()

    trainer.tell(measured(trainer.ask(), lambda _: FAILED))

    assert trainer.best is None


@pytest.mark.parametrize("policy_seed", [0, 1, 2])
def test_it_learns_the_best_of_four_placements(policy_seed):
    trainer = make_trainer(policy_seed=policy_seed, seed=policy_seed, batch_size=8)

    for _ in range(40):
        trainer.tell(measured(trainer.ask(), bandit))

    probabilities = np.exp(trainer.policy.log_probs(ALL_ACTIONS).sum(axis=1))
    assert probabilities[3] > 0.9


def test_it_learns_alike_in_microseconds_and_in_seconds():
    trainers = [make_trainer(), make_trainer(failing_step_time_s=100e-6)]

    for _ in range(5):
        seconds, microseconds = trainers
        assert seconds.ask() == microseconds.ask()
        seconds.tell(measured(seconds.ask(), bandit))
        microseconds.tell(
            measured(microseconds.ask(), lambda action: ok(1e-6 * bandit(action).step_time_s))
        )

    states = [trainer.policy.state()["logits"] for trainer in trainers]
    assert states[0] == pytest.approx(states[1], rel=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda trials: trials[:-1], "4 trials were asked, got 3"),
        (lambda trials: trials[::-1], "trial 3 is not .* as trial 0: its number differs"),
        (
            lambda trials: [dataclasses.replace(trials[0], device_of_group=(7, 7)), *trials[1:]],
            "trial 0 is not .* its device_of_group differs",
        ),
        (
            lambda trials: [*trials[:3], dataclasses.replace(trials[3], measurement=None)],
            "trial 3 has no measurement",
        ),
    ],
)
def test_trials_that_were_not_asked_are_refused_and_change_nothing(change, message):
    trainer = make_trainer()
    asked = measured(trainer.ask(), bandit)

    with pytest.raises(InvalidValueError, match=message):
        trainer.tell(change(asked))

    assert trainer.update == 0
    assert measured(trainer.ask(), bandit) == asked


def test_a_trial_of_another_update_is_another_proposal():
    trial = Trial(number=3, update=0, device_of_group=(0, 1))

    check_same_proposal(dataclasses.replace(trial, environment="real"), trial)
    with pytest.raises(InvalidValueError, match=r"trial 3 .* its update differs"):
        check_same_proposal(dataclasses.replace(trial, update=1), trial)


def test_a_restored_trainer_goes_on_exactly_as_the_first():
    first = make_trainer()
    for _ in range(3):
        first.tell(measured(first.ask(), bandit))
    second = make_trainer(policy_seed=5)

    second.restore(through_json(first.checkpoint()))

    assert (second.update, second.num_trials, second.best) == (3, 12, first.best)
    for _ in range(2):
        assert second.ask() == first.ask()
        metrics = [trainer.tell(measured(trainer.ask(), bandit)) for trainer in (first, second)]
        assert metrics[0] == metrics[1]


def test_a_checkpoint_does_not_hold_what_was_asked_and_not_told():
    trainer = make_trainer()
    trainer.tell(measured(trainer.ask(), bandit))
    checkpoint = trainer.checkpoint()
    asked = trainer.ask()

    trainer.tell(measured(asked, bandit))
    trainer.restore(checkpoint)

    assert trainer.ask() == asked


def test_a_trainer_without_a_best_trial_is_restored_as_well():
    first = make_trainer(start_from_failing=False)

    second = make_trainer(policy_seed=5, start_from_failing=False)
    second.restore(through_json(first.checkpoint()))

    assert second.best is None
    assert second.ask() == first.ask()


def test_a_checkpoint_of_other_settings_is_refused():
    checkpoint = make_trainer(batch_size=8).checkpoint()

    with pytest.raises(InvalidValueError, match="made with batch_size = 8, not 4"):
        make_trainer().restore(checkpoint)


def through_json(checkpoint: Checkpoint) -> Checkpoint:
    scalars = json.loads(json.dumps(checkpoint.scalars, allow_nan=False))
    return dataclasses.replace(checkpoint, scalars=scalars)


def test_the_failing_signal_is_twice_the_work_on_the_slowest_device():
    # Three ops of 1, 2 and 3 seconds on the GPUs, ten times as much on the CPU.
    ops = [Op(name, "MatMul") for name in "abc"]

    assert failing_step_time_s(profile_of(ops, [], time_s=[1, 2, 3])) == 120


def test_the_failing_signal_of_a_graph_without_work_is_positive():
    assert 0 < failing_step_time_s(profile_of([Op("a", "NoOp")], [], time_s=[0])) < 1e-6


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("failing_step_time_s", 0),
        ("failing_step_time_s", math.inf),
        ("batch_size", 0),
        ("baseline_decay", 1),
        ("baseline_decay", -0.1),
        ("runnable_only_after", -1),
        ("seed", -1),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(field, value):
    with pytest.raises(InvalidValueError, match=field):
        ReinforceConfig(**{"failing_step_time_s": 1.0} | {field: value})
