"""What every trainer keeps, with one batch in flight and with several."""

import dataclasses
import json
import math

import numpy as np
import pytest

from placer.batch_trainer import policy_state
from placer.cross_entropy import CrossEntropyConfig, CrossEntropyTrainer
from placer.environment import Measurement, Outcome
from placer.errors import InvalidValueError
from placer.ppo import PpoConfig, PpoTrainer
from placer.reinforce import ReinforceConfig, ReinforceTrainer
from tests.policies import ALL_ACTIONS, EVERYWHERE, TablePolicy

TRAINERS = {
    "reinforce": (ReinforceTrainer, ReinforceConfig),
    "ppo": (PpoTrainer, PpoConfig),
    "cross-entropy": (CrossEntropyTrainer, CrossEntropyConfig),
}
BATCH = 4


def make_trainer(kind, *, policy_seed=0, learning_rate=1.0, **settings):
    trainer, config = TRAINERS[kind]
    policy = TablePolicy(EVERYWHERE, seed=policy_seed, learning_rate=learning_rate)
    return trainer(policy, config(**{"failing_step_time_s": 100.0, "batch_size": BATCH} | settings))


def bandit(trial):
    """Four placements: the first does not fit, the others take 9, 4 and 1 seconds."""
    first, second = trial.device_of_group
    if first == second == 0:
        return Measurement(outcome=Outcome.OUT_OF_MEMORY)
    return Measurement(outcome=Outcome.OK, step_time_s=float((4 - 2 * first - second) ** 2))


def measured(trials, environment="simulated"):
    return [
        dataclasses.replace(trial, environment=environment, measurement=bandit(trial))
        for trial in trials
    ]


def next_batch(trainer):
    return [trial for trial in trainer.ask() if trial.update == trainer.update]


def make_updates(trainer, count, environment="simulated"):
    return [trainer.tell(measured(next_batch(trainer), environment)) for _ in range(count)]


def through_json(checkpoint):
    scalars = json.loads(json.dumps(checkpoint.scalars, allow_nan=False))
    return dataclasses.replace(checkpoint, scalars=scalars)


@pytest.fixture(params=TRAINERS)
def kind(request):
    return request.param


@pytest.fixture(params=[1, 3])
def in_flight(request):
    return request.param


