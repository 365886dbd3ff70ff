"""The rewriting of a step's graph, done once, before anything is simulated or run."""

import collections
import math
from collections.abc import Sequence

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2
from tensorflow.python.grappler import tf_optimizer

from placer.errors import InvalidValueError

# TensorFlow's passes that neither choose a layout or a fused kernel for one kind of device
# nor move an op to one.
_PASSES = (
    "pruning",
    "function",
    "common_subgraph_elimination",
    "constfold",
    "shape",
    "arithmetic",
    "dependency",
)

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")

# A larger constant stays one: copies of it would cost memory.
_MAX_COPIED_BYTES = 2**16


def optimize(
    graph_def: graph_pb2.GraphDef, loss: str, updates: Sequence[str]
) -> tuple[graph_pb2.GraphDef, tuple[str, ...]]:
    """Return the graph as TensorFlow's optimiser rewrites it, and the updates in it.

    Functions are inlined; where a call was an update, what the call ran for is one instead.
    Loops and branches stay whole: a device is chosen for a ``While`` or ``If`` as one op.

    Args:
        graph_def: A graph without placeholders.
        loss: Name of the tensor that will be fetched.
        updates: Names of the ops that will be run beside it.

    Raises:
        InvalidValueError: If TensorFlow refuses the graph.
    """
    meta_graph = meta_graph_pb2.MetaGraphDef(graph_def=graph_def)
    _keep_control_flow_whole(meta_graph.graph_def)
    done_of_call = _add_ends_of_calls(meta_graph.graph_def, updates)
    kept = [done_of_call.get(update, update) for update in updates]
    meta_graph.collection_def["train_op"].node_list.value.extend([loss, *kept])
    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.optimizers.extend(_PASSES)
    config.graph_options.rewrite_options.min_graph_nodes = -1
    try:
        optimized: graph_pb2.GraphDef = tf_optimizer.OptimizeGraph(config, meta_graph)
    except tf.errors.OpError as error:
        reason = str(error).splitlines()[0]
        raise InvalidValueError(f"TensorFlow cannot optimise the graph: {reason}") from error
    waits_for = {node.name: node.input for node in optimized.node}
    found: list[str] = []
    for update, name in zip(updates, kept, strict=True):
        found += map(producer, waits_for[name]) if update in done_of_call else [name]
    return optimized, tuple(dict.fromkeys(found))


def _add_ends_of_calls(graph_def: graph_pb2.GraphDef, updates: Sequence[str]) -> dict[str, str]:
    # A call is inlined only if some op waits for its end; and a call that is asked for by name
    # would stay, to gather all results of the function on one device.
    ends = {}
    for node in list(graph_def.node):
        if node.name in updates and node.op in _CALLS:
            ends[node.name] = f"{node.name}/done"
            graph_def.node.add(name=ends[node.name], op="NoOp", input=[f"^{node.name}"])
    return ends


def producer(name: str) -> str:
    """Return the op that an input, a control input or a fetched tensor comes from."""
    return name.removeprefix("^").split(":", maxsplit=1)[0]


def _keep_control_flow_whole(graph_def: graph_pb2.GraphDef) -> None:
    # With this mark the runtime takes loops and branches apart, after their op was placed.
    for nodes in (graph_def.node, *(f.node_def for f in graph_def.library.function)):
        for node in nodes:
            node.attr.pop("_lower_using_switch_merge", None)


def copy_constants(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    """Return the graph with a copy of each small constant for each op that reads it.

    The optimiser merges equal constants from all over the model; the axis of one concatenation
    would then travel to all devices that concatenate. A constant's first reader keeps the
    original. Larger constants, and functions' arguments, are left alone.
    """
    constants = {node.name: node for node in graph_def.node if _is_copied(node)}
    num_readers: collections.Counter[str] = collections.Counter()
    result = graph_pb2.GraphDef(versions=graph_def.versions, library=graph_def.library)
    for original in graph_def.node:
        node = result.node.add()
        node.CopyFrom(original)
        copied: dict[str, str] = {}
        for place, name in enumerate(node.input):
            bare = producer(name)
            if name.startswith("^") or bare not in constants:
                continue
            if bare not in copied:
                copied[bare] = _copy_name(bare, num_readers[bare])
                num_readers[bare] += 1
            node.input[place] = copied[bare]
    for bare, count in num_readers.items():
        for number in range(1, count):
            copy = result.node.add()
            copy.CopyFrom(constants[bare])
            copy.name = _copy_name(bare, number)
    return result


def _is_copied(node: node_def_pb2.NodeDef) -> bool:
    if node.op != "Const":
        return False
    shape = [dim.size for dim in node.attr["value"].tensor.tensor_shape.dim]
    dtype = tf.as_dtype(node.attr["dtype"].type)
    return bool(math.prod(shape) * dtype.size <= _MAX_COPIED_BYTES)


def _copy_name(name: str, number: int) -> str:
    return f"{name}/copy_{number}" if number else name


def needed(graph_def: graph_pb2.GraphDef, loss: str, updates: Sequence[str]) -> graph_pb2.GraphDef:
    """Return the part of a graph that the loss and the updates wait for, in the same order.

    Constraints to be with an op that is not needed are dropped.
    """
    node_of_name = {node.name: node for node in graph_def.node}
    waiting = [producer(loss), *updates]
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += map(producer, node_of_name[name].input)
    result = graph_pb2.GraphDef(versions=graph_def.versions)
    result.node.extend(node for node in graph_def.node if node.name in reached)
    for node in result.node:
        _forget_absent(node, reached)
    if any(_calls_a_function(node) for node in result.node):
        result.library.CopyFrom(graph_def.library)
    return result


def _forget_absent(node: node_def_pb2.NodeDef, present: set[str]) -> None:
    # A constraint to be with an op that is gone binds nothing, and TensorFlow refuses it.
    if "_class" in node.attr:
        constraints = node.attr["_class"].list.s
        bound = [c for c in constraints if c.removeprefix(b"loc:@").decode() in present]
        del constraints[:]
        constraints.extend(bound)


def _calls_a_function(node: node_def_pb2.NodeDef) -> bool:
    return any(v.func.name or len(v.list.func) > 0 for v in node.attr.values())
