"""Deterministic discrete-event simulation of one training step.

Each device runs one op at a time, without pre-emption, and each link carries one tensor
at a time. Waiting ops start in order of the time they became ready, equal times by
topological index. A tensor with consumers on another device is sent there once, however
many those are, for ``latency_s + size_bytes / bandwidth_bytes_per_s``; links serve first
come, first served by the time the producer finished, ties by the producer's topological index
and then by the tensor's index. An op is ready when all its inputs are on its device.

A link may load the devices at its ends while it carries a tensor (``source_load``,
``destination_load``; zero unless a topology says otherwise). An op progresses by the share of
its device's time that no running transfer takes, and not at all if they take everything;
it is done at the first whole picosecond at which its compute time was progressed. Transfers
take as long as ever.

At equal times all completions are applied first, then idle devices and links take new
work. Work of no duration completes at the time it starts: the two steps are then repeated
at that time, and in each such round a device or link takes one op or transfer.

Memory: what an op holds for the whole step counts from the beginning to the end. A tensor is
resident with its producer from the start of that op until the last consumer there and the
last transfer from there end (until the producer ends, if nobody wants it); a copy from the
start of its transfer until its last consumer there ends. At equal times frees come
first, so what is resident for no time is not counted.

Every compute and every transfer time is rounded once to whole picoseconds.

Array shapes: B placements, N ops, D devices.
"""

import concurrent.futures
import copy
import dataclasses
from collections.abc import Mapping, Sequence

import numba
import numpy as np
import numpy.typing as npt

from placer import event_loop
from placer.devices import Device, DeviceTopology, Link
from placer.environment import Measurement, Outcome
from placer.errors import InvalidValueError
from placer.event_loop import PS_PER_S
from placer.graph import BoolArray, FloatArray, IntArray, OpGraph
from placer.placement import Placement
from placer.profile import Profile

_MAX_TIME_PS = 2**62
_MAX_BYTES = 2**62


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One tensor on its way over one link.

    Attributes:
        tensor: Index in ``OpGraph.tensors``.
        source: Device of the producer.
        destination: Device that receives the copy.
        start_s: When the link took it.
        end_s: When it is there.
    """

    tensor: int
    source: int
    destination: int
    start_s: float
    end_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When and where everything of one step happens.

    Attributes:
        makespan_s: Time of the last completion; given even if memory does not suffice.
        start_s: Of each op, ``[N]``.
        end_s: Of each op, ``[N]``.
        transfers: By start, then end, source, destination and tensor.
        busy_s: Time that each device spends with an op, slowed down or not, ``[D]``.
        peak_memory_bytes: Of each device, ``[D]``.
        out_of_memory_device: The first device whose peak is above its memory, or None.
    """

    makespan_s: float
    start_s: tuple[float, ...]
    end_s: tuple[float, ...]
    transfers: tuple[Transfer, ...]
    busy_s: tuple[float, ...]
    peak_memory_bytes: tuple[int, ...]
    out_of_memory_device: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulationBatch:
    """What simulating a batch of placements found.

    Attributes:
        makespan_s: Time of the last completion, given even if memory does not suffice, ``[B]``.
        peak_memory_bytes: Of each device, ``[B, D]``.
        out_of_memory_device: The first device whose peak is above its memory, or -1, ``[B]``.
    """

    makespan_s: FloatArray
    peak_memory_bytes: IntArray
    out_of_memory_device: IntArray

    @property
    def fits(self) -> BoolArray:
        """True where no device runs out of memory, ``[B]``."""
        return self.out_of_memory_device < 0


