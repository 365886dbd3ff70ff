"""The local cluster: fresh worker processes on this host, one for each device.

Without GPUs every CPU core is a device: a worker pinned to it, with one thread for ops and
one within an op, and a real link (gRPC over loopback) to the others. With GPUs one worker
holds the host's CPU and all of them, as TensorFlow does.

Workers are started as new programs and never forked, so that a device that was initialised
in this process, or by an earlier worker, cannot haunt them. The process that owns the
cluster computes nothing: worker 0 is the master of every session.
"""

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import tensorflow as tf

from placer.devices import DeviceTopology
from placer.errors import InvalidValueError, WorkerError
from profiling.worker import PORT_IS_TAKEN

_log = logging.getLogger(__name__)

_ATTEMPTS = 3
_POLL_S = 0.05


class LocalCluster:
    """Worker processes of this host, in one TensorFlow cluster.

    Args:
        num_workers: CPU workers to start; one for each core this process may use if None.
        gpus: Whether to start the one worker with all GPUs; None asks TensorFlow whether
            there are any.
        memory_bytes: What the ops of a CPU worker may allocate; an equal share of the host's
            memory if None. TensorFlow waits 10 s for memory before it reports a failure.
        start_timeout_s: How long all workers together may take to come up.

    Attributes:
        target: What a session connects to: ``grpc://127.0.0.1:PORT`` of worker 0.
        devices: TensorFlow's names of the devices, in the order of placements' indices.
        memory_bytes: What the ops of each CPU worker may allocate.
        gpu_names: What each GPU calls itself, in that order.

    Raises:
        InvalidValueError: If more workers are asked for than there are cores.
        WorkerError: If a worker does not come up; names it and ends with its last words.
    """

    def __init__(
        self,
        num_workers: int | None = None,
        *,
        gpus: bool | None = None,
        memory_bytes: int | None = None,
        start_timeout_s: float = 120.0,
    ) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self.has_gpus = bool(tf.config.list_physical_devices("GPU")) if gpus is None else gpus
        count = 1 if self.has_gpus else len(cores) if num_workers is None else num_workers
        if not 1 <= count <= len(cores):
            raise InvalidValueError(
                f"num_workers must be between 1 and the {len(cores)} cores of this process,"
                f" got {num_workers}"
            )
        self._cores = cores[:count]
        self.memory_bytes = memory_bytes or _host_memory_bytes() // count
        self._start_timeout_s = start_timeout_s
        self._folder = tempfile.TemporaryDirectory(prefix="placer-workers-")
        self._workers: list[subprocess.Popen[bytes]] = []
        self._ports: list[int] = []
        self.target = ""
        self.gpu_names: tuple[str, ...] = ()
        self.devices: tuple[str, ...] = ()
        try:
            self.restart_all()
            self.devices = self._list_devices()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "LocalCluster":
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
    def num_workers(self) -> int:
        """Number of worker processes."""
        return len(self._cores)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers that run now."""
        return tuple(worker.pid for worker in self._workers)

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

    def lost_workers(self) -> dict[int, str]:
        """Return how each worker that has ended did, such as ``{1: "killed by SIGKILL"}``."""
        return {
            number: _how_it_ended(code)
            for number, worker in enumerate(self._workers)
            if (code := worker.poll()) is not None
        }

    def revive(self) -> None:
        """Replace the workers that have ended. Sessions that were open are lost."""
        for worker in self.lost_workers():
            self.restart(worker)

    def restart(self, worker: int) -> None:
        """Replace one worker by a fresh process on the same port.

        Raises:
            WorkerError: If it does not come up.
        """
        if not 0 <= worker < len(self._workers):
            raise InvalidValueError(
                f"worker must be between 0 and {len(self._workers) - 1}, got {worker}"
            )
        _end(self._workers[worker : worker + 1])
        self._workers[worker] = self._spawn(worker)
        if not self._wait_until_up([worker]):
            self.restart_all()

    def restart_all(self) -> None:
        """Replace all workers by fresh processes, on the same ports if they are still free.

        Raises:
            WorkerError: If they do not come up.
        """
        for attempt in range(_ATTEMPTS):
            _end(self._workers)
            if attempt or not self._ports:
                self._ports = free_ports(self.num_workers)
            self.target = f"grpc://127.0.0.1:{self._ports[0]}"
            self._workers = [self._spawn(number) for number in range(self.num_workers)]
            if self._wait_until_up(range(self.num_workers)):
                return
        raise WorkerError(
            f"no free ports: {_ATTEMPTS} times another process took one of {self.num_workers}"
            " between the choice and the start"
        )

    def close(self) -> None:
        """End the workers of this cluster, and remove their logs."""
        _end(self._workers)
        self._workers = []
        self._folder.cleanup()

    def _path(self, worker: int, suffix: str) -> Path:
        return Path(self._folder.name) / f"worker-{worker}{suffix}"

    def _spawn(self, worker: int) -> subprocess.Popen[bytes]:
        self._path(worker, ".ready").unlink(missing_ok=True)
        command = [sys.executable, "-m", "profiling.worker"]
        command += ["--ports", ",".join(map(str, self._ports)), "--task", str(worker)]
        command += ["--ready-file", str(self._path(worker, ".ready"))]
        environment = dict(os.environ)
        # The workers find this package wherever the owner of the cluster found it.
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        if not self.has_gpus:
            command += ["--core", str(self._cores[worker])]
            environment["CUDA_VISIBLE_DEVICES"] = "-1"
        # The limit of oneDNN's allocator, which serves all CPU kernels.
        environment["TF_MKL_MAX_ALLOC_BYTES"] = str(self.memory_bytes)
        with self._path(worker, ".log").open("wb") as log:
            return subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log
            )

    def _wait_until_up(self, workers: Sequence[int]) -> bool:
        """Wait for the workers' ready files; return False if one found its port taken."""
        deadline_s = time.monotonic() + self._start_timeout_s
        for worker in workers:
            while not self._path(worker, ".ready").exists():
                code = self._workers[worker].poll()
                if code == PORT_IS_TAKEN:
                    return False
                if code is not None:
                    raise WorkerError(
                        f"worker {worker} {_how_it_ended(code)} at start{self._last_words(worker)}"
                    )
                if time.monotonic() > deadline_s:
                    raise WorkerError(
                        f"worker {worker} did not come up within {self._start_timeout_s:g} s"
                        f"{self._last_words(worker)}"
                    )
                time.sleep(_POLL_S)
            up = json.loads(self._path(worker, ".ready").read_text())
            self.gpu_names = tuple(up["gpu_names"])
            if not up["loopback_only"]:
                _log.warning(
                    "worker %d listens on all interfaces: the system did not let it be confined",
                    worker,
                )
        return True

    def _last_words(self, worker: int) -> str:
        lines = self._path(worker, ".log").read_text(errors="replace").split("\n")
        words = " / ".join(line.strip() for line in lines[-6:] if line.strip())
        return f"; its log ends: {words[-500:]}" if words else "; its log is empty"

    def _list_devices(self) -> tuple[str, ...]:
        kinds = ("CPU", "GPU") if self.has_gpus else ("CPU",)
        try:
            with self.session(tf.Graph(), timeout_s=self._start_timeout_s) as session:
                found = [
                    (kinds.index(device.device_type), device.name)
                    for device in session.list_devices()
                    if device.device_type in kinds
                ]
        except tf.errors.OpError as error:
            raise WorkerError(f"the workers do not answer: {error.message}") from error
        return tuple(name for _, name in sorted(found, key=_device_order))


def free_ports(count: int) -> list[int]:
    """Return ports that are free now, chosen by the system."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def _host_memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _device_order(found: tuple[int, str]) -> tuple[int, int, int]:
    # By number, not by text: task:10 comes after task:9.
    kind, name = found
    device = tf.DeviceSpec.from_string(name)
    return kind, device.task, device.device_index


def _how_it_ended(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _end(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    for worker in workers:
        if worker.poll() is None:
            worker.terminate()
    for worker in workers:
        try:
            worker.wait(timeout=5)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
        if worker.stdin is not None:
            worker.stdin.close()
