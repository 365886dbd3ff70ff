"""Which kinds of device have a kernel for an op: asked of TensorFlow's own registry.

TensorFlow's Linux wheel registers its CUDA kernels even where no GPU is present, so the
answer holds for devices that are only described. A kernel that keeps its arguments in host
memory (most kernels for int32) still is a kernel of its device.
"""

import functools

from tensorflow.core.framework import kernel_def_pb2, node_def_pb2
from tensorflow.python.framework import kernels, op_def_registry

from placer.graph import DEVICE_KINDS

# Kernels registered for DEFAULT serve every device that has none of its own.
_ANY_DEVICE = "DEFAULT"


def device_kinds(node: node_def_pb2.NodeDef) -> tuple[str, ...]:
    """Return the kinds of device that can run a node, in the order of ``DEVICE_KINDS``.

    An op without any kernel, such as a function call, is run by TensorFlow's runtime and may
    go anywhere. A variable must also be assigned where it lives, so its kinds are those that
    can do both (there is no int32 variable on a GPU, for one).
    """
    types = _type_attrs(node)
    kinds = _kinds_of(node.op, types)
    if node.op == "VarHandleOp":
        assignable = _kinds_of("AssignVariableOp", types)
        kinds = tuple(kind for kind in kinds if kind in assignable)
    return kinds


def _type_attrs(node: node_def_pb2.NodeDef) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the dtypes that an op's kernels are chosen by, defaults included."""
    types = {}
    definition = op_def_registry.get(node.op)
    for attr in definition.attr if definition is not None else ():
        value = node.attr.get(attr.name, attr.default_value)
        if attr.type == "type":
            types[attr.name] = (value.type,)
        elif attr.type == "list(type)":
            types[attr.name] = tuple(value.list.type)
    return tuple(sorted(types.items()))


@functools.cache
def _kinds_of(op_type: str, type_attrs: tuple[tuple[str, tuple[int, ...]], ...]) -> tuple[str, ...]:
    registered = [
        kernel
        for kernel in kernels.get_registered_kernels_for_op(op_type).kernel
        if not kernel.label
    ]
    if not registered:
        return DEVICE_KINDS
    types = dict(type_attrs)
    found = {kernel.device_type for kernel in registered if _accepts(kernel, types)}
    return tuple(kind for kind in DEVICE_KINDS if found & {kind, _ANY_DEVICE})


def _accepts(kernel: kernel_def_pb2.KernelDef, types: dict[str, tuple[int, ...]]) -> bool:
    return all(
        set(types.get(constraint.name, ())) <= set(constraint.allowed_values.list.type)
        for constraint in kernel.constraint
    )
