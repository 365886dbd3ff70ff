"""What the owner of a cluster and the agent of a host say to each other.

One JSON object a line, over TCP. The owner asks, the agent answers each question once, in
order, and says nothing unasked:

=============================================================  ==========================
``{"request": "own", "version": 1}``                           ``done``: first of all
``{"request": "offer"}``                                       ``offered``: a free port
``{"request": "start", "addresses": ["…", …], "task": 0}``     ``done``: on its way
``{"request": "status"}``                                      ``status``: :class:`Status`
``{"request": "end"}``                                         ``done``: the worker is gone
=============================================================  ==========================

An answer names itself in the same way, ``{"answer": "done"}``. Whatever cannot be done, or
is not one of these questions, is answered by ``refused`` with the reason in one line; a
question that is not understood also closes the connection. A server needs the addresses of
all of its cluster when it starts, so each agent first offers a port, and then all start with
the full list.

The end of the connection, however it came about, ends the worker.
"""

import dataclasses
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from placer.errors import WorkerError

MAX_LINE_BYTES = 2**20
"""No message is longer: a list of a thousand addresses takes 30 kB."""

VERSION: Literal[1] = 1

_HostAndPort = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]*:[0-9]{1,5}$")]


@dataclasses.dataclass(frozen=True, slots=True)
class Ending:
    """How a worker ended; as text it goes behind its name: ``worker 1 was killed by …``.

    Attributes:
        text: How, in a few words.
        out_of_memory: Whether it ended because there was no more memory for it.
        port_is_taken: Whether it ended at its start, because its port was not free any more.
    """

    text: str
    out_of_memory: bool = False
    port_is_taken: bool = False

    def __str__(self) -> str:
        return self.text


class _Message(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class WorkerFacts(_Message):
    """What a worker tells of itself and its host once it is up.

    Attributes:
        host_name: What the host calls itself.
        clock: Workers of the same clock run on the same machine.
        cpu: Model of the processor.
        core: The core it is pinned to; None if it uses the whole host.
        threads: Threads that run ops.
        memory_bytes: What the ops on its CPU may allocate.
        gpu_names: What each of its GPUs calls itself.
        is_confined: Whether its server can be reached only at the address it was given.
    """

    host_name: str
    clock: str
    cpu: str
    core: int | None
    threads: Annotated[int, Field(ge=1)]
    memory_bytes: Annotated[int, Field(ge=1)]
    gpu_names: tuple[str, ...]
    is_confined: bool


class Own(_Message):
    """The first question of an owner."""

    request: Literal["own"] = "own"
    version: Literal[1] = VERSION


class Offer(_Message):
    """Asks for a port that is free now."""

    request: Literal["offer"] = "offer"


class Start(_Message):
    """Asks for a fresh worker in place of the one before.

    Attributes:
        addresses: Of the servers of all workers of the cluster, ``HOST:PORT``.
        task: Which of them this worker is.
    """

    request: Literal["start"] = "start"
    addresses: Annotated[tuple[_HostAndPort, ...], Field(min_length=1)]
    task: Annotated[int, Field(ge=0)]


class AskStatus(_Message):
    """Asks how the worker is."""

    request: Literal["status"] = "status"


class End(_Message):
    """Asks for the end of the worker."""

    request: Literal["end"] = "end"


class Done(_Message):
    """What was asked for is done."""

    answer: Literal["done"] = "done"


class Offered(_Message):
    """A port that is free now."""

    answer: Literal["offered"] = "offered"
    port: Annotated[int, Field(ge=1, le=65535)]


class Status(_Message):
    """How a worker is.

    Attributes:
        pid: Its process id on its host, while it runs.
        facts: Once it is up.
        ending: Once it has ended.
        last_words: The end of its log, unless it is up.
    """

    answer: Literal["status"] = "status"
    pid: int | None = None
    facts: WorkerFacts | None = None
    ending: Ending | None = None
    last_words: str = ""


class Refused(_Message):
    """What was asked for is not done.

    Attributes:
        reason: Why, in one line.
    """

    answer: Literal["refused"] = "refused"
    reason: str


Request = Own | Offer | Start | AskStatus | End
Answer = Done | Offered | Status | Refused

_REQUEST: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="request")])
_ANSWER: TypeAdapter[Answer] = TypeAdapter(Annotated[Answer, Field(discriminator="answer")])

_M = TypeVar("_M")


def encode(message: Request | Answer) -> bytes:
    """Return a message as one line."""
    return message.model_dump_json().encode() + b"\n"


def decode_request(line: bytes) -> Request:
    """Return the question that a line asks.

    Raises:
        WorkerError: If it asks none.
    """
    return _decode(_REQUEST, line)


def decode_answer(line: bytes) -> Answer:
    """Return the answer that a line gives.

    Raises:
        WorkerError: If it gives none.
    """
    return _decode(_ANSWER, line)


def _decode(adapter: TypeAdapter[_M], line: bytes) -> _M:
    try:
        return adapter.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise WorkerError(
            f"not a message of version {VERSION}: {where}{': ' if where else ''}{first['msg']}"
        ) from error
