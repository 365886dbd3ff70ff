"""Clusters: worker processes that run the parts of a placed step, and how they are kept alive.

On this host (:class:`LocalCluster`) without GPUs every CPU core is a device: a worker pinned
to it, with one thread for ops and one within an op, and a real link (gRPC over loopback) to
the others. With GPUs one worker holds the host's CPU and all of them, as TensorFlow does. On
several hosts (:class:`RemoteCluster`) there is one worker for each agent, ``placer worker``,
that was started there by hand.

Workers are started as new programs and never forked, so that a device that was initialised
in this process, or by an earlier worker, cannot haunt them. The process that owns the
cluster computes nothing: worker 0 is the master of every session.
"""

import contextlib
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, TypeVar

import tensorflow as tf

from placer.devices import DeviceTopology
from placer.errors import InvalidValueError, WorkerError
from placer.files.hosts import Address, load_hosts
from profiling.local_worker import LocalWorker, host_memory_bytes
from profiling.messages import Ending, Status, WorkerFacts
from profiling.remote_worker import RemoteWorker

_log = logging.getLogger(__name__)

_ATTEMPTS = 3
_KINDS = ("CPU", "GPU")
_POLL_S = 0.05

_C = TypeVar("_C", bound="Cluster")


class Worker(Protocol):
    """A place for one worker process; as text it says where."""

    @property
    def host(self) -> str:
        """Where the servers of the cluster find each other."""

    def offer_port(self) -> int:
        """Return a port that is free there now."""

    def start(self, addresses: Sequence[str], task: int) -> None:
        """Start a fresh process in place of the one before; do not wait for it."""

    def status(self) -> Status:
        """Return how the worker is."""

    def end(self) -> None:
        """End the process, if there is one."""

    def close(self) -> None:
        """End the process, and let go of the place."""


