"""Published graphs with costs: the JSON format of Tarnawski et al. (NeurIPS 2020).

*Efficient Algorithms for Device Placement of DNN Graph Operators* came with its workloads:
an object with ``nodes`` and ``edges``. "FPGA" in its keys means any accelerator. Read here as

* op: a node, in the file's order. Its type is the letters its name starts with, ``Op`` if
  there are none. ``colorClass`` is its colocation, ``size`` its memory, and without
  ``supportedOnFpga`` it stays on a CPU.
* device types: ``accelerator`` (the reference), then ``cpu``. A time is a whole number of
  microseconds, ``round(milliseconds * 1000)``, as in comparisons published on these graphs.
* tensor: one for each source of edges, as large as the largest of them.

Names may repeat or be missing; every op gets a unique one that depends on the file alone.
"""

import re
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import BeforeValidator, ConfigDict, Field

from placer.errors import InvalidValueError
from placer.files.documents import Document
from placer.graph import DEVICE_KINDS, Op, OpGraph, Tensor
from placer.profile import OpCosts

DEVICE_TYPES = ("accelerator", "cpu")

# Far above any real time or size, and far below where arithmetic on them would overflow.
_MAX_MS = 1e15
_MAX_BYTES = 2.0**62


def _flag(value: object) -> object:
    return bool(value) if value in (0, 1) else value


class _Open(Document):
    # The format has more keys than matter here, and its users add their own. Ranges are
    # checked where the node's name is known.
    model_config = ConfigDict(extra="ignore", allow_inf_nan=True)


class _Node(_Open):
    id: int
    name: str | None = None
    supported: Annotated[bool, BeforeValidator(_flag)] = Field(True, alias="supportedOnFpga")
    accelerator_ms: float = Field(alias="fpgaLatency")
    cpu_ms: float = Field(alias="cpuLatency")
    color_class: int | None = Field(None, alias="colorClass")
    size: float = 0.0

    def __str__(self) -> str:
        return f"node {self.name!r} (id {self.id})" if self.name else f"node {self.id}"


class _Edge(_Open):
    source: int = Field(alias="sourceId")
    destination: int = Field(alias="destId")
    size: float = 0.0

    def __str__(self) -> str:
        return f"the edge from node {self.source} to node {self.destination}"


class PublishedGraph(_Open):
    """A document with ``nodes`` and ``edges``."""

    nodes: list[_Node]
    edges: list[_Edge]

    def graph_and_costs(self) -> tuple[OpGraph, OpCosts]:
        """Return the graph, and what its ops cost on an accelerator and on a CPU.

        Raises:
            InvalidValueError: If an id repeats, an edge leads nowhere, a time or size is
                negative or not finite, or there is a cycle.
        """
        ops = tuple(
            Op(
                name=name,
                type=_type(node.name),
                memory_bytes=round(_checked(node, "size", node.size, _MAX_BYTES)),
                colocation="" if node.color_class is None else f"class {node.color_class}",
                device_kinds=DEVICE_KINDS if node.supported else ("CPU",),
            )
            for node, name in zip(self.nodes, _unique_names(self.nodes), strict=True)
        )
        graph = OpGraph(ops, self._tensors())
        times = [
            (
                round(_checked(node, "fpgaLatency", node.accelerator_ms, _MAX_MS) * 1000) / 1e6,
                round(_checked(node, "cpuLatency", node.cpu_ms, _MAX_MS) * 1000) / 1e6,
            )
            for node in self.nodes
        ]
        costs = OpCosts(
            device_types=DEVICE_TYPES,
            compute_time_s=np.array(times, dtype=np.float64),
            measured=np.zeros((len(ops), len(DEVICE_TYPES)), dtype=np.bool_),
            workspace_bytes=np.zeros(len(ops), dtype=np.int64),
        )
        return graph, costs

    def _tensors(self) -> tuple[Tensor, ...]:
        op_of_id: dict[int, int] = {}
        for op, node in enumerate(self.nodes):
            if node.id in op_of_id:
                raise InvalidValueError(f"two nodes have id {node.id}")
            op_of_id[node.id] = op
        consumers: dict[int, set[int]] = {}
        sizes: dict[int, float] = {}
        for edge in self.edges:
            for end in (edge.source, edge.destination):
                if end not in op_of_id:
                    raise InvalidValueError(f"{edge}: there is no node {end}")
            producer = op_of_id[edge.source]
            consumers.setdefault(producer, set()).add(op_of_id[edge.destination])
            size = _checked(edge, "size", edge.size, _MAX_BYTES)
            sizes[producer] = max(size, sizes.get(producer, 0.0))
        return tuple(
            Tensor(producer, tuple(sorted(consumers[producer])), round(sizes[producer]))
            for producer in sorted(consumers)
        )


def _checked(what: _Node | _Edge, field: str, value: float, largest: float) -> float:
    if not 0 <= value <= largest:
        raise InvalidValueError(f"{what}: {field} must be from 0 to {largest:g}, got {value}")
    return value


def _type(name: str | None) -> str:
    letters = re.match(r"[A-Za-z]+", name or "")
    return letters.group() if letters else "Op"


def _unique_names(nodes: Sequence[_Node]) -> list[str]:
    """Return the nodes' names, ``node<ID>`` if missing, ``#<ID>`` appended on repetition."""
    names: dict[str, None] = {}
    for node in nodes:
        name = node.name or f"node{node.id}"
        while name in names:
            name += f"#{node.id}"
        names[name] = None
    return list(names)
