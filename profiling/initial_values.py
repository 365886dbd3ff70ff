"""Initial values that a graph can make by itself, without carrying them.

A step is captured to be timed, not to be trained on from where the user's model stands. So a
large variable's value is replaced by one that behaves alike and needs few bytes of graph: the same
constant, or random numbers of the same mean and deviation, or of the same range. They are drawn
by stateless ops from a seed fixed by the variable's name: the same on every device and run.
"""

import dataclasses
import math
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

MAX_KEPT_BYTES = 2**12
"""Variables up to this size are kept as they are."""

MAX_KEPT_INPUT_BYTES = 2**20
"""Example inputs up to this size are kept as they are: labels and tokens carry meaning."""

STARTS_FROM = "placer_starts_from"
"""Attribute of a variable without a value: the ``InitialValue`` that is meant for it."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """Exactly these numbers (or strings), stored in the graph."""

    array: npt.NDArray[Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Constant:
    """The same number in every place."""

    number: float | int | bool


@dataclasses.dataclass(frozen=True, slots=True)
class Normal:
    """Normally distributed numbers."""

    mean: float
    stddev: float


@dataclasses.dataclass(frozen=True, slots=True)
class Uniform:
    """Uniformly distributed numbers from ``low`` up to, and without, ``high``."""

    low: float | int
    high: float | int


InitialValue = Kept | Constant | Normal | Uniform


@dataclasses.dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a graph and what it starts from.

    Attributes:
        name: Of the op that makes its handle, and its ``shared_name``.
        shape: Of its value.
        dtype: Of its value.
        initial_value: What it starts from.
    """

    name: str
    shape: tuple[int, ...]
    dtype: tf.DType
    initial_value: InitialValue

    @property
    def initializer(self) -> str:
        """Name of the op that gives it its initial value."""
        return f"init/{self.name}"


def resembling(array: npt.NDArray[Any], *, max_kept_bytes: int = 0) -> InitialValue:
    """Return the cheapest value that behaves like an array.

    What never is negative stays so (the square root of a variance must exist): such floats
    become uniform in the array's range. Other floats become normal, integers uniform.

    Args:
        array: A variable's value, or an example input.
        max_kept_bytes: Arrays up to this size are kept, unless one number says it all.
    """
    is_number = np.issubdtype(array.dtype, np.number)
    if array.size and (is_number or array.dtype == np.bool_) and (array == array.flat[0]).all():
        return Constant(array.flat[0].item())
    is_float = _is_float(array.dtype)
    if array.nbytes <= max_kept_bytes or not (is_float or np.issubdtype(array.dtype, np.integer)):
        return Kept(array)
    if not is_float:
        return Uniform(int(array.min()), int(array.max()) + 1)
    wide = array.astype(np.float64)
    if wide.min() >= 0:
        return Uniform(float(wide.min()), float(wide.max()))
    return Normal(float(wide.mean()), float(wide.std()))


def customary(shape: tuple[int, ...]) -> InitialValue:
    """Return what a variable of this shape usually starts from, if it has no value yet.

    Matrices and larger: normal with Glorot and Bengio's deviation (2010, equation 16),
    sqrt(2 / (fan_in + fan_out)), the last dimension being the outputs. Vectors (biases) and
    scalars: zero.
    """
    if len(shape) < 2:
        return Constant(0)
    return Normal(0.0, math.sqrt(2.0 / (math.prod(shape[:-1]) + shape[-1])))


def initializer_nodes(variable: Variable) -> list[node_def_pb2.NodeDef]:
    """Return the ops that give a variable its initial value, all colocated with its handle.

    The handle itself is not among them: it is an op of the step.
    """
    with tf.Graph().as_default() as graph:
        handle = tf.raw_ops.VarHandleOp(
            dtype=variable.dtype,
            shape=variable.shape,
            shared_name=variable.name,
            name=variable.name,
        )
        with graph.colocate_with(handle.op):
            with tf.name_scope(f"{variable.initializer}/value/"):
                value = _initial_tensor(variable)
            tf.raw_ops.AssignVariableOp(resource=handle, value=value, name=variable.initializer)
    nodes = graph.as_graph_def().node
    return [node for node in nodes if node.name != variable.name]


def _initial_tensor(variable: Variable) -> tf.Tensor:
    value, shape, dtype = variable.initial_value, variable.shape, variable.dtype
    if isinstance(value, Kept):
        return tf.constant(value.array, dtype)
    if isinstance(value, Constant):
        # A shape given as a list would leave a stray constant, colocated with the variable.
        return tf.fill(tf.constant(shape, tf.int32), tf.constant(value.number, dtype))
    seed = (zlib.crc32(variable.name.encode()) & 0x7FFFFFFF, 0)
    if isinstance(value, Normal):
        numbers = tf.random.stateless_normal(shape, seed, value.mean, value.stddev)
    elif dtype.is_integer:
        # Stateless draws know four integer types; an int64 holds the numbers of all smaller.
        numbers = tf.random.stateless_uniform(shape, seed, value.low, value.high, tf.int64)
    else:
        numbers = tf.random.stateless_uniform(shape, seed, value.low, value.high)
    return tf.cast(numbers, dtype)


def _is_float(dtype: np.dtype[Any]) -> bool:
    # bfloat16 and the 8-bit floats are not NumPy's own: TensorFlow knows them.
    return bool(tf.as_dtype(dtype).is_floating)
