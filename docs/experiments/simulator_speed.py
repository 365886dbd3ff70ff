"""How many placements a second the simulator does, of a graph file on equal devices.

    python docs/experiments/simulator_speed.py --graph graph.json --topology four.toml

Three kinds of placements, 4,000 each: all ops on one device, every group on a device of its own
choice, and every op on one, which cuts about as many edges as can be. The median of five
rounds, in which the kinds take turns, on as many threads as ``NUMBA_NUM_THREADS``.
"""

import argparse
import statistics
import time
from pathlib import Path

import numba
import numpy as np
from rich.console import Console

from placer.files import load_graph_file, load_topology
from placer.group_ops import group_ops
from placer.simulator import Simulator

_COUNT = 4000
_ROUNDS = 5
OUT = Console(soft_wrap=True, highlight=False, markup=False)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", type=Path, required=True, help="a profile or graph file (JSON)")
    parser.add_argument("--topology", required=True, help="a packaged name or a TOML file")
    arguments = parser.parse_args()
    topology = load_topology(arguments.topology)
    profile = load_graph_file(arguments.graph).profile(topology)
    grouping = group_ops(profile).grouping
    rng = np.random.default_rng(0)
    num_devices, num_ops = topology.num_devices, profile.graph.num_ops
    of_groups = rng.integers(num_devices, size=(_COUNT, grouping.num_groups), dtype=np.int32)
    batches = {
        "all on one device": np.zeros((_COUNT, num_ops), dtype=np.int32),
        "every group at random": of_groups[:, grouping.group_of_op],
        "every op at random": rng.integers(num_devices, size=(_COUNT, num_ops), dtype=np.int32),
    }
    simulator = Simulator(profile)
    simulator.run(batches["all on one device"][:2])
    rates: dict[str, list[float]] = {name: [] for name in batches}
    for _ in range(_ROUNDS):
        for name, batch in batches.items():
            started_s = time.perf_counter()
            simulator.run(batch)
            rates[name].append(len(batch) / (time.perf_counter() - started_s))
    OUT.print(f"{arguments.graph.stem}: {num_ops:,} ops, {numba.config.NUMBA_NUM_THREADS} threads")
    OUT.print("| placements | a second | slowest and fastest round |")
    OUT.print("|---|---|---|")
    for name, found in rates.items():
        OUT.print(
            f"| {name} | {statistics.median(found):,.0f} | {min(found):,.0f} to {max(found):,.0f} |"
        )


if __name__ == "__main__":
    main()
