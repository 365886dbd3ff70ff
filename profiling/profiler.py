"""From a source and a topology to a profile: the profile stage without its tracking.

Three ways lead to op times, and the profile says which was taken:

* a graph file brings its own times;
* on this machine's devices, and on equal devices without a description, ops are traced; the
  links between this machine's devices are then calibrated with a few measured placements;
* on devices that are described, TensorFlow's cost model estimates.
"""

import dataclasses
import logging
from pathlib import Path

from placer.config import LOCAL, ProfileSettings
from placer.errors import InfeasibleError
from placer.files import load_graph_file, load_topology
from placer.profile import Profile
from profiling.calibration import calibrated, measure_for_calibration
from profiling.cluster import Cluster, LocalCluster, open_cluster
from profiling.estimate import estimate_costs
from profiling.links import local_topology
from profiling.step import CapturedStep
from profiling.trace import trace_costs
from profiling.workloads import capture_workload

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ProfiledGraph:
    """A profile and, where the graph came from a program, the step that can run.

    Attributes:
        profile: Graph, costs, topology, provenance.
        step: None for a graph read from a file.
    """

    profile: Profile
    step: CapturedStep | None


def profile_source(settings: ProfileSettings) -> ProfiledGraph:
    """Capture or read the graph, and find what its ops cost on the topology.

    Raises:
        PlacerError: If the source, the topology or their combination is not usable; the
            message is one line.
    """
    if settings.graph is not None:
        return _from_file(settings.graph, settings.topology)
    described = settings.topology not in (None, LOCAL)
    topology = load_topology(str(settings.topology)) if described else None
    step = capture_workload(settings.workload, settings.size, **settings.sizes)
    if topology is not None and not topology.is_reference:
        costs, provenance = estimate_costs(step, topology)
        return ProfiledGraph(Profile(step.op_graph, costs, topology, provenance), step)
    with open_cluster(settings.cluster) as cluster:
        local = local_topology(cluster)
        costs, provenance = trace_costs(step, local, cluster, steps=settings.trace_steps)
        profile = Profile(step.op_graph, costs, topology or local, provenance)
        if topology is None and settings.calibration_placements:
            profile = _calibrated(step, profile, cluster, settings.calibration_placements)
    return ProfiledGraph(profile, step)


def _calibrated(step: CapturedStep, profile: Profile, cluster: Cluster, count: int) -> Profile:
    """Return the profile with calibrated links, or as it is where there is nothing to fit."""
    if profile.topology.num_devices < 2:
        return profile
    try:
        run = measure_for_calibration(step, profile, cluster, count)
    except InfeasibleError as error:
        _log.warning("links are left as they were measured alone: %s", error)
        return profile
    return calibrated(profile, run)


def _from_file(path: Path, topology_name: str | None) -> ProfiledGraph:
    source = load_graph_file(path)
    topology = source.topology
    if topology_name not in (None, LOCAL):
        topology = load_topology(topology_name)
    elif topology is None or topology_name == LOCAL:
        with LocalCluster() as cluster:
            topology = local_topology(cluster)
    return ProfiledGraph(source.profile(topology), None)
