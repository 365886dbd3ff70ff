"""From TensorFlow's graph definition to the graph of ops that Placer places.

* Each output of an op is one tensor, with its consumers. Its bytes are those of its inferred
  shape; an unknown dimension counts as 1, and so does an output of unknown rank. An element
  without a fixed size (a string, a variant) counts as 8 bytes.
* An op with control consumers has one more tensor, of 0 bytes.
* The handle of a variable never travels: its producer and all its users share a device, by
  one colocation key, merged with TensorFlow's own ``loc:@`` constraints.
* A variable holds its bytes for the whole step, in the op that makes its handle.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from tensorflow.core.framework import graph_pb2, node_def_pb2

from placer.errors import InvalidValueError
from placer.graph import Op, OpGraph, Tensor
from profiling.kernels import device_kinds
from profiling.modules import ModuleRule, assign_modules

_BYTES_OF_UNSIZED_ELEMENT = 8
_COLOCATION_PREFIX = b"loc:@"


@dataclasses.dataclass(frozen=True, slots=True)
class _Output:
    """One output of an op, as TensorFlow infers it."""

    producer: int
    consumers: tuple[int, ...]
    shape: tuple[int, ...] | None
    dtype: tf.DType

    @property
    def stays(self) -> bool:
        """Whether this is a handle or reference, which is of no use on another device."""
        return self.dtype.base_dtype == tf.resource or bool(self.dtype._is_ref_dtype)

    @property
    def size_bytes(self) -> int:
        if self.stays:
            return 0
        return num_bytes(self.shape, self.dtype)


def num_bytes(shape: Sequence[int] | None, dtype: tf.DType) -> int:
    """Return the bytes of a tensor by the rules of this module.

    Args:
        shape: -1 for an unknown dimension; None for an unknown rank.
        dtype: Of the elements.
    """
    is_unsized = dtype.base_dtype in (tf.string, tf.variant)
    element_bytes = _BYTES_OF_UNSIZED_ELEMENT if is_unsized else dtype.size
    return math.prod(1 if size < 0 else size for size in shape or ()) * element_bytes


def build_op_graph(graph_def: graph_pb2.GraphDef, module_rule: ModuleRule) -> OpGraph:
    """Return the ops and tensors of a graph definition, ops in its order.

    Args:
        graph_def: A flat graph, such as a captured step without its initialisers.
        module_rule: Tells an op's module by its name; see ``profiling.modules``.

    Raises:
        InvalidValueError: If TensorFlow cannot import the graph, or it has a cycle.
    """
    nodes = list(graph_def.node)
    index_of_name = {node.name: index for index, node in enumerate(nodes)}
    outputs = _outputs(graph_def, index_of_name)
    colocations = _colocations(nodes, index_of_name, outputs)
    tensors = tuple(
        Tensor(output.producer, output.consumers, output.size_bytes) for output in outputs
    ) + tuple(_control_tensors(nodes, index_of_name))
    shapes: list[list[tuple[int, ...]]] = [[] for _ in nodes]
    for output in outputs:
        shapes[output.producer].append(output.shape or ())
    graph = OpGraph(
        tuple(
            Op(
                node.name,
                node.op,
                memory_bytes=_variable_bytes(node),
                colocation=key,
                device_kinds=device_kinds(node),
                output_shapes=tuple(shapes_of_op),
            )
            for node, key, shapes_of_op in zip(nodes, colocations, shapes, strict=True)
        ),
        tensors,
    )
    return _with_modules(graph, module_rule, outputs)


def _outputs(graph_def: graph_pb2.GraphDef, index_of_name: dict[str, int]) -> list[_Output]:
    with tf.Graph().as_default() as graph:
        try:
            tf.import_graph_def(graph_def, name="")
        except (ValueError, tf.errors.OpError) as error:
            reason = str(error).splitlines()[0]
            raise InvalidValueError(f"TensorFlow cannot import the graph: {reason}") from error
    outputs = []
    for producer, name in enumerate(index_of_name):
        for tensor in graph.get_operation_by_name(name).outputs:
            consumers = tuple(sorted({index_of_name[op.name] for op in tensor.consumers()}))
            rank = tensor.shape.rank
            shape = (
                None
                if rank is None
                else tuple(-1 if size is None else size for size in tensor.shape.as_list())
            )
            outputs.append(_Output(producer, consumers, shape, tensor.dtype))
    return outputs


def _control_tensors(
    nodes: Sequence[node_def_pb2.NodeDef], index_of_name: dict[str, int]
) -> Iterable[Tensor]:
    consumers_of: dict[int, set[int]] = {}
    for consumer, node in enumerate(nodes):
        for name in node.input:
            if name.startswith("^"):
                consumers_of.setdefault(index_of_name[name[1:]], set()).add(consumer)
    for producer, consumers in sorted(consumers_of.items()):
        yield Tensor(producer, tuple(sorted(consumers)), 0)


def _colocations(
    nodes: Sequence[node_def_pb2.NodeDef],
    index_of_name: dict[str, int],
    outputs: Sequence[_Output],
) -> list[str]:
    """Return for each op the name of the first op of its colocated set, or ``""`` if alone."""
    pairs = [
        (output.producer, consumer)
        for output in outputs
        if output.stays
        for consumer in output.consumers
    ]
    for op, node in enumerate(nodes):
        for constraint in node.attr["_class"].list.s if "_class" in node.attr else ():
            other = constraint.removeprefix(_COLOCATION_PREFIX).decode()
            pairs.append((op, index_of_name[other]))
    rows, columns = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    links = coo_array((np.ones(len(rows)), (rows, columns)), shape=(len(nodes), len(nodes)))
    _, set_of_op = connected_components(links, directed=False)
    sizes = np.bincount(set_of_op)
    first_of_set: dict[int, str] = {}
    for node, number in zip(nodes, set_of_op.tolist(), strict=True):
        first_of_set.setdefault(number, node.name)
    return [first_of_set[number] if sizes[number] > 1 else "" for number in set_of_op.tolist()]


def _variable_bytes(node: node_def_pb2.NodeDef) -> int:
    if node.op not in ("VarHandleOp", "VariableV2"):
        return 0
    shape = [dim.size for dim in node.attr["shape"].shape.dim]
    return num_bytes(shape, tf.as_dtype(node.attr["dtype"].type))


def _with_modules(graph: OpGraph, rule: ModuleRule, outputs: Sequence[_Output]) -> OpGraph:
    edges = itertools.chain.from_iterable(
        ((output.producer, consumer) for consumer in output.consumers) for output in outputs
    )
    modules = assign_modules(
        # A constant was named where its first reader was traced; its own reader says more.
        ["" if op.type == "Const" else rule(op.name) for op in graph.ops],
        [op.colocation for op in graph.ops],
        list(edges),
        graph.topological_order.tolist(),
    )
    ops = tuple(
        dataclasses.replace(op, module=module)
        for op, module in zip(graph.ops, modules, strict=True)
    )
    return OpGraph(ops, graph.tensors)
