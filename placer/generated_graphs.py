"""Random training steps of the structure that real ones have.

A step is drawn in two halves. A *family* draws a model: units of forward work (a cell of a
recurrent grid, a head of an attention, a branch of an inception block), what each reads, and which
units share weights. Then the model becomes a training step:

* Each unit has a few forward ops in a row, and backward ops that mirror them, which take about
  twice as long and want the gradients of all readers and the activations of the unit.
* Weights are read by all units that share them, and an update colocated with them waits for all
  their gradients.
* What is colocated beyond that differs between steps as it does between published graphs: a
  unit's backward with its forward ops, so that groups send both ways, or not.

Compute times have a heavy tail, and in about half of the steps a part of the units takes no time,
as where costs were rounded. They are scaled so that the ratio of communication to
computation spreads over what published graphs have and beyond. Devices are equal, of two kinds,
or on two hosts; some have so little memory that not everything fits on one. The groups are those of
``group_ops(profile).grouping``.
"""

import dataclasses
import itertools
from collections.abc import Iterable

import numpy as np

from placer.devices import UNLIMITED_BYTES, Device, DeviceTopology, Link
from placer.errors import InvalidValueError, UnknownNameError
from placer.generated_models import MODELS, Unit, log_uniform
from placer.graph import DEVICE_KINDS, Op, OpGraph, Tensor
from placer.profile import OpCosts, Profile, Provenance

MIN_GROUPS, MAX_GROUPS = 20, 500
"""Between these the number of groups is drawn, by its logarithm; it is met about."""

FAMILIES = tuple(MODELS)
"""Names of the families."""

_STYLES = ("together", "weights", "apart")
_MOST_IDLE = 0.6
_RATIOS = (0.05, 5.0)
_MEGABYTE = 1e6


def generated_profile(
    rng: np.random.Generator,
    *,
    family: str | None = None,
    min_groups: int = MIN_GROUPS,
    max_groups: int = MAX_GROUPS,
) -> Profile:
    """Return a random training step on random devices; equal generators draw equal steps.

    Args:
        rng: Of all draws.
        family: One of ``FAMILIES``; None draws one.
        min_groups: Least number of groups that is aimed at.
        max_groups: Largest number of groups that is aimed at.

    Raises:
        UnknownNameError: If there is no such family.
        InvalidValueError: If the numbers of groups are not 2 or more, in this order.
    """
    if not 2 <= min_groups <= max_groups:
        raise InvalidValueError(
            f"min_groups and max_groups must be 2 or more and in this order,"
            f" got {min_groups} and {max_groups}"
        )
    if family is None:
        family = FAMILIES[int(rng.integers(len(FAMILIES)))]
    if family not in MODELS:
        raise UnknownNameError("family of graphs", family, FAMILIES)
    num_groups = round(log_uniform(rng, min_groups, max_groups))
    style = _STYLES[int(rng.integers(len(_STYLES)))]
    units_per_group = {"together": 1.0, "weights": 0.5, "apart": 0.4}[style]
    units = MODELS[family](rng, max(3, round(num_groups * units_per_group)))
    step = _Step(rng, units, style)
    return step.profile(_topology(rng, step.total_bytes, step.largest_bytes), family)


