"""Topology files (TOML), the machines that are described in the package, and their documents.

The long form lists devices and links::

    version = 1
    name = "desk"

    [[devices]]
    name = "cpu:0"
    kind = "CPU"
    type = "haswell"

    [[devices]]
    name = "gpu:0"
    kind = "GPU"
    type = "k80"
    memory_bytes = 11266113536

    [[links]]                  # of every ordered pair that the two patterns match;
    source = "*"               # a later entry overrides an earlier one
    destination = "*"
    bandwidth_bytes_per_s = 12e9
    latency_s = 25e-6
    source_load = 0.3          # optional, zero if absent: what a transfer takes of the
    destination_load = 0.7     # time of the devices at its ends

    [hardware.k80]             # optional: what the cost model must know of an absent device
    frequency_mhz = 823
    num_cores = 13
    memory_bandwidth_bytes_per_s = 240e9
    architecture = "3.7"
    source = "where these figures were published"

The short form is of equal devices ``device:0``, ``device:1``, …::

    [uniform]
    devices = 4
    latency_s = 25e-6
    bandwidth_bytes_per_s = 7.6e9

A profile file keeps its topology as the same document, in JSON.
"""

import collections
import fnmatch
import glob
import importlib.resources
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from placer.devices import UNLIMITED_BYTES, Device, DeviceTopology, Hardware, Link
from placer.errors import FileFormatError, InvalidValueError, UnknownNameError
from placer.files.documents import (
    VERSION,
    Document,
    LimitBytes,
    NonNegativeFloat,
    PositiveFloat,
    StrPath,
    atomic_write,
    check,
    check_version,
    naming,
    read_text,
)

Load = Annotated[float, Field(ge=0, le=1)]

_MAX_DEVICES = 1024  # every pair has a link: this many devices have a million


class _DeviceEntry(Document):
    name: str
    kind: Literal["CPU", "GPU"]
    type: str
    memory_bytes: LimitBytes = UNLIMITED_BYTES


class _LinkEntry(Document):
    source: str
    destination: str
    bandwidth_bytes_per_s: PositiveFloat
    latency_s: NonNegativeFloat
    source_load: Load = 0.0
    destination_load: Load = 0.0

    def link(self) -> Link:
        return Link(**self.model_dump(exclude={"source", "destination"}))


class _HardwareEntry(Document):
    frequency_mhz: Annotated[int, Field(gt=0)]
    num_cores: Annotated[int, Field(gt=0)]
    memory_bandwidth_bytes_per_s: PositiveFloat
    architecture: str = ""
    source: str = ""


class _UniformEntry(Document):
    devices: Annotated[int, Field(ge=1, le=_MAX_DEVICES)]
    latency_s: NonNegativeFloat
    bandwidth_bytes_per_s: PositiveFloat
    memory_bytes: LimitBytes = UNLIMITED_BYTES
    kind: Literal["CPU", "GPU"] = "GPU"


class TopologyDocument(Document):
    """A topology as a file says it: the long form, or the short one."""

    version: int = VERSION
    name: str | None = None
    devices: list[_DeviceEntry] = Field(default_factory=list, max_length=_MAX_DEVICES)
    links: list[_LinkEntry] = Field(default_factory=list)
    hardware: dict[str, _HardwareEntry] = Field(default_factory=dict)
    uniform: _UniformEntry | None = None

    def topology(self, default_name: str) -> DeviceTopology:
        """Return what the document describes.

        Raises:
            InvalidValueError: If both forms are mixed, or devices or links are not right.
            UnknownNameError: If a pattern matches no device.
        """
        name = default_name if self.name is None else self.name
        if self.uniform is not None:
            return self._uniform_topology(self.uniform, name)
        devices = tuple(Device(**entry.model_dump()) for entry in self.devices)
        names = [device.name for device in devices]
        links: dict[tuple[int, int], Link] = {}
        for index, entry in enumerate(self.links):
            links |= dict.fromkeys(_pairs(entry, index, names), entry.link())
        hardware = {type_: Hardware(**entry.model_dump()) for type_, entry in self.hardware.items()}
        return DeviceTopology(devices, links, hardware, name)

    def _uniform_topology(self, uniform: _UniformEntry, name: str) -> DeviceTopology:
        for key in ("devices", "links", "hardware"):
            if getattr(self, key):
                raise InvalidValueError(f"{key}: the short form [uniform] stands alone")
        return DeviceTopology.uniform(
            uniform.devices,
            Link(uniform.bandwidth_bytes_per_s, uniform.latency_s),
            memory_bytes=uniform.memory_bytes,
            kind=uniform.kind,
            name=name,
        )


