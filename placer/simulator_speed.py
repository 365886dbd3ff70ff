"""How many placements a second the simulator does.

Three kinds of placements: all ops on one device, every group on a permitted device of its own
choice, as a search begins, and every op on one, which cuts about as many edges as can be. The
kinds take turns, on one thread and on all, so that a machine that gets slower hits all alike.

Array shapes: B placements, N ops, G groups.
"""

import dataclasses
import statistics
import time
from collections.abc import Mapping

import numba
import numpy as np

from placer.devices import REFERENCE_TYPE, DeviceTopology
from placer.errors import InvalidValueError
from placer.graph import Op, OpGraph, Tensor
from placer.grouping import Grouping
from placer.heuristics import single_device
from placer.heuristics.permitted import accelerators, random_permitted
from placer.policy import Actions
from placer.profile import OpCosts, Profile, Provenance
from placer.simulator import Simulator

KINDS = ("one_device", "groups", "ops")
"""Names of the kinds of placements."""

_OPS_A_BATCH = 2_000_000
_MOST_A_BATCH = 4000
_LAYERS, _TIMES = 10, 500
_TENSOR_BYTES = 1_000_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast one kind of placements is simulated.

    Attributes:
        kind: One of ``KINDS``.
        num_threads: Threads that simulate.
        placements_per_s: Median over rounds.
        least_per_s: The slowest round.
        most_per_s: The fastest round.
    """

    kind: str
    num_threads: int
    placements_per_s: float
    least_per_s: float
    most_per_s: float


def measure_speed(
    profile: Profile, grouping: Grouping, *, num_rounds: int = 5, seed: int = 0
) -> list[Speed]:
    """Simulate batches of each kind on one thread and on all; return the rates.

    A batch is of 4,000 placements, or fewer of a large graph, so that it has two million ops.

    Args:
        profile: What is placed.
        grouping: Its groups.
        num_rounds: Batches of each kind for each number of threads.
        seed: Of the placements.

    Raises:
        InvalidValueError: If ``num_rounds`` is not positive.
    """
    if num_rounds < 1:
        raise InvalidValueError(f"num_rounds must be at least 1, got {num_rounds}")
    batches = _batches(profile, grouping, seed)
    simulator = Simulator(profile)
    simulator.run(batches["groups"][:1])  # compiles
    cases = [(kind, threads) for threads in thread_counts() for kind in KINDS]
    rates: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    for _ in range(num_rounds):
        for kind, threads in cases:
            started_s = time.perf_counter()
            simulator.run(batches[kind], max_threads=threads)
            elapsed_s = time.perf_counter() - started_s
            rates[kind, threads].append(len(batches[kind]) / elapsed_s)
    return [
        Speed(
            kind=kind,
            num_threads=threads,
            placements_per_s=statistics.median(found),
            least_per_s=min(found),
            most_per_s=max(found),
        )
        for (kind, threads), found in rates.items()
    ]


def thread_counts() -> list[int]:
    """Return one, and as many threads as the simulator takes by default, if that is more."""
    return sorted({1, int(numba.config.NUMBA_NUM_THREADS)})


def training_step_of_10000_ops(topology: DeviceTopology) -> Profile:
    """Return a generated step of 10,000 ops in 250 groups on equal devices.

    It is an unrolled recurrent network of 10 layers and 500 time steps, a forward and a backward
    op each: a forward op feeds the next layer, the next time and its own backward op, and the
    backward ops mirror that. A layer's ops of twenty time steps are colocated.
    """
    num_forward = _LAYERS * _TIMES
    tensors = []
    for layer, step in np.ndindex(_LAYERS, _TIMES):
        op = layer * _TIMES + step
        later = [op + _TIMES] * (layer + 1 < _LAYERS) + [op + 1] * (step + 1 < _TIMES)
        mirror = 2 * num_forward - 1 - op
        tensors.append(Tensor(op, (*sorted(later), mirror), _TENSOR_BYTES))
        tensors += [Tensor(2 * num_forward - 1 - one, (mirror,), _TENSOR_BYTES) for one in later]
    cells = [*range(num_forward), *reversed(range(num_forward))]
    ops = tuple(
        Op(f"op{number}", "Cell", colocation=f"{cell // _TIMES}/{cell % _TIMES // 20}")
        for number, cell in enumerate(cells)
    )
    times_s = 1e-4 * np.random.default_rng(0).lognormal(size=(len(ops), 1))
    costs = OpCosts(
        (REFERENCE_TYPE,),
        times_s,
        np.zeros((len(ops), 1), dtype=np.bool_),
        np.zeros(len(ops), dtype=np.int64),
    )
    return Profile(OpGraph(ops, tuple(tensors)), costs, topology, Provenance(method="generated"))


def _batches(profile: Profile, grouping: Grouping, seed: int) -> Mapping[str, Actions]:
    """Return placements of each kind, ``[B, N]``."""
    count = max(1, min(_MOST_A_BATCH, _OPS_A_BATCH // profile.graph.num_ops))
    rng = np.random.default_rng(seed)
    of_groups = random_permitted(grouping.allowed(profile), rng, count)
    first = single_device(profile, grouping, int(accelerators(profile.topology)[0]))
    return {
        "one_device": np.tile(first[grouping.group_of_op], (count, 1)),
        "groups": of_groups[:, grouping.group_of_op],
        "ops": random_permitted(profile.allowed, rng, count),
    }
