"""Step times of placements, measured where the placements will run.

A placement is set on the nodes of the captured step by name and run by the workers of a
cluster, exactly as it stands. Which device ran which op is read back from the workers and
compared with what was asked for. Several placements are timed in turns, in an order that
changes from round to round, so that a machine that grows slower hits all of them alike.

Starting processes, importing the graph, initialising variables and warming up are never
part of a step time.

Whatever goes wrong is the outcome of the placement whose turn it was, with the cause in its
detail. That is so as well for an accident that it had no part in, such as a worker that
someone killed: from here the two look the same, a second try would double the price of every
placement that does bring its worker down, and one trial too many that failed teaches a policy
little. The worker is replaced. The other placements of a comparison lost their variables with
it: they are opened and warmed up again, and keep the samples they had.
"""

import dataclasses
import itertools
import logging
import math
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence

import tensorflow as tf

from placer.devices import DeviceTopology
from placer.environment import REAL, Measurement, Outcome
from placer.errors import InvalidValueError, WorkerError
from placer.placement import Placement
from placer.statistics import balanced_order, relative_half_width
from profiling.cluster import Cluster
from profiling.messages import Ending
from profiling.placed_step import ImportedStep, PlacedStep, one_line
from profiling.step import CapturedStep

_log = logging.getLogger(__name__)

_NOTICE_S = 2.0
_POLL_S = 0.05


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementConfig:
    """How a placement is timed.

    Attributes:
        max_warmup_steps: At most this many steps are run and discarded, until times settle:
            see ``placer.statistics.has_settled``.
        min_timed_steps: Steps that are timed in any case. An interval of 95 % needs 6; fewer
            are judged by their range.
        max_timed_steps: Steps that are timed at most.
        relative_half_width: Timing ends once the interval of the median (95 %) is no wider
            to either side, as a share of the median.
        budget_s: Timing ends once the timed steps took so long together.
        timeout_s: Limit on initialising the variables, on the first step (which
            compiles, and after 10 s reports that memory ran out), and on every other step.
        timeout_factor: A step after the first one is given up once it takes this many times
            the fastest step that the environment has seen; None for ``timeout_s`` alone.
        min_timeout_s: But it is never given up before that.
    """

    max_warmup_steps: int = 8
    min_timed_steps: int = 6
    max_timed_steps: int = 30
    relative_half_width: float = 0.02
    budget_s: float = 20.0
    timeout_s: float = 120.0
    timeout_factor: float | None = 10.0
    min_timeout_s: float = 5.0

    def __post_init__(self) -> None:
        for field in ("max_warmup_steps", "min_timed_steps"):
            if getattr(self, field) < 1:
                raise InvalidValueError(f"{field} must be at least 1, got {getattr(self, field)}")
        if self.max_timed_steps < self.min_timed_steps:
            raise InvalidValueError(
                f"max_timed_steps must be at least min_timed_steps, {self.min_timed_steps},"
                f" got {self.max_timed_steps}"
            )
        for field in ("relative_half_width", "budget_s", "timeout_s", "min_timeout_s"):
            if not 0 < getattr(self, field) < math.inf:
                raise InvalidValueError(
                    f"{field} must be positive and finite, got {getattr(self, field)}"
                )
        if self.timeout_factor is not None and not 1 < self.timeout_factor < math.inf:
            raise InvalidValueError(
                f"timeout_factor must be above 1 and finite, or None, got {self.timeout_factor}"
            )

    def is_enough(self, samples_s: Sequence[float]) -> bool:
        """Return whether these timed steps need no further one."""
        if len(samples_s) < self.min_timed_steps:
            return False
        if len(samples_s) >= self.max_timed_steps or sum(samples_s) >= self.budget_s:
            return True
        return relative_half_width(samples_s) <= self.relative_half_width

    def limit_s(self, fastest_s: float) -> float:
        """Return the limit on a step after the first, the fastest so far known."""
        if self.timeout_factor is None:
            return self.timeout_s
        return min(self.timeout_s, max(self.min_timeout_s, self.timeout_factor * fastest_s))


