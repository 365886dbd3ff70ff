"""The hand-over to a store: its heartbeat, what is tried again, and what is refused for good."""

import datetime
import itertools
import logging
import sqlite3
import time
import urllib.error
from collections.abc import Iterator

import pytest
import requests
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import ErrorCode

from placer.errors import PlacerError, StoreError, UnknownNameError
from placer.mlflow_connection import sqlite_file
from placer.mlflow_store import Store
from placer.mlflow_trial_log import MLflowTrialLog
from placer.mlflow_waiting import is_passing, until_it_answers
from tests.processes import wait_until
from tests.tracking import store, store_root, trials_of

__all__ = ["store", "store_root"]

pytestmark = pytest.mark.slow

KEYS = (f"hand-over {number}" for number in itertools.count())
LONG_AGO = "2020-01-01T00:00:00+00:00"


@pytest.fixture
def log(store: Store) -> Iterator[MLflowTrialLog]:
    with store.training(next(KEYS), name="log", params={}, tags={}) as run:
        yield MLflowTrialLog(store, run.run_id)


def steps(log: MLflowTrialLog, metric: str = "trial/step_time_s") -> list[int]:
    history = log.store.connection.client.get_metric_history(log.run_id, metric)
    return sorted(point.step for point in history)


def tag(log: MLflowTrialLog, name: str) -> str:
    return log.store.run(log.run_id).tags[name]


# Heartbeat


def test_the_heart_beats_while_nothing_is_written(
    log: MLflowTrialLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placer.mlflow_handover.HEARTBEAT_S", 0.2)
    log.store.connection.client.set_tag(log.run_id, "placer.heartbeat", LONG_AGO)

    with log:
        assert wait_until(lambda: tag(log, "placer.heartbeat") != LONG_AGO)

    beat = datetime.datetime.fromisoformat(tag(log, "placer.heartbeat"))
    assert abs((datetime.datetime.now(datetime.UTC) - beat).total_seconds()) < 3600


def test_a_log_that_was_closed_has_no_heart_any_more(
    log: MLflowTrialLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placer.mlflow_handover.HEARTBEAT_S", 0.05)
    with log:
        log.append(trials_of([0]), {})
    log.store.connection.client.set_tag(log.run_id, "placer.heartbeat", LONG_AGO)

    time.sleep(0.5)  # ten beats

    assert tag(log, "placer.heartbeat") == LONG_AGO


# A store that is locked


def test_a_training_goes_on_while_another_process_has_the_database_locked(
    log: MLflowTrialLog,
) -> None:
    database = sqlite_file(log.store.uri)
    assert database is not None
    locking = sqlite3.connect(database, isolation_level=None)
    with log:
        locking.execute("BEGIN IMMEDIATE")
        for number in range(500):  # 1,000 points, which are sent without waiting for more
            log.append(trials_of([number]), {})
        during = steps(log)
        locking.execute("ROLLBACK")
    locking.close()

    assert during == []
    assert steps(log) == list(range(500))
    assert tag(log, "placer.logged_trials") == "500"


# Refusals


def test_a_training_whose_run_was_deleted_is_told_and_its_trials_are_kept(
    log: MLflowTrialLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placer.mlflow_handover.HEARTBEAT_S", 0.05)
    client = log.store.connection.client
    numbers: list[int] = []

    def append() -> bool:
        numbers.append(len(numbers))
        log.append(trials_of(numbers[-1:]), {})
        return False

    def train() -> None:
        with log:
            append()
            client.delete_run(log.run_id)
            wait_until(append)

    with pytest.raises(StoreError) as caught:
        train()
    client.restore_run(log.run_id)

    message = str(caught.value)
    kept = MLflowTrialLog(log.store, log.run_id).trials()
    assert "must be in the 'active' state" in message
    assert f"trials are kept in {log.store.artifacts.journal(log.run_id).folder}" in message
    assert kept == trials_of(numbers)  # that of the append which told it among them


def store_error(cause: Exception) -> StoreError:
    error = StoreError("tracking store x: reason")
    error.__cause__ = cause
    return error


def http_error(code: int) -> requests.HTTPError:
    response = requests.Response()
    response.status_code = code
    return requests.HTTPError("refused", response=response)


def mlflow_error(name: str) -> MlflowException:
    return MlflowException("reason", error_code=ErrorCode.Value(name))


@pytest.mark.parametrize(
    "error",
    [
        *(store_error(http_error(code)) for code in (408, 429, 500, 502, 503, 507)),
        store_error(mlflow_error("INTERNAL_ERROR")),
        store_error(mlflow_error("TEMPORARILY_UNAVAILABLE")),
        store_error(mlflow_error("REQUEST_LIMIT_EXCEEDED")),
        store_error(urllib.error.URLError("refused")),
        store_error(TimeoutError("timed out")),
    ],
)
def test_what_may_get_better_is_tried_again(error: PlacerError) -> None:
    assert is_passing(error)


@pytest.mark.parametrize(
    "error",
    [
        *(store_error(http_error(code)) for code in (400, 401, 403, 404, 413)),
        store_error(mlflow_error("RESOURCE_DOES_NOT_EXIST")),
        store_error(mlflow_error("INVALID_PARAMETER_VALUE")),
        store_error(mlflow_error("PERMISSION_DENIED")),
        store_error(PermissionError("not yours")),
        UnknownNameError("run", "x", []),
    ],
)
def test_what_is_refused_is_not(error: PlacerError) -> None:
    assert not is_passing(error)


# Waiting for an answer


@pytest.fixture
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placer.journal.FIRST_PAUSE_S", 0.01)


@pytest.mark.usefixtures("_short_pauses")
def test_a_store_is_asked_until_it_answers_and_a_message_says_so(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes = iter([store_error(TimeoutError()), store_error(TimeoutError()), 7])

    def ask() -> int:
        outcome = next(outcomes)
        if isinstance(outcome, StoreError):
            raise outcome
        return outcome

    with caplog.at_level(logging.WARNING, "placer"):
        answer = until_it_answers(store.connection, ask)

    assert answer == 7
    assert caplog.messages == [
        "tracking store x: reason; waiting for it",
        f"tracking store {store.uri} answers again",
    ]


@pytest.mark.usefixtures("_short_pauses")
def test_a_store_that_never_answers_is_given_up(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placer.mlflow_waiting.PATIENCE_S", 0.1)
    asked = []

    def ask() -> None:
        asked.append(1)
        raise store_error(TimeoutError())

    with pytest.raises(StoreError, match="tracking store x: reason"):
        until_it_answers(store.connection, ask)

    assert len(asked) > 1


def test_a_refusal_is_not_asked_for_twice(store: Store) -> None:
    asked = []

    def ask() -> None:
        asked.append(1)
        raise store_error(http_error(404))

    with pytest.raises(StoreError, match="tracking store x: reason"):
        until_it_answers(store.connection, ask)

    assert len(asked) == 1
