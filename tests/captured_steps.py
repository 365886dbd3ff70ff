"""How the tests of captured steps run them: in one plain session, with rewriting off."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import tensorflow as tf

from profiling.capture import capture
from profiling.step import CapturedStep

v1 = tf.compat.v1


@contextmanager
def opened(step: CapturedStep) -> Iterator[v1.Session]:
    """A session of the step, its variables initialised."""
    config = v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = v1.OptimizerOptions.L0
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(step.graph_def, name="")
        with v1.Session(graph=graph, config=config) as session:
            session.run([graph.get_operation_by_name(name) for name in step.initializers])
            yield session


def losses(step: CapturedStep, num_steps: int) -> list[float]:
    """The loss of each step."""
    with opened(step) as session:
        return [run_step(session, step) for _ in range(num_steps)]


def run_step(session: v1.Session, step: CapturedStep) -> float:
    """The loss of one more step."""
    updates = [session.graph.get_operation_by_name(name) for name in step.targets]
    return float(session.run([*step.fetches, *updates])[0])


def value_of(session: v1.Session, variable: str) -> np.ndarray:
    """What a variable holds, read by an op of the test's own."""
    return values_of(session, [variable])[variable]


def values_of(session: v1.Session, variables: Sequence[str]) -> dict[str, np.ndarray]:
    """What variables hold, read at once: every run with new ops takes a second or so."""
    reads = {}
    for variable in variables:
        handle = session.graph.get_tensor_by_name(f"{variable}:0")
        with session.graph.as_default():
            dtype = tf.as_dtype(handle.op.get_attr("dtype"))
            reads[variable] = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
    return session.run(reads)


def line_fit() -> CapturedStep:
    """Fit y = w·x to (1, 2) and (2, 4), from w = 1, with learning rate 0.1."""
    slope = tf.Variable(1.0, name="slope")

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(slope * x - y))
        slope.assign_sub(0.1 * tape.gradient(loss, slope))
        return loss

    points = np.array([1, 2], dtype=np.float32)
    return capture(step, [points, 2 * points], name="line-fit")
