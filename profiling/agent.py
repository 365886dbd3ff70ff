"""The agent of a host: it starts the host's worker for the owner of a cluster.

It is started by hand on each host, ``placer worker --listen HOST:PORT``, and stays. The
owner of a cluster connects, asks for a worker (``profiling.messages`` says how), and is the
only one until its connection ends; then the worker ends, and the agent waits for the next
owner.

Nobody is asked for a password, and the worker runs any graph for whoever reaches it: listen
on loopback, or in a network whose members are trusted.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable

from placer.errors import InvalidValueError, WorkerError
from placer.files.hosts import Address
from profiling.local_worker import LocalWorker, host_memory_bytes
from profiling.messages import (
    MAX_LINE_BYTES,
    Answer,
    AskStatus,
    Done,
    Offer,
    Offered,
    Own,
    Refused,
    Request,
    Start,
    decode_request,
    encode,
)
from profiling.remote_worker import keep_alive

_log = logging.getLogger(__name__)

_FIRST_QUESTION_S = 10.0


def serve_host(listen: Address, *, core: int | None, announce: Callable[[Address], None]) -> None:
    """Serve owners, one after the other, until SIGINT or SIGTERM.

    Args:
        listen: Where; port 0 lets the system choose.
        core: The core to pin the worker to, with one thread; None gives it the whole host
            and its GPUs.
        announce: Called with the address once the agent listens.

    Raises:
        InvalidValueError: If there is no such core, or the address is not of this host or is
            in use.
    """
    cores = sorted(os.sched_getaffinity(0))
    if core is not None and core not in cores:
        raise InvalidValueError(f"core must be one of {', '.join(map(str, cores))}, got {core}")
    memory_bytes = host_memory_bytes() // (1 if core is None else len(cores))
    listening = _listen(listen)
    announce(Address(listen.host, int(listening.getsockname()[1])))
    asyncio.run(_Agent(core, memory_bytes).serve(listening))


def _listen(address: Address) -> socket.socket:
    try:
        return socket.create_server((address.host, address.port))
    except OSError as error:
        # Python adds the address to some reasons, and to others not; unknown names have a
        # negative number and a text.
        number = error.errno or 0
        reason = os.strerror(number) if number > 0 else error.strerror or str(error)
        raise InvalidValueError(f"cannot listen on {address}: {reason}") from error


class _Agent:
    """What an agent knows: its place for a worker, and its owner."""

    def __init__(self, core: int | None, memory_bytes: int) -> None:
        self._core = core
        self._memory_bytes = memory_bytes
        self._owner: str | None = None

    async def serve(self, listening: socket.socket) -> None:
        """Serve until the process is asked to end; the worker ends with its connection."""
        asked_to_end = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, asked_to_end.set)
        server = await asyncio.start_server(self._attend, sock=listening, limit=MAX_LINE_BYTES)
        await asked_to_end.wait()
        server.close()

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Talk with whoever connected, until either end of the connection closes."""
        keep_alive(writer.get_extra_info("socket"))
        peer = "{}:{}".format(*writer.get_extra_info("peername")[:2])
        try:
            refusal = await self._refusal(reader)
            if refusal is not None:
                writer.write(encode(Refused(reason=refusal)))
                await writer.drain()
                return
            await self._obey(peer, reader, writer)
        except (OSError, EOFError):
            pass  # the other end is gone, which is one way to say goodbye
        finally:
            writer.close()

    async def _refusal(self, reader: asyncio.StreamReader) -> str | None:
        """Return why whoever connected cannot own this agent; None if it can."""
        try:
            async with asyncio.timeout(_FIRST_QUESTION_S):
                first = decode_request(await _line(reader))
        except TimeoutError:
            return f"it was not asked to serve within {_FIRST_QUESTION_S:g} s"
        except WorkerError as error:
            return str(error)
        if not isinstance(first, Own):
            return f"the first request must be 'own', got {first.request!r}"
        if self._owner is not None:
            return f"it belongs to its owner at {self._owner} already"
        return None

    async def _obey(
        self, owner: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Do what the owner asks until it goes."""
        self._owner = owner
        _log.info("serving %s", owner)
        # The server is reached where its owner reached the agent.
        host = writer.get_extra_info("sockname")[0]
        worker = LocalWorker(core=self._core, memory_bytes=self._memory_bytes, host=host)
        try:
            writer.write(encode(Done()))
            while True:
                try:
                    request = decode_request(await _line(reader))
                except WorkerError as error:
                    writer.write(encode(Refused(reason=str(error))))
                    await writer.drain()
                    return
                writer.write(encode(_answer(request, worker)))
                await writer.drain()
        finally:
            worker.close()
            self._owner = None
            _log.info("%s is gone; free for the next owner", owner)


async def _line(reader: asyncio.StreamReader) -> bytes:
    """Return the next line.

    Raises:
        EOFError: If the connection ends before the line does.
        WorkerError: If the line is too long.
    """
    try:
        return await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError as error:
        raise WorkerError(f"a message must not exceed {MAX_LINE_BYTES} bytes") from error


def _answer(request: Request, worker: LocalWorker) -> Answer:
    """Do what the owner asks, and return what to tell it."""
    try:
        match request:
            case Own():
                return Refused(reason="it belongs to you already")
            case Offer():
                return Offered(port=worker.offer_port())
            case Start(addresses=addresses, task=task):
                if task >= len(addresses):
                    return Refused(reason=f"task {task} is not among {len(addresses)} addresses")
                worker.start(addresses, task)
            case AskStatus():
                return worker.status()
            case _:
                worker.end()
    except OSError as error:
        return Refused(reason=f"{error.strerror or error}")
    return Done()