class RealEnvironment:
    """Measures placements of one step on the workers of a cluster.

    It remembers the fastest step it has seen, from which the limit on slow ones derives.

    Args:
        step: The step to place.
        topology: The cluster's devices: those of ``cluster.devices``, in that order.
        cluster: The workers.
        config: How to measure.

    Raises:
        InvalidValueError: If topology and cluster differ in the number or kinds of devices.
    """

    name = REAL

    def __init__(
        self,
        step: CapturedStep,
        topology: DeviceTopology,
        cluster: Cluster,
        config: MeasurementConfig = MeasurementConfig(),
    ) -> None:
        cluster.check(topology)
        self._step = step
        self._imported: list[ImportedStep] = []
        self._topology = topology
        self._cluster = cluster
        self._config = config
        self._fastest_s = math.inf

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

        Sample i of each is of round i: those that ran to the end can be compared in pairs.

        Args:
            placements: What to compare.
            rounds: Timed steps of each; if None, as many as it takes until the
                configuration has enough of all.

        Raises:
            InvalidValueError: If a placement is of another graph or names a device that is
                not there, or ``rounds`` is not positive.
            WorkerError: If a lost worker cannot be replaced, or ops ran elsewhere than placed.
        """
        if rounds is not None and rounds < 1:
            raise InvalidValueError(f"rounds must be at least 1, got {rounds}")
        contenders = [_Contender(self._device_indices(placement)) for placement in placements]
        self._replace(self._cluster.lost_workers())
        try:
            self._in_turn(contenders, lambda _: None)
            for number in itertools.count():
                if self._is_over(contenders, number, rounds):
                    break
                order = balanced_order(len(contenders), number)
                self._in_turn([contenders[index] for index in order], _Contender.time_a_step)
        finally:
            for contender in contenders:
                self._close(contender)
        return [contender.measurement() for contender in contenders]

    def _is_over(
        self, contenders: Sequence["_Contender"], rounds_done: int, rounds: int | None
    ) -> bool:
        running = [contender for contender in contenders if contender.failure is None]
        if rounds is not None:
            return not running or rounds_done >= rounds
        return all(self._config.is_enough(contender.samples_s) for contender in running)

    def _device_indices(self, placement: Placement) -> list[int]:
        devices, step = placement.device_of_op, self._step
        if len(devices) != step.op_graph.num_ops:
            raise InvalidValueError(
                f"the placement is of {len(devices)} ops, but step {step.name!r} has"
                f" {step.op_graph.num_ops}"
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
                placed = contender.placed or self._open(contender)
                placed.timeout_s = self._config.limit_s(self._fastest_s)
                act(contender)
                self._fastest_s = min(self._fastest_s, *placed.times_s)
            except (tf.errors.OpError, ArithmeticError) as error:
                lost = self._lost_workers(error)
                contender.failure = self._failure(error, lost, contender)
                spoilt = isinstance(error, _SPOILS_WORKERS)
                self._replace(range(self._cluster.num_workers) if spoilt else lost)
                for other in contenders if lost or spoilt else [contender]:
                    self._close(other)

    def _replace(self, workers: Collection[int]) -> None:
        if len(workers) == 1:
            try:
                self._cluster.restart(*workers)
            except WorkerError as error:
                _log.warning("%s; all workers are started anew", error)
            else:
                return
        if workers:
            self._cluster.restart_all()

    def _open(self, contender: "_Contender") -> PlacedStep:
        """Start the contender's session, check where its ops run, and warm up."""
        self._check_runnable(contender.device_of_op)
        names = [self._cluster.devices[device] for device in contender.device_of_op]
        contender.imported = self._imported.pop() if self._imported else ImportedStep(self._step)
        placed = PlacedStep(
            contender.imported, names, self._cluster, timeout_s=self._config.timeout_s
        )
        contender.placed = placed
        self._fastest_s = min(self._fastest_s, placed.run_checked())
        placed.timeout_s = self._config.limit_s(self._fastest_s)
        placed.warm_up(self._config.max_warmup_steps)
        return placed

    def _close(self, contender: "_Contender") -> None:
        if contender.placed is not None:
            contender.placed.close()
            contender.placed = None
        if contender.imported is not None:
            self._imported.append(contender.imported)
            contender.imported = None

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

    def _lost_workers(self, error: Exception) -> Mapping[int, Ending]:
        lost = self._cluster.lost_workers()
        if isinstance(error, _MAY_COME_FIRST):
            # The broken connection may be seen a moment before the end of the process is.
            deadline_s = time.monotonic() + _NOTICE_S
            while not lost and time.monotonic() < deadline_s:
                time.sleep(_POLL_S)
                lost = self._cluster.lost_workers()
        return lost

    def _failure(
        self, error: Exception, lost: Mapping[int, Ending], contender: "_Contender"
    ) -> Measurement:
        outcome, detail = Outcome.CRASHED, one_line(error)
        if lost:
            detail = "; ".join(f"worker {worker} {ending}" for worker, ending in lost.items())
            if any(ending.out_of_memory for ending in lost.values()):
                outcome = Outcome.OUT_OF_MEMORY
        elif isinstance(error, tf.errors.DeadlineExceededError):
            outcome, detail = Outcome.TIMED_OUT, contender.what_did_not_end(self._config)
        elif isinstance(error, tf.errors.ResourceExhaustedError):
            outcome = Outcome.OUT_OF_MEMORY
        return Measurement(outcome=outcome, detail=detail)


_SPOILS_WORKERS = (tf.errors.DeadlineExceededError, tf.errors.ResourceExhaustedError)
"""Errors after which no worker is trusted.

What hangs cannot be interrupted, and would slow down everyone else; and a worker that ran out of
memory may not have got all of it back.
"""

_MAY_COME_FIRST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.InternalError,
    tf.errors.UnknownError,
)
"""Errors that a step may end with because a worker is about to be gone."""


class _Contender:
    """A placement while it is measured: its open session, its samples, or why it failed."""

    def __init__(self, device_of_op: Sequence[int]) -> None:
        self.device_of_op = device_of_op
        self.imported: ImportedStep | None = None
        self.placed: PlacedStep | None = None
        self.failure: Measurement | None = None
        self.samples_s: list[float] = []

    def time_a_step(self) -> None:
        if self.placed is not None:
            self.samples_s.append(self.placed.run())

    def what_did_not_end(self, config: MeasurementConfig) -> str:
        if self.placed is None:
            return f"the initialisation did not end within {config.timeout_s:g} s"
        if not self.placed.times_s:
            return f"the first step did not end within {config.timeout_s:g} s"
        return f"a step did not end within {self.placed.timeout_s:.3g} s"

    def measurement(self) -> Measurement:
        if self.failure is not None:
            return self.failure
        return Measurement(
            outcome=Outcome.OK,
            step_time_s=statistics.median(self.samples_s),
            samples_s=tuple(self.samples_s),
        )


def _not_runnable(message: str) -> tf.errors.InvalidArgumentError:
    return tf.errors.InvalidArgumentError(None, None, message)