class _Step:
    """A training step under construction: ops, tensors and costs.

    Args:
        rng: Of all draws.
        units: The model, units before their readers.
        style: What is colocated: ``"together"`` a unit's forward and backward ops, and weights
            that it alone has; ``"weights"`` its forward ops and those weights; ``"apart"``
            forward, backward and weights each by themselves.
    """

    def __init__(self, rng: np.random.Generator, units: list[Unit], style: str) -> None:
        self._rng = rng
        self._style = style
        self._ops: list[Op] = []
        self._time_s: list[float] = []
        self._workspace_bytes: list[int] = []
        self._tensors: list[tuple[int, list[int], int]] = []
        self._add_all(units)
        self._scale_times()

    @property
    def total_bytes(self) -> int:
        """All weights, workspace and tensors at once."""
        tensors = sum(size for _, _, size in self._tensors)
        return tensors + sum(op.memory_bytes for op in self._ops) + sum(self._workspace_bytes)

    @property
    def largest_bytes(self) -> int:
        """What the largest colocated ops hold, with all they make and read."""
        held: dict[str, int] = {}
        for op, workspace in zip(self._ops, self._workspace_bytes, strict=True):
            held[op.colocation] = held.get(op.colocation, 0) + op.memory_bytes + workspace
        for producer, consumers, size in self._tensors:
            for key in {self._ops[op].colocation for op in (producer, *consumers)}:
                held[key] += size
        return max(held.values())

    def profile(self, topology: DeviceTopology, family: str) -> Profile:
        """Return the step on these devices; a CPU is 5 to 20 times slower than a GPU."""
        slower = self._rng.uniform(5, 20) * self._rng.lognormal(0, 0.2, len(self._ops))
        gpu_s = np.array(self._time_s)
        times = np.stack([gpu_s, gpu_s * slower], axis=1)
        ops = list(self._ops)
        if {device.kind for device in topology.devices} == set(DEVICE_KINDS):
            # The first op stands for the input, which a GPU has no kernel for.
            ops[0] = dataclasses.replace(ops[0], device_kinds=("CPU",), colocation="")
        tensors = (Tensor(op, tuple(sorted(set(to))), size) for op, to, size in self._tensors)
        return Profile(
            OpGraph(tuple(ops), tuple(tensors)),
            OpCosts(
                ("gpu", "cpu"),
                times,
                np.zeros(times.shape, dtype=np.bool_),
                np.array(self._workspace_bytes, dtype=np.int64),
            ),
            topology,
            Provenance(method="generated", facts={"family": family}),
        )

    def _add_all(self, units: list[Unit]) -> None:
        rng = self._rng
        mean_bytes = _MEGABYTE * log_uniform(rng, 0.1, 30)
        tail = rng.uniform(0.2, 1.3)
        ops_per_unit = int(rng.integers(1, 5))
        users: dict[str, list[int]] = {}
        for unit, drawn in enumerate(units):
            if drawn.weights:
                users.setdefault(drawn.weights, []).append(unit)
        sizes = mean_bytes * np.array([unit.output for unit in units])
        sizes *= rng.lognormal(0, 0.3, len(units))
        weight_bytes = {name: round(mean_bytes * log_uniform(rng, 0.1, 30)) for name in users}
        works = np.array([unit.work for unit in units]) * rng.lognormal(0, tail, len(units))
        works[:-1] *= rng.random(len(units) - 1) >= rng.uniform(-_MOST_IDLE, _MOST_IDLE)
        self._add("input", "", 0.0)
        read = {
            name: self._add(
                f"{name}/read", self._key_of_weights(name, of), 0.0, 2 * weight_bytes[name]
            )
            for name, of in users.items()
        }
        forward = [
            self._add_row(f"{unit}/forward", unit, work, ops_per_unit, sizes[unit])
            for unit, work in enumerate(works)
        ]
        self._send(0, (forward[u][0] for u, drawn in enumerate(units) if not drawn.reads), 1000)
        backward: list[list[int]] = [[] for _ in units]
        for unit in reversed(range(len(units))):
            work = works[unit] * rng.uniform(1.5, 2.5)
            name = f"{unit}/backward"
            backward[unit] = self._add_row(name, unit, work, ops_per_unit, sizes[unit])
        self._connect(units, forward, backward, [round(size) for size in sizes])
        for name, of in users.items():
            self._use_weights(name, read[name], of, weight_bytes[name], (forward, backward))

    def _connect(
        self,
        units: list[Unit],
        forward: list[list[int]],
        backward: list[list[int]],
        sizes: list[int],
    ) -> None:
        """Send activations to readers and to all who need them backward, and gradients back."""
        readers: list[list[int]] = [[] for _ in units]
        for unit, drawn in enumerate(units):
            for source in drawn.reads:
                readers[source].append(unit)
        for unit, drawn in enumerate(units):
            to = [forward[reader][0] for reader in readers[unit]]
            kept = [backward[unit][0], *(backward[reader][0] for reader in readers[unit])]
            self._send(forward[unit][-1], to + kept, sizes[unit])
            for source in drawn.reads:
                self._send(backward[unit][-1], [backward[source][0]], sizes[source])

    def _use_weights(
        self,
        name: str,
        read: int,
        users: list[int],
        size_bytes: int,
        ways: tuple[list[list[int]], list[list[int]]],
    ) -> None:
        """Send weights to all who use them, forward and backward, and gradients to an update."""
        _, backward = ways
        self._send(read, (way[unit][0] for way in ways for unit in users), size_bytes)
        update = self._add(f"{name}/update", self._key_of_weights(name, users), 0.02)
        for unit in users:
            self._send(backward[unit][-1], [update], size_bytes)

    def _add_row(
        self, name: str, unit: int, work: float, count: int, size_bytes: float
    ) -> list[int]:
        """Add ops of one unit, one after another, which share its work unequally."""
        key = f"unit{unit}" if self._style == "together" else name
        if self._style == "weights" and name.endswith("forward"):
            key = f"unit{unit}"
        shares = self._rng.dirichlet(np.full(count, 0.5))
        ops = [
            self._add(f"{name}/{i}", key, work * share, workspace=round(0.1 * size_bytes))
            for i, share in enumerate(shares.tolist())
        ]
        for producer, consumer in itertools.pairwise(ops):
            self._send(producer, [consumer], round(size_bytes))
        return ops

    def _key_of_weights(self, name: str, users: list[int]) -> str:
        if self._style != "apart" and len(users) == 1:
            return f"unit{users[0]}"
        return f"weights/{name}"

    def _add(
        self, name: str, key: str, time_s: float, memory_bytes: int = 0, workspace: int = 0
    ) -> int:
        self._ops.append(Op(name, "Op", memory_bytes=memory_bytes, colocation=key))
        self._time_s.append(time_s)
        self._workspace_bytes.append(workspace)
        return len(self._ops) - 1

    def _send(self, producer: int, consumers: Iterable[int], size_bytes: int) -> None:
        if to := list(consumers):
            self._tensors.append((producer, to, size_bytes))

    def _scale_times(self) -> None:
        """Scale compute times so that sending everything takes a drawn share of them.

        Sending is counted over a link of 10 GB/s, once to each set of colocated ops.
        """
        sent = 0
        for producer, consumers, size in self._tensors:
            keys = {self._ops[op].colocation for op in consumers}
            sent += size * len(keys - {self._ops[producer].colocation})
        wanted_s = sent / 10e9 / log_uniform(self._rng, *_RATIOS)
        factor = wanted_s / sum(self._time_s)
        self._time_s = [time_s * factor for time_s in self._time_s]


