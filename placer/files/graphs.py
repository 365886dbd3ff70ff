"""Graph files: Placer's own profiles, and published graphs with costs.

A profile file is one JSON object: ``version``, ``kind`` (``placer.profile``), ``graph``,
``costs``, ``topology``, ``provenance``. Graph and costs are kept by column (all names, all
types, …): it is half the size of one object an op, and ten thousand ops are read at once.

The other format is recognised by its keys ``nodes`` and ``edges``; see
``placer.files.published``.
"""

import dataclasses
from typing import Any, Self

import numpy as np
from pydantic import model_validator
from pydantic_core import PydanticCustomError

from placer.devices import UNLIMITED_BYTES, DeviceTopology
from placer.errors import InvalidValueError
from placer.files.documents import (
    VERSION,
    Document,
    NonNegativeFloat,
    SizeBytes,
    StrPath,
    check,
    check_kind,
    check_version,
    naming,
    parse_json,
    read_json,
    write_compact_json,
)
from placer.files.published import PublishedGraph
from placer.files.topologies import TopologyDocument, topology_document
from placer.graph import Op, OpGraph, Tensor
from placer.profile import OpCosts, Profile, Provenance

_KIND = "placer.profile"


@dataclasses.dataclass(frozen=True)
class GraphFile:
    """What a graph file holds.

    Attributes:
        graph: The ops and tensors.
        costs: What each op costs on each type of device.
        provenance: Where the costs come from.
        topology: Where they were measured or estimated for; None if the file names none.
    """

    graph: OpGraph
    costs: OpCosts
    provenance: Provenance
    topology: DeviceTopology | None

    def profile(self, topology: DeviceTopology | None = None) -> Profile:
        """Return the profile on a topology; on the file's own if None.

        Raises:
            InvalidValueError: If neither is there.
            UnknownNameError: If a device's type has no costs.
            InfeasibleError: If an op has no permitted device.
        """
        chosen = topology or self.topology
        if chosen is None:
            raise InvalidValueError(
                "the graph file has no topology of its own: name one (--topology)"
            )
        return Profile(self.graph, self.costs, chosen, self.provenance)


class _TensorColumns(Document):
    producers: list[int]
    consumers: list[list[int]]
    size_bytes: list[SizeBytes]

    @model_validator(mode="after")
    def _columns_agree(self) -> Self:
        _check_lengths(self, "tensors", len(self.producers))
        return self


class _GraphColumns(Document):
    names: list[str]
    types: list[str]
    memory_bytes: list[SizeBytes]
    colocations: list[str]
    device_kinds: list[list[str]]
    modules: list[str]
    output_shapes: list[list[list[int]]]
    tensors: _TensorColumns

    @model_validator(mode="after")
    def _columns_agree(self) -> Self:
        _check_lengths(self, "ops", len(self.names))
        return self


class _CostColumns(Document):
    device_types: list[str]
    compute_time_s: list[list[NonNegativeFloat]]
    measured: list[list[bool]]
    workspace_bytes: list[SizeBytes]

    @model_validator(mode="after")
    def _columns_agree(self) -> Self:
        for name in ("compute_time_s", "measured"):
            columns = getattr(self, name)
            _check_length(name, "device types", len(columns), len(self.device_types))
            for index, column in enumerate(columns):
                _check_length(f"{name}[{index}]", "ops", len(column), len(self.workspace_bytes))
        return self


class _ProvenanceDocument(Document):
    method: str
    host: str
    date: str
    facts: dict[str, str]


class _ProfileDocument(Document):
    version: int
    kind: str
    graph: _GraphColumns
    costs: _CostColumns
    topology: TopologyDocument | None
    provenance: _ProvenanceDocument


def _check_lengths(columns: Document, what: str, expected: int) -> None:
    for name, column in columns:
        if isinstance(column, list):
            _check_length(name, what, len(column), expected)


def _check_length(name: str, what: str, length: int, expected: int) -> None:
    if length != expected:
        message = f"{name} must have one entry for each of {expected} {what}, got {length}"
        raise PydanticCustomError("columns", "{message}", {"message": message})


def load_graph_file(path: StrPath) -> GraphFile:
    """Return the graph and costs of a profile file or of a published graph.

    Raises:
        MissingFileError: If there is no such file.
        FileFormatError: If it is neither, or what it holds cannot be right: a negative or
            non-finite time or size, an unknown or repeated op, a cycle.
    """
    return _graph_file(read_json(path), path)


def parse_graph(text: str, name: str) -> GraphFile:
    """Return what ``load_graph_file`` would of a file with this text; errors call it ``name``.

    Raises:
        FileFormatError: As ``load_graph_file``.
    """
    return _graph_file(parse_json(text, name), name)


