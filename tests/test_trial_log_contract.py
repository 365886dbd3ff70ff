"""What every trial log must do, run over the one in memory and over MLflow's stores."""

import dataclasses
import uuid

import numpy as np
import pytest

from placer.mlflow_store import Store
from placer.mlflow_trial_log import MLflowTrialLog
from placer.trials import Checkpoint, InMemoryTrialLog, TrialLog
from tests.tracking import (
    remote_store,
    server_uri,
    store,
    store_root,
    too_large,
    trial_of,
    trials_of,
)

__all__ = ["remote_store", "server_uri", "store", "store_root"]

pytestmark = pytest.mark.slow

METRICS = {"reward_mean": -1.4, "baseline": -1.5, "entropy": 0.6}


def checkpoint_of(update: int) -> Checkpoint:
    return Checkpoint(
        update=update,
        num_trials=4 * update,
        arrays={"kernel": np.full((2, 3), update, dtype=np.float32), "step": np.array(update)},
        scalars={"baseline": -1.5, "best": None, "config": {"seed": update}},
    )


class TrialLogContract:
    """Inherit, and give a fixture ``log`` that is empty."""

    def reopened(self, log: TrialLog) -> TrialLog:
        """Return the log as another process would find it."""
        raise NotImplementedError

    def test_an_empty_log_has_neither_trials_nor_a_checkpoint(self, log: TrialLog) -> None:
        assert log.trials() == []
        assert log.load_checkpoint() is None

    def test_trials_come_back_as_they_were_by_number(self, log: TrialLog) -> None:
        first = [trial_of(0), trial_of(1, too_large()), trial_of(2), trial_of(3)]

        log.append(first, METRICS)
        log.append(trials_of(range(4, 8)), METRICS)

        assert log.trials() == first + trials_of(range(4, 8))

    def test_trials_are_kept_as_soon_as_they_are_appended(self, log: TrialLog) -> None:
        log.append(trials_of(range(4)), METRICS)

        assert self.reopened(log).trials() == trials_of(range(4))

    def test_a_reopened_log_goes_on(self, log: TrialLog) -> None:
        log.append(trials_of(range(4)), METRICS)
        again = self.reopened(log)

        again.append(trials_of(range(4, 8)), METRICS)

        assert self.reopened(again).trials() == trials_of(range(8))

    def test_an_update_may_come_in_two_parts(self, log: TrialLog) -> None:
        log.append(trials_of([0, 1, 2]), {})
        log.append(trials_of([3]), METRICS)

        assert log.trials() == trials_of(range(4))

    def test_an_update_may_come_trial_by_trial_and_be_interrupted(self, log: TrialLog) -> None:
        for number in (0, 1):
            log.append(trials_of([number]), {})
        again = self.reopened(log)
        kept = again.trials()
        again.append(trials_of([2]), {})
        again.append(trials_of([3]), METRICS)

        assert kept == trials_of([0, 1])
        assert self.reopened(again).trials() == trials_of(range(4))

    def test_each_trial_keeps_its_own_environment(self, log: TrialLog) -> None:
        real = [dataclasses.replace(trial, environment="real") for trial in trials_of(range(4, 8))]

        log.append(trials_of(range(4)), METRICS)
        log.append(real, METRICS)

        assert self.reopened(log).trials() == trials_of(range(4)) + real

    def test_the_list_of_trials_belongs_to_the_caller(self, log: TrialLog) -> None:
        log.append(trials_of(range(4)), METRICS)

        log.trials().clear()

        assert len(log.trials()) == 4

    def test_the_last_checkpoint_comes_back(self, log: TrialLog) -> None:
        log.append(trials_of(range(8)), METRICS)
        for update in (1, 2):
            log.save_checkpoint(checkpoint_of(update))

        found = self.reopened(log).load_checkpoint()

        assert found is not None
        assert (found.update, found.num_trials) == (2, 8)
        assert found.scalars == checkpoint_of(2).scalars
        assert found.arrays.keys() == {"kernel", "step"}
        for name, array in checkpoint_of(2).arrays.items():
            assert found.arrays[name].dtype == array.dtype
            assert np.array_equal(found.arrays[name], array)

    def test_a_checkpoint_needs_no_trials(self, log: TrialLog) -> None:
        log.save_checkpoint(checkpoint_of(0))

        assert log.trials() == []
        assert log.load_checkpoint() is not None


class TestInMemoryTrialLog(TrialLogContract):
    @pytest.fixture
    def log(self) -> InMemoryTrialLog:
        return InMemoryTrialLog()

    def reopened(self, log: TrialLog) -> TrialLog:
        return log


class MLflowContract(TrialLogContract):
    def new_log(self, store: Store) -> MLflowTrialLog:
        with store.training(uuid.uuid4().hex, name="contract", params={}, tags={}) as run:
            return MLflowTrialLog(store, run.run_id)

    def reopened(self, log: TrialLog) -> TrialLog:
        assert isinstance(log, MLflowTrialLog)
        return MLflowTrialLog(log.store, log.run_id)


class TestMLflowTrialLogInTheEmbeddedStore(MLflowContract):
    @pytest.fixture
    def log(self, store: Store) -> MLflowTrialLog:
        return self.new_log(store)


class TestMLflowTrialLogBehindAServer(MLflowContract):
    @pytest.fixture
    def log(self, remote_store: Store) -> MLflowTrialLog:
        return self.new_log(remote_store)
