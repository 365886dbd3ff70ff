"""Agents of hosts, their owners, and the cluster of workers behind them."""

import contextlib
import json
import os
import signal
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
import tensorflow as tf

from flows.devices import show_devices
from placer.errors import InvalidValueError, WorkerError
from placer.files import load_topology
from placer.files.hosts import Address
from profiling.agent import serve_host
from profiling.cluster import RemoteCluster
from profiling.messages import MAX_LINE_BYTES, Ending
from profiling.remote_worker import RemoteWorker
from tests.agents import Agent, running_agent
from tests.processes import is_listening, is_running, wait_until

pytestmark = pytest.mark.slow

CORES = sorted(os.sched_getaffinity(0))


@pytest.fixture(scope="module")
def agents() -> Iterator[tuple[Agent, Agent]]:
    """Agents of two hosts, as far as anyone can tell from outside."""
    with running_agent(CORES[0]) as first, running_agent(CORES[-1]) as second:
        yield first, second


@pytest.fixture(scope="module")
def remote(agents):
    """The cluster of both agents."""
    with RemoteCluster([agent.address for agent in agents]) as cluster:
        yield cluster


@pytest.fixture
def agent() -> Iterator[Agent]:
    """An agent that a test may harm."""
    with running_agent(CORES[0]) as one:
        yield one


def say_once(server: socket.socket, said: bytes) -> None:
    """Say this to the first who connects, and hear him out."""
    peer, _ = server.accept()
    with peer:
        peer.sendall(said)
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(65536):
            pass


def answer(connection: socket.socket, line: bytes) -> dict:
    connection.sendall(line)
    return json.loads(connection.makefile("rb").readline())


# The cluster behind two agents.


def test_a_graph_across_two_hosts_computes_what_it_says(remote):
    with tf.Graph().as_default() as graph:
        with tf.device(remote.devices[0]):
            a = tf.constant([[1.0, 2.0]])
        with tf.device(remote.devices[1]):
            product = tf.matmul(a, tf.constant([[3.0], [4.0]]))

    with remote.session(graph) as session:
        value = session.run(product)

    # 1 · 3 + 2 · 4
    assert value.tolist() == [[11.0]]


def test_each_host_holds_one_worker_pinned_to_the_agents_core(remote):
    assert remote.devices == (
        "/job:worker/replica:0/task:0/device:CPU:0",
        "/job:worker/replica:0/task:1/device:CPU:0",
    )
    assert [facts.core for facts in remote.facts] == [CORES[0], CORES[-1]]
    assert [os.sched_getaffinity(pid) for pid in remote.pids] == [{CORES[0]}, {CORES[-1]}]
    assert all(facts.is_confined for facts in remote.facts)


def test_agents_of_one_machine_are_known_to_share_its_clock(remote):
    assert remote.clocks[0] == remote.clocks[1]


def test_a_second_owner_is_refused_and_told_of_the_first(remote, agents):
    with pytest.raises(WorkerError) as error:
        RemoteWorker(agents[0].address)

    refusal = f"host {agents[0].address} refuses: it belongs to its owner at 127.0.0.1:"
    assert str(error.value).startswith(refusal)
    assert remote.lost_workers() == {}


def test_a_killed_worker_behind_an_agent_is_named_and_replaced(remote):
    before, target = remote.pids, remote.target

    os.kill(before[1], signal.SIGKILL)
    noticed = wait_until(remote.lost_workers)
    lost = remote.lost_workers()
    remote.revive()

    assert noticed
    assert lost == {1: Ending("was killed by SIGKILL")}
    assert remote.lost_workers() == {}
    assert remote.target == target
    assert remote.pids[0] == before[0]
    assert remote.pids[1] != before[1]
    with tf.Graph().as_default() as graph, tf.device(remote.devices[1]):
        one = tf.constant(1.0) + 0.0
    with remote.session(graph) as session:
        assert session.run(one) == 1.0


def test_the_devices_command_takes_agents_that_were_let_go(remote, agents, tmp_path, capsys):
    pids = remote.pids
    remote.close()
    hosts = tmp_path / "hosts.toml"
    entries = [f'[[hosts]]\naddress = "{agent.address}"\n' for agent in agents]
    hosts.write_text("version = 1\n" + "".join(entries))

    topology_file, json_file = tmp_path / "topology.toml", tmp_path / "devices.json"
    show_devices(hosts, topology_file=topology_file, json_file=json_file)

    topology = load_topology(str(topology_file))
    found = json.loads(json_file.read_text())
    assert [device.name for device in topology.devices] == ["cpu:0", "cpu:1"]
    assert topology.name == "cluster"
    assert [link["source"] for link in found["links"]] == ["cpu:0", "cpu:1"]
    assert [device["threads"] for device in found["devices"]] == [1, 1]
    assert found["topology"] == topology.fingerprint
    assert "latency" in capsys.readouterr().out
    assert not any(is_running(pid) for pid in pids)


# Owners and agents that vanish. A worker that only begins to start is enough for these.


