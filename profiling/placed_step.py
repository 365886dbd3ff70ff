"""A step that is placed and open: every node on its device, the variables initialised.

Devices are set on the nodes by name, never through scopes or functions of TensorFlow, which
it is free to ignore. And it overrules even those without a word: an op that touches a
variable goes where the variable is. So what the workers ran is read back and compared.

Importing a graph into TensorFlow takes longer than a step of it. So it is imported once, and
only the devices of its nodes change from one placement to the next. A session copies the graph
when it first runs.
"""

import concurrent.futures
import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import config_pb2

from placer.errors import WorkerError
from placer.statistics import has_settled
from profiling.cluster import Cluster
from profiling.step import CapturedStep

_LOOK_S = 0.5
_GRACE_S = 5.0


class ImportedStep:
    """A step imported into TensorFlow, to be opened on one placement after another.

    What initialises a variable runs on the device of the variable's handle, with everything
    it needs, so that no initial value travels.

    Args:
        step: The step.

    Attributes:
        step: As given.
        graph: Of TensorFlow; its nodes are where the last placement put them.
    """

    def __init__(self, step: CapturedStep) -> None:
        self.step = step
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf.graph_util.import_graph_def(step.graph_def, name="")
        owner_of_node = _owners(step)
        self._owners = [(op, owner_of_node.get(op.name, 0)) for op in self.graph.get_operations()]

    def place(self, device_of_op: Sequence[str]) -> None:
        """Set the device of every node, for the session that is opened next.

        No other may be open meanwhile: TensorFlow takes a change for a mistake then, and says so.

        Args:
            device_of_op: TensorFlow's name of the device of each op of ``step.op_graph``.
        """
        for op, owner in self._owners:
            # Setting it costs several times as much as reading it.
            if op.device != device_of_op[owner]:
                op._set_device_from_string(device_of_op[owner])  # the only way there is


