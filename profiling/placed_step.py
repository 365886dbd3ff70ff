"""A step that is placed and open: every node on its device, the variables initialised.

Devices are set on the nodes by name, never through scopes or functions of TensorFlow, which
it is free to ignore. And it overrules even those without a word: an op that touches a
variable goes where the variable is. So what the workers ran is read back and compared.
"""

import concurrent.futures
import contextlib
import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import config_pb2

from placer.errors import WorkerError
from profiling.cluster import LocalCluster
from profiling.step import CapturedStep

_SETTLED = 0.05
_LOOK_S = 0.5


class PlacedStep:
    """A step whose nodes carry devices, open in a session with its variables initialised.

    Args:
        step: The step.
        device_of_op: TensorFlow's name of the device of each op of ``step.op_graph``.
        cluster: The workers that run it.
        timeout_s: Limit on the initialisation and on every single step.

    Attributes:
        loss: Of the last step.

    Raises:
        tensorflow.errors.OpError: If TensorFlow cannot place or initialise it.
    """

    def __init__(
        self,
        step: CapturedStep,
        device_of_op: Sequence[str],
        cluster: LocalCluster,
        *,
        timeout_s: float,
    ) -> None:
        self.loss = math.nan
        self._cluster = cluster
        self._caller = concurrent.futures.ThreadPoolExecutor(max_workers=1)
        graph = tf.Graph()
        with graph.as_default():
            tf.graph_util.import_graph_def(place(step, device_of_op), name="")
        self._timeout_ms = math.ceil(timeout_s * 1e3)
        self._fetches = [*step.fetches, *map(graph.get_operation_by_name, step.targets)]
        self._session = cluster.session(graph, timeout_s=timeout_s)
        try:
            self._call([graph.get_operation_by_name(name) for name in step.initializers])
        except tf.errors.OpError:
            self.close()
            raise

    def run(self, metadata: config_pb2.RunMetadata | None = None) -> float:
        """Run one step; return its wall-clock seconds.

        Args:
            metadata: Filled with the full trace and the graphs of the workers, which makes
                the step slower; a plain step if None.

        Raises:
            ArithmeticError: If the loss is not finite.
            tensorflow.errors.OpError: If the step fails or exceeds its limit.
        """
        values, elapsed_s = self._call(self._fetches, metadata)
        self.loss = float(np.mean(values[0]))
        if not math.isfinite(self.loss):
            raise FloatingPointError(f"the loss became {self.loss}")
        return elapsed_s

    def _call(
        self, fetches: Sequence[Any], metadata: config_pb2.RunMetadata | None = None
    ) -> tuple[Any, float]:
        """Run the fetches in a thread, so that the end of a worker is noticed at once.

        A session retries in vain, up to its time limit, when the first worker is gone. The
        thread comes free when that worker is replaced.
        """
        options = config_pb2.RunOptions(timeout_in_ms=self._timeout_ms)
        if metadata is not None:
            options.trace_level = config_pb2.RunOptions.FULL_TRACE
            options.output_partition_graphs = True

        def call() -> tuple[Any, float]:
            start_s = time.perf_counter()
            values = self._session.run(fetches, options=options, run_metadata=metadata)
            return values, time.perf_counter() - start_s

        future = self._caller.submit(call)
        while concurrent.futures.wait([future], timeout=_LOOK_S).not_done:
            if lost := self._cluster.lost_workers():
                raise tf.errors.UnavailableError(None, None, f"workers were lost: {lost}")
        return future.result()

    def warm_up(self, max_steps: int) -> None:
        """Run steps until two in a row take the same time to within 5 %, or ``max_steps``."""
        last_s = math.inf
        for _ in range(max_steps):
            elapsed_s = self.run()
            if abs(elapsed_s - last_s) <= _SETTLED * elapsed_s:
                return
            last_s = elapsed_s

    def close(self) -> None:
        """Close the session and free its variables, whether or not its workers still live."""
        with contextlib.suppress(tf.errors.OpError):
            self._session.close()
        self._caller.shutdown(wait=False)


def place(step: CapturedStep, device_of_op: Sequence[str]) -> graph_pb2.GraphDef:
    """Return the step's graph with a device on every node.

    What initialises a variable runs on the device of the variable's handle, with everything
    it needs, so that no initial value travels.

    Args:
        step: The step.
        device_of_op: TensorFlow's name of the device of each op of ``step.op_graph``.
    """
    graph_def = graph_pb2.GraphDef()
    graph_def.CopyFrom(step.graph_def)
    names = (op.name for op in step.op_graph.ops)
    device_of_node = dict(zip(names, device_of_op, strict=True))
    node_of_name = {node.name: node for node in graph_def.node}
    for initializer in step.initializers:
        handle = _node_name(node_of_name[initializer].input[0])
        device = device_of_node.get(handle, device_of_op[0])
        waiting = [initializer]
        while waiting:
            name = waiting.pop()
            if name not in device_of_node:
                device_of_node[name] = device
                waiting += map(_node_name, node_of_name[name].input)
    for node in graph_def.node:
        node.device = device_of_node.get(node.name, device_of_op[0])
    return graph_def


def check_devices(requested: Mapping[str, str], partitions: Iterable[graph_pb2.GraphDef]) -> None:
    """Compare where ops were placed with where the workers had them.

    Args:
        requested: TensorFlow's device name of each op, by the op's name.
        partitions: The graphs that the workers ran.

    Raises:
        WorkerError: If an op was elsewhere, or the workers ran none of them.
    """
    actual = {node.name: node.device for partition in partitions for node in partition.node}
    if not requested.keys() & actual.keys():
        raise WorkerError("the workers did not say which ops they ran, so none could be checked")
    strays = [name for name, device in requested.items() if actual.get(name, device) != device]
    if strays:
        shown = ", ".join(
            f"{name!r} on {actual[name]} instead of {requested[name]}" for name in strays[:3]
        )
        raise WorkerError(f"{len(strays)} ops ran elsewhere than placed: {shown}")


def _node_name(input_name: str) -> str:
    """Return the node behind a node's input, such as ``a`` for ``a:1`` and for ``^a``."""
    return input_name.removeprefix("^").split(":")[0]


_STATUS = re.compile(r"^(\(\d+\) )?[A-Z_]{4,}: ")
_BOILERPLATE = re.compile(
    r"Graph execution error|Detected at node|File |Node:|From /job|\[\[|\d+ root error|\W*$"
)


def one_line(error: Exception) -> str:
    """Return the line of an error of TensorFlow that says what is wrong."""
    message = str(getattr(error, "message", error))
    lines = [_STATUS.sub("", line.strip()) for line in message.splitlines()]
    telling = [line for line in lines if not _BOILERPLATE.match(line)]
    return (telling or [type(error).__name__])[0][:300]