def _topology(rng: np.random.Generator, total_bytes: int, largest_bytes: int) -> DeviceTopology:
    """Return 2 to 8 devices: equal GPUs, or a CPU and GPUs; on one host or two."""
    num_devices = int(rng.integers(2, 9))
    has_cpu = rng.random() < 0.25
    memory_bytes = UNLIMITED_BYTES
    if rng.random() < 0.3:
        share = round(total_bytes * rng.uniform(1.3, 3) / num_devices)
        memory_bytes = max(share, 2 * largest_bytes)
    devices = [
        Device(f"gpu:{i}", type="gpu", memory_bytes=memory_bytes)
        for i in range(num_devices - has_cpu)
    ]
    if has_cpu:
        devices.insert(0, Device("cpu:0", kind="CPU", type="cpu"))
    fast = Link(log_uniform(rng, 3e9, 30e9), log_uniform(rng, 5e-6, 50e-6))
    slow = fast
    if num_devices > 3 and rng.random() < 0.2:
        slow = Link(fast.bandwidth_bytes_per_s / rng.uniform(2, 8), 3 * fast.latency_s)
    half = num_devices // 2
    links = {
        (a, b): fast if (a < half) == (b < half) else slow
        for a in range(num_devices)
        for b in range(num_devices)
        if a != b
    }
    return DeviceTopology(tuple(devices), links, name="generated")
