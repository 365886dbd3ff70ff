"""Workers of this host: how their end is told, and that none is left behind by anyone."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from profiling import local_worker
from profiling.local_worker import LocalWorker
from profiling.messages import Ending
from tests.processes import is_listening, is_running, outside_address, wait_until

ROOT = Path(__file__).parents[1]
slow = pytest.mark.slow


# How the end of a process is told.


@pytest.fixture
def kernel_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel has killed three processes for want of memory, so far."""
    monkeypatch.setattr(local_worker, "_kernel_kills", lambda: 3)


@pytest.mark.parametrize(
    ("code", "words", "expected"),
    [
        (3, "", Ending("ended with exit code 3")),
        (0, "std::bad_alloc", Ending("ended with exit code 0")),
        (-signal.SIGSEGV, "", Ending("was killed by SIGSEGV")),
        (-signal.SIGKILL, "", Ending("was killed by SIGKILL")),
        (-signal.SIGABRT, "Check failed: a == b", Ending("was killed by SIGABRT")),
        (os.EX_TEMPFAIL, "", Ending("found its port taken", port_is_taken=True)),
    ],
)
def test_an_ending_says_how(kernel_kills, code, words, expected):
    assert local_worker._ending(code, words, kernel_kills=3) == expected


@pytest.mark.parametrize(
    "words", ["what():  std::bad_alloc", "Out of memory: 3 bytes", "Cannot allocate memory"]
)
def test_an_abort_after_a_failed_allocation_is_told_from_a_crash(kernel_kills, words):
    ending = local_worker._ending(-signal.SIGABRT, words, kernel_kills=3)

    assert ending == Ending("was killed by SIGABRT when it ran out of memory", out_of_memory=True)


def test_a_kill_by_the_kernel_for_want_of_memory_is_told_from_one_by_a_person(kernel_kills):
    # Two when the worker was last seen alive, three now.
    ending = local_worker._ending(-signal.SIGKILL, "", kernel_kills=2)

    assert ending.out_of_memory
    assert str(ending) == "was killed by SIGKILL when the host ran out of memory"


# One real worker: where it is reached, and what it may allocate.


def up(worker: LocalWorker) -> bool:
    return worker.status().facts is not None


@pytest.fixture(scope="module")
def outside() -> Iterator[tuple[LocalWorker, int, str]]:
    """A worker for other hosts, with its port and its address, and 64 MiB for its ops."""
    address = outside_address()
    if address is None:
        pytest.skip("this host has no network interface but loopback")
    worker = LocalWorker(core=min(os.sched_getaffinity(0)), memory_bytes=2**26, host=address)
    with contextlib.closing(worker):
        port = worker.offer_port()
        worker.start([f"{address}:{port}"], 0)
        wait_until(lambda: up(worker) or worker.status().ending)
        yield worker, port, address


@slow
def test_a_worker_for_other_hosts_answers_at_its_address_and_no_other(outside):
    worker, port, address = outside

    assert worker.status().facts.is_confined
    assert is_listening(port, address)
    assert not is_listening(port, "127.0.0.1")


@slow
def test_memory_beyond_the_allocators_is_limited_and_its_end_is_told(outside):
    tf = pytest.importorskip("tensorflow")
    worker, port, address = outside
    with tf.Graph().as_default() as graph:
        # One C++ string of 1.4 GiB, which no allocator of TensorFlow's knows of.
        mebibyte = tf.strings.join([tf.fill([], "x" * 1024)] * 1024)
        length = tf.strings.length(tf.strings.join([mebibyte] * 1400))
    config = tf.compat.v1.ConfigProto(operation_timeout_in_ms=2000)

    session = tf.compat.v1.Session(f"grpc://{address}:{port}", graph=graph, config=config)
    with contextlib.suppress(tf.errors.OpError):
        session.run(length)
    ended = wait_until(lambda: worker.status().ending)
    status = worker.status()

    assert ended
    assert status.ending == Ending(
        "was killed by SIGABRT when it ran out of memory", out_of_memory=True
    )
    assert "std::bad_alloc" in status.last_words


def test_a_worker_that_was_never_started_has_ended():
    worker = LocalWorker(core=0, memory_bytes=1)

    worker.end()

    assert worker.status().ending == Ending("was not started")


def test_a_port_on_offer_is_kept_until_the_worker_starts():
    first, second = LocalWorker(core=0, memory_bytes=1), LocalWorker(core=0, memory_bytes=1)

    with contextlib.closing(first), contextlib.closing(second):
        ports = [first.offer_port(), second.offer_port()]

        assert ports[0] != ports[1]
        assert not is_listening(ports[0])


# Nothing is left behind, even by owners that end while a worker is stopped.

OWNER = """
import contextlib, os, signal, sys, threading, time
from profiling.local_worker import LocalWorker

worker = LocalWorker(core=min(os.sched_getaffinity(0)), memory_bytes=2**30)
with contextlib.closing(worker):
    port = worker.offer_port()
    # Flows start workers in threads that end before the workers do.
    starter = threading.Thread(target=worker.start, args=([f"127.0.0.1:{port}"], 0))
    starter.start()
    starter.join()
    while worker.status().facts is None and worker.status().ending is None:
        time.sleep(0.05)
    print(worker.status().pid, port, flush=True)
    how = sys.stdin.readline().strip()
    if how == "exception":
        raise RuntimeError("as the test asks")
    if how == "signal":
        signal.pause()
"""

WAYS = ["success", "exception", signal.SIGINT, signal.SIGTERM, signal.SIGKILL]


@slow
@pytest.mark.parametrize("way", WAYS, ids=lambda way: getattr(way, "name", way))
def test_no_worker_and_no_port_outlives_an_owner_that_ends_by(way):
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as owner:
        worker, port = (int(word) for word in owner.stdout.readline().split())
        was_up = is_running(worker) and is_listening(port)
        os.kill(worker, signal.SIGSTOP)

        owner.stdin.write(f"{'signal' if isinstance(way, signal.Signals) else way}\n".encode())
        owner.stdin.flush()
        if isinstance(way, signal.Signals):
            owner.send_signal(way)
        owner.wait(timeout=120)

    assert was_up
    assert wait_until(lambda: not is_running(worker))
    assert wait_until(lambda: not is_listening(port))


@slow
def test_a_forked_process_starts_workers_of_its_own():
    program = (
        "import os\n"
        "from profiling.local_worker import LocalWorker\n"
        "worker = LocalWorker(core=0, memory_bytes=1)\n"
        "worker.start(['127.0.0.1:1'], 0)\n"
        "worker.end()\n"
        "child = os.fork()\n"
        "worker.start(['127.0.0.1:1'], 0)\n"
        "worker.end()\n"
        "if child:\n"
        "    print(os.waitpid(child, 0)[1])\n"
    )

    output = subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, timeout=120)

    assert output == b"0\n"
