"""Step times of placements, measured where the placements will run.

A placement is set on the nodes of the captured step by name and run by the workers of a
cluster, exactly as it stands. Which device ran which op is read back from the workers and
compared with what was asked for. Several placements are timed in turns (A B C A B C …), so
that a machine that grows slower hits all of them alike.

Starting processes, importing the graph, initialising variables and warming up are never
part of a step time.
"""

import concurrent.futures
import contextlib
import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import config_pb2

from placer.devices import DeviceTopology
from placer.environment import Measurement, Outcome
from placer.errors import InvalidValueError, WorkerError
from placer.placement import Placement
from profiling.cluster import LocalCluster
from profiling.step import CapturedStep

_SETTLED = 0.05
_LOOK_S = 0.5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementConfig:
    """How a placement is timed.

    Attributes:
        max_warmup_steps: At most this many steps are run and discarded, until two in a row
            take the same time to within 5 %.
        timed_steps: Steps whose median is the step time.
        timeout_s: Limit on initialising the variables, and on every single step.
    """

    max_warmup_steps: int = 8
    timed_steps: int = 10
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        for field in ("max_warmup_steps", "timed_steps"):
            if getattr(self, field) < 1:
                raise InvalidValueError(f"{field} must be at least 1, got {getattr(self, field)}")
        if not 0 < self.timeout_s < math.inf:
            raise InvalidValueError(f"timeout_s must be positive and finite, got {self.timeout_s}")


class PlacedStep:
    """A step whose nodes carry devices, open in a session with its variables initialised.

    Args:
        step: The step.
        device_of_op: TensorFlow's name of the device of each op of ``step.op_graph``.
        cluster: The workers that run it.
        timeout_s: Limit on the initialisation and on every single step.

    Raises:
        tensorflow.errors.OpError: If TensorFlow cannot place or initialise it.
    """

    def __init__(
        self,
        step: CapturedStep,
        device_of_op: Sequence[str],
        cluster: LocalCluster,
        *,
        timeout_s: float,
    ) -> None:
        self._cluster = cluster
        self._caller = concurrent.futures.ThreadPoolExecutor(max_workers=1)
        graph = tf.Graph()
        with graph.as_default():
            tf.graph_util.import_graph_def(place(step, device_of_op), name="")
        self._timeout_ms = math.ceil(timeout_s * 1e3)
        self._fetches = [*step.fetches, *map(graph.get_operation_by_name, step.targets)]
        self._session = cluster.session(graph, timeout_s=timeout_s)
        try:
            self._call([graph.get_operation_by_name(name) for name in step.initializers])
        except tf.errors.OpError:
            self.close()
            raise

    def run(self, metadata: config_pb2.RunMetadata | None = None) -> float:
        """Run one step; return its wall-clock seconds.

        Args:
            metadata: Filled with the full trace and the graphs of the workers, which makes
                the step slower; a plain step if None.

        Raises:
            ArithmeticError: If the loss is not finite.
            tensorflow.errors.OpError: If the step fails or exceeds its limit.
        """
        values, elapsed_s = self._call(self._fetches, metadata)
        if not np.all(np.isfinite(values[0])):
            raise FloatingPointError(f"the loss became {values[0]}")
        return elapsed_s

    def _call(
        self, fetches: Sequence[Any], metadata: config_pb2.RunMetadata | None = None
    ) -> tuple[Any, float]:
        """Run the fetches in a thread, so that the end of a worker is noticed at once.

        A session retries in vain, up to its time limit, when the first worker is gone. The
        thread comes free when that worker is replaced.
        """
        options = config_pb2.RunOptions(timeout_in_ms=self._timeout_ms)
        if metadata is not None:
            options.trace_level = config_pb2.RunOptions.FULL_TRACE
            options.output_partition_graphs = True

        def call() -> tuple[Any, float]:
            start_s = time.perf_counter()
            values = self._session.run(fetches, options=options, run_metadata=metadata)
            return values, time.perf_counter() - start_s

        future = self._caller.submit(call)
        while concurrent.futures.wait([future], timeout=_LOOK_S).not_done:
            if lost := self._cluster.lost_workers():
                raise tf.errors.UnavailableError(None, None, f"workers were lost: {lost}")
        return future.result()

    def warm_up(self, max_steps: int) -> None:
        """Run steps until two in a row take the same time to within 5 %, or ``max_steps``."""
        last_s = math.inf
        for _ in range(max_steps):
            elapsed_s = self.run()
            if abs(elapsed_s - last_s) <= _SETTLED * elapsed_s:
                return
            last_s = elapsed_s

    def close(self) -> None:
        """Close the session and free its variables, whether or not its workers still live."""
        with contextlib.suppress(tf.errors.OpError):
            self._session.close()
        self._caller.shutdown(wait=False)


