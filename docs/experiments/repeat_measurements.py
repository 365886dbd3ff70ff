"""How well one measurement repeats, and what it costs beyond its own steps.

Two placements of each workload (small), all ops on the first device and the graph cut in half
in topological order, are measured again and again, each time from a closed session: the graph
is placed, a session opened, variables initialised, devices compared, steps run until times
settle, then some are timed. How far the medians of the repetitions lie from their own median
is compared with ±3 %, and what opening took with two steps.

    python docs/experiments/repeat_measurements.py --out results

writes ``repeat_measurements.json`` into the folder and prints a table.
"""

import argparse
import datetime
import importlib.metadata
import platform
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from flows.process import prepare, quiet_start
from placer.files import write_json
from placer.graph import IntArray, OpGraph
from placer.statistics import median_interval

prepare()
with quiet_start():
    from profiling.cluster import LocalCluster
    from profiling.placed_step import ImportedStep, PlacedStep
    from profiling.workloads import WORKLOADS, capture_workload

_TIMEOUT_S = 120.0
_MOST_WARMUP_STEPS = 8
_TOLERANCE = 0.03
_OUT = Console(highlight=False, soft_wrap=True)


def main() -> None:
    """Measure, write the file, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(), help="folder to write into")
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--timed-steps", type=int, default=8)
    arguments = parser.parse_args()
    rows = [
        row
        for workload in WORKLOADS
        for row in measure(workload, arguments.repetitions, arguments.timed_steps)
    ]
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_json(
        {
            "host": platform.node(),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "versions": {
                name: importlib.metadata.version(name) for name in ("placer", "tensorflow")
            },
            "rows": rows,
        },
        arguments.out / "repeat_measurements.json",
    )
    show(rows)


def measure(workload: str, repetitions: int, timed_steps: int) -> Iterator[dict[str, Any]]:
    """Yield one row for each repetition of each placement; the placements take turns."""
    step = capture_workload(workload, "small")
    placements = {
        "one device": np.zeros(step.op_graph.num_ops, dtype=np.int64),
        "cut in half": cut_in_half(step.op_graph),
    }
    with LocalCluster() as cluster:
        imported = ImportedStep(step)
        # The first opening of all imports the graph into the workers; it is not a repetition.
        _measured_once(imported, placements["one device"], cluster, timed_steps)
        for repetition in range(repetitions):
            for name, device_of_op in placements.items():
                row = _measured_once(imported, device_of_op, cluster, timed_steps)
                yield {"workload": workload, "placement": name, "repetition": repetition, **row}


def cut_in_half(graph: OpGraph) -> IntArray:
    """Return device 1 for the second half of the ops, ``[N]``; colocated ops go with the first."""
    index = np.asarray(graph.topological_index)
    device_of_op: IntArray = (index >= graph.num_ops // 2).astype(np.int64)
    for ops in graph.colocations:
        device_of_op[list(ops)] = device_of_op[list(ops)].min()
    return device_of_op


def _measured_once(
    imported: ImportedStep,
    device_of_op: np.ndarray,
    cluster: LocalCluster,
    timed_steps: int,
) -> dict[str, Any]:
    names = [cluster.devices[device] for device in device_of_op.tolist()]
    start_s = time.perf_counter()
    placed = PlacedStep(imported, names, cluster, timeout_s=_TIMEOUT_S)
    try:
        opened_s = time.perf_counter()
        placed.run_checked()
        checked_s = time.perf_counter()
        placed.warm_up(_MOST_WARMUP_STEPS)
        num_warmup = len(placed.times_s)
        samples_s = [placed.run() for _ in range(timed_steps)]
    finally:
        closing_s = time.perf_counter()
        placed.close()
    end_s = time.perf_counter()
    return {
        "open_s": opened_s - start_s,
        "first_step_s": checked_s - opened_s,
        "close_s": end_s - closing_s,
        "num_warmup_steps": num_warmup,
        "median_s": statistics.median(samples_s),
        "samples_s": samples_s,
        # The first step is a step too: only what it takes beyond one is overhead.
        "overhead_s": (checked_s - start_s) + (end_s - closing_s) - statistics.median(samples_s),
    }


def show(rows: list[dict[str, Any]]) -> None:
    """Print one line for each placement of each workload."""
    _OUT.print(
        "| workload | placement | median of medians | repetitions within 3 % | furthest"
        " | interval of one (95 %) | overhead in steps | of it opening | warm-up steps |"
    )
    _OUT.print("|---|---|---|---|---|---|---|---|---|")
    for workload, placement in dict.fromkeys((row["workload"], row["placement"]) for row in rows):
        own = [r for r in rows if (r["workload"], r["placement"]) == (workload, placement)]
        medians = np.array([row["median_s"] for row in own])
        middle = float(np.median(medians))
        off = np.abs(medians / middle - 1)
        intervals = [median_interval(row["samples_s"]) for row in own]
        half_width = statistics.median((one.high - one.low) / 2 for one in intervals) / middle
        overhead = statistics.median(row["overhead_s"] / row["median_s"] for row in own)
        opening = statistics.median(row["open_s"] / row["median_s"] for row in own)
        warmup = statistics.median(row["num_warmup_steps"] for row in own)
        _OUT.print(
            f"| {workload} | {placement} | {middle * 1e3:.0f} ms"
            f" | {int((off <= _TOLERANCE).sum())} of {len(own)} | {off.max():.1%}"
            f" | ±{half_width:.1%} | {overhead:.1f} | {opening:.1f} | {warmup:.0f} |"
        )


if __name__ == "__main__":
    main()
