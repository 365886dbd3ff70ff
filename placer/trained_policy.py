"""A trained policy as a folder: what it was trained on, all its variables, and the best it found.

``model.json``
    The network, its settings and seed, what the best placement took, fingerprints, versions.
``profile.json``, ``grouping.json``
    What it was trained on.
``placement.json``
    The best placement of the training, as ``placer simulate --placement`` reads it.
``policy.npz``
    All variables of the policy and its optimiser.

Nothing in it is code, and nothing a pickle.
"""

import dataclasses
import importlib.metadata
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from placer.errors import FileFormatError, MissingFileError
from placer.files.documents import (
    VERSION,
    Document,
    NonNegativeFloat,
    check,
    check_kind,
    check_version,
    read_json,
    write_json,
)
from placer.files.graphs import load_graph_file, save_profile
from placer.files.groupings import load_grouping, save_grouping
from placer.files.placements import load_placement, save_placement
from placer.grouping import Grouping
from placer.placement import Placement
from placer.profile import Profile

_KIND = "placer.policy"
_MODEL = "model.json"
_PROFILE = "profile.json"
_GROUPING = "grouping.json"
_PLACEMENT = "placement.json"
_VARIABLES = "policy.npz"
_PACKAGES = ("placer", "numpy", "tensorflow")

State = Mapping[str, npt.NDArray[np.generic]]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TrainedPolicy:
    """What a training leaves behind, as far as placing needs it.

    Attributes:
        profile: What it was trained on.
        grouping: Its groups.
        network: Name of the policy network.
        settings: Sizes and rates of the network, by name.
        seed: Of the training.
        state: All variables of the policy, as ``Policy.restore`` takes them.
        placement: The best that the training found.
        environment: Where that was measured.
        step_time_s: What a step took then.
    """

    profile: Profile
    grouping: Grouping
    network: str
    settings: Mapping[str, Any]
    seed: int
    state: State
    placement: Placement
    environment: str
    step_time_s: float

    def save(self, folder: Path) -> None:
        """Write the folder's files.

        Raises:
            StoreError: If one cannot be written.
        """
        graph, topology = self.profile.graph, self.profile.topology
        document = {
            "version": VERSION,
            "kind": _KIND,
            "network": self.network,
            "settings": dict(self.settings),
            "seed": self.seed,
            "environment": self.environment,
            "best_step_time_s": self.step_time_s,
            "profile": self.profile.fingerprint,
            "graph": graph.fingerprint,
            "topology": topology.fingerprint,
            "grouping": self.grouping.fingerprint,
            "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
        }
        write_json(document, folder / _MODEL)
        save_profile(self.profile, folder / _PROFILE)
        save_grouping(self.grouping, graph, folder / _GROUPING)
        save_placement(self.placement, graph, topology, folder / _PLACEMENT)
        np.savez(folder / _VARIABLES, allow_pickle=False, **self.state)

    @classmethod
    def load(cls, folder: Path) -> "TrainedPolicy":
        """Return what ``save`` wrote.

        Raises:
            MissingFileError: If a file is missing.
            FileFormatError: If one is damaged, of another version, or of another profile.
        """
        path = folder / _MODEL
        found = read_json(path)
        check_kind(found, path, _KIND)
        check_version(found, path)
        document = check(_PolicyDocument, found, path)
        profile = load_graph_file(folder / _PROFILE).profile()
        if profile.fingerprint != document.profile:
            raise FileFormatError(
                f"{folder / _PROFILE} is profile {profile.fingerprint}, expected"
                f" {document.profile}, which the policy was trained on"
            )
        return cls(
            profile=profile,
            grouping=load_grouping(folder / _GROUPING, profile.graph),
            network=document.network,
            settings=document.settings,
            seed=document.seed,
            state=_variables(folder / _VARIABLES),
            placement=load_placement(folder / _PLACEMENT, profile.graph, profile.topology),
            environment=document.environment,
            step_time_s=document.best_step_time_s,
        )


class _PolicyDocument(Document):
    version: int
    kind: str
    network: str
    settings: dict[str, bool | int | float | str]
    seed: int
    environment: str
    best_step_time_s: NonNegativeFloat
    profile: str
    graph: str
    topology: str
    grouping: str
    versions: dict[str, str]


def _variables(path: Path) -> State:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError as error:
        raise MissingFileError(f"there is no file {path}") from error
    except (EOFError, OSError, ValueError, zipfile.BadZipFile) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise FileFormatError(f"{path} is no archive of variables: {reason}") from error
