"""From a TensorFlow training step to a graph that a v1 session can run, and its ops.

The way of a step:

1. It is traced, and what it captured and what it is given become variables of the graph.
2. TensorFlow's own optimiser rewrites the graph once, inlining its functions; rewriting is off
   from then on, so that what is simulated is what runs.
3. Each reader of a small constant gets its own copy, so that no constant travels.
4. What the loss and the updates need is kept, and initialisers are added.

Nothing of the step is run, and no variable needs to have a value.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from profiling.flattening import Input, flatten
from profiling.initial_values import initializer_nodes
from profiling.modules import ModuleRule
from profiling.op_graph import build_op_graph
from profiling.rewriting import copy_constants, needed, optimize
from profiling.step import CapturedStep

_LOGGER = logging.getLogger(__name__)


def capture(
    function: Callable[..., Any],
    inputs: Sequence[Input],
    *,
    name: str,
    module_of_op: ModuleRule | None = None,
) -> CapturedStep:
    """Return one training step as a graph with its own initialisers.

    Args:
        function: Does one whole step: forward, gradients, update. It returns the loss, alone
            or first. A Python callable, or a ``tf.function``; it is traced, not run. The
            variables it uses may be without a value.
        inputs: An example, or a description, of each of its arguments.
        name: What to call the step.
        module_of_op: Tells the module by an op's name; see ``profiling.modules``.

    Raises:
        InvalidValueError: If the first result is not a scalar float, or the function uses a
            resource that is no variable.
    """
    flat = flatten(function, inputs, name=name)
    num_captured_ops = len(flat.graph_def.node)
    num_captured_ops += sum(len(called.node_def) for called in flat.graph_def.library.function)
    optimized, updates = optimize(flat.graph_def, flat.loss, flat.updates)
    graph_def = needed(copy_constants(optimized), flat.loss, updates)
    op_graph = build_op_graph(graph_def, module_of_op or _no_module)
    used = [variable for variable in flat.variables if variable.name in op_graph.index_of_name]
    for variable in used:
        graph_def.node.extend(initializer_nodes(variable))
    _LOGGER.info(
        "%s: %d ops traced, %d kept, %d of them for CPUs alone",
        name,
        num_captured_ops,
        op_graph.num_ops,
        sum(op.device_kinds == ("CPU",) for op in op_graph.ops),
    )
    return CapturedStep(
        name=name,
        graph_def=graph_def,
        op_graph=op_graph,
        fetches=(flat.loss,),
        targets=updates,
        initializers=tuple(variable.initializer for variable in used),
        num_captured_ops=num_captured_ops,
    )


def _no_module(name: str) -> str:
    del name
    return ""
