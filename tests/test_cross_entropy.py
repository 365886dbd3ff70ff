"""The cross-entropy method's own rules; what trainers share is in test_trainers.py."""

import dataclasses

import numpy as np
import pytest

from placer.cross_entropy import CrossEntropyConfig
from placer.environment import Measurement, Outcome
from placer.errors import InvalidValueError
from tests.policies import EVERYWHERE, TablePolicy
from tests.test_trainers import make_trainer, make_updates

KIND = "cross-entropy"
FAILED = Measurement(outcome=Outcome.OUT_OF_MEMORY)


def told(trainer, times_s, environment="simulated"):
    """Tell the next batch with these step times, None for what cannot run."""
    batch = [
        dataclasses.replace(
            trial,
            environment=environment,
            measurement=FAILED
            if time_s is None
            else Measurement(outcome=Outcome.OK, step_time_s=time_s),
        )
        for trial, time_s in zip(trainer.ask(), times_s, strict=True)
    ]
    return batch, trainer.tell(batch)


def actions_of(trials):
    return np.array([trial.device_of_group for trial in trials], dtype=np.int32)


def logits(trainer):
    return trainer.policy.state()["logits"]


def test_an_update_climbs_the_mean_log_probability_of_the_elite():
    trainer = make_trainer(KIND, elite_share=0.5, num_remembered=0)
    by_hand = TablePolicy(EVERYWHERE)

    batch, metrics = told(trainer, [9.0, 1.0, 16.0, 4.0])

    by_hand.update(actions_of([batch[1], batch[3]]), np.ones(2))
    assert logits(trainer) == pytest.approx(by_hand.state()["logits"])
    assert metrics["elite_reward_mean"] == -1.5


def test_the_remembered_weigh_together_what_the_setting_says():
    trainer = make_trainer(KIND, elite_share=0.25, num_remembered=1, imitation=0.5)
    by_hand = TablePolicy(EVERYWHERE)

    batch, _ = told(trainer, [9.0, 1.0, 16.0, 4.0])

    # The fastest is the elite of the batch and the one remembered: weights 1 and 1/2.
    by_hand.update(actions_of([batch[1]]), np.array([1.5]))
    assert logits(trainer) == pytest.approx(by_hand.state()["logits"])


def test_fewer_remembered_than_there_is_room_for_weigh_as_much_together():
    small = make_trainer(KIND, elite_share=0.25, num_remembered=1)
    large = make_trainer(KIND, elite_share=0.25, num_remembered=50)

    for trainer in (small, large):
        told(trainer, [9.0, 1.0, 16.0, 4.0])

    assert logits(small) == pytest.approx(logits(large))


def test_what_cannot_run_is_never_imitated():
    trainer = make_trainer(KIND, elite_share=1.0, num_remembered=4)
    by_hand = TablePolicy(EVERYWHERE)

    batch, _ = told(trainer, [None, 4.0, None, None])

    by_hand.update(actions_of([batch[1]]), np.array([2.0]))
    assert logits(trainer) == pytest.approx(by_hand.state()["logits"])
    assert trainer.remembered == [batch[1]]


def test_a_batch_that_cannot_run_teaches_nothing_when_nothing_is_remembered():
    trainer = make_trainer(KIND)
    before = logits(trainer)

    _, metrics = told(trainer, [None] * 4)

    assert np.array_equal(logits(trainer), before)
    assert "elite_reward_mean" not in metrics


def test_the_fastest_distinct_placements_are_remembered():
    trainer = make_trainer(KIND, num_remembered=2, elite_share=1.0, batch_size=32)

    make_updates(trainer, 3)

    placements = [trial.device_of_group for trial in trainer.remembered]
    assert placements == [(1, 1), (1, 0)]


def test_what_is_remembered_is_imitated_when_it_is_not_drawn_again():
    trainer = make_trainer(KIND, num_remembered=1, elite_share=0.25)
    told(trainer, [9.0, 1.0, 16.0, 4.0])
    best = actions_of(trainer.remembered)
    before = trainer.policy.log_probs(best).sum()

    told(trainer, [None] * 4)

    assert trainer.policy.log_probs(best).sum() > before


def test_where_the_environment_changes_what_is_remembered_begins_anew():
    trainer = make_trainer(KIND, num_remembered=4)
    told(trainer, [1e-3] * 4)

    batch, _ = told(trainer, [9.0, 1.0, 16.0, 4.0], environment="real")

    assert {trial.environment for trial in trainer.remembered} == {"real"}
    assert trainer.remembered[0] == batch[1]


def test_the_scale_of_step_times_does_not_matter():
    seconds, microseconds = make_trainer(KIND), make_trainer(KIND)

    told(seconds, [9.0, 1.0, 16.0, 4.0])
    told(microseconds, [9e-6, 1e-6, 16e-6, 4e-6])

    assert np.array_equal(logits(seconds), logits(microseconds))


def test_every_update_has_as_many_rows():
    class NotingPolicy(TablePolicy):
        def __init__(self):
            super().__init__(EVERYWHERE)
            self.rows = []

        def update(self, actions, advantages):
            self.rows.append(len(actions))
            return super().update(actions, advantages)

    trainer = make_trainer(KIND, num_remembered=3)
    trainer.policy = NotingPolicy()

    told(trainer, [None] * 4)
    told(trainer, [9.0, None, None, None])
    told(trainer, [9.0, 1.0, 16.0, 4.0])

    assert trainer.policy.rows == [4] * 3  # one of four in the elite, and three


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("elite_share", 0),
        ("elite_share", 1.1),
        ("num_remembered", -1),
        ("imitation", -1),
        ("imitation", float("nan")),
        ("seed", -1),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(field, value):
    with pytest.raises(InvalidValueError, match=field):
        CrossEntropyConfig(**{"failing_step_time_s": 1.0} | {field: value})