class Simulator:
    """Simulates placements of one profile.

    Safe to use from several threads at once: all that changes belongs to a call.

    Raises:
        InvalidValueError: If times or sizes are so large that their sum could overflow.
    """

    def __init__(self, profile: Profile) -> None:
        _check_sums(profile)
        self.profile = profile
        self._tensor_order = _tensor_order(profile.graph)
        self._run = _new_run(profile, self._tensor_order)

    def with_links(self, links: Mapping[tuple[int, int], Link]) -> "Simulator":
        """Return a simulator of the same profile with other links.

        It takes a small part of the time that a new one does.

        Raises:
            InvalidValueError: As for :class:`Simulator`, and if a link is missing.
        """
        topology = dataclasses.replace(self.profile.topology, links=links)
        other = copy.copy(self)
        other.profile = dataclasses.replace(self.profile, topology=topology)
        _check_sums(other.profile)
        other._run = self._run._replace(channels=_channels(topology))
        return other

    def run(
        self, device_of_op: npt.NDArray[np.integer], *, max_threads: int | None = None
    ) -> SimulationBatch:
        """Simulate a batch of placements, on several threads.

        Args:
            device_of_op: Device index of every op, ``[B, N]``.
            max_threads: Threads at most; None takes ``NUMBA_NUM_THREADS`` (all cores).

        Raises:
            InvalidValueError: If the shape is wrong, a device does not exist, or a device's
                kind has no kernel for an op placed on it.
        """
        devices = self._checked(device_of_op)
        makespan_ps = np.empty(len(devices), dtype=np.int64)
        peaks = np.empty((len(devices), self.profile.topology.num_devices), dtype=np.int64)

        def run_slice(start: int, stop: int) -> None:
            run, part = event_loop.copy_of(self._run), slice(start, stop)
            event_loop.run_steps(run, devices[part], makespan_ps[part], peaks[part])

        num_threads = max(1, min(len(devices), max_threads or numba.config.NUMBA_NUM_THREADS))
        bounds = [len(devices) * thread // num_threads for thread in range(num_threads + 1)]
        if num_threads == 1:
            run_slice(*bounds)
        else:
            with concurrent.futures.ThreadPoolExecutor(num_threads) as threads:
                list(threads.map(run_slice, bounds[:-1], bounds[1:]))
        return SimulationBatch(
            makespan_s=makespan_ps / PS_PER_S,
            peak_memory_bytes=peaks,
            out_of_memory_device=self._out_of_memory_device(peaks),
        )

    def schedule(self, placement: Placement) -> Schedule:
        """Simulate one placement and return when and where everything happens.

        Raises:
            InvalidValueError: As for :meth:`run`.
        """
        devices = self._checked(placement.device_of_op[np.newaxis])
        makespan_ps = np.empty(1, dtype=np.int64)
        peaks = np.empty((1, self.profile.topology.num_devices), dtype=np.int64)
        run = event_loop.copy_of(self._run)
        event_loop.run_steps(run, devices, makespan_ps, peaks)

        ops = run.ops[self.profile.graph.topological_index]  # in the caller's order again
        busy_ps = np.zeros(peaks.shape[1], dtype=np.int64)
        np.add.at(busy_ps, ops["device"], ops["compute_ps"])
        full = int(self._out_of_memory_device(peaks)[0])
        return Schedule(
            makespan_s=float(makespan_ps[0] / PS_PER_S),
            start_s=tuple((ops["start_ps"] / PS_PER_S).tolist()),
            end_s=tuple(((ops["start_ps"] + ops["compute_ps"]) / PS_PER_S).tolist()),
            transfers=self._transfers(run),
            busy_s=tuple((busy_ps / PS_PER_S).tolist()),
            peak_memory_bytes=tuple(peaks[0].tolist()),
            out_of_memory_device=None if full < 0 else full,
        )

    def _transfers(self, run: event_loop.Run) -> tuple[Transfer, ...]:
        made = run.transfers[: run.tensors["first_transfer"][-1]]
        transfers = [
            Transfer(
                tensor=self._tensor_order[transfer["tensor"]],
                source=int(run.channels["source"][transfer["channel"]]),
                destination=int(run.channels["destination"][transfer["channel"]]),
                start_s=float(transfer["start_ps"] / PS_PER_S),
                end_s=float((transfer["start_ps"] + transfer["duration_ps"]) / PS_PER_S),
            )
            for transfer in made
        ]
        transfers.sort(key=lambda t: (t.start_s, t.end_s, t.source, t.destination, t.tensor))
        return tuple(transfers)

    def _out_of_memory_device(self, peak_memory_bytes: IntArray) -> IntArray:
        over = peak_memory_bytes > self.profile.topology.memory_bytes
        return np.where(over.any(axis=1), over.argmax(axis=1), -1)

    def _checked(self, device_of_op: npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
        profile = self.profile
        if device_of_op.ndim != 2 or device_of_op.shape[1] != profile.graph.num_ops:
            raise InvalidValueError(
                f"placements must name a device for each of {profile.graph.num_ops} ops, got an"
                f" array of shape {device_of_op.shape}"
            )
        if not np.issubdtype(device_of_op.dtype, np.integer):
            raise InvalidValueError(
                f"device indices must be whole numbers, got {device_of_op.dtype}"
            )
        outside = (device_of_op < 0) | (device_of_op >= profile.topology.num_devices)
        if outside.any():
            placement, op = np.argwhere(outside)[0]
            raise InvalidValueError(
                f"op {profile.graph.ops[op].name!r} is placed on device"
                f" {device_of_op[placement, op]}, but the topology has devices 0 to"
                f" {profile.topology.num_devices - 1}"
            )
        if not profile.allowed.all():
            allowed = profile.allowed[np.arange(profile.graph.num_ops), device_of_op]
            if not allowed.all():
                placement, op = np.argwhere(~allowed)[0]
                device = profile.topology.devices[device_of_op[placement, op]]
                raise InvalidValueError(
                    f"op {profile.graph.ops[op].name!r} needs a device of kind"
                    f" {' or '.join(profile.graph.ops[op].device_kinds)}, but is placed on"
                    f" {device.name!r} of kind {device.kind}"
                )
        return np.array(device_of_op, dtype=np.int32, order="C")  # one layout: compiled once


def simulate(profile: Profile, placement: Placement) -> Schedule:
    """Return the schedule of one placement; for many, keep a :class:`Simulator`.

    Raises:
        InvalidValueError: As for :class:`Simulator` and :meth:`Simulator.run`.
    """
    return Simulator(profile).schedule(placement)


class SimulatedEnvironment:
    """Measures placements by simulating them."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator

    @property
    def name(self) -> str:
        """``"simulated"``."""
        return "simulated"

    def measure(self, placements: Sequence[Placement]) -> list[Measurement]:
        """Return one measurement for each placement, in order; the step time is the makespan.

        Raises:
            InvalidValueError: If a placement is of another number of ops, names a device that
                does not exist, or puts an op where its kind of device has no kernel.
        """
        if not placements:
            return []
        num_ops = self._simulator.profile.graph.num_ops
        for placement in placements:
            if len(placement.device_of_op) != num_ops:
                raise InvalidValueError(
                    f"a placement is of {len(placement.device_of_op)} ops, but the graph has"
                    f" {num_ops}"
                )
        batch = self._simulator.run(np.stack([p.device_of_op for p in placements]))
        return [self._measurement(batch, number) for number in range(len(placements))]

    def _measurement(self, batch: SimulationBatch, number: int) -> Measurement:
        peaks = tuple(batch.peak_memory_bytes[number].tolist())
        device = int(batch.out_of_memory_device[number])
        if device < 0:
            return Measurement(
                outcome=Outcome.OK,
                step_time_s=float(batch.makespan_s[number]),
                peak_memory_bytes=peaks,
            )
        full = self._simulator.profile.topology.devices[device]
        return Measurement(
            outcome=Outcome.OUT_OF_MEMORY,
            peak_memory_bytes=peaks,
            detail=out_of_memory_detail(full, peaks[device]),
        )


def out_of_memory_detail(device: Device, peak_memory_bytes: int) -> str:
    """Return in one line which device is too small, its peak and its limit."""
    return (
        f"device {device.name!r} needs {peak_memory_bytes} bytes at its peak and has"
        f" {device.memory_bytes}"
    )


def _tensor_order(graph: OpGraph) -> list[int]:
    """Return the tensors by their producer's topological index, then by their own."""
    index = graph.topological_index.tolist()
    return sorted(
        range(len(graph.tensors)),
        key=lambda tensor: (index[graph.tensors[tensor].producer], tensor),
    )


def _copies(profile: Profile) -> list[int]:
    """Return to how many devices each tensor can be sent at most."""
    others = profile.topology.num_devices - 1
    return [min(others, len(tensor.consumers)) for tensor in profile.graph.tensors]


def _new_run(profile: Profile, tensor_order: Sequence[int]) -> event_loop.Run:
    """Return the graph and its costs, renumbered for the event loop, and working memory."""
    graph, topology = profile.graph, profile.topology
    order = graph.topological_order
    consumers, tensors_of_op, inputs_of_op = _renumbered(graph, tensor_order)
    ops = np.zeros(graph.num_ops + 1, dtype=event_loop.OP)
    ops["first_tensor"], _ = _flat(tensors_of_op)
    ops["first_input"], inputs = _flat(inputs_of_op)
    tensors = np.zeros(len(tensor_order) + 1, dtype=event_loop.TENSOR)
    tensors["first_consumer"], flat_consumers = _flat(consumers)
    tensors["size_bytes"][:-1] = [graph.tensors[tensor].size_bytes for tensor in tensor_order]
    ops["memory_bytes"][:-1] = profile.memory_bytes[order]
    ops["output_bytes"][:-1] = [sum(tensors["size_bytes"][made]) for made in tensors_of_op]
    num_transfers = sum(_copies(profile))
    num_keys = graph.num_ops + num_transfers
    return event_loop.Run(
        order=order.astype(np.int32),
        compute_ps=np.rint(profile.compute_time_s[order] * PS_PER_S).astype(np.int64),
        ops=ops,
        tensors=tensors,
        consumers=flat_consumers,
        inputs=inputs,
        transfers=np.zeros(num_transfers, dtype=event_loop.TRANSFER),
        channels=_channels(topology),
        holders=np.zeros((len(tensor_order), topology.num_devices), dtype=np.int32),
        resident_bytes=np.zeros(topology.num_devices, dtype=np.int64),
        keys=np.zeros(num_keys, dtype=np.int64),
        late_keys=np.zeros(num_keys, dtype=np.int64),
        busy=np.zeros(topology.num_devices**2 + 1, dtype=np.int32),
        done_ps=np.zeros(topology.num_devices**2 + 1, dtype=np.int64),
        idle=np.zeros(topology.num_devices**2 + 1, dtype=np.int32),
    )


def _renumbered(
    graph: OpGraph, tensor_order: Sequence[int]
) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """Return consumers of tensors, tensors of ops and inputs of ops by the loop's numbers."""
    index = graph.topological_index.tolist()
    tensors_of_op: list[list[int]] = [[] for _ in graph.ops]
    inputs_of_op: list[list[int]] = [[] for _ in graph.ops]
    consumers: list[list[int]] = []
    for number, tensor in enumerate(graph.tensors[given] for given in tensor_order):
        tensors_of_op[index[tensor.producer]].append(number)
        consumers.append(sorted(index[op] for op in tensor.consumers))
        for op in consumers[-1]:
            inputs_of_op[op].append(number)
    return consumers, tensors_of_op, inputs_of_op


def _channels(topology: DeviceTopology) -> event_loop.Records:
    channels = np.zeros(topology.num_devices**2, dtype=event_loop.CHANNEL)
    numbers = np.arange(len(channels))
    channels["source"], channels["destination"] = divmod(numbers, topology.num_devices)
    channels["latency_s"] = topology.latency_s.ravel()
    channels["bandwidth_bytes_per_s"] = topology.bandwidth_bytes_per_s.ravel()
    for end in ("source_load", "destination_load"):
        channels[end] = np.rint(getattr(topology, end).ravel() * event_loop.FULL_RATE)
    return channels


def _flat(lists: Sequence[Sequence[int]]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return where each list starts in the concatenation, one more at the end, and that."""
    starts = np.zeros(len(lists) + 1, dtype=np.int32)
    np.cumsum([len(numbers) for numbers in lists], out=starts[1:])
    return starts, np.array([number for numbers in lists for number in numbers], dtype=np.int32)


def _check_sums(profile: Profile) -> None:
    """Refuse what could overflow: a step never lasts longer than all its work in a row."""
    num_bytes = sum(op.memory_bytes for op in profile.graph.ops)
    num_bytes += sum(profile.costs.workspace_bytes.tolist())
    num_bytes += sum(tensor.size_bytes for tensor in profile.graph.tensors)
    if num_bytes > _MAX_BYTES:
        raise InvalidValueError(
            f"memory and tensors must sum to at most {_MAX_BYTES} bytes, got {num_bytes}"
        )
    total_s = float(profile.compute_time_s.max(axis=1).sum())
    slowest = profile.topology.latency_s.max(), profile.topology.bandwidth_bytes_per_s.min()
    for tensor, copies in zip(profile.graph.tensors, _copies(profile), strict=True):
        if copies:
            total_s += copies * (slowest[0] + tensor.size_bytes / slowest[1])
    if total_s * PS_PER_S > _MAX_TIME_PS:
        raise InvalidValueError(
            f"compute and transfer times must sum to at most {_MAX_TIME_PS / PS_PER_S:.0f} s,"
            f" got {total_s:.6g} s"
        )
    # The work of an op that is slowed down is counted in thousandths of picoseconds.
    longest_s = float(profile.compute_time_s.max(initial=0.0))
    has_loads = profile.topology.source_load.any() or profile.topology.destination_load.any()
    if has_loads and longest_s * PS_PER_S * event_loop.FULL_RATE > _MAX_TIME_PS:
        raise InvalidValueError(
            f"where links load devices, an op must take at most"
            f" {_MAX_TIME_PS / PS_PER_S / event_loop.FULL_RATE:.0f} s, got {longest_s:.6g} s"
        )
