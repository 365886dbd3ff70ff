"""What all stages share: their names, their files, the keys of their inputs, and reuse.

A stage's key is a fingerprint of everything its result depends on. A stage whose key has a
finished run is not run again: that run is the answer, whoever made it and when.
"""

import dataclasses
import importlib.metadata
import logging
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from placer.config import LOCAL, ProfileSettings, Settings
from placer.errors import InvalidValueError, MissingFileError
from placer.files import load_graph_file, load_grouping, load_topology
from placer.fingerprint import fingerprint
from placer.grouping import Grouping
from placer.mlflow_store import Store
from placer.profile import Profile
from placer.stage_run import StageRun
from placer.tracking_names import (
    GRAPH,
    GRAPH_FINGERPRINT,
    GROUPING_RUN,
    KEY,
    PROFILE_RUN,
    STAGE,
    TOPOLOGY,
    TOPOLOGY_FINGERPRINT,
    TRAINING_RUN,
)

PROFILE = "profile"
GROUP = "group"
TRAIN = "train"
EVALUATE = "evaluate"
FIDELITY = "fidelity"
BENCHMARK = "benchmark"
SEARCH = "search"
COMPARE = "compare"

PROFILE_FILE = "profile.json"
GROUPING_FILE = "grouping.json"
STEP_FOLDER = "step"
HOSTS_FILE = "hosts.toml"
EVALUATION_FILE = "evaluation.json"
PLACEMENT_FILE = "placement.json"
REPORT_FILE = "report.html"
FIDELITY_FILE = "fidelity.json"
BENCHMARK_FILE = "benchmark.json"
BENCHMARK_TABLE_FILE = "table.md"
SEARCHES_FIGURE = "best_so_far.png"
SEARCH_FILE = "search.json"

_log = logging.getLogger(__name__)


def profile_key(settings: ProfileSettings) -> str:
    """Return the key of a profile: the source's content, the devices, and the versions."""
    source = settings.model_dump_json(exclude={"graph", "topology", "cluster"})
    if settings.graph is not None:
        source = _content(settings.graph)
    topology = str(settings.topology)
    if settings.topology not in (None, LOCAL):
        topology = load_topology(topology).fingerprint
    host = f"{platform.node()} with {os.cpu_count()} cores"
    if settings.cluster is not None:
        host = _content(settings.cluster)
    return stage_key(PROFILE, source, topology, host)


def stage_key(stage: str, *inputs: str | Settings) -> str:
    """Return the key of a stage: its inputs, and the versions that may change its result."""
    texts = [one if isinstance(one, str) else one.model_dump_json() for one in inputs]
    return fingerprint([stage, *versions().values(), *texts])


def versions() -> dict[str, str]:
    """Return the versions of the programs that may change a stage's result, by name."""
    return {name: importlib.metadata.version(name) for name in ("placer", "tensorflow")}


def reused(store: Store, stage: str, key: str) -> str | None:
    """Return the run of this stage that has the same key, if one finished, and say so."""
    found = store.find_stage(stage, key)
    if found is None:
        return None
    _log.info("%s: inputs are unchanged, reused run %s", stage, found.run_id)
    return found.run_id


def finished_run(store: Store, run_id: str, stage: str) -> StageRun:
    """Return a finished run of a stage.

    Raises:
        InvalidValueError: If the run is of another stage, or did not finish.
        UnknownNameError: If there is no such run.
    """
    run = stage_run(store, run_id, stage)
    if run.status != "FINISHED":
        raise InvalidValueError(f"run {run_id} of stage {stage!r} is {run.status}, not FINISHED")
    return run


def stage_run(store: Store, run_id: str, stage: str) -> StageRun:
    """Return a run of a stage, finished or not.

    Raises:
        InvalidValueError: If the run is of another stage.
        UnknownNameError: If there is no such run.
    """
    run = store.run(run_id)
    found = run.tags.get(STAGE, "none of Placer's stages")
    if found != stage:
        raise InvalidValueError(f"run {run_id} is of {found}, expected stage {stage!r}")
    return run


def selection(graph: str | None, tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tags of the runs that have all of these, and are of the graph if one is named."""
    return {**tags, **({} if graph is None else {GRAPH: graph})}


def profile_tags(profile: Profile, graph_name: str) -> dict[str, str]:
    """Return the tags by which all runs about a profile are found."""
    return {
        GRAPH: graph_name,
        TOPOLOGY: profile.topology.name,
        GRAPH_FINGERPRINT: profile.graph.fingerprint,
        TOPOLOGY_FINGERPRINT: profile.topology.fingerprint,
    }


@dataclasses.dataclass(frozen=True)
class ProfileInputs:
    """What a finished profile run hands on.

    Attributes:
        profile: Read from the run's artifact.
        content: Fingerprint of that artifact.
        tags: For the runs that build on it.
    """

    profile: Profile
    content: str
    tags: dict[str, str]

    @property
    def graph_name(self) -> str:
        """How people call the graph."""
        return self.tags[GRAPH]


@dataclasses.dataclass(frozen=True)
class GroupedInputs(ProfileInputs):
    """What a finished grouping run hands on, together with its profile.

    Attributes:
        grouping: Read from the run's artifact.
    """

    grouping: Grouping


def read_profile(store: Store, run_id: str) -> ProfileInputs:
    """Read the result of a profile run."""
    run = finished_run(store, run_id, PROFILE)
    path = store.download(run_id, PROFILE_FILE)
    profile = load_graph_file(path).profile()
    tags = {**profile_tags(profile, run.tags[GRAPH]), PROFILE_RUN: run_id}
    return ProfileInputs(profile, _content(path), tags)


def read_grouping(store: Store, run_id: str) -> GroupedInputs:
    """Read the result of a grouping run and of the profile that it grouped."""
    run = finished_run(store, run_id, GROUP)
    before = read_profile(store, run.tags[PROFILE_RUN])
    path = store.download(run_id, GROUPING_FILE)
    content = fingerprint([before.content, _content(path)])
    tags = {**before.tags, GROUPING_RUN: run_id}
    grouping = load_grouping(path, before.profile.graph)
    return GroupedInputs(before.profile, content, tags, grouping)


def read_training(store: Store, run_id: str) -> GroupedInputs:
    """Read what a finished training was made from; its trials are in its log."""
    run = finished_run(store, run_id, TRAIN)
    before = read_grouping(store, run.tags[GROUPING_RUN])
    tags = {**before.tags, TRAINING_RUN: run_id}
    # A training that was extended has another key.
    content = fingerprint([before.content, run_id, run.tags[KEY]])
    return dataclasses.replace(before, content=content, tags=tags)


def _content(path: Path) -> str:
    try:
        return fingerprint([path.read_bytes()])
    except FileNotFoundError as error:
        raise MissingFileError(f"file {str(path)!r} does not exist") from error
    except OSError as error:
        raise InvalidValueError(f"{str(path)!r} cannot be read: {error.strerror}") from error