def _graph_file(document: dict[str, Any], path: StrPath) -> GraphFile:
    if "kind" not in document and "nodes" in document and "edges" in document:
        published = check(PublishedGraph, document, path)
        with naming(path):
            graph, costs = published.graph_and_costs()
            _check_total(graph, costs)
        return GraphFile(graph, costs, Provenance(method="file"), None)
    check_kind(document, path, _KIND)
    check_version(document, path)
    checked = check(_ProfileDocument, document, path)
    with naming(path):
        graph = _graph(checked.graph)
        costs = _costs(checked.costs, graph.num_ops)
        _check_total(graph, costs)
        topology = checked.topology.topology("custom") if checked.topology else None
    return GraphFile(graph, costs, Provenance(**checked.provenance.model_dump()), topology)


def _check_total(graph: OpGraph, costs: OpCosts) -> None:
    # Sums of bytes are kept in 64 bits; this is the one place where they could be exceeded.
    total = sum(op.memory_bytes for op in graph.ops) + sum(costs.workspace_bytes.tolist())
    total += sum(tensor.size_bytes for tensor in graph.tensors)
    if total >= UNLIMITED_BYTES:
        raise InvalidValueError(f"all sizes sum to {total} bytes, which must be less than 2**62")


def _graph(columns: _GraphColumns) -> OpGraph:
    # Shapes and kinds repeat: one tuple for all that are equal.
    kinds = {tuple(kinds): tuple(kinds) for kinds in columns.device_kinds}
    ops = tuple(
        Op(
            name=columns.names[op],
            type=columns.types[op],
            memory_bytes=columns.memory_bytes[op],
            colocation=columns.colocations[op],
            device_kinds=kinds[tuple(columns.device_kinds[op])],
            module=columns.modules[op],
            output_shapes=tuple(tuple(shape) for shape in columns.output_shapes[op]),
        )
        for op in range(len(columns.names))
    )
    tensors = columns.tensors
    rows = zip(tensors.producers, tensors.consumers, tensors.size_bytes, strict=True)
    return OpGraph(
        ops, tuple(Tensor(producer, tuple(users), size) for producer, users, size in rows)
    )


def _costs(columns: _CostColumns, num_ops: int) -> OpCosts:
    if len(columns.workspace_bytes) != num_ops:
        raise InvalidValueError(
            f"costs are of {len(columns.workspace_bytes)} ops, but the graph has {num_ops}"
        )
    shape = (len(columns.device_types), num_ops)
    times = np.array(columns.compute_time_s, dtype=np.float64).reshape(shape)
    measured = np.array(columns.measured, dtype=np.bool_).reshape(shape)
    return OpCosts(
        device_types=tuple(columns.device_types),
        compute_time_s=np.ascontiguousarray(times.T),
        measured=np.ascontiguousarray(measured.T),
        workspace_bytes=np.array(columns.workspace_bytes, dtype=np.int64),
    )


def save_profile(profile: Profile, path: StrPath) -> None:
    """Write a profile file; ``load_graph_file`` reads back equal contents.

    Raises:
        StoreError: If the file cannot be written.
    """
    costs = profile.costs
    document = {
        "version": VERSION,
        "kind": _KIND,
        "graph": _graph_document(profile.graph),
        "costs": {
            "device_types": costs.device_types,
            "compute_time_s": costs.compute_time_s.T.tolist(),
            "measured": costs.measured.T.tolist(),
            "workspace_bytes": costs.workspace_bytes.tolist(),
        },
        "topology": topology_document(profile.topology),
        "provenance": {
            "method": profile.provenance.method,
            "host": profile.provenance.host,
            "date": profile.provenance.date,
            "facts": dict(sorted(profile.provenance.facts.items())),
        },
    }
    write_compact_json(document, path)


def _graph_document(graph: OpGraph) -> dict[str, Any]:
    return {
        "names": [op.name for op in graph.ops],
        "types": [op.type for op in graph.ops],
        "memory_bytes": [op.memory_bytes for op in graph.ops],
        "colocations": [op.colocation for op in graph.ops],
        "device_kinds": [op.device_kinds for op in graph.ops],
        "modules": [op.module for op in graph.ops],
        "output_shapes": [op.output_shapes for op in graph.ops],
        "tensors": {
            "producers": [tensor.producer for tensor in graph.tensors],
            "consumers": [tensor.consumers for tensor in graph.tensors],
            "size_bytes": [tensor.size_bytes for tensor in graph.tensors],
        },
    }
