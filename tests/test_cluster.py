"""The worker processes: how they come up, die, are replaced and end."""

import contextlib
import os
import signal
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from placer.devices import DeviceTopology, Link
from placer.errors import FileFormatError, InvalidValueError, WorkerError
from placer.files.hosts import Address
from profiling.cluster import Cluster, LocalCluster, RemoteCluster, open_cluster
from profiling.local_worker import LocalWorker
from profiling.messages import Ending, Status, WorkerFacts
from tests.processes import is_listening, is_running, outside_address, wait_until

pytest_plugins = ["tests.local_cluster"]
pytestmark = pytest.mark.slow

v1 = tf.compat.v1


def workers_of_this_process() -> set[int]:
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            parent = int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == os.getpid() and b"profiling.worker" in (process / "cmdline").read_bytes():
                found.add(int(process.name))
    return found


def test_each_worker_is_one_device_in_the_order_of_tasks(cluster):
    assert cluster.devices == (
        "/job:worker/replica:0/task:0/device:CPU:0",
        "/job:worker/replica:0/task:1/device:CPU:0",
    )


def test_each_worker_is_pinned_to_a_core_of_its_own(cluster):
    cores = [os.sched_getaffinity(pid) for pid in cluster.pids]

    assert [len(each) for each in cores] == [1, 1]
    assert cores[0] != cores[1]


def test_all_threads_of_a_worker_stay_on_its_core(cluster):
    for pid in cluster.pids:
        threads = [int(thread.name) for thread in Path(f"/proc/{pid}/task").iterdir()]

        assert {frozenset(os.sched_getaffinity(thread)) for thread in threads} == {
            frozenset(os.sched_getaffinity(pid))
        }


def test_a_graph_across_both_workers_computes_what_it_says(cluster):
    with tf.Graph().as_default() as graph:
        with tf.device(cluster.devices[0]):
            a = tf.constant([[1.0, 2.0]])
        with tf.device(cluster.devices[1]):
            product = tf.matmul(a, tf.constant([[3.0], [4.0]]))

    with cluster.session(graph) as session:
        value = session.run(product)

    # 1 · 3 + 2 · 4
    np.testing.assert_array_equal(value, [[11.0]])


def test_a_device_that_is_not_there_is_refused_instead_of_replaced(cluster):
    with tf.Graph().as_default() as graph, tf.device("/job:worker/task:7/device:CPU:0"):
        value = tf.constant(1.0)

    with cluster.session(graph) as session, pytest.raises(tf.errors.InvalidArgumentError):
        session.run(value)


def test_two_sessions_of_one_graph_have_variables_of_their_own(cluster):
    with tf.Graph().as_default() as graph, tf.device(cluster.devices[1]):
        counter = v1.get_variable("counter", initializer=0.0, use_resource=True)
        increment = counter.assign_add(1.0, read_value=True)

    with cluster.session(graph) as first, cluster.session(graph) as second:
        first.run(counter.initializer)
        second.run(counter.initializer)
        in_first = [first.run(increment), first.run(increment)]
        in_second = second.run(increment)

    assert in_first == [1.0, 2.0]
    assert in_second == 1.0


def test_the_workers_do_not_answer_from_outside_of_this_host(cluster):
    address = outside_address()
    if address is None:
        pytest.skip("this host has no network interface but loopback")
    port = int(cluster.target.rsplit(":", 1)[1])

    assert not is_listening(port, address)
    assert is_listening(port)


def test_a_killed_worker_is_named_and_replaced_on_the_same_port(cluster):
    before, target = cluster.pids, cluster.target

    os.kill(before[1], signal.SIGKILL)
    noticed = wait_until(cluster.lost_workers)
    lost = cluster.lost_workers()
    cluster.revive()

    assert noticed
    assert lost == {1: Ending("was killed by SIGKILL")}
    assert str(lost[1]) == "was killed by SIGKILL"
    assert cluster.lost_workers() == {}
    assert cluster.pids[0] == before[0]
    assert cluster.pids[1] != before[1]
    assert cluster.target == target
    with tf.Graph().as_default() as graph, tf.device(cluster.devices[1]):
        one = tf.constant(1.0) + 0.0
    with cluster.session(graph) as session:
        assert session.run(one) == 1.0


def test_a_worker_that_is_not_there_cannot_be_restarted(cluster):
    with pytest.raises(InvalidValueError, match="between 0 and 1, got 2"):
        cluster.restart(2)


@pytest.mark.parametrize("num_workers", [0, -1, 100_000])
def test_there_are_between_one_worker_and_one_for_each_core(num_workers):
    with pytest.raises(InvalidValueError, match=f"num_workers .* got {num_workers}"):
        LocalCluster(num_workers, gpus=False)


def test_a_topology_of_another_size_or_kind_is_not_of_this_cluster(cluster):
    link = Link(1e9)

    cluster.check(DeviceTopology.uniform(2, link, kind="CPU"))

    with pytest.raises(InvalidValueError, match="has devices CPU, CPU, CPU, but"):
        cluster.check(DeviceTopology.uniform(3, link, kind="CPU"))
    with pytest.raises(InvalidValueError, match="has devices GPU, GPU, but"):
        cluster.check(DeviceTopology.uniform(2, link, kind="GPU"))


