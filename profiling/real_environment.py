"""Step times of placements, measured where the placements will run.

A placement is set on the nodes of the captured step by name and run by the workers of a
cluster, exactly as it stands. Which device ran which op is read back from the workers and
compared with what was asked for. Several placements are timed in turns (A B C A B C …), so
that a machine that grows slower hits all of them alike.

Starting processes, importing the graph, initialising variables and warming up are never
part of a step time.
"""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from placer.devices import DeviceTopology
from placer.environment import Measurement, Outcome
from placer.errors import InvalidValueError
from placer.placement import Placement
from profiling.cluster import LocalCluster
from profiling.placed_step import PlacedStep, check_devices, one_line
from profiling.step import CapturedStep


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


class RealEnvironment:
    """Measures placements of one step on the workers of a cluster.

    Args:
        step: The step to place.
        topology: The cluster's devices: those of ``cluster.devices``, in that order.
        cluster: The workers.
        config: How to measure.

    Raises:
        InvalidValueError: If topology and cluster differ in the number or kinds of devices.
    """

    name = "real"

    def __init__(
        self,
        step: CapturedStep,
        topology: DeviceTopology,
        cluster: LocalCluster,
        config: MeasurementConfig = MeasurementConfig(),
    ) -> None:
        cluster.check(topology)
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
                not there, or ``rounds`` is not positive.
            WorkerError: If a lost worker cannot be replaced, or ops ran elsewhere than placed.
        """
        rounds = self._config.timed_steps if rounds is None else rounds
        if rounds < 1:
            raise InvalidValueError(f"rounds must be at least 1, got {rounds}")
        contenders = [_Contender(self._device_indices(placement)) for placement in placements]
        self._cluster.revive()
        try:
            self._in_turn(contenders, lambda _: None)
            for _ in range(rounds):
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
                contender.failure = self._failure(error, lost)
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

    def _failure(self, error: Exception, lost: Mapping[int, str]) -> Measurement:
        outcome, detail = Outcome.CRASHED, one_line(error)
        if lost:
            detail = "; ".join(f"worker {worker} {how}" for worker, how in lost.items())
        elif isinstance(error, tf.errors.DeadlineExceededError):
            outcome = Outcome.TIMED_OUT
            limit = f"{self._config.timeout_s:g} s"
            detail = f"the step, or its initialisation, did not end within {limit}"
        elif isinstance(error, tf.errors.ResourceExhaustedError):
            outcome = Outcome.OUT_OF_MEMORY
        return Measurement(outcome=outcome, detail=detail)


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


def _not_runnable(message: str) -> tf.errors.InvalidArgumentError:
    return tf.errors.InvalidArgumentError(None, None, message)
