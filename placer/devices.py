"""Devices, the links between them, and the topology they form.

A device runs one op at a time. A link is a directed channel that carries one tensor at a
time. Every ordered pair of devices has a link.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping

import numpy as np

from placer.errors import InvalidValueError, UnknownNameError
from placer.fingerprint import fingerprint
from placer.graph import DEVICE_KINDS, FloatArray, IntArray

UNLIMITED_BYTES = 2**62
"""The memory of a device whose memory is not limited."""

REFERENCE_TYPE = "reference"
"""Devices of this type take the times of the first device type a graph is costed for."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What TensorFlow's cost model must know of a type of device that may be absent.

    Attributes:
        frequency_mhz: Clock of the arithmetic units.
        num_cores: Streaming multiprocessors of a GPU, cores of a CPU.
        memory_bandwidth_bytes_per_s: Of the device's own memory.
        architecture: Compute capability of a GPU, such as ``"3.7"``; empty for a CPU.
        source: Where these figures were published.
    """

    frequency_mhz: int
    num_cores: int
    memory_bandwidth_bytes_per_s: float
    architecture: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        for field in ("frequency_mhz", "num_cores", "memory_bandwidth_bytes_per_s"):
            _check_positive(f"hardware: {field}", getattr(self, field))
        bandwidth = float(self.memory_bandwidth_bytes_per_s)
        object.__setattr__(self, "memory_bandwidth_bytes_per_s", bandwidth)


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """A place where ops run, one at a time.

    Attributes:
        name: Unique within the topology, such as ``gpu:0``.
        kind: TensorFlow's kind of device, ``CPU`` or ``GPU``: decides which ops have a kernel.
        type: The hardware, such as ``k80``: decides how long an op takes.
        memory_bytes: Limit on what may be resident at once.
    """

    name: str
    kind: str = "GPU"
    type: str = REFERENCE_TYPE
    memory_bytes: int = UNLIMITED_BYTES

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidValueError("a device must have a name, got an empty one")
        if self.kind not in DEVICE_KINDS:
            raise InvalidValueError(
                f"device {self.name!r}: kind must be one of {DEVICE_KINDS}, got {self.kind!r}"
            )
        _check_positive(f"device {self.name!r}: memory_bytes", self.memory_bytes)
        if self.memory_bytes > UNLIMITED_BYTES:
            raise InvalidValueError(
                f"device {self.name!r}: memory_bytes must be at most {UNLIMITED_BYTES},"
                f" got {self.memory_bytes}"
            )


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """A one-way channel that carries one tensor at a time.

    Without loads a transfer costs the devices at its ends nothing, as where a copy engine
    moves the bytes. Where the device's own core moves them, as between workers that are
    pinned to a core each, a transfer slows down what computes there.

    Attributes:
        bandwidth_bytes_per_s: Bytes moved per second once a transfer began.
        latency_s: Seconds before the first byte arrives.
        source_load: Share of the sending device's time that a running transfer takes, from
            0 to 1, in whole thousandths.
        destination_load: The same share of the receiving device's time.
    """

    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    source_load: float = 0.0
    destination_load: float = 0.0

    def __post_init__(self) -> None:
        _check_positive("link: bandwidth_bytes_per_s", self.bandwidth_bytes_per_s)
        if not 0 <= self.latency_s < math.inf:
            raise InvalidValueError(
                f"link: latency_s must be finite and not negative, got {self.latency_s}"
            )
        for field in ("source_load", "destination_load"):
            load = getattr(self, field)
            if not 0 <= load <= 1:
                raise InvalidValueError(f"link: {field} must be between 0 and 1, got {load}")
            object.__setattr__(self, field, round(float(load), 3))
        # Equal links have equal fingerprints, however their numbers were written.
        object.__setattr__(self, "bandwidth_bytes_per_s", float(self.bandwidth_bytes_per_s))
        object.__setattr__(self, "latency_s", float(self.latency_s))


@dataclasses.dataclass(frozen=True)
class DeviceTopology:
    """Devices and the link of every ordered pair of them.

    Attributes:
        devices: At least one, with distinct names.
        links: By (source, destination) device index; every ordered pair is there.
        hardware: What is known of each device type, by the type's name.
        name: How people call it; no part of the fingerprint.

    Raises:
        InvalidValueError: If there is no device, two share a name, or a link is missing.
    """

    devices: tuple[Device, ...]
    links: Mapping[tuple[int, int], Link]
    hardware: Mapping[str, Hardware] = dataclasses.field(default_factory=dict)
    name: str = "custom"

    def __post_init__(self) -> None:
        if not self.devices:
            raise InvalidValueError("a topology must have at least one device, got none")
        names = [device.name for device in self.devices]
        for name in names:
            if names.count(name) > 1:
                raise InvalidValueError(f"two devices are called {name!r}")
        pairs = {(a, b) for a in range(len(names)) for b in range(len(names)) if a != b}
        for source, destination in sorted(pairs - set(self.links)):
            raise InvalidValueError(
                f"there is no link from device {names[source]!r} to {names[destination]!r}"
            )
        for pair in sorted(set(self.links) - pairs):
            raise InvalidValueError(f"link {pair} does not join two devices of the topology")

    @classmethod
    def uniform(
        cls,
        num_devices: int,
        link: Link,
        *,
        memory_bytes: int = UNLIMITED_BYTES,
        kind: str = "GPU",
        name: str = "uniform",
    ) -> "DeviceTopology":
        """Return equal devices ``device:0``, ``device:1``, … with equal links."""
        if num_devices < 1:
            raise InvalidValueError(f"devices must be at least 1, got {num_devices}")
        devices = tuple(
            Device(f"device:{device}", kind=kind, memory_bytes=memory_bytes)
            for device in range(num_devices)
        )
        pairs = ((a, b) for a in range(num_devices) for b in range(num_devices) if a != b)
        return cls(devices, dict.fromkeys(pairs, link), name=name)

    @property
    def num_devices(self) -> int:
        """Number of devices."""
        return len(self.devices)

    @property
    def is_reference(self) -> bool:
        """True where no device says what it is: all take a graph's reference times."""
        return all(device.type == REFERENCE_TYPE for device in self.devices)

    @functools.cached_property
    def latency_s(self) -> FloatArray:
        """Latency from row to column, ``[D, D]``; zero on the diagonal."""
        return self._matrix({pair: link.latency_s for pair, link in self.links.items()})

    @functools.cached_property
    def bandwidth_bytes_per_s(self) -> FloatArray:
        """Bandwidth from row to column, ``[D, D]``; infinite on the diagonal."""
        matrix = np.full((self.num_devices, self.num_devices), np.inf)
        for pair, link in self.links.items():
            matrix[pair] = link.bandwidth_bytes_per_s
        return matrix

    @functools.cached_property
    def source_load(self) -> FloatArray:
        """Load on the row's device of a transfer to the column's, ``[D, D]``."""
        return self._matrix({pair: link.source_load for pair, link in self.links.items()})

    @functools.cached_property
    def destination_load(self) -> FloatArray:
        """Load on the column's device of a transfer from the row's, ``[D, D]``."""
        return self._matrix({pair: link.destination_load for pair, link in self.links.items()})

    def _matrix(self, values: Mapping[tuple[int, int], float]) -> FloatArray:
        matrix = np.zeros((self.num_devices, self.num_devices))
        for pair, value in values.items():
            matrix[pair] = value
        return matrix

    @functools.cached_property
    def memory_bytes(self) -> IntArray:
        """Memory limit of each device, ``[D]``."""
        return np.array([device.memory_bytes for device in self.devices], dtype=np.int64)

    def index(self, name: str) -> int:
        """Return the index of the device with this name.

        Raises:
            UnknownNameError: If there is none; the message offers the nearest.
        """
        names = [device.name for device in self.devices]
        if name not in names:
            raise UnknownNameError("device", name, names)
        return names.index(name)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A name for the devices, links and hardware; the topology's own name is no part."""
        parts = [str(device) for device in self.devices]
        parts += [f"{pair}{link}" for pair, link in sorted(self.links.items())]
        parts += [f"{type_}{hardware}" for type_, hardware in sorted(self.hardware.items())]
        return fingerprint(["topology 1", *parts])


def _check_positive(what: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise InvalidValueError(f"{what} must be positive and finite, got {value}")
