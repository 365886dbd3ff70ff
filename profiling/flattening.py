"""A traced function as a graph without placeholders: all that goes in is in variables.

* A captured variable's handle becomes a ``VarHandleOp`` called as the variable is, and with
  that as its ``shared_name``.
* An argument ``x`` becomes a variable ``input/x`` and a read of it called ``x``. Integers of 32
  bits are kept as 64, and cast: TensorFlow has no int32 variable on a GPU.
* A captured constant becomes a constant.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from placer.errors import InvalidValueError
from profiling.initial_values import (
    MAX_KEPT_BYTES,
    MAX_KEPT_INPUT_BYTES,
    STARTS_FROM,
    InitialValue,
    Normal,
    Uniform,
    Variable,
    customary,
    resembling,
)

# Ops that a traced function must run for their order alone: they change nothing.
_READS = frozenset(
    {
        "ReadVariableOp",
        "ResourceGather",
        "ResourceGatherNd",
        "VariableShape",
        "VarIsInitializedOp",
    }
)


@dataclasses.dataclass(frozen=True, slots=True)
class InputSpec:
    """An input that is made up: integers below ``high``, or normally distributed floats.

    Attributes:
        shape: Of the input; every dimension is known.
        dtype: TensorFlow's name of the type.
        high: One more than the largest integer; not used for floats.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    high: int = 2

    def __post_init__(self) -> None:
        if any(size < 1 for size in self.shape):
            raise InvalidValueError(f"an input's dimensions must be at least 1, got {self.shape}")
        if self.high < 1:
            raise InvalidValueError(f"an input's high must be at least 1, got {self.high}")


Input = InputSpec | npt.NDArray[Any]
"""A description of an argument, or an example of it."""


@dataclasses.dataclass(frozen=True, slots=True)
class FlatStep:
    """A training step as a graph that needs no feeding.

    Attributes:
        graph_def: The nodes, without initialisers; functions may still be called.
        variables: What takes the place of the placeholders, in the graph's order.
        loss: Name of the tensor to fetch.
        updates: Names of the ops that change variables, in the graph's order.
    """

    graph_def: graph_pb2.GraphDef
    variables: tuple[Variable, ...]
    loss: str
    updates: tuple[str, ...]


def flatten(function: Callable[..., Any], inputs: Sequence[Input], *, name: str) -> FlatStep:
    """Trace a function that does one training step, and return it as a graph.

    Args:
        function: A Python callable or a ``tf.function`` that returns the loss, alone or first.
        inputs: One for each of its arguments.
        name: What messages call it.

    Raises:
        InvalidValueError: If the first result is not a scalar float, or the function uses a
            resource that is no variable.
    """
    traceable = function if hasattr(function, "get_concrete_function") else tf.function(function)
    specs = [tf.TensorSpec(value.shape, tf.as_dtype(value.dtype)) for value in inputs]
    concrete = traceable.get_concrete_function(*specs)
    loss, updates = _loss_and_updates(concrete, name)
    graph_def, variables = _without_placeholders(concrete, inputs, name)
    return FlatStep(graph_def, variables, loss, updates)


def _loss_and_updates(concrete: Any, name: str) -> tuple[str, tuple[str, ...]]:
    # A traced function returns an Identity that waits for all updates. Fetched as it is, the
    # loss would collect a control edge from each of them, across all devices: what goes into
    # the Identity is fetched, and the updates are run beside it.
    if not concrete.outputs:
        raise InvalidValueError(f"step {name!r} must return its loss, got nothing")
    loss = concrete.outputs[0]
    if loss.shape.rank != 0 or not loss.dtype.is_floating:
        raise InvalidValueError(
            f"step {name!r} must return a scalar float as its loss,"
            f" got shape {loss.shape} of {loss.dtype.name}"
        )
    if loss.op.type == "Identity":
        loss = loss.op.inputs[0]
    # This set has no order of its own, and equal steps must give equal graphs.
    updates = {op.name for op in concrete.graph.control_outputs if op.type not in _READS}
    ordered = tuple(op.name for op in concrete.graph.get_operations() if op.name in updates)
    return loss.name, ordered