class RealEnvironment:
    """Measures placements of one step on the workers of a cluster.

    Args:
        step: The step to place.
        topology: The cluster's devices: those of ``cluster.devices``, in that order.
        cluster: The workers.
        config: How to measure.

    Raises:
        InvalidValueError: If topology and cluster differ in the number of devices.
    """

    name = "real"

    def __init__(
        self,
        step: CapturedStep,
        topology: DeviceTopology,
        cluster: LocalCluster,
        config: MeasurementConfig = MeasurementConfig(),
    ) -> None:
        if topology.num_devices != len(cluster.devices):
            raise InvalidValueError(
                f"topology {topology.name!r} has {topology.num_devices} devices,"
                f" but the cluster has {len(cluster.devices)}"
            )
        self._step = step
        self._topology = topology
        self._cluster = cluster
        self._config = config

    def measure(self, placements: Sequence[Placement]) -> list[Measurement]:
        """Time the placements one after the other, each with the memory to itself.

        Raises:
            InvalidValueError: If a placement is of another graph or names a device that is
                not there.
            WorkerError: If a lost worker cannot be replaced, or ops ran elsewhere than placed.
        """
        return [self.compare([placement])[0] for placement in placements]

    def compare(
        self, placements: Sequence[Placement], *, rounds: int | None = None
    ) -> list[Measurement]:
        """Time the placements in turns; all are held open, so all must fit together.

        Args:
            placements: What to compare.
            rounds: Timed steps of each; ``timed_steps`` of the configuration if None.

        Raises:
            InvalidValueError: If a placement is of another graph or names a device that is
                not there.
            WorkerError: If a lost worker cannot be replaced, or ops ran elsewhere than placed.
        """
        contenders = [_Contender(self._device_indices(placement)) for placement in placements]
        self._cluster.revive()
        try:
            self._in_turn(contenders, lambda _: None)
            for _ in range(self._config.timed_steps if rounds is None else rounds):
                self._in_turn(contenders, _Contender.time_a_step)
        finally:
            for contender in contenders:
                contender.close()
        return [contender.measurement() for contender in contenders]

    def _device_indices(self, placement: Placement) -> list[int]:
        devices = placement.device_of_op
        if len(devices) != self._step.op_graph.num_ops:
            raise InvalidValueError(
                f"the placement is of {len(devices)} ops, but step {self._step.name!r} has"
                f" {self._step.op_graph.num_ops}"
            )
        if devices.max() >= self._topology.num_devices:
            raise InvalidValueError(
                f"the placement names device {devices.max()}, but topology"
                f" {self._topology.name!r} has devices 0 to {self._topology.num_devices - 1}"
            )
        return [int(device) for device in devices]

    def _in_turn(
        self, contenders: Sequence["_Contender"], act: Callable[["_Contender"], None]
    ) -> None:
        """Let each contender that still can act once; what goes wrong is its outcome."""
        for contender in contenders:
            if contender.failure is not None:
                continue
            try:
                if contender.placed is None:
                    self._open(contender)
                act(contender)
            except (tf.errors.OpError, ArithmeticError) as error:
                lost = self._lost_workers(error)
                contender.failure = _failure(error, lost)
                if isinstance(error, tf.errors.DeadlineExceededError):
                    # What hangs cannot be interrupted and would slow down everyone else.
                    self._cluster.restart_all()
                    lost = dict.fromkeys(range(self._cluster.num_workers), "")
                self._cluster.revive()
                for other in contenders if lost else [contender]:
                    other.close()

    def _open(self, contender: "_Contender") -> None:
        """Start the contender's session, check where its ops run, and warm up."""
        self._check_runnable(contender.device_of_op)
        names = [self._cluster.devices[device] for device in contender.device_of_op]
        contender.placed = PlacedStep(
            self._step, names, self._cluster, timeout_s=self._config.timeout_s
        )
        metadata = config_pb2.RunMetadata()
        contender.placed.run(metadata)
        requested = {op.name: name for op, name in zip(self._step.op_graph.ops, names, strict=True)}
        check_devices(requested, metadata.partition_graphs)
        contender.placed.warm_up(self._config.max_warmup_steps)

    def _check_runnable(self, device_of_op: Sequence[int]) -> None:
        """Find what TensorFlow would say late, or overrule without a word."""
        graph = self._step.op_graph
        for op, index in zip(graph.ops, device_of_op, strict=True):
            device = self._topology.devices[index]
            if device.kind not in op.device_kinds:
                raise _not_runnable(f"op {op.name!r} ({op.type}) has no kernel on {device.name!r}")
        for first, *others in graph.colocations:
            for other in others:
                if device_of_op[first] != device_of_op[other]:
                    names = f"{graph.ops[first].name!r} and {graph.ops[other].name!r}"
                    raise _not_runnable(f"ops {names} must share a device")

    def _lost_workers(self, error: Exception) -> Mapping[int, str]:
        lost = self._cluster.lost_workers()
        if isinstance(error, tf.errors.UnavailableError | tf.errors.AbortedError):
            # The broken connection may be seen a moment before the end of the process is.
            deadline_s = time.monotonic() + 2
            while not lost and time.monotonic() < deadline_s:
                time.sleep(0.05)
                lost = self._cluster.lost_workers()
        return lost


