"""Built-in workloads: five training steps, in two sizes each.

``rnnlm``, ``nmt`` and ``inception_v3`` are those of Mirhoseini et al. (2017), ``resnet50`` and
``transformer`` what placements are compared by since. ``small`` steps in about a second on one
core; ``paper`` is the published size and is captured without running it. A workload is one
module: its sizes, and a builder.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from placer.errors import UnknownNameError
from profiling.capture import capture
from profiling.step import CapturedStep
from profiling.workloads import inception_v3, nmt, resnet50, rnnlm, transformer
from profiling.workloads.training_step import TrainingStep


@dataclasses.dataclass(frozen=True)
class Workload:
    """A model that comes with Placer.

    Attributes:
        title: One line for people.
        sizes: Its sizes by their name; all are of one dataclass.
        build: Makes a training step of such sizes.
    """

    title: str
    sizes: Mapping[str, Any]
    build: Callable[[Any], TrainingStep]


WORKLOADS: Mapping[str, Workload] = {
    "rnnlm": Workload("LSTM language model", rnnlm.SIZES, rnnlm.build),
    "nmt": Workload("LSTM translation with attention", nmt.SIZES, nmt.build),
    "inception_v3": Workload(
        "Inception-V3 image classifier", inception_v3.SIZES, inception_v3.build
    ),
    "resnet50": Workload("ResNet-50 image classifier", resnet50.SIZES, resnet50.build),
    "transformer": Workload("Transformer translation", transformer.SIZES, transformer.build),
}
"""The built-in workloads by name."""


def capture_workload(name: str, size: str = "small", **sizes: int) -> CapturedStep:
    """Return the captured training step of a built-in workload.

    Args:
        name: A key of ``WORKLOADS``.
        size: ``"small"`` or ``"paper"``.
        **sizes: Single sizes that differ from those, such as ``batch_size=128``.

    Raises:
        UnknownNameError: If there is no such workload, size or field of its sizes.
        InvalidValueError: If a size is too small.
    """
    if name not in WORKLOADS:
        raise UnknownNameError("workload", name, WORKLOADS)
    workload = WORKLOADS[name]
    if size not in workload.sizes:
        raise UnknownNameError(f"size of workload {name!r}:", size, workload.sizes)
    config = workload.sizes[size]
    known = [field.name for field in dataclasses.fields(config)]
    for key in sizes:
        if key not in known:
            raise UnknownNameError(f"argument of workload {name!r}:", key, known)
    step = workload.build(dataclasses.replace(config, **sizes))
    differing = "".join(f",{key}={value}" for key, value in sorted(sizes.items()))
    return capture(
        tf.function(step.function, autograph=False),
        step.inputs,
        name=f"{name}-{size}{differing}",
        module_of_op=step.module_of_op,
    )
