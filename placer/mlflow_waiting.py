"""Waiting for a tracking store that is locked, slow, full or away.

Such a store is asked again, with growing pauses, and says so once when it goes away and once
when it is back. What cannot get better is an error at once: a run that is deleted, a request
that is refused.
"""

import http.client
import logging
import time
from collections.abc import Callable
from typing import TypeVar

import requests
from sqlalchemy.exc import SQLAlchemyError

from placer.errors import StoreError
from placer.journal import pauses_s
from placer.mlflow_connection import Connection

# isort: split
from mlflow.exceptions import MlflowException

PATIENCE_S = 600.0
"""A store that does not answer for so long is given up, where something has to wait for it."""

_REQUEST_TIMEOUT = 408
_TOO_MANY_REQUESTS = 429

_Answer = TypeVar("_Answer")

logger = logging.getLogger(__name__)


def is_passing(error: Exception) -> bool:
    """Tell whether an error may be gone later, without anybody changing the request.

    A refusal (4xx) is for good, except those that say that it is too late or too much now.
    """
    cause = error.__cause__
    if not isinstance(error, StoreError):
        return False
    if isinstance(cause, MlflowException):
        return _is_passing_status(cause.get_http_status_code())
    if isinstance(cause, requests.HTTPError) and cause.response is not None:
        return _is_passing_status(cause.response.status_code)
    is_outside = isinstance(cause, OSError | SQLAlchemyError | http.client.HTTPException)
    return is_outside and not isinstance(cause, PermissionError)


def until_it_answers(connection: Connection, ask: Callable[[], _Answer]) -> _Answer:
    """Return the answer of the store; ask again while it does not answer.

    Raises:
        StoreError: If it is refused for good, or if there is no answer for ten minutes.
    """
    asked_at_s = time.monotonic()
    is_away = False
    pauses = pauses_s()
    while True:
        try:
            connection.check()
            answer = ask()
        except StoreError as error:
            if not is_passing(error) or time.monotonic() - asked_at_s > PATIENCE_S:
                raise
            if not is_away:
                logger.warning("%s; waiting for it", error)
                is_away = True
            time.sleep(next(pauses))
        else:
            if is_away:
                logger.warning("%s answers again", connection.name)
            return answer


class Outage:
    """A time in which the store does not answer.

    Attributes:
        num_before: Number of trials handed over before.
        reason: What the last try ended with, one line.
        retry_at_s: When to try again, on the monotonic clock.
    """

    def __init__(self, num_before: int) -> None:
        self.num_before = num_before
        self.reason = ""
        self.retry_at_s = 0.0
        self._pauses = pauses_s()

    def failed(self, reason: str) -> None:
        """Try again after a pause that is longer than the one before."""
        self.reason = reason
        self.retry_at_s = time.monotonic() + next(self._pauses)

    def try_now(self) -> None:
        """Try at once, and begin with short pauses again: somebody waits."""
        self.retry_at_s = 0.0
        self._pauses = pauses_s()


def _is_passing_status(code: int) -> bool:
    return code in (_REQUEST_TIMEOUT, _TOO_MANY_REQUESTS) or not 400 <= code < 500
