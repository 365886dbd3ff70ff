"""What every place for a worker does alike: one of this host, and one behind an agent.

The workers here only begin to start: that takes no TensorFlow, and no time.
"""

import os
import signal
from collections.abc import Iterator

import pytest

from profiling.local_worker import LocalWorker
from profiling.messages import Ending
from profiling.remote_worker import RemoteWorker
from tests.agents import Agent, running_agent
from tests.processes import is_listening, is_running, wait_until

pytestmark = pytest.mark.slow

CORE = min(os.sched_getaffinity(0))
ADDRESSES = ["127.0.0.1:1"]


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    with running_agent(CORE) as one:
        yield one


class WorkerContract:
    """The suite; a subclass says which kind of worker."""

    def test_its_servers_are_found_on_this_host(self, worker):
        assert worker.host == "127.0.0.1"

    def test_it_has_ended_before_it_was_started(self, worker):
        assert worker.status().ending == Ending("was not started")

    def test_it_offers_a_port_that_nobody_uses(self, worker):
        port = worker.offer_port()

        assert 1 <= port <= 65535
        assert not is_listening(port)

    def test_it_runs_from_its_start_and_is_up_later(self, worker):
        worker.start(ADDRESSES, 0)
        status = worker.status()

        assert is_running(status.pid)
        assert status.facts is None
        assert status.ending is None

    def test_a_second_start_replaces_the_process(self, worker):
        worker.start(ADDRESSES, 0)
        first = worker.status().pid
        worker.start(ADDRESSES, 0)
        second = worker.status().pid

        assert not is_running(first)
        assert is_running(second)

    def test_a_process_that_was_killed_is_told_by_its_signal(self, worker):
        worker.start(ADDRESSES, 0)
        os.kill(worker.status().pid, signal.SIGKILL)

        assert wait_until(lambda: worker.status().ending)
        assert worker.status().ending == Ending("was killed by SIGKILL")
        assert worker.status().pid is None

    def test_its_end_ends_even_a_process_that_is_stopped(self, worker):
        worker.start(ADDRESSES, 0)
        pid = worker.status().pid
        os.kill(pid, signal.SIGSTOP)

        worker.end()
        worker.end()

        assert not is_running(pid)

    def test_closing_ends_the_process_and_may_be_repeated(self, worker):
        worker.start(ADDRESSES, 0)
        pid = worker.status().pid

        worker.close()
        worker.close()

        assert wait_until(lambda: not is_running(pid))
        assert worker.status().ending is not None


class TestLocalWorker(WorkerContract):
    @pytest.fixture
    def worker(self) -> Iterator[LocalWorker]:
        place = LocalWorker(core=CORE, memory_bytes=2**30)
        yield place
        place.close()

    def test_its_text_says_which_core(self, worker):
        assert str(worker) == f"core {CORE}"


class TestRemoteWorker(WorkerContract):
    @pytest.fixture
    def worker(self, agent) -> Iterator[RemoteWorker]:
        place = RemoteWorker(agent.address)
        yield place
        place.close()

    def test_its_text_says_which_host(self, worker, agent):
        assert str(worker) == str(agent.address)
