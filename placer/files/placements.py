"""Placement files: JSON with the device of every op, by their names.

``{"version": 1, "graph": FINGERPRINT or null, "devices": [names],
"device_of_op": {op name: device name}}``

Names, not indices, so that people can write such a file and other programs apply it. With
``null`` for the graph it fits every graph whose ops have these names.
"""

from typing import Any

from placer.devices import DeviceTopology
from placer.errors import FileFormatError, InvalidValueError, UnknownNameError
from placer.files.documents import (
    VERSION,
    Document,
    StrPath,
    check,
    check_graph,
    check_version,
    naming,
    read_json,
    short,
    write_json,
)
from placer.graph import OpGraph
from placer.placement import Placement


class _PlacementDocument(Document):
    version: int
    graph: str | None
    devices: list[str]
    device_of_op: dict[str, str]


def placement_document(
    placement: Placement, graph: OpGraph, topology: DeviceTopology
) -> dict[str, Any]:
    """Return what a placement file holds.

    Raises:
        InvalidValueError: If the placement is of another number of ops, or of devices that
            the topology does not have.
    """
    if len(placement.device_of_op) != graph.num_ops:
        raise InvalidValueError(
            f"the placement is of {len(placement.device_of_op)} ops, the graph has {graph.num_ops}"
        )
    if placement.device_of_op.max() >= topology.num_devices:
        raise InvalidValueError(
            f"the placement names device {placement.device_of_op.max()}, but the topology has"
            f" devices 0 to {topology.num_devices - 1}"
        )
    names = [device.name for device in topology.devices]
    return {
        "version": VERSION,
        "graph": graph.fingerprint,
        "devices": names,
        "device_of_op": {
            op.name: names[device]
            for op, device in zip(graph.ops, placement.device_of_op.tolist(), strict=True)
        },
    }


def save_placement(
    placement: Placement, graph: OpGraph, topology: DeviceTopology, path: StrPath
) -> None:
    """Write a placement of a graph on a topology.

    Raises:
        InvalidValueError: If it is not a placement of the graph on the topology.
        StoreError: If the file cannot be written.
    """
    write_json(placement_document(placement, graph, topology), path)


def load_placement(path: StrPath, graph: OpGraph, topology: DeviceTopology) -> Placement:
    """Return the placement of a file, for a graph on a topology.

    Raises:
        MissingFileError: If there is no such file.
        FileFormatError: If it is not a placement; is one of another graph; lacks an op or
            has one too many; or names a device that it does not list or the topology does
            not have.
    """
    document = read_json(path)
    if "kind" in document:
        raise FileFormatError(
            f"{path}: expected a placement, got a file of {short(document['kind'])}"
        )
    check_version(document, path)
    checked = check(_PlacementDocument, document, path)
    if checked.graph is not None:
        check_graph(checked.graph, graph, path, "placement")
    with naming(path):
        index_of_device = {name: topology.index(name) for name in checked.devices}
        for op, name in checked.device_of_op.items():
            if op not in graph.index_of_name:
                raise UnknownNameError("op", op, graph.index_of_name)
            if name not in index_of_device:
                raise UnknownNameError(f"device of op {op!r}", name, checked.devices)
        for known in graph.ops:
            if known.name not in checked.device_of_op:
                raise InvalidValueError(f"op {known.name!r} of the graph has no device")
        devices = [index_of_device[checked.device_of_op[known.name]] for known in graph.ops]
        return Placement(devices)