def test_a_worker_that_ends_at_once_is_reported_with_its_last_words(monkeypatch, tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no such runtime >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))

    with pytest.raises(
        WorkerError, match=r"\(core \d+\) ended with exit code 3 .* no such runtime"
    ):
        LocalCluster(1, gpus=False)


def test_a_worker_that_is_too_slow_is_reported_and_ended():
    before = workers_of_this_process()

    with pytest.raises(WorkerError, match=r"worker 0 \(core \d+\) did not come up within 0.01 s"):
        LocalCluster(1, gpus=False, start_timeout_s=0.01)

    assert workers_of_this_process() == before


@pytest.fixture(scope="module")
def host():
    """The one worker that holds all GPUs; its first choice of a port was taken."""
    offer = LocalWorker.offer_port
    with socket.socket() as taken, pytest.MonkeyPatch.context() as patch:
        taken.bind(("", 0))
        taken.listen()
        taken_port = taken.getsockname()[1]

        def offer_what_is_taken(worker):
            patch.setattr(LocalWorker, "offer_port", offer)
            return taken_port

        patch.setattr(LocalWorker, "offer_port", offer_what_is_taken)
        with LocalCluster(gpus=True) as one_worker:
            yield one_worker, taken_port


def test_the_worker_that_holds_gpus_may_use_every_core(host):
    cluster, _ = host

    assert cluster.num_workers == 1
    assert cluster.devices[0] == "/job:worker/replica:0/task:0/device:CPU:0"
    assert len(cluster.devices) == 1 + len(cluster.gpu_names)
    assert os.sched_getaffinity(cluster.pids[0]) == os.sched_getaffinity(0)


def test_a_port_that_was_taken_is_exchanged_for_another(host):
    cluster, taken_port = host

    assert cluster.target.startswith("grpc://127.0.0.1:")
    assert not cluster.target.endswith(f":{taken_port}")


def test_closing_ends_even_a_worker_that_is_stopped(host):
    cluster, _ = host
    (pid,) = cluster.pids
    port = int(cluster.target.rpartition(":")[2])
    was_up = is_running(pid) and is_listening(port)

    os.kill(pid, signal.SIGSTOP)
    cluster.close()

    assert was_up
    assert not is_running(pid)
    assert not is_listening(port)
    assert cluster.pids == ()
    assert cluster.lost_workers() == {}


# Clusters of made-up workers: whose ports, hosts and ends are known.


class MadeUpWorker:
    """A worker that comes up at once unless its port is among those that were taken."""

    def __init__(self, ports, taken=()):
        self.host = "127.0.0.1"
        self.ports = iter(ports)
        self.taken = taken
        self.started = []

    def offer_port(self):
        return next(self.ports)

    def start(self, addresses, task):
        self.started.append(addresses[task])

    def status(self):
        if self.started[-1] in self.taken:
            return Status(ending=Ending("found its port taken", port_is_taken=True))
        return Status(pid=1, facts=FACTS)

    def end(self):
        pass

    def close(self):
        pass


FACTS = WorkerFacts(
    host_name="h", clock="c", cpu="x", core=0, threads=1, memory_bytes=8, gpu_names=(),
    is_confined=True,
)  # fmt: skip


@pytest.fixture
def without_devices(monkeypatch):
    monkeypatch.setattr(Cluster, "_list_devices", lambda _: ())


def test_all_workers_start_anew_when_the_port_of_one_was_taken(without_devices):
    first = MadeUpWorker([1001, 1002])
    second = MadeUpWorker([2001, 2002], taken=["127.0.0.1:2001"])

    cluster = Cluster([first, second])

    assert first.started == ["127.0.0.1:1001", "127.0.0.1:1002"]
    assert second.started == ["127.0.0.1:2001", "127.0.0.1:2002"]
    assert cluster.target == "grpc://127.0.0.1:1002"


def test_three_taken_ports_in_a_row_are_an_error(without_devices):
    worker = MadeUpWorker([1, 2, 3, 4], taken=["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"])

    with pytest.raises(WorkerError, match="no free ports: 3 times"):
        Cluster([worker])


def test_the_memory_of_a_cluster_is_that_of_the_worker_with_the_least(without_devices):
    small, large = MadeUpWorker([1]), MadeUpWorker([2])
    large.status = lambda: Status(pid=1, facts=FACTS.model_copy(update={"memory_bytes": 9}))

    assert Cluster([large, small]).memory_bytes == 8


# Clusters of hosts that cannot be.


def test_a_cluster_has_at_least_one_host():
    with pytest.raises(InvalidValueError, match="at least one host, got none"):
        RemoteCluster([])


def test_a_loopback_address_is_no_host_to_others():
    hosts = [Address("127.0.0.1", 7201), Address("10.0.0.2", 7201)]

    with pytest.raises(InvalidValueError, match=r"10.0.0.2:7201 cannot reach 127.0.0.1:7201"):
        RemoteCluster(hosts)


def test_a_host_where_nothing_listens_is_named():
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = Address("127.0.0.1", nobody.getsockname()[1])

        with pytest.raises(WorkerError) as error:
            RemoteCluster([address])

    assert str(error.value) == f"host {address} does not answer: Connection refused"


def test_a_hosts_file_opens_a_cluster_of_its_hosts(tmp_path):
    file = tmp_path / "hosts.toml"
    file.write_text("version = 1\nhosts = []\n")

    with pytest.raises(FileFormatError, match=r"hosts.toml: hosts: there must be at least one"):
        open_cluster(file)