class Cluster:
    """Worker processes that form one TensorFlow cluster. It is a context manager.

    Args:
        workers: Places for them, which the cluster closes in the end.
        start_timeout_s: How long all workers together may take to come up.

    Attributes:
        name: What its topology is called.
        devices: TensorFlow's names of the devices, in the order of placements' indices.

    Raises:
        WorkerError: If a worker does not come up; names it and ends with its last words.
    """

    name = "cluster"

    def __init__(self, workers: Sequence[Worker], *, start_timeout_s: float = 120.0) -> None:
        self._workers = tuple(workers)
        self._start_timeout_s = start_timeout_s
        self._addresses: tuple[str, ...] = ()
        self._facts: dict[int, WorkerFacts] = {}
        self._is_open = True
        self.devices: tuple[str, ...] = ()
        try:
            self.restart_all()
            self.devices = self._list_devices()
        except BaseException:
            self.close()
            raise

    def __enter__(self: _C) -> _C:
        """Return the cluster itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End all workers."""
        self.close()

    @property
    def target(self) -> str:
        """What a session connects to: worker 0."""
        return f"grpc://{self._addresses[0]}"

    @property
    def num_workers(self) -> int:
        """Number of worker processes."""
        return len(self._workers)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers that run now, each on its host."""
        if not self._is_open:
            return ()
        found = (worker.status().pid for worker in self._workers)
        return tuple(pid for pid in found if pid is not None)

    @property
    def facts(self) -> tuple[WorkerFacts, ...]:
        """What each worker told of itself and its host when it came up."""
        return tuple(self._facts[number] for number in range(self.num_workers))

    @property
    def memory_bytes(self) -> int:
        """What the ops of each CPU worker may allocate; of the one with the least."""
        return min(facts.memory_bytes for facts in self.facts)

    @property
    def gpu_names(self) -> tuple[str, ...]:
        """What each GPU calls itself, in the order of the devices."""
        return tuple(name for facts in self.facts for name in facts.gpu_names)

    @property
    def has_gpus(self) -> bool:
        """Whether any worker holds a GPU."""
        return bool(self.gpu_names)

    @property
    def worker_of_device(self) -> tuple[int, ...]:
        """The worker that holds each device."""
        return tuple(tf.DeviceSpec.from_string(name).task for name in self.devices)

    @property
    def clocks(self) -> tuple[str, ...]:
        """The clock that each device's times are of: equal on one machine, and only there."""
        return tuple(self._facts[worker].clock for worker in self.worker_of_device)

    def check(self, topology: DeviceTopology) -> None:
        """Check that the topology can be of this cluster.

        Raises:
            InvalidValueError: If they differ in the number or the kinds of devices.
        """
        described = [device.kind for device in topology.devices]
        found = [tf.DeviceSpec.from_string(name).device_type for name in self.devices]
        if described != found:
            raise InvalidValueError(
                f"topology {topology.name!r} has devices {', '.join(described)},"
                f" but the cluster has {', '.join(found)}"
            )

    def session(self, graph: tf.Graph, *, timeout_s: float = 120.0) -> tf.compat.v1.Session:
        """Open a session that runs the graph exactly as it is, where its nodes say.

        Rewriting and soft placement are off. Variables belong to this session alone and
        their memory is free once it is closed, so that many placements of one step can be
        open side by side.

        Args:
            graph: The graph; nodes without a device go wherever TensorFlow likes.
            timeout_s: Limit of every call that sets no limit of its own.
        """
        config = tf.compat.v1.ConfigProto(
            allow_soft_placement=False,
            isolate_session_state=True,
            operation_timeout_in_ms=int(timeout_s * 1e3),
        )
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        config.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0
        return tf.compat.v1.Session(self.target, graph=graph, config=config)

    def lost_workers(self) -> dict[int, Ending]:
        """Return how each worker that has ended did; as text, ``was killed by SIGKILL``."""
        if not self._is_open:
            return {}
        endings = {number: worker.status().ending for number, worker in enumerate(self._workers)}
        return {number: ending for number, ending in endings.items() if ending is not None}

    def revive(self) -> None:
        """Replace the workers that have ended. Sessions that were open are lost.

        Raises:
            WorkerError: If one does not come up, or its agent is gone.
        """
        for worker in self.lost_workers():
            self.restart(worker)

    def restart(self, worker: int) -> None:
        """Replace one worker by a fresh process on the same port.

        Raises:
            WorkerError: If it does not come up, or its agent is gone.
        """
        if not 0 <= worker < self.num_workers:
            raise InvalidValueError(
                f"worker must be between 0 and {self.num_workers - 1}, got {worker}"
            )
        self._workers[worker].start(self._addresses, worker)
        if not self._wait_until_up([worker]):
            self.restart_all()

    def restart_all(self) -> None:
        """Replace all workers by fresh processes, on the same ports if they are still free.

        Raises:
            WorkerError: If they do not come up, or an agent is gone.
        """
        for attempt in range(_ATTEMPTS):
            for worker in self._workers:
                worker.end()
            if attempt or not self._addresses:
                self._addresses = tuple(
                    f"{worker.host}:{worker.offer_port()}" for worker in self._workers
                )
            for number, worker in enumerate(self._workers):
                worker.start(self._addresses, number)
            if self._wait_until_up(range(self.num_workers)):
                return
        raise WorkerError(
            f"no free ports: {_ATTEMPTS} times another process took one of {self.num_workers}"
            " between the choice and the start"
        )

    def close(self) -> None:
        """End the workers of this cluster."""
        self._is_open = False
        for worker in self._workers:
            worker.close()

    def _wait_until_up(self, workers: Sequence[int]) -> bool:
        """Wait until the workers are up; return False if one found its port taken."""
        deadline_s = time.monotonic() + self._start_timeout_s
        for number in workers:
            worker = self._workers[number]
            name = f"worker {number} ({worker})"
            while (status := worker.status()).facts is None:
                if status.ending is not None:
                    if status.ending.port_is_taken:
                        return False
                    raise WorkerError(f"{name} {status.ending} at start{_told(status)}")
                if time.monotonic() > deadline_s:
                    limit = f"within {self._start_timeout_s:g} s"
                    raise WorkerError(f"{name} did not come up {limit}{_told(status)}")
                time.sleep(_POLL_S)
            self._facts[number] = status.facts
            if not status.facts.is_confined:
                _log.warning(
                    "%s listens on all interfaces: the system did not let it be confined", name
                )
        return True

    def _list_devices(self) -> tuple[str, ...]:
        try:
            with self.session(tf.Graph(), timeout_s=self._start_timeout_s) as session:
                found = [
                    (_KINDS.index(device.device_type), device.name)
                    for device in session.list_devices()
                    if device.device_type in _KINDS
                ]
        except tf.errors.OpError as error:
            raise WorkerError(f"the workers do not answer: {error.message}") from error
        return tuple(name for _, name in sorted(found, key=_device_order))


