"""The simulate command: one step of a placed graph, without tracking and without Prefect."""

from pathlib import Path
from typing import Any

from rich.table import Table

from flows.console import OUT, warn
from placer.environment import Outcome
from placer.files import load_graph_file, load_placement, load_topology, write_json
from placer.graph import OpGraph
from placer.placement import Placement
from placer.profile import Profile
from placer.report import gibibytes, seconds
from placer.simulator import Schedule, out_of_memory_detail, simulate


def simulate_files(
    graph_file: Path, topology_name: str | None, placement_file: Path, *, json_file: Path | None
) -> None:
    """Simulate a placement read from files; print the result and write it if asked to.

    Raises:
        PlacerError: If a file is not usable; the message is one line.
    """
    topology = None if topology_name is None else load_topology(topology_name)
    profile = load_graph_file(graph_file).profile(topology)
    placement = load_placement(placement_file, profile.graph, profile.topology)
    for name in divided_colocations(profile.graph, placement):
        warn(f"the placement divides the ops colocated as {name!r}; TensorFlow would refuse it")
    document = _document(profile, simulate(profile, placement))
    if json_file is not None:
        write_json(document, json_file)
    OUT.print(f"makespan {seconds(document['makespan_s'])}, outcome {document['outcome']}")
    if document["detail"]:
        OUT.print(document["detail"], soft_wrap=True)
    OUT.print(_table(document))


def divided_colocations(graph: OpGraph, placement: Placement) -> list[str]:
    """Return the colocation keys whose ops are placed on more than one device."""
    return [
        graph.ops[ops[0]].colocation
        for ops in graph.colocations
        if len(set(placement.device_of_op[list(ops)].tolist())) > 1
    ]


def _document(profile: Profile, schedule: Schedule) -> dict[str, Any]:
    topology = profile.topology
    names = [device.name for device in topology.devices]
    full = schedule.out_of_memory_device
    peaks = schedule.peak_memory_bytes
    return {
        "makespan_s": schedule.makespan_s,
        "outcome": str(Outcome.OK if full is None else Outcome.OUT_OF_MEMORY),
        "detail": "" if full is None else out_of_memory_detail(topology.devices[full], peaks[full]),
        "devices": names,
        "busy_s": dict(zip(names, schedule.busy_s, strict=True)),
        "peak_memory_bytes": dict(zip(names, peaks, strict=True)),
        "num_transfers": len(schedule.transfers),
        "graph": profile.graph.fingerprint,
        "topology": topology.fingerprint,
    }


def _table(document: dict[str, Any]) -> Table:
    table = Table(header_style="bold")
    table.add_column("device")
    for heading in ("busy", "share of the step", "peak memory"):
        table.add_column(heading, justify="right")
    for name in document["devices"]:
        busy_s = document["busy_s"][name]
        share = busy_s / document["makespan_s"] if document["makespan_s"] else 0.0
        peak = gibibytes(document["peak_memory_bytes"][name])
        table.add_row(name, seconds(busy_s), f"{share:.1%}", peak)
    return table
