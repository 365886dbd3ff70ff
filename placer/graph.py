"""The computation graph of one training step: ops, and the tensors between them.

An op is known by its index in ``OpGraph.ops``. A tensor is the unit of transfer: it
leaves its producer once for each device on which it has consumers, however many those
are. A control edge is a tensor of zero bytes.

The graph is the structure alone. How long an op takes on which device is in
``placer.profile``, so that one graph can be costed for many topologies.
"""

import collections
import dataclasses
import functools
import heapq
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from placer.errors import InvalidValueError
from placer.fingerprint import Part, fingerprint

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

DEVICE_KINDS = ("CPU", "GPU")


@dataclasses.dataclass(frozen=True, slots=True)
class Op:
    """One vertex of the graph.

    Attributes:
        name: Unique within the graph.
        type: TensorFlow's op type, such as ``MatMul``.
        memory_bytes: Held on the op's device for the whole step: its variables.
        colocation: Ops with the same non-empty key must share a device.
        device_kinds: Kinds of device that have a kernel for the op.
        module: The part of the model the op belongs to, ``"unit/part"``: all ops of one
            part form a group under the model rules, and the unit (all before the first
            slash) is what an expert would keep on one device. Empty if unknown.
        output_shapes: Shape of each output; -1 for a dimension that is not known.
    """

    name: str
    type: str
    memory_bytes: int = 0
    colocation: str = ""
    device_kinds: tuple[str, ...] = DEVICE_KINDS
    module: str = ""
    output_shapes: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidValueError("an op must have a name, got an empty one")
        if self.memory_bytes < 0:
            raise InvalidValueError(
                f"op {self.name!r}: memory_bytes must not be negative, got {self.memory_bytes}"
            )
        if not self.device_kinds:
            raise InvalidValueError(f"op {self.name!r} has no kind of device that can run it")
        unknown = set(self.device_kinds) - set(DEVICE_KINDS)
        if unknown:
            raise InvalidValueError(
                f"op {self.name!r}: device kinds must be among {DEVICE_KINDS},"
                f" got {sorted(unknown)}"
            )


@dataclasses.dataclass(frozen=True, slots=True)
class Tensor:
    """An output of an op and the ops that wait for it.

    Attributes:
        producer: Index of the op that makes it.
        consumers: Indices of the ops that need it, ascending, without repetition.
        size_bytes: Bytes that a transfer moves; 0 for a control edge.
    """

    producer: int
    consumers: tuple[int, ...]
    size_bytes: int

    def __post_init__(self) -> None:
        if self.size_bytes < 0:
            raise InvalidValueError(
                f"a tensor of op {self.producer}: size_bytes must not be negative,"
                f" got {self.size_bytes}"
            )
        if list(self.consumers) != sorted(set(self.consumers)):
            raise InvalidValueError(
                f"a tensor of op {self.producer}: consumers must ascend without repetition,"
                f" got {self.consumers}"
            )


@dataclasses.dataclass(frozen=True)
class OpGraph:
    """An immutable, acyclic graph of ops and tensors.

    Raises:
        InvalidValueError: If two ops share a name, a tensor names an op that is not
            there, or the graph has a cycle (the message names an op on it).
    """

    ops: tuple[Op, ...]
    tensors: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        if not self.ops:
            raise InvalidValueError("a graph must have at least one op, got none")
        if len(self.index_of_name) != self.num_ops:
            counts = collections.Counter(op.name for op in self.ops)
            raise InvalidValueError(f"two ops are called {counts.most_common(1)[0][0]!r}")
        for tensor in self.tensors:
            for op in (tensor.producer, *tensor.consumers):
                if not 0 <= op < self.num_ops:
                    raise InvalidValueError(
                        f"a tensor names op {op}, but the graph has ops 0 to {self.num_ops - 1}"
                    )
        self.topological_order  # noqa: B018 - raises on a cycle

    @property
    def num_ops(self) -> int:
        """Number of ops."""
        return len(self.ops)

    @functools.cached_property
    def index_of_name(self) -> dict[str, int]:
        """The index of each op by its name."""
        return {op.name: index for index, op in enumerate(self.ops)}

    @functools.cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """For each op, the ops that wait for any of its tensors, ascending."""
        sets: list[set[int]] = [set() for _ in self.ops]
        for tensor in self.tensors:
            sets[tensor.producer].update(tensor.consumers)
        return tuple(tuple(sorted(consumers)) for consumers in sets)

    @functools.cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """For each op, the ops it waits for, ascending."""
        lists: list[list[int]] = [[] for _ in self.ops]
        for op, consumers in enumerate(self.successors):
            for consumer in consumers:
                lists[consumer].append(op)
        return tuple(tuple(producers) for producers in lists)

    @functools.cached_property
    def topological_order(self) -> IntArray:
        """Op indices in Kahn's order, the smallest index first among the ready, ``[N]``."""
        waiting = [len(producers) for producers in self.predecessors]
        ready = [op for op, count in enumerate(waiting) if count == 0]
        order: list[int] = []
        while ready:
            op = heapq.heappop(ready)
            order.append(op)
            for consumer in self.successors[op]:
                waiting[consumer] -= 1
                if waiting[consumer] == 0:
                    heapq.heappush(ready, consumer)
        if len(order) < self.num_ops:
            raise InvalidValueError(
                f"the graph has a cycle through op {self._op_on_a_cycle(waiting)!r}"
            )
        return _frozen(np.array(order, dtype=np.int64))

    def _op_on_a_cycle(self, waiting: Sequence[int]) -> str:
        # Every op still waiting has a predecessor still waiting: walking back must close a loop.
        op = next(op for op, count in enumerate(waiting) if count > 0)
        seen: set[int] = set()
        while op not in seen:
            seen.add(op)
            op = next(producer for producer in self.predecessors[op] if waiting[producer] > 0)
        return self.ops[op].name

    @functools.cached_property
    def topological_index(self) -> IntArray:
        """The position of each op in ``topological_order``, ``[N]``."""
        index = np.empty(self.num_ops, dtype=np.int64)
        index[self.topological_order] = np.arange(self.num_ops)
        return _frozen(index)

    @functools.cached_property
    def memory_bytes(self) -> IntArray:
        """Bytes held by each op for the whole step, ``[N]``."""
        return _frozen(np.array([op.memory_bytes for op in self.ops], dtype=np.int64))

    @functools.cached_property
    def colocations(self) -> tuple[tuple[int, ...], ...]:
        """Sets of two or more ops that must share a device, each ascending."""
        members: dict[str, list[int]] = {}
        for index, op in enumerate(self.ops):
            if op.colocation:
                members.setdefault(op.colocation, []).append(index)
        return tuple(tuple(ops) for ops in members.values() if len(ops) > 1)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A name for the structure: equal for graphs that differ only in names and memory."""
        parts: list[Part] = ["graph 1"]
        parts += [f"{op.type}|{op.output_shapes}|{op.device_kinds}" for op in self.ops]
        parts += [str(ops) for ops in self.colocations]
        parts += [f"{t.producer}>{t.consumers}:{t.size_bytes}" for t in self.tensors]
        return fingerprint(parts)


def _frozen(array: IntArray) -> IntArray:
    array.setflags(write=False)
    return array
