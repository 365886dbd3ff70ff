"""The search command: one method on one graph, in the simulation, without tracking and Prefect."""

import importlib.metadata
import time
from pathlib import Path
from typing import Any

from flows.console import OUT
from placer.bounds import lower_bound
from placer.errors import InfeasibleError
from placer.files import (
    load_graph_file,
    load_topology,
    placement_document,
    save_placement,
    write_json,
)
from placer.group_ops import GroupingConfig, group_ops
from placer.grouping import Grouping
from placer.placement import Placement
from placer.profile import Profile
from placer.report import bound_sentence, seconds
from placer.search.driver import SearchResult
from placer.search.methods import search
from placer.simulator import SimulatedEnvironment, Simulator


def search_files(  # noqa: PLR0913 - a graph, a method, and two files
    graph_file: Path,
    topology_name: str | None,
    *,
    method: str,
    num_trials: int,
    seed: int,
    max_groups: int,
    placement_file: Path | None,
    json_file: Path | None,
) -> None:
    """Search for a placement of a graph file; print the best and write what is asked for.

    Raises:
        PlacerError: If a file is not usable, there is no such method, or no placement
            that was tried fits; the message is one line.
    """
    topology = None if topology_name is None else load_topology(topology_name)
    profile = load_graph_file(graph_file).profile(topology)
    grouping = group_ops(profile, GroupingConfig(max_groups=max_groups)).grouping
    started_s = time.monotonic()
    environment = SimulatedEnvironment(Simulator(profile))
    found = search(method, profile, grouping, environment, num_trials=num_trials, seed=seed)
    elapsed_s = time.monotonic() - started_s
    document = _document(profile, grouping, found)
    bound = lower_bound(profile, grouping)
    gap = bound.gap(found.best_step_time_s)
    document |= {"lower_bound_s": bound.seconds, "lower_bound": bound.name, "gap": gap}
    document |= {"method": method, "seed": seed, "num_trials": num_trials, "search_s": elapsed_s}
    if json_file is not None:
        write_json(document, json_file)
    if found.device_of_group is None:
        raise InfeasibleError(
            f"none of {found.num_evaluations} placements tried by {method!r} fits the devices'"
            " memory; try more --trials, or a topology with more memory"
        )
    if placement_file is not None:
        placement = Placement.from_groups(grouping, found.device_of_group)
        save_placement(placement, profile.graph, profile.topology, placement_file)
    OUT.print(
        f"makespan {seconds(found.best_step_time_s)}, found by {method} in"
        f" {found.num_evaluations:,} evaluations of {grouping.num_groups} groups"
        f" ({elapsed_s:.1f} s); {bound_sentence(bound, gap)}",
        soft_wrap=True,
    )


def _document(profile: Profile, grouping: Grouping, found: SearchResult) -> dict[str, Any]:
    placement = None
    if found.device_of_group is not None:
        placed = Placement.from_groups(grouping, found.device_of_group)
        placement = placement_document(placed, profile.graph, profile.topology)
    return {
        "version": 1,
        "kind": "placer.search",
        "best_makespan_s": found.best_step_time_s,
        "num_evaluations": found.num_evaluations,
        "num_groups": grouping.num_groups,
        "device_of_group": found.device_of_group,
        "placement": placement,
        "trajectory": found.trajectory_s,
        "graph": profile.graph.fingerprint,
        "topology": profile.topology.fingerprint,
        "versions": {"placer": importlib.metadata.version("placer")},
    }