class PlacedStep:
    """A step whose nodes carry devices, open in a session with its variables initialised.

    Args:
        step: The step; an imported one opens much faster.
        device_of_op: TensorFlow's name of the device of each op of ``step.op_graph``.
        cluster: The workers that run it.
        timeout_s: Limit on the initialisation and on every single step.

    Attributes:
        loss: Of the last step.
        times_s: Seconds of each step so far.
        timeout_s: Limit on the steps to come.

    Raises:
        tensorflow.errors.OpError: If TensorFlow cannot place or initialise it.
    """

    def __init__(
        self,
        step: CapturedStep | ImportedStep,
        device_of_op: Sequence[str],
        cluster: Cluster,
        *,
        timeout_s: float,
    ) -> None:
        imported = step if isinstance(step, ImportedStep) else ImportedStep(step)
        graph, captured = imported.graph, imported.step
        self.loss = math.nan
        self.times_s: list[float] = []
        self.timeout_s = timeout_s
        names = (op.name for op in captured.op_graph.ops)
        self._requested = dict(zip(names, device_of_op, strict=True))
        self._cluster = cluster
        self._caller = concurrent.futures.ThreadPoolExecutor(max_workers=1)
        self._fetches = [*captured.fetches, *map(graph.get_operation_by_name, captured.targets)]
        imported.place(device_of_op)
        self._session = cluster.session(graph, timeout_s=timeout_s)
        try:
            # Without initialisers too: this call is the one that copies the graph.
            self._call([graph.get_operation_by_name(name) for name in captured.initializers])
        except tf.errors.OpError:
            self.close()
            raise

    def run(
        self,
        metadata: config_pb2.RunMetadata | None = None,
        *,
        feed: Mapping[str, npt.NDArray[np.generic]] | None = None,
    ) -> float:
        """Run one step; return its wall-clock seconds.

        Args:
            metadata: Filled with the full trace and the graphs of the workers, which makes
                the step slower; a plain step if None.
            feed: Values that replace tensors of the graph in this step, by tensor name. Their
                way to the workers counts as part of the step.

        Raises:
            ArithmeticError: If the loss is not finite.
            tensorflow.errors.OpError: If the step fails or exceeds its limit.
        """
        options = config_pb2.RunOptions()
        if metadata is not None:
            options.trace_level = config_pb2.RunOptions.FULL_TRACE
            options.output_partition_graphs = True
        return self._step(options, metadata, feed)

    def run_checked(self) -> float:
        """Run one step and compare where its ops ran with where they were placed.

        Returns:
            Wall-clock seconds of the step, somewhat more than without the check.

        Raises:
            WorkerError: If an op was elsewhere, or the workers ran none of them.
            ArithmeticError: If the loss is not finite.
            tensorflow.errors.OpError: If the step fails or exceeds its limit.
        """
        metadata = config_pb2.RunMetadata()
        # A trace would name the devices too, but takes several times as long as the step.
        options = config_pb2.RunOptions(output_partition_graphs=True)
        elapsed_s = self._step(options, metadata)
        check_devices(self._requested, metadata.partition_graphs)
        return elapsed_s

    def warm_up(self, max_steps: int) -> None:
        """Run steps until times settle, or ``max_steps`` have run since the opening."""
        while len(self.times_s) < max_steps and not has_settled(self.times_s):
            self.run()

    def close(self) -> None:
        """Close the session and free its variables, whether or not its workers still live.

        A worker that is silent is not waited for: its part ends when it is replaced.
        """
        closed = self._caller.submit(self._session.close)
        self._caller.shutdown(wait=False)
        concurrent.futures.wait([closed], timeout=_GRACE_S)

    def _step(
        self,
        options: config_pb2.RunOptions,
        metadata: config_pb2.RunMetadata | None,
        feed: Mapping[str, npt.NDArray[np.generic]] | None = None,
    ) -> float:
        values, elapsed_s = self._call(self._fetches, options, metadata, feed)
        self.loss = float(np.mean(values[0]))
        if not math.isfinite(self.loss):
            raise FloatingPointError(f"the loss became {self.loss}")
        self.times_s.append(elapsed_s)
        return elapsed_s

    def _call(
        self,
        fetches: Sequence[Any],
        options: config_pb2.RunOptions | None = None,
        metadata: config_pb2.RunMetadata | None = None,
        feed: Mapping[str, npt.NDArray[np.generic]] | None = None,
    ) -> tuple[Any, float]:
        """Run the fetches in a thread, so that the end of a worker is noticed at once.

        A session retries in vain, up to its time limit, when the first worker is gone, and
        waits for ever when that one is alive but stopped. The thread comes free when the
        worker is replaced.
        """
        limited = config_pb2.RunOptions(timeout_in_ms=math.ceil(self.timeout_s * 1e3))
        if options is not None:
            limited.MergeFrom(options)

        def call() -> tuple[Any, float]:
            start_s = time.perf_counter()
            values = self._session.run(fetches, feed, options=limited, run_metadata=metadata)
            return values, time.perf_counter() - start_s

        future = self._caller.submit(call)
        deadline_s = time.monotonic() + self.timeout_s + _GRACE_S
        while concurrent.futures.wait([future], timeout=_LOOK_S).not_done:
            if lost := self._cluster.lost_workers():
                names = ", ".join(map(str, lost))
                raise tf.errors.UnavailableError(None, None, f"workers were lost: {names}")
            if time.monotonic() > deadline_s:
                raise tf.errors.DeadlineExceededError(None, None, "the first worker is silent")
        return future.result()


def _owners(step: CapturedStep) -> dict[str, int]:
    """Return the op of the step, as an index, that each node shares its device with.

    Nodes that belong neither to the step nor to what initialises its variables are left out.
    """
    owner_of_node = {op.name: index for index, op in enumerate(step.op_graph.ops)}
    inputs_of_node = {node.name: node.input for node in step.graph_def.node}
    for initializer in step.initializers:
        owner = owner_of_node.get(_node_name(inputs_of_node[initializer][0]), 0)
        waiting = [initializer]
        while waiting:
            name = waiting.pop()
            if name not in owner_of_node:
                owner_of_node[name] = owner
                waiting += map(_node_name, inputs_of_node[name])
    return owner_of_node


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