def owned(agent: Agent) -> RemoteWorker:
    worker = RemoteWorker(agent.address)
    worker.start([f"127.0.0.1:{worker.offer_port()}"], 0)
    return worker


def test_an_agent_whose_owner_vanishes_ends_the_worker_and_is_free_for_the_next(agents):
    worker = owned(agents[0])
    pid = worker.status().pid
    # No farewell: the connection is reset, as when the owner is killed.
    worker._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    worker.close()

    ended = wait_until(lambda: not is_running(pid))
    next_owner = owned(agents[0])
    next_pid = next_owner.status().pid
    next_owner.close()

    assert ended
    assert next_pid != pid


def test_a_stopped_worker_ends_with_its_owners_connection(agents):
    worker = owned(agents[0])
    pid = worker.status().pid
    os.kill(pid, signal.SIGSTOP)

    worker.close()

    assert wait_until(lambda: not is_running(pid))


@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_agent_takes_its_worker_with_it_and_its_owner_learns_of_it(agent, signal_):
    worker = owned(agent)
    pid = worker.status().pid
    os.kill(pid, signal.SIGSTOP)

    agent.process.send_signal(signal_)
    code = agent.process.wait(timeout=60)

    assert wait_until(lambda: not is_running(pid))
    assert not is_listening(agent.address.port)
    assert code == (-signal.SIGKILL if signal_ == signal.SIGKILL else 0)
    ending = worker.status().ending
    assert str(ending).startswith(f"is lost: the agent at {agent.address} is gone: ")
    with pytest.raises(WorkerError, match="does not answer: Connection refused"):
        worker.start(["127.0.0.1:1"], 0)
    worker.end()


def test_an_agent_that_does_not_answer_in_time_is_gone_and_may_come_back(agent):
    worker = RemoteWorker(agent.address, timeout_s=0.5)
    agent.process.send_signal(signal.SIGSTOP)

    ending = worker.status().ending
    agent.process.send_signal(signal.SIGCONT)

    assert str(ending).endswith("is gone: it does not answer in time")

    def comes_back() -> bool:
        with contextlib.suppress(WorkerError):
            return worker.offer_port() > 0
        return False

    assert wait_until(comes_back)


# What agents are told and do not do.


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"GET / HTTP/1.1\n", "not a message of version 1: "),
        (b'{"request": "offer"}\n', "the first request must be 'own', got 'offer'"),
        (b'{"request": "own", "version": 2}\n', "not a message of version 1: own.version: "),
        (b"x" * (2 * MAX_LINE_BYTES), f"a message must not exceed {MAX_LINE_BYTES} bytes"),
    ],
)
def test_whoever_is_no_owner_is_refused(agents, line, reason):
    with socket.create_connection((agents[0].address.host, agents[0].address.port)) as connection:
        told = answer(connection, line)

    assert told["answer"] == "refused"
    assert told["reason"].startswith(reason)
    assert "\n" not in told["reason"]


def test_a_question_that_is_not_understood_ends_the_ownership(agents):
    with socket.create_connection((agents[0].address.host, agents[0].address.port)) as connection:
        owning = answer(connection, b'{"request": "own", "version": 1}\n')
        again = answer(connection, b'{"request": "own", "version": 1}\n')
        beyond = answer(
            connection, b'{"request": "start", "addresses": ["127.0.0.1:1"], "task": 1}\n'
        )
        nonsense = answer(connection, b'{"request": "dance"}\n')
        rest = connection.recv(1)

    assert owning == {"answer": "done"}
    assert again == {"answer": "refused", "reason": "it belongs to you already"}
    assert beyond == {"answer": "refused", "reason": "task 1 is not among 1 addresses"}
    assert nonsense["reason"].startswith("not a message of version 1: ")
    assert rest == b""


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"", "it closed the connection"),
        (b"220 mail.example ESMTP\n", "not a message of version 1: "),
        (b'{"answer": "offered", "port": 1}\n', "it answered another question"),
    ],
)
def test_what_is_no_agent_is_told_in_one_line(said, reason):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = Address("127.0.0.1", server.getsockname()[1])
        impostor = threading.Thread(target=say_once, args=(server, said))
        impostor.start()

        with pytest.raises(WorkerError) as error:
            RemoteWorker(address)
        impostor.join()

    assert str(error.value).startswith(f"the agent at {address} is gone: {reason}")
    assert "\n" not in str(error.value)


# Agents that cannot be.


def test_an_agent_is_pinned_to_a_core_that_is_there():
    with pytest.raises(InvalidValueError, match=r"core must be one of .*, got 9999"):
        serve_host(Address("127.0.0.1", 0), core=9999, announce=print)


def test_an_agent_says_in_one_line_why_it_cannot_listen():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])

        with pytest.raises(InvalidValueError) as in_use:
            serve_host(address, core=None, announce=print)
    with pytest.raises(InvalidValueError) as elsewhere:
        serve_host(Address("203.0.113.1", 0), core=None, announce=print)

    assert str(in_use.value) == f"cannot listen on {address}: Address already in use"
    assert str(elsewhere.value) == (
        "cannot listen on 203.0.113.1:0: Cannot assign requested address"
    )
