"""A worker of this host: it starts ``profiling.worker`` as a new program, and ends it for certain.

A worker must not outlive who started it, however that one ends, and not even if the worker is
stopped (SIGSTOP) at that time and notices nothing. Two things see to that:

* The end is always SIGKILL, at once: a worker has nothing to save.
* The kernel sends SIGKILL when the thread that started the worker ends
  (``PR_SET_PDEATHSIG``, which the worker asks for). Flows run their stages in threads that
  come and go, so one thread starts all workers, and lives as long as this process.

Nothing is left behind either: a worker reports through a pipe, and its log is a file without
a name.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from profiling.messages import Ending, Status, WorkerFacts
from profiling.worker import PORT_IS_TAKEN

_LAST_WORDS_BYTES = 4096
_OUT_OF_MEMORY_WORDS = ("std::bad_alloc", "out of memory", "cannot allocate memory", "memoryerror")


class LocalWorker:
    """A place for one worker process on this host.

    Args:
        core: The core to pin it to, with one thread; None gives it the whole host, GPUs too.
        memory_bytes: What the ops on its CPU may allocate.
        host: The IPv4 address of this host that its server can be reached at, and no other.
    """

    def __init__(self, *, core: int | None, memory_bytes: int, host: str = "127.0.0.1") -> None:
        self._core = core
        self._memory_bytes = memory_bytes
        self.host = host
        self._reserved: socket.socket | None = None
        self._running: _Running | None = None

    def __str__(self) -> str:
        return "this host" if self._core is None else f"core {self._core}"

    def offer_port(self) -> int:
        """Return a port that is free, and keep it from others until the worker starts."""
        self._give_port_back()
        self._reserved = socket.socket()
        self._reserved.bind(("", 0))
        return int(self._reserved.getsockname()[1])

    def start(self, addresses: Sequence[str], task: int) -> None:
        """Start a fresh process in place of the one before; do not wait for it.

        Args:
            addresses: Of the servers of all workers of the cluster, ``HOST:PORT``.
            task: Which of them this worker is.
        """
        self.end()
        self._give_port_back()
        command = [sys.executable, "-m", "profiling.worker", "--addresses", ",".join(addresses)]
        command += ["--task", str(task), "--host", self.host]
        command += ["--memory-bytes", str(self._memory_bytes)]
        environment = dict(os.environ)
        # The worker finds this package wherever its owner found it.
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        # The limit of oneDNN's allocator, which serves all CPU kernels.
        environment["TF_MKL_MAX_ALLOC_BYTES"] = str(self._memory_bytes)
        if self._core is not None:
            command += ["--core", str(self._core)]
            environment["CUDA_VISIBLE_DEVICES"] = "-1"
        self._running = _Running.start(command, environment)

    def status(self) -> Status:
        """Return how the worker is."""
        if self._running is None:
            return Status(ending=Ending("was not started"))
        return self._running.status()

    def end(self) -> None:
        """End the process, if there is one."""
        if self._running is not None:
            self._running.end()
            self._running = None

    def close(self) -> None:
        """End the process, if there is one, and give the port back."""
        self.end()
        self._give_port_back()

    def _give_port_back(self) -> None:
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None


@dataclasses.dataclass
class _Running:
    """A process from its start to its end, with the pipe it reports through and its log."""

    process: "subprocess.Popen[bytes]"
    ready: IO[bytes]
    log: IO[bytes]
    facts: WorkerFacts | None = None
    kernel_kills: int = 0

    @classmethod
    def start(cls, command: Sequence[str], environment: dict[str, str]) -> "_Running":
        with contextlib.ExitStack() as on_failure:
            log = on_failure.enter_context(tempfile.TemporaryFile())
            read_end, write_end = os.pipe()
            ready = on_failure.enter_context(os.fdopen(read_end, "rb", buffering=0))
            os.set_blocking(read_end, False)
            try:
                process = _start_in_lasting_thread(
                    lambda: subprocess.Popen(
                        [*command, "--ready-fd", str(write_end)],
                        env=environment,
                        stdin=subprocess.PIPE,
                        stdout=log,
                        stderr=log,
                        pass_fds=[write_end],
                        # Ctrl-C is for the owner, who ends its workers in good order.
                        process_group=0,
                    )
                )
            finally:
                os.close(write_end)
            on_failure.pop_all()
        return cls(process, ready, log, kernel_kills=_kernel_kills())

    def status(self) -> Status:
        code = self.process.poll()
        if code is not None:
            words = self.last_words()
            return Status(ending=_ending(code, words, self.kernel_kills), last_words=words)
        self.kernel_kills = _kernel_kills()
        if self.facts is None and (line := self.ready.read()):
            # One short write of the worker is read whole.
            self.facts = WorkerFacts.model_validate_json(line)
        words = "" if self.facts else self.last_words()
        return Status(pid=self.process.pid, facts=self.facts, last_words=words)

    def last_words(self) -> str:
        size = os.fstat(self.log.fileno()).st_size
        # Not by seeking: the worker writes where the shared offset stands.
        end = os.pread(self.log.fileno(), _LAST_WORDS_BYTES, max(size - _LAST_WORDS_BYTES, 0))
        lines = end.decode(errors="replace").split("\n")
        return " / ".join(line.strip() for line in lines[-6:] if line.strip())[-500:]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.ready.close()
        self.log.close()


def host_memory_bytes() -> int:
    """Return the memory of this host."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _ending(code: int, last_words: str, kernel_kills: int) -> Ending:
    """Return how a process ended.

    Args:
        code: Its exit code, negative if a signal killed it.
        last_words: The end of its log.
        kernel_kills: What the kernel had killed for want of memory when it was last alive.
    """
    if code == PORT_IS_TAKEN:
        return Ending("found its port taken", port_is_taken=True)
    if code >= 0:
        return Ending(f"ended with exit code {code}")
    text = f"was killed by {signal.Signals(-code).name}"
    words = last_words.lower()
    if code == -signal.SIGABRT and any(sign in words for sign in _OUT_OF_MEMORY_WORDS):
        return Ending(f"{text} when it ran out of memory", out_of_memory=True)
    if code == -signal.SIGKILL and _kernel_kills() > kernel_kills:
        return Ending(f"{text} when the host ran out of memory", out_of_memory=True)
    return Ending(text)


def _kernel_kills() -> int:
    """Return how many processes the kernel has killed for want of memory since the boot."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


_Start = Callable[[], "subprocess.Popen[bytes]"]
_Order = tuple[_Start, "concurrent.futures.Future[subprocess.Popen[bytes]]"]


def _start_in_lasting_thread(start: _Start) -> "subprocess.Popen[bytes]":
    future: concurrent.futures.Future[subprocess.Popen[bytes]] = concurrent.futures.Future()
    _orders(os.getpid()).put((start, future))
    return future.result()


@functools.cache
def _orders(_process: int) -> "queue.SimpleQueue[_Order]":
    """Return the queue of the thread that starts this process's workers.

    A daemon, and not an executor's thread: those end before the last threads of the program.
    A forked process has no such thread and gets one of its own.
    """
    orders: queue.SimpleQueue[_Order] = queue.SimpleQueue()
    threading.Thread(target=_obey, args=(orders,), name="placer-workers", daemon=True).start()
    return orders


def _obey(orders: "queue.SimpleQueue[_Order]") -> None:
    while True:
        start, future = orders.get()
        try:
            future.set_result(start())
        except BaseException as error:  # noqa: BLE001 - whoever ordered it raises it
            future.set_exception(error)