def test_as_many_batches_are_asked_as_are_in_flight(kind, in_flight):
    trainer = make_trainer(kind, in_flight=in_flight)

    for update in range(3):
        asked = trainer.ask()
        first = update * BATCH
        assert [trial.number for trial in asked] == list(range(first, first + in_flight * BATCH))
        assert [trial.update for trial in asked] == [t.number // BATCH for t in asked]
        assert asked == trainer.ask()
        make_updates(trainer, 1)


def test_what_is_in_flight_stays_as_it_was_asked(kind):
    trainer = make_trainer(kind, in_flight=3)
    before = trainer.ask()

    make_updates(trainer, 1)

    assert trainer.ask()[: 2 * BATCH] == before[BATCH:]


def test_a_batch_is_drawn_by_the_policy_of_so_many_updates_before(kind):
    trainer = make_trainer(kind, in_flight=3)
    policies = []
    asked = {}
    for _ in range(6):
        policies.append(trainer.policy.state())
        asked |= {trial.number: trial for trial in trainer.ask()}
        make_updates(trainer, 1)

    for update in range(6):
        drawer = TablePolicy(EVERYWHERE)
        drawer.restore(policies[max(0, update - 2)])
        numbers = np.arange(update * BATCH, (update + 1) * BATCH)
        drawn = [asked[number].device_of_group for number in numbers]
        assert drawer.sample(0, numbers).tolist() == [list(actions) for actions in drawn]


def test_telling_without_asking_first_draws_what_asking_would_have_drawn(kind):
    asking, silent = make_trainer(kind, in_flight=3), make_trainer(kind, in_flight=3)
    batch = next_batch(make_trainer(kind, in_flight=3))
    asking.ask()

    for trainer in (asking, silent):
        trainer.tell(measured(batch))

    assert asking.ask() == silent.ask()


def test_only_the_first_batch_in_flight_can_be_told(kind):
    trainer = make_trainer(kind, in_flight=2)
    asked = measured(trainer.ask())

    with pytest.raises(InvalidValueError, match=r"trial 4 is not .* as trial 0: its number"):
        trainer.tell(asked[BATCH:])
    with pytest.raises(InvalidValueError, match="4 trials were asked, got 8"):
        trainer.tell(asked)

    assert trainer.update == 0


@pytest.mark.parametrize("updates", [0, 1, 2, 5])
@pytest.mark.parametrize("is_asked", [True, False])
def test_a_restored_trainer_goes_on_exactly_as_the_first(kind, in_flight, updates, is_asked):
    first = make_trainer(kind, in_flight=in_flight)
    make_updates(first, updates)
    if is_asked:
        first.ask()
    second = make_trainer(kind, policy_seed=5, in_flight=in_flight)

    second.restore(through_json(first.checkpoint()))

    assert (second.update, second.num_trials, second.best) == (
        updates, updates * BATCH, first.best,
    )  # fmt: skip
    for _ in range(4):
        assert second.ask() == first.ask()
        assert make_updates(second, 1) == make_updates(first, 1)
    states = first.policy.state(), second.policy.state()
    assert np.array_equal(states[0]["logits"], states[1]["logits"])


def test_a_restored_trainer_forgets_what_it_had_in_flight(kind, in_flight):
    first, second = (make_trainer(kind, in_flight=in_flight) for _ in range(2))
    make_updates(first, 2)
    second.ask()

    second.restore(first.checkpoint())

    assert second.ask() == first.ask()


def test_the_policy_of_a_checkpoint_is_what_the_policy_takes_back(kind, in_flight):
    trainer = make_trainer(kind, in_flight=in_flight)
    make_updates(trainer, 2)

    state = policy_state(trainer.checkpoint())

    assert state.keys() == trainer.policy.state().keys()
    assert np.array_equal(state["logits"], trainer.policy.state()["logits"])


def test_a_checkpoint_of_another_number_in_flight_is_refused(kind):
    checkpoint = make_trainer(kind, in_flight=2).checkpoint()

    with pytest.raises(InvalidValueError, match="made with in_flight = 2, not 1"):
        make_trainer(kind).restore(checkpoint)


def test_a_checkpoint_of_another_way_of_training_is_refused(kind):
    (other,) = [name for name in TRAINERS if name != kind][:1]

    with pytest.raises(InvalidValueError, match="the checkpoint was made with"):
        make_trainer(kind).restore(make_trainer(other).checkpoint())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_learns_the_best_of_four_placements(kind, in_flight, seed):
    # Of four placements, four remembered ones would be all.
    settings = {"num_remembered": 1} if kind == "cross-entropy" else {}
    trainer = make_trainer(
        kind,
        policy_seed=seed,
        seed=seed,
        batch_size=8,
        in_flight=in_flight,
        learning_rate=0.5,
        **settings,
    )

    make_updates(trainer, 80)

    probabilities = np.exp(trainer.policy.log_probs(ALL_ACTIONS).sum(axis=1))
    assert probabilities[3] > 0.9
    assert trainer.best.device_of_group == (1, 1)


def test_every_update_tells_of_its_batch_and_of_its_policy(kind, in_flight):
    trainer = make_trainer(kind, in_flight=in_flight)
    batch = measured(next_batch(trainer))

    metrics = trainer.tell(batch)

    times_s = [trial.measurement.step_time_s or 100.0 for trial in batch]
    failed = [trial.measurement.step_time_s is None for trial in batch]
    assert metrics["reward_mean"] == pytest.approx(-np.mean(np.sqrt(times_s)))
    assert metrics["invalid_share"] == np.mean(failed)
    assert {"entropy", "gradient_norm", "loss"} <= metrics.keys()
    assert all(math.isfinite(value) for value in metrics.values())


def test_an_update_of_two_environments_is_refused_and_changes_nothing(kind, in_flight):
    trainer = make_trainer(kind, in_flight=in_flight)
    batch = measured(next_batch(trainer))
    batch[0] = dataclasses.replace(batch[0], environment="real")

    with pytest.raises(InvalidValueError, match=r"one environment, got .*'real', 'simulated'"):
        trainer.tell(batch)

    assert trainer.update == 0


def test_failures_alone_make_no_trial_the_best(kind):
    trainer = make_trainer(kind)
    failed = Measurement(outcome=Outcome.CRASHED)

    trainer.tell([dataclasses.replace(trial, measurement=failed) for trial in trainer.ask()])

    assert trainer.best is None


def test_no_batches_in_flight_are_refused(kind):
    with pytest.raises(InvalidValueError, match="in_flight must be at least 1, got 0"):
        make_trainer(kind, in_flight=0)


def test_a_stale_batch_counts_by_how_likely_it_still_is():
    # Two batches in flight: the second is told to a policy that has learned from the first.
    trainer = make_trainer("reinforce", in_flight=2, start_from_failing=False)
    by_hand = TablePolicy(EVERYWHERE)
    second = measured(trainer.ask())[BATCH:]
    actions = np.array([trial.device_of_group for trial in second], dtype=np.int32)
    drawn_with = by_hand.log_probs(actions).sum(axis=1)
    first_metrics = make_updates(trainer, 1)[0]
    by_hand.restore(trainer.policy.state())
    weights = np.minimum(1, np.exp(by_hand.log_probs(actions).sum(axis=1) - drawn_with))
    rewards = np.array([-math.sqrt(t.measurement.step_time_s or 100.0) for t in second])

    metrics = trainer.tell(second)

    differences = rewards - metrics["baseline"]
    by_hand.update(actions, weights * differences / np.sqrt(np.mean(differences**2)))
    assert trainer.policy.state()["logits"] == pytest.approx(by_hand.state()["logits"])
    assert first_metrics["importance"] == 1
    assert metrics["importance"] == pytest.approx(weights.mean())
    assert 0 < metrics["importance"] < 1
