"""Small hand-made training steps, and the cluster that the slow tests share."""

from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf

from placer.graph import Op, OpGraph, Tensor
from profiling.cluster import LocalCluster
from profiling.step import CapturedStep

v1 = tf.compat.v1


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """Two CPU workers; tests that harm them leave it to the environment to revive them."""
    with LocalCluster(2, gpus=False) as two_workers:
        yield two_workers


def captured(
    name: str,
    graph: tf.Graph,
    loss: tf.Tensor,
    targets: list[tf.Operation],
    initializers: list[tf.Operation],
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


def _ancestors(ops: list[tf.Operation]) -> set[str]:
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


def two_layer_step(width: int = 256) -> CapturedStep:
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
        return captured("two-layer", graph, loss, updates, [x.initializer, w1.initializer,
                                                            w2.initializer])


def _variable(name: str, value: np.ndarray) -> tf.Variable:
    return v1.get_variable(name, initializer=value.astype(np.float32), use_resource=True)
