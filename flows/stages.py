"""What all stages share: their names, the keys of their inputs, and reuse.

A stage's key is a fingerprint of everything its result depends on. A stage whose key has a
finished run is not run again: that run is the answer, whoever made it and when.
"""

import importlib.metadata
import logging
import os
import platform
from pathlib import Path

from placer.config import LOCAL, ProfileSettings, Settings
from placer.errors import MissingFileError
from placer.files import load_topology
from placer.fingerprint import fingerprint
from placer.mlflow_store import Store

PROFILE = "profile"
GROUP = "group"
TRAIN = "train"
EVALUATE = "evaluate"

PROFILE_FILE = "profile.json"
GROUPING_FILE = "grouping.json"
STEP_FOLDER = "step"
EVALUATION_FILE = "evaluation.json"
PLACEMENT_FILE = "placement.json"
REPORT_FILE = "report.html"

_log = logging.getLogger(__name__)


def profile_key(settings: ProfileSettings) -> str:
    """Return the key of a profile: the source's content, the devices, and the versions."""
    source = settings.model_dump_json(exclude={"graph", "topology"})
    if settings.graph is not None:
        source = _content(settings.graph)
    host = f"{platform.node()} with {os.cpu_count()} cores"
    return stage_key(PROFILE, source, _devices(settings), host)


def stage_key(stage: str, *inputs: str | Settings) -> str:
    """Return the key of a stage: its inputs, and the versions that may change its result."""
    versions = [importlib.metadata.version(name) for name in ("placer", "tensorflow")]
    texts = [one if isinstance(one, str) else one.model_dump_json() for one in inputs]
    return fingerprint([stage, *versions, *texts])


def reused(store: Store, stage: str, key: str) -> str | None:
    """Return the run of this stage that has the same key, if one finished, and say so."""
    found = store.find_stage(stage, key)
    if found is None:
        return None
    _log.info("%s: inputs are unchanged, reused run %s", stage, found.run_id)
    return found.run_id


def _devices(settings: ProfileSettings) -> str:
    if settings.topology in (None, LOCAL):
        return str(settings.topology)
    return load_topology(str(settings.topology)).fingerprint


def _content(path: Path) -> str:
    try:
        return fingerprint([path.read_bytes()])
    except FileNotFoundError as error:
        raise MissingFileError(f"graph file {str(path)!r} does not exist") from error