class _Contender:
    """A placement while it is measured: its open session, its samples, or why it failed."""

    def __init__(self, device_of_op: Sequence[int]) -> None:
        self.device_of_op = device_of_op
        self.placed: PlacedStep | None = None
        self.failure: Measurement | None = None
        self._samples_s: list[float] = []

    def time_a_step(self) -> None:
        if self.placed is not None:
            self._samples_s.append(self.placed.run())

    def close(self) -> None:
        if self.placed is not None:
            self.placed.close()
            self.placed = None

    def measurement(self) -> Measurement:
        if self.failure is not None:
            return self.failure
        return Measurement(
            outcome=Outcome.OK,
            step_time_s=statistics.median(self._samples_s),
            samples_s=tuple(self._samples_s),
        )


def place(step: CapturedStep, device_of_op: Sequence[str]) -> graph_pb2.GraphDef:
    """Return the step's graph with a device on every node.

    What initialises a variable runs on the device of the variable's handle, with everything
    it needs, so that no initial value travels.

    Args:
        step: The step.
        device_of_op: TensorFlow's name of the device of each op of ``step.op_graph``.
    """
    graph_def = graph_pb2.GraphDef()
    graph_def.CopyFrom(step.graph_def)
    names = (op.name for op in step.op_graph.ops)
    device_of_node = dict(zip(names, device_of_op, strict=True))
    node_of_name = {node.name: node for node in graph_def.node}
    for initializer in step.initializers:
        handle = _node_name(node_of_name[initializer].input[0])
        device = device_of_node.get(handle, device_of_op[0])
        waiting = [initializer]
        while waiting:
            name = waiting.pop()
            if name not in device_of_node:
                device_of_node[name] = device
                waiting += map(_node_name, node_of_name[name].input)
    for node in graph_def.node:
        node.device = device_of_node.get(node.name, device_of_op[0])
    return graph_def


def check_devices(
    requested: Mapping[str, str], partitions: Iterable[graph_pb2.GraphDef]
) -> None:
    """Compare where ops were placed with where the workers had them.

    Args:
        requested: TensorFlow's device name of each op, by the op's name.
        partitions: The graphs that the workers ran.

    Raises:
        WorkerError: If an op was elsewhere, or the workers ran none of them.
    """
    actual = {node.name: node.device for partition in partitions for node in partition.node}
    if not requested.keys() & actual.keys():
        raise WorkerError("the workers did not say which ops they ran, so none could be checked")
    strays = [name for name, device in requested.items() if actual.get(name, device) != device]
    if strays:
        shown = ", ".join(
            f"{name!r} on {actual[name]} instead of {requested[name]}" for name in strays[:3]
        )
        raise WorkerError(f"{len(strays)} ops ran elsewhere than placed: {shown}")


def _node_name(input_name: str) -> str:
    """Return the node behind a node's input, such as ``a`` for ``a:1`` and for ``^a``."""
    return input_name.removeprefix("^").split(":")[0]


def _not_runnable(message: str) -> tf.errors.InvalidArgumentError:
    return tf.errors.InvalidArgumentError(None, None, message)


def _failure(error: Exception, lost: Mapping[int, str]) -> Measurement:
    detail = "; ".join(f"worker {worker} {how}" for worker, how in lost.items())
    if isinstance(error, tf.errors.DeadlineExceededError):
        outcome = Outcome.TIMED_OUT
        detail = detail or "the step, or its initialisation, did not end within the time limit"
    elif isinstance(error, tf.errors.ResourceExhaustedError):
        outcome = Outcome.OUT_OF_MEMORY
    else:
        outcome = Outcome.CRASHED
    return Measurement(outcome=outcome, detail=detail or _one_line(error))


_BOILERPLATE = ("Graph execution error", "Detected at node", "File ", "Node:", "From /job", "[[")


def _one_line(error: Any) -> str:
    """Return the line of TensorFlow's message that says what is wrong."""
    lines = [line.strip() for line in str(getattr(error, "message", error)).splitlines()]
    telling = [line for line in lines if line and not line.startswith(_BOILERPLATE)]
    return (telling or [type(error).__name__])[0][:300]
