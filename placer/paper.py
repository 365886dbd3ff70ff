"""Figures of Mirhoseini et al. (2017) to hold ours against: tables 1 and 2.

They were noted from the paper and not compared with its text again. Table 2 is of a Haswell
host with K80 GPUs; the batch of Inception-V3 is not certain.
"""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PaperRow:
    """What the paper reports of one model.

    Attributes:
        num_ops: Ops of the graph (table 1).
        num_groups: Groups they were merged into (table 1).
        cpu_s: Step time on the host alone (table 2).
        gpu_s: Step time on one GPU; None where it ran out of memory.
        methods_s: Step times by number of GPUs, then by method.
    """

    num_ops: int
    num_groups: int
    cpu_s: float
    gpu_s: float | None
    methods_s: Mapping[int, Mapping[str, float]]


def _methods(scotch: float, mincut: float, expert: float, learned: float) -> dict[str, float]:
    return {"scotch": scotch, "metis": mincut, "expert": expert, "policy": learned}


PAPER: Mapping[str, PaperRow] = {
    "rnnlm": PaperRow(
        num_ops=9_021,
        num_groups=188,
        cpu_s=6.89,
        gpu_s=1.57,
        methods_s={2: _methods(13.43, 11.94, 3.81, 1.57), 4: _methods(11.52, 10.44, 4.46, 1.57)},
    ),
    "nmt": PaperRow(
        num_ops=22_097,
        num_groups=280,
        cpu_s=10.72,
        gpu_s=None,
        methods_s={2: _methods(14.19, 11.54, 4.99, 4.04), 4: _methods(11.23, 11.78, 4.73, 3.92)},
    ),
    "inception_v3": PaperRow(
        num_ops=31_180,
        num_groups=83,
        cpu_s=26.21,
        gpu_s=4.60,
        methods_s={2: _methods(25.24, 22.88, 11.22, 4.60), 4: _methods(23.41, 24.52, 10.65, 3.85)},
    ),
}
"""By the name of the built-in workload."""

PAPER_GPUS: Mapping[str, int] = {"haswell-2xk80": 2, "haswell-4xk80": 4}
"""The packaged topologies that describe the paper's machines, and their GPUs."""


def paper_step_times_s(graph_name: str, topology_name: str) -> dict[str, float | None]:
    """Return table 2's step times of one of the paper's own cells, by Placer's method names.

    Args:
        graph_name: Of a built-in workload at paper size, such as ``rnnlm-paper``.
        topology_name: Of a packaged topology.

    Returns:
        One GPU is ``single``, None if it ran out of memory; empty for all other cells.
    """
    workload, _, size = graph_name.partition("-")
    row, num_gpus = PAPER.get(workload), PAPER_GPUS.get(topology_name)
    if row is None or num_gpus is None or size != "paper":
        return {}
    return {"single": row.gpu_s, **row.methods_s[num_gpus]}
