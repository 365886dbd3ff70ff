"""A worker behind an agent: what a local worker does, done on another host.

An agent whose connection breaks, or that does not answer in time, is gone; so is its worker,
for the agent ends it with the connection. The next start tries to connect anew.
"""

import contextlib
import socket
from collections.abc import Sequence
from typing import TypeVar

from placer.errors import WorkerError
from placer.files.hosts import Address
from profiling.messages import (
    MAX_LINE_BYTES,
    Answer,
    AskStatus,
    Done,
    End,
    Ending,
    Offer,
    Offered,
    Own,
    Refused,
    Request,
    Start,
    Status,
    decode_answer,
    encode,
)

_TIMEOUT_S = 10.0

_A = TypeVar("_A", bound=Answer)


class RemoteWorker:
    """A place for one worker process on the host of an agent, which it owns until closed.

    Args:
        address: Where the agent listens.
        timeout_s: Limit on connecting and on every answer; start-up is not waited for.

    Attributes:
        host: Where the workers' servers find each other: the host of the address.

    Raises:
        WorkerError: If nothing answers there, or the agent belongs to another owner.
    """

    def __init__(self, address: Address, *, timeout_s: float = _TIMEOUT_S) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self.host = address.host
        self._socket: socket.socket | None = None
        self._gone = ""
        self._connect()

    def __str__(self) -> str:
        return str(self._address)

    def offer_port(self) -> int:
        """Return a port that is free on the agent's host.

        Raises:
            WorkerError: If the agent is gone and cannot be reached anew.
        """
        self._connect()
        return self._ask(Offer(), Offered).port

    def start(self, addresses: Sequence[str], task: int) -> None:
        """Start a fresh process in place of the one before; do not wait for it.

        Raises:
            WorkerError: If the agent is gone and cannot be reached anew.
        """
        self._connect()
        self._ask(Start(addresses=tuple(addresses), task=task), Done)

    def status(self) -> Status:
        """Return how the worker is; one whose agent is gone has ended."""
        try:
            return self._ask(AskStatus(), Status)
        except WorkerError as error:
            return Status(ending=Ending(f"is lost: {error}"))

    def end(self) -> None:
        """End the process, if there is one."""
        # A worker whose agent is gone has ended.
        with contextlib.suppress(WorkerError):
            self._ask(End(), Done)

    def close(self) -> None:
        """Let go of the agent, which ends the process."""
        self._disconnect("it was let go")

    def _connect(self) -> None:
        if self._socket is not None:
            return
        try:
            self._socket = socket.create_connection(
                (self._address.host, self._address.port), timeout=self._timeout_s
            )
            keep_alive(self._socket)
        except OSError as error:
            self._disconnect(_reason(error))
            raise WorkerError(f"host {self._address} does not answer: {self._gone}") from error
        try:
            self._ask(Own(), Done)
        except WorkerError:
            self._disconnect("it refused its owner")
            raise

    def _ask(self, request: Request, kind: type[_A]) -> _A:
        """Return the answer to a question.

        Raises:
            WorkerError: If there is none, it is a refusal, or not of this kind.
        """
        if self._socket is None:
            raise WorkerError(f"the agent at {self._address} is gone: {self._gone}")
        try:
            self._socket.sendall(encode(request))
            line = _read_line(self._socket)
            answer = decode_answer(line)
        except (OSError, WorkerError) as error:
            self._disconnect(_reason(error))
            raise WorkerError(f"the agent at {self._address} is gone: {self._gone}") from error
        if isinstance(answer, Refused):
            raise WorkerError(f"host {self._address} refuses: {answer.reason}")
        if not isinstance(answer, kind):
            self._disconnect("it answered another question")
            raise WorkerError(f"the agent at {self._address} is gone: {self._gone}")
        return answer

    def _disconnect(self, reason: str) -> None:
        self._gone = reason
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def keep_alive(connection: socket.socket) -> None:
    """Let the system notice within half a minute that the other end has vanished."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)


def _read_line(connection: socket.socket) -> bytes:
    # An answer is the only thing under way, so nothing is read beyond its line.
    line = b""
    while not line.endswith(b"\n"):
        received = connection.recv(65536)
        if not received:
            raise ConnectionResetError("it closed the connection")
        line += received
        if len(line) > MAX_LINE_BYTES:
            raise ConnectionResetError("its answer has no end")
    return line


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it does not answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)