def _without_placeholders(
    concrete: Any, inputs: Sequence[Input], name: str
) -> tuple[graph_pb2.GraphDef, tuple[Variable, ...]]:
    traced = concrete.graph.as_graph_def()
    captured = {internal.op.name: external for external, internal in concrete.graph.captures}
    arguments = [t.op.name for t in concrete.graph.inputs if t.op.name not in captured]
    given = dict(zip(arguments, inputs, strict=True))
    variable_of_handle = {id(variable.handle): variable for variable in concrete.graph.variables}
    taken = {node.name for node in traced.node}
    flat = graph_pb2.GraphDef(versions=traced.versions, library=traced.library)
    renamed: dict[str, str] = {}
    variables: list[Variable] = []
    for node in traced.node:
        external = captured.get(node.name)
        if node.name in given:
            variables.append(_input_variable(node.name, given[node.name]))
            flat.node.extend(_input_nodes(node, variables[-1]))
        elif external is None:
            flat.node.append(node)
        elif id(external) in variable_of_handle:
            variables.append(_captured_variable(variable_of_handle[id(external)], taken))
            renamed[node.name] = variables[-1].name
            flat.node.append(_handle_node(variables[-1]))
        elif external.dtype != tf.resource:
            flat.node.append(_constant_node(node.name, external.numpy()))
        else:
            raise InvalidValueError(
                f"step {name!r} uses resource {node.name!r}, which is no variable:"
                " only variables can be placed"
            )
    _rename(flat, renamed)
    return flat, tuple(variables)


def _input_variable(name: str, given: Input) -> Variable:
    dtype = tf.as_dtype(given.dtype)
    value: InitialValue
    if not isinstance(given, InputSpec):
        value = resembling(given, max_kept_bytes=MAX_KEPT_INPUT_BYTES)
    elif dtype.is_integer:
        value = Uniform(0, given.high)
    else:
        value = Normal(0.0, 1.0)
    kept_dtype = tf.int64 if dtype == tf.int32 else dtype
    return Variable(f"input/{name}", tuple(given.shape), kept_dtype, value)


def _captured_variable(variable: Any, taken: set[str]) -> Variable:
    stem = variable.name.split(":")[0]
    name, number = stem, 0
    while name in taken:
        number += 1
        name = f"{stem}_{number}"
    taken.add(name)
    shape = tuple(variable.shape.as_list())
    dtype = variable.dtype.base_dtype
    if not tf.raw_ops.VarIsInitializedOp(resource=variable.handle).numpy():
        return Variable(name, shape, dtype, getattr(variable, STARTS_FROM, customary(shape)))
    value = np.asarray(variable.read_value().numpy())
    return Variable(name, shape, dtype, resembling(value, max_kept_bytes=MAX_KEPT_BYTES))


def _handle_node(variable: Variable) -> node_def_pb2.NodeDef:
    node = node_def_pb2.NodeDef(name=variable.name, op="VarHandleOp")
    node.attr["dtype"].type = variable.dtype.as_datatype_enum
    node.attr["shape"].shape.CopyFrom(tf.TensorShape(variable.shape).as_proto())
    node.attr["shared_name"].s = variable.name.encode()
    return node


def _input_nodes(
    placeholder: node_def_pb2.NodeDef, variable: Variable
) -> list[node_def_pb2.NodeDef]:
    read = node_def_pb2.NodeDef(name=placeholder.name, op="ReadVariableOp")
    read.input.append(variable.name)
    read.attr["dtype"].type = variable.dtype.as_datatype_enum
    wanted = placeholder.attr["dtype"].type
    if wanted == variable.dtype.as_datatype_enum:
        return [_handle_node(variable), read]
    cast = node_def_pb2.NodeDef(name=placeholder.name, op="Cast")
    read.name = f"{placeholder.name}/read"
    cast.input.append(read.name)
    cast.attr["SrcT"].type = variable.dtype.as_datatype_enum
    cast.attr["DstT"].type = wanted
    return [_handle_node(variable), read, cast]


def _constant_node(name: str, value: npt.NDArray[Any]) -> node_def_pb2.NodeDef:
    node = node_def_pb2.NodeDef(name=name, op="Const")
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
    node.attr["dtype"].type = node.attr["value"].tensor.dtype
    return node


def _rename(graph_def: graph_pb2.GraphDef, renamed: dict[str, str]) -> None:
    """Let the consumers of placeholders follow their new names."""
    for node in graph_def.node:
        for place, name in enumerate(node.input):
            # A handle has one output, so a port in its name can only be ":0".
            mark, bare = ("^", name[1:]) if name.startswith("^") else ("", name.split(":")[0])
            if bare in renamed:
                node.input[place] = mark + renamed[bare]