class LocalCluster(Cluster):
    """Worker processes of this host, in one TensorFlow cluster.

    Args:
        num_workers: CPU workers to start; one for each core this process may use if None.
        gpus: Whether to start the one worker with all GPUs; None asks TensorFlow whether
            there are any.
        memory_bytes: What the ops of a CPU worker may allocate; an equal share of the host's
            memory if None. TensorFlow waits 10 s for memory before it reports a failure.
        start_timeout_s: How long all workers together may take to come up.

    Raises:
        InvalidValueError: If more workers are asked for than there are cores.
        WorkerError: If a worker does not come up; names it and ends with its last words.
    """

    name = "local"

    def __init__(
        self,
        num_workers: int | None = None,
        *,
        gpus: bool | None = None,
        memory_bytes: int | None = None,
        start_timeout_s: float = 120.0,
    ) -> None:
        cores = sorted(os.sched_getaffinity(0))
        whole_host = bool(tf.config.list_physical_devices("GPU")) if gpus is None else gpus
        count = 1 if whole_host else len(cores) if num_workers is None else num_workers
        if not 1 <= count <= len(cores):
            raise InvalidValueError(
                f"num_workers must be between 1 and the {len(cores)} cores of this process,"
                f" got {num_workers}"
            )
        share_bytes = memory_bytes or host_memory_bytes() // count
        pins: list[int | None] = [None] if whole_host else [*cores[:count]]
        super().__init__(
            [LocalWorker(core=core, memory_bytes=share_bytes) for core in pins],
            start_timeout_s=start_timeout_s,
        )


class RemoteCluster(Cluster):
    """One worker behind each agent, in one TensorFlow cluster.

    Workers find each other at the hosts of these addresses, and the session finds worker 0
    there: all must be reachable from all hosts and from this one.

    Args:
        hosts: Where the agents listen.
        start_timeout_s: How long all workers together may take to come up.

    Raises:
        InvalidValueError: If there is no host, or some addresses are loopback and some not.
        WorkerError: If an agent does not answer, belongs to another owner, or its worker
            does not come up.
    """

    def __init__(self, hosts: Sequence[Address], *, start_timeout_s: float = 120.0) -> None:
        if not hosts:
            raise InvalidValueError("a cluster needs at least one host, got none")
        loopback = [host for host in hosts if host.is_loopback]
        others = [host for host in hosts if not host.is_loopback]
        if loopback and others:
            raise InvalidValueError(f"host {others[0]} cannot reach {loopback[0]}: it is loopback")
        with contextlib.ExitStack() as on_failure:
            workers = []
            for host in hosts:
                workers.append(RemoteWorker(host))
                on_failure.callback(workers[-1].close)
            super().__init__(workers, start_timeout_s=start_timeout_s)
            on_failure.pop_all()


def open_cluster(hosts_file: Path | None = None) -> Cluster:
    """Return the cluster of a hosts file, or that of this host if there is none.

    Raises:
        MissingFileError: If there is no such file.
        FileFormatError: If it is not a hosts file.
        InvalidValueError: If the hosts cannot form a cluster.
        WorkerError: If a worker does not come up, or an agent does not answer.
    """
    return LocalCluster() if hosts_file is None else RemoteCluster(load_hosts(hosts_file))


def _device_order(found: tuple[int, str]) -> tuple[int, int, int]:
    # By number, not by text: task:10 comes after task:9.
    kind, name = found
    device = tf.DeviceSpec.from_string(name)
    return kind, device.task, device.device_index


def _told(status: Status) -> str:
    words = status.last_words
    return f"; its log ends: {words}" if words else "; its log is empty"
