"""A captured training step: the graph that runs, and how to run it.

The graph definition is flat (no function calls), already rewritten by TensorFlow's own
optimiser, carries no devices, and has no placeholders: inputs live in variables like the
model's own, so that a timed step feeds nothing. It is run with rewriting switched off, so
that what is simulated is what runs.
"""

import dataclasses

from tensorflow.core.framework import graph_pb2

from placer.graph import OpGraph


@dataclasses.dataclass(frozen=True, eq=False)
class CapturedStep:
    """One training step as a graph that a v1 session can run.

    Attributes:
        name: What it is, such as ``"rnnlm-small"``.
        graph_def: All nodes: those of the step, and those that initialise its variables.
        op_graph: The ops of the step alone, named as in ``graph_def``.
        fetches: Tensor names to fetch for one step; the loss comes first.
        targets: Op names to run for one step beside the fetches: the updates.
        initializers: Op names to run once, after the import. Each assigns a variable, and
            runs on the device of that variable's handle.
        num_captured_ops: Nodes in the graph as traced, before TensorFlow's optimiser.
    """

    name: str
    graph_def: graph_pb2.GraphDef
    op_graph: OpGraph
    fetches: tuple[str, ...]
    targets: tuple[str, ...]
    initializers: tuple[str, ...]
    num_captured_ops: int
