"""A profile: a graph, a topology, what each op costs there, and how that is known.

Array shapes: N ops, T device types, D devices.
"""

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np

from placer.devices import REFERENCE_TYPE, DeviceTopology
from placer.errors import InfeasibleError, InvalidValueError, UnknownNameError
from placer.fingerprint import fingerprint
from placer.graph import BoolArray, FloatArray, IntArray, OpGraph

CALIBRATION_PLACEMENTS = "calibration_placements"
"""Fact of a profile: fingerprints, between spaces, of the placements it was calibrated with."""

EXTRA_LATENCY_S = "extra_latency_s"
"""Fact of a profile: what its calibration added to the latency of every link."""


@dataclasses.dataclass(frozen=True, eq=False)
class OpCosts:
    """What every op costs on every type of device.

    Attributes:
        device_types: Names of the T types; the first is the reference.
        compute_time_s: Seconds, ``[N, T]``.
        measured: True where the time was measured, False where it was estimated, ``[N, T]``.
        workspace_bytes: Scratch memory of each op beside its variables, ``[N]``.

    Raises:
        InvalidValueError: If shapes disagree, or a time or size is negative or not finite.
    """

    device_types: tuple[str, ...]
    compute_time_s: FloatArray
    measured: BoolArray
    workspace_bytes: IntArray

    def __post_init__(self) -> None:
        shape = (len(self.workspace_bytes), len(self.device_types))
        if not self.device_types or len(set(self.device_types)) != len(self.device_types):
            raise InvalidValueError(
                f"device types must be distinct and at least one, got {self.device_types}"
            )
        for what, array in (
            ("compute_time_s", self.compute_time_s),
            ("measured", self.measured),
        ):
            if array.shape != shape:
                raise InvalidValueError(f"{what} must have shape {shape}, got {array.shape}")
        bad = ~(np.isfinite(self.compute_time_s) & (self.compute_time_s >= 0))
        if bad.any():
            op, column = (int(i) for i in np.argwhere(bad)[0])
            raise InvalidValueError(
                f"op {op} on {self.device_types[column]!r}: compute time must be finite and"
                f" not negative, got {self.compute_time_s[op, column]}"
            )
        if (self.workspace_bytes < 0).any():
            op = int(np.argmax(self.workspace_bytes < 0))
            raise InvalidValueError(
                f"op {op}: workspace_bytes must not be negative, got {self.workspace_bytes[op]}"
            )

    @functools.cached_property
    def fingerprint(self) -> str:
        """A name for the contents."""
        arrays = (self.compute_time_s, self.measured, self.workspace_bytes)
        return fingerprint(["costs 1", *self.device_types, *arrays])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where the costs of a profile come from.

    Attributes:
        method: ``"trace"``, ``"estimate"``, ``"file"`` or ``"generated"``.
        host: The machine that was measured; empty if none was.
        date: ISO 8601 date and time, UTC.
        facts: Anything else worth keeping: versions, number of steps, the traced step time.
    """

    method: str
    host: str = ""
    date: str = ""
    facts: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Profile:
    """A graph whose costs are known on a topology: all that a simulation needs.

    Raises:
        InvalidValueError: If the costs are of another number of ops.
        UnknownNameError: If a device's type has no costs.
        InfeasibleError: If an op has no permitted device; the message names it.
    """

    graph: OpGraph
    costs: OpCosts
    topology: DeviceTopology
    provenance: Provenance = Provenance(method="file")

    def __post_init__(self) -> None:
        if self.costs.compute_time_s.shape[0] != self.graph.num_ops:
            raise InvalidValueError(
                f"costs are of {self.costs.compute_time_s.shape[0]} ops, but the graph has"
                f" {self.graph.num_ops}"
            )
        self._type_index  # noqa: B018 - raises on a type without costs
        homeless = np.flatnonzero(~self.allowed.any(axis=1))
        if homeless.size:
            op = self.graph.ops[homeless[0]]
            raise InfeasibleError(
                f"op {op.name!r} ({op.type}) needs a device of kind"
                f" {' or '.join(op.device_kinds)}, and topology {self.topology.name!r} has none"
            )

    @functools.cached_property
    def _type_index(self) -> list[int]:
        types = self.costs.device_types
        for device in self.topology.devices:
            if device.type not in (*types, REFERENCE_TYPE):
                raise UnknownNameError("device type (no costs for it)", device.type, types)
        return [
            0 if device.type == REFERENCE_TYPE else types.index(device.type)
            for device in self.topology.devices
        ]

    @functools.cached_property
    def compute_time_s(self) -> FloatArray:
        """Seconds of each op on each device, ``[N, D]``."""
        return np.ascontiguousarray(self.costs.compute_time_s[:, self._type_index])

    @functools.cached_property
    def allowed(self) -> BoolArray:
        """True where the device's kind has a kernel for the op, ``[N, D]``.

        Colocation is not applied here: a grouping intersects its members' devices.
        """
        kinds = [device.kind for device in self.topology.devices]
        return np.array([[kind in op.device_kinds for kind in kinds] for op in self.graph.ops])

    @functools.cached_property
    def memory_bytes(self) -> IntArray:
        """Bytes each op holds on its device for the whole step, ``[N]``."""
        return self.graph.memory_bytes + self.costs.workspace_bytes

    @functools.cached_property
    def fingerprint(self) -> str:
        """A name for graph, costs and topology; provenance is no part."""
        parts = (self.graph.fingerprint, self.costs.fingerprint, self.topology.fingerprint)
        return fingerprint(["profile 1", *parts, self.graph.memory_bytes])