def _pairs(entry: _LinkEntry, index: int, names: list[str]) -> list[tuple[int, int]]:
    """Return the ordered pairs of distinct devices that an entry is about."""
    ends: list[list[int]] = []
    for end, pattern in (("source", entry.source), ("destination", entry.destination)):
        matching = [i for i, name in enumerate(names) if fnmatch.fnmatchcase(name, pattern)]
        if not matching:
            raise UnknownNameError(f"device in links[{index}].{end}", pattern, names)
        ends.append(matching)
    pairs = [(a, b) for a in ends[0] for b in ends[1] if a != b]
    if not pairs:
        raise InvalidValueError(
            f"links[{index}] joins no two devices: {entry.source!r} to {entry.destination!r}"
            " are the same one"
        )
    return pairs


def packaged_topologies() -> list[str]:
    """Return the names of the machines that are described in the package."""
    folder = importlib.resources.files("placer") / "topologies"
    names = (entry.name for entry in folder.iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def load_topology(name_or_path: str) -> DeviceTopology:
    """Return a described machine of the package, or the topology of a TOML file.

    Args:
        name_or_path: A packaged name such as ``haswell-4xk80``; with a path separator or
            the ending ``.toml`` it is a file.

    Raises:
        UnknownNameError: If no packaged topology has the name.
        MissingFileError: If there is no such file.
        FileFormatError: If the file is not a topology.
    """
    if name_or_path.endswith(".toml") or os.sep in name_or_path:
        stem = os.path.splitext(os.path.basename(name_or_path))[0]
        return _parse(read_text(name_or_path), stem, name_or_path)
    if name_or_path not in packaged_topologies():
        # "local" is no file: the devices of this machine, found by whoever can look.
        raise UnknownNameError("topology", name_or_path, [*packaged_topologies(), "local"])
    resource = importlib.resources.files("placer") / "topologies" / f"{name_or_path}.toml"
    return _parse(resource.read_text(encoding="utf-8"), name_or_path, f"topology {name_or_path}")


def _parse(text: str, default_name: str, path: StrPath) -> DeviceTopology:
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is not valid TOML: {error}") from error
    if "uniform" not in document or "version" in document:
        check_version(document, path)
    checked = check(TopologyDocument, document, path)
    with naming(path):
        return checked.topology(default_name)


def topology_document(topology: DeviceTopology) -> dict[str, Any]:
    """Return a topology as the document that ``TopologyDocument`` reads back equal."""
    devices = []
    for device in topology.devices:
        entry = {"name": device.name, "kind": device.kind, "type": device.type}
        limit = {"memory_bytes": device.memory_bytes}
        devices.append(entry | (limit if device.memory_bytes != UNLIMITED_BYTES else {}))
    hardware = {
        type_: {field: getattr(known, field) for field in _HardwareEntry.model_fields}
        for type_, known in sorted(topology.hardware.items())
    }
    return {
        "name": topology.name,
        "devices": devices,
        "links": _link_entries(topology),
        "hardware": hardware,
    }


def _link_entries(topology: DeviceTopology) -> list[dict[str, Any]]:
    """Return the most common link for all pairs, then the pairs that differ from it."""
    links = sorted(topology.links.items())
    if not links:
        return []
    common = collections.Counter(link for _, link in links).most_common(1)[0][0]
    names = [glob.escape(device.name) for device in topology.devices]
    entries = [("*", "*", common)]
    entries += [(names[a], names[b], link) for (a, b), link in links if link != common]
    return [
        {
            "source": source,
            "destination": destination,
            "bandwidth_bytes_per_s": link.bandwidth_bytes_per_s,
            "latency_s": link.latency_s,
            **_loads(link),
        }
        for source, destination, link in entries
    ]


def _loads(link: Link) -> dict[str, float]:
    loads = {"source_load": link.source_load, "destination_load": link.destination_load}
    return {end: load for end, load in loads.items() if load}


def save_topology(topology: DeviceTopology, path: StrPath) -> None:
    """Write a topology as TOML that ``load_topology`` reads back equal.

    Raises:
        StoreError: If the file cannot be written.
    """
    document = topology_document(topology)
    lines = [f"version = {VERSION}", f"name = {_toml(document['name'])}"]
    for key in ("devices", "links"):
        for entry in document[key]:
            lines += ["", f"[[{key}]]", *_toml_lines(entry)]
    for type_, entry in document["hardware"].items():
        key = type_ if re.fullmatch(r"[A-Za-z0-9_-]+", type_) else _toml(type_)
        lines += ["", f"[hardware.{key}]", *_toml_lines(entry)]
    atomic_write(path, ("\n".join(lines) + "\n").encode())


def _toml_lines(entry: Mapping[str, str | float]) -> Iterable[str]:
    return (f"{key} = {_toml(value)}" for key, value in entry.items())


def _toml(value: str | float) -> str:
    if isinstance(value, str):
        # A JSON string is a TOML string, but for DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
