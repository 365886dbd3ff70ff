"""The worker processes: how they come up, die, are replaced and end."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from placer.devices import DeviceTopology, Link
from placer.errors import InvalidValueError, WorkerError
from profiling import cluster as cluster_module
from profiling.cluster import LocalCluster, free_ports

pytest_plugins = ["tests.local_cluster"]
pytestmark = pytest.mark.slow

v1 = tf.compat.v1


def is_running(pid: int) -> bool:
    # A process that nobody waited for yet is a zombie (Z), not a running one.
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def workers_of_this_process() -> set[int]:
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            parent = int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == os.getpid() and b"profiling.worker" in (process / "cmdline").read_bytes():
                found.add(int(process.name))
    return found


def wait_until(condition) -> bool:
    deadline_s = time.monotonic() + 120
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return bool(condition())


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
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket sends nothing, but chooses an interface.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this host has no network interface but loopback")
        address = probe.getsockname()[0]
    port = int(cluster.target.rsplit(":", 1)[1])

    with pytest.raises((ConnectionRefusedError, TimeoutError)):
        socket.create_connection((address, port), timeout=5)
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        assert connection.getpeername() == ("127.0.0.1", port)


def test_a_killed_worker_is_named_and_replaced_on_the_same_port(cluster):
    before, target = cluster.pids, cluster.target

    os.kill(before[1], signal.SIGKILL)
    noticed = wait_until(cluster.lost_workers)
    lost = cluster.lost_workers()
    cluster.revive()

    assert noticed
    assert lost == {1: "was killed by SIGKILL"}
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

    with pytest.raises(WorkerError, match=r"worker 0 ended with exit code 3 .* no such runtime"):
        LocalCluster(1, gpus=False)


def test_a_worker_that_is_too_slow_is_reported_and_ended():
    before = workers_of_this_process()

    with pytest.raises(WorkerError, match=r"worker 0 did not come up within 0.01 s"):
        LocalCluster(1, gpus=False, start_timeout_s=0.01)

    assert workers_of_this_process() == before


@pytest.fixture(scope="module")
def host():
    """The one worker that holds all GPUs; its first choice of a port was taken."""
    with socket.socket() as taken, pytest.MonkeyPatch.context() as patch:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = iter([[taken.getsockname()[1]], free_ports(1)])
        patch.setattr(cluster_module, "free_ports", lambda _: next(ports))
        with LocalCluster(gpus=True) as one_worker:
            yield one_worker, taken.getsockname()[1]


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


def test_closing_ends_the_workers_and_removes_their_folder(host):
    cluster, _ = host
    (pid,) = cluster.pids
    folder = Path(cluster._folder.name)
    was_up = is_running(pid) and folder.exists()

    cluster.close()

    assert was_up
    assert not is_running(pid)
    assert not folder.exists()
    assert cluster.pids == ()


def test_a_worker_does_not_outlive_the_process_that_started_it(tmp_path):
    ready = tmp_path / "worker.ready"
    (port,) = free_ports(1)
    arguments = ["--ports", str(port), "--task", "0", "--core", "0", "--ready-file", str(ready)]
    program = (
        "import subprocess, sys, time\n"
        f"command = [sys.executable, '-m', 'profiling.worker', *{arguments!r}]\n"
        "print(subprocess.Popen(command, stdin=subprocess.PIPE).pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as owner:
        worker = int(owner.stdout.readline())
        came_up = wait_until(ready.exists)
        was_running = is_running(worker)
        owner.kill()

    assert came_up
    assert was_running
    assert wait_until(lambda: not is_running(worker))
