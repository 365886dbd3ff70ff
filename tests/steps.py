"""Small hand-made training steps."""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from placer.graph import Op, OpGraph, Tensor
from placer.placement import Placement
from profiling.step import CapturedStep

v1 = tf.compat.v1


def captured(
    name: str,
    graph: tf.Graph,
    loss: tf.Tensor,
    targets: Sequence[tf.Operation] = (),
    initializers: Sequence[tf.Operation] = (),
) -> CapturedStep:
    """Return the step; its op graph has every op that the loss and the targets need."""
    needed = _ancestors([loss.op, *targets])
    ops = [op for op in graph.get_operations() if op.name in needed]
    index = {op.name: number for number, op in enumerate(ops)}
    tensors = [
        Tensor(index[op.name], _consumers(output, index), _size_bytes(output))
        for op in ops
        for output in op.outputs
    ]
    return CapturedStep(
        name=name,
        graph_def=graph.as_graph_def(),
        op_graph=OpGraph(tuple(map(_op, ops)), tuple(tensors)),
        fetches=(loss.name,),
        targets=tuple(op.name for op in targets),
        initializers=tuple(op.name for op in initializers),
        num_captured_ops=len(ops),
    )


def _ancestors(ops: Sequence[tf.Operation]) -> set[str]:
    names: set[str] = set()
    waiting = list(ops)
    while waiting:
        op = waiting.pop()
        if op.name not in names:
            names.add(op.name)
            waiting += [value.op for value in op.inputs]
            waiting += op.control_inputs
    return names


def _op(op: tf.Operation) -> Op:
    # Whatever touches a variable's handle must be where the variable is.
    handles = [v.op.name for v in [*op.inputs, *op.outputs] if v.dtype == tf.resource]
    return Op(op.name, op.type, colocation=handles[0] if handles else "")


def _consumers(output: tf.Tensor, index: dict[str, int]) -> tuple[int, ...]:
    return tuple(sorted({index[op.name] for op in output.consumers() if op.name in index}))


def _size_bytes(output: tf.Tensor) -> int:
    known = output.shape.num_elements() or 0
    return 0 if output.dtype == tf.resource else known * output.dtype.size


def two_layer_step(width: int = 64) -> CapturedStep:
    """Two dense layers and gradient descent: x·w1, relu, ·w2, mean square."""
    with tf.Graph().as_default() as graph:
        x = _variable("x", np.linspace(-1, 1, 64 * width).reshape(64, width))
        w1 = _variable("w1", np.eye(width))
        w2 = _variable("w2", np.eye(width) / 2)
        hidden = tf.nn.relu(tf.matmul(x, w1, name="layer1"), name="relu")
        loss = tf.reduce_mean(tf.square(tf.matmul(hidden, w2, name="layer2")), name="loss")
        gradients = v1.gradients(loss, [w1, w2])
        updates = [
            variable.assign_sub(0.1 * gradient, read_value=False)
            for variable, gradient in zip((w1, w2), gradients, strict=True)
        ]
        initializers = [variable.initializer for variable in (x, w1, w2)]
        return captured("two-layer", graph, loss, updates, initializers)


def _variable(name: str, value: np.ndarray) -> tf.Variable:
    return v1.get_variable(name, initializer=value.astype(np.float32), use_resource=True)


def forward_step(name: str, build_loss: Callable[[], tf.Tensor]) -> CapturedStep:
    """Return a step without variables that computes what ``build_loss`` returns."""
    with tf.Graph().as_default() as graph:
        return captured(name, graph, build_loss())


def hanging_step() -> CapturedStep:
    """A step that waits for an element of a queue that nobody fills."""
    return forward_step("hanging", lambda: v1.FIFOQueue(1, [tf.float32]).dequeue())


def all_on(step: CapturedStep, device: int) -> Placement:
    """Return the placement with every op on one device."""
    return Placement([device] * step.op_graph.num_ops)


def second_layer_on_1(step: CapturedStep) -> Placement:
    """Return a placement of the two-layer step across both devices."""
    first = {"x", "w1"}
    return Placement(
        [
            0 if op.colocation in first or op.name.startswith(("layer1", "relu")) else 1
            for op in step.op_graph.ops
        ]
    )
