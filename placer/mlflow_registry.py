"""The best policy of every graph on a topology, in MLflow's model registry.

A registered model is named by graph and topology. Its alias ``champion`` is on the version whose
training found the fastest placement. A training becomes a version only if it is better than the
champion: if that is of another profile (the graph or its costs changed), if this one was
measured on the real devices and that one simulated, or if its step time is smaller.

A version is a folder of the training's run, named by the number of trials. So what is registered
twice is one version, and a training that is extended makes another.
"""

import dataclasses
import logging
import re
import tempfile
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Protocol

from placer.batch_trainer import policy_state
from placer.config import TrainSettings
from placer.environment import REAL
from placer.errors import StoreError
from placer.grouping import Grouping
from placer.mlflow_model_folder import write_model
from placer.mlflow_store import OpenRun, Store
from placer.mlflow_waiting import until_it_answers
from placer.placement import Placement
from placer.placement_model import GRAPH_COLUMN
from placer.profile import Profile
from placer.ranking import fastest, step_time_s
from placer.tracking_names import (
    BEST_STEP_TIME_S,
    CHAMPION,
    ENVIRONMENT,
    GRAPH,
    GRAPH_FINGERPRINT,
    NETWORK,
    POLICY_MODEL_FOLDER,
    PROFILE_FINGERPRINT,
    TOPOLOGY,
    TOPOLOGY_FINGERPRINT,
    TRAINING_RUN,
)
from placer.trained_policy import TrainedPolicy
from placer.training_summary import training_summary
from placer.trials import Checkpoint, Trial

# isort: split
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

_MAX_NAME = 100
_LOOKS = 3
_NOT_THERE = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")

_log = logging.getLogger(__name__)


class Grouped(Protocol):
    """What a training was made from."""

    @property
    def graph_name(self) -> str:
        """How people call the graph."""

    @property
    def profile(self) -> Profile:
        """What was placed."""

    @property
    def grouping(self) -> Grouping:
        """Its groups."""


def register_policy(
    store: Store,
    run_id: str,
    inputs: Grouped,
    settings: TrainSettings,
    trials: Sequence[Trial],
    checkpoint: Checkpoint | None,
) -> str | None:
    """Register the policy of a training if it is better than the champion.

    A store that is away is waited for. One that refuses, or has no registry, is a warning: the
    training is whole without it.

    Args:
        store: Holds the run, and the registry.
        run_id: Of the training.
        inputs: What was trained on.
        settings: How.
        trials: All of the training.
        checkpoint: The last one.

    Returns:
        The model's URI, ``models:/NAME/VERSION``, if the training is the champion now; else None.
    """
    best = fastest(trials)
    time_s = step_time_s(best)
    if best is None or time_s is None or checkpoint is None:
        return None
    trained = TrainedPolicy(
        profile=inputs.profile,
        grouping=inputs.grouping,
        network=settings.policy.network,
        settings=settings.policy.model_dump(exclude={"network"}),
        seed=settings.seed,
        state=policy_state(checkpoint),
        placement=Placement.from_groups(inputs.grouping, best.device_of_group),
        environment=best.environment,
        step_time_s=time_s,
    )
    candidate = _Candidate(
        run=OpenRun(store, run_id),
        graph_name=inputs.graph_name,
        trained=trained,
        num_trials=len(trials),
        summary=training_summary(trials),
    )
    try:
        return until_it_answers(store.connection, candidate.register)
    except StoreError as error:
        _log.warning("the policy of run %s is not registered: %s", run_id, error)
        return None


def registered_name(graph_name: str, topology_name: str) -> str:
    """Return the name of the registered model; what a model's URI cannot say becomes ``-``."""
    parts = [re.sub(r"[^\w.=-]", "-", name)[:_MAX_NAME] for name in (graph_name, topology_name)]
    return f"placer-{parts[0]}-on-{parts[1]}"


@dataclasses.dataclass(frozen=True)
class _Candidate:
    """A trained policy that may become the champion.

    Attributes:
        run: Of the training.
        graph_name: How people call the graph.
        trained: The policy.
        num_trials: Of the training so far.
        summary: What it found, for people.
    """

    run: OpenRun
    graph_name: str
    trained: TrainedPolicy
    num_trials: int
    summary: str

    @property
    def name(self) -> str:
        """Of the registered model."""
        return registered_name(self.graph_name, self.trained.profile.topology.name)

    @property
    def tags(self) -> dict[str, str]:
        """Of the version."""
        profile = self.trained.profile
        return {
            GRAPH: self.graph_name,
            TOPOLOGY: profile.topology.name,
            GRAPH_FINGERPRINT: profile.graph.fingerprint,
            TOPOLOGY_FINGERPRINT: profile.topology.fingerprint,
            PROFILE_FINGERPRINT: profile.fingerprint,
            TRAINING_RUN: self.run.run_id,
            NETWORK: self.trained.network,
            ENVIRONMENT: self.trained.environment,
            BEST_STEP_TIME_S: repr(self.trained.step_time_s),
        }

    def register(self) -> str | None:
        """Register the policy and set the alias, as far as that is not done yet."""
        connection = self.run.store.connection
        folder = f"{POLICY_MODEL_FOLDER}/trials-{self.num_trials}"
        source = f"{connection.get_run(self.run.run_id).info.artifact_uri}/{folder}"
        with connection.errors():
            client = connection.client
            known = _versions(client, self.name)
            own = next((version for version in known if version.source == source), None)
            if own is None:
                if not _beats(self.tags, _champion(client, self.name)):
                    return None
                self._upload(folder)
                own = self._new_version(client, source)
            champion = self._crowned(client, own, {version.number for version in known})
        return f"models:/{self.name}/{own.number}" if champion == own else None

    def _crowned(self, client: MlflowClient, own: "_Version", known: Set[int]) -> "_Version":
        """Give the alias to the best of what is new and the champion; return whose it is."""
        best = own
        # Another process may register at the same time: whoever set the alias looks again.
        for _ in range(_LOOKS):
            champion = _champion(client, self.name)
            for version in _versions(client, self.name):
                is_rival = version.profile == own.profile and version.number not in known
                if is_rival and _beats(version.tags, best):
                    best = version
            if champion is not None and (champion == best or not _beats(best.tags, champion)):
                return champion
            client.set_registered_model_alias(self.name, CHAMPION, str(best.number))
        return best

    def _upload(self, folder: str) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            write_model(self.trained, Path(scratch, folder))
            self.run.log_folder(Path(scratch))

    def _new_version(self, client: MlflowClient, source: str) -> "_Version":
        try:
            client.create_registered_model(self.name, description=self._description())
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        return _Version.of(
            client.create_model_version(
                self.name, source, self.run.run_id, tags=self.tags, description=self.summary
            )
        )

    def _description(self) -> str:
        topology = self.trained.profile.topology.name
        return (
            f"Places {self.graph_name} on {topology}: JSON texts of profiles or graph files in,"
            f" placements out. The alias `{CHAMPION}` is on the version whose training found the"
            " fastest placement.\n\n```python\n"
            f'model = mlflow.pyfunc.load_model("models:/{self.name}@{CHAMPION}")\n'
            'texts = [Path("profile.json").read_text()]\n'
            f'placements = model.predict(pd.DataFrame({{"{GRAPH_COLUMN}": texts}}))\n```'
        )


@dataclasses.dataclass(frozen=True)
class _Version:
    """What is read of a version of the registered model; one is known by its number.

    Attributes:
        number: From 1.
        source: URI of its folder.
        tags: Placer's own, unless somebody else made it.
    """

    number: int
    source: str = dataclasses.field(compare=False)
    tags: Mapping[str, str] = dataclasses.field(compare=False)

    @classmethod
    def of(cls, version: ModelVersion) -> "_Version":
        # A database has numbers where a server has texts.
        return cls(int(version.version), version.source, version.tags)

    @property
    def profile(self) -> str | None:
        """Fingerprint of the profile that the policy was trained on."""
        return self.tags.get(PROFILE_FINGERPRINT)


def _beats(tags: Mapping[str, str], champion: _Version | None) -> bool:
    """Tell whether a version with these tags is better than another, see the module."""
    if champion is None or champion.profile != tags[PROFILE_FINGERPRINT]:
        return True
    return _rank(tags) < _rank(champion.tags)


def _rank(tags: Mapping[str, str]) -> tuple[bool, float]:
    return tags.get(ENVIRONMENT) != REAL, float(tags.get(BEST_STEP_TIME_S, "inf"))


def _versions(client: MlflowClient, name: str) -> list[_Version]:
    return [_Version.of(found) for found in client.search_model_versions(f"name = '{name}'")]


def _champion(client: MlflowClient, name: str) -> _Version | None:
    try:
        return _Version.of(client.get_model_version_by_alias(name, CHAMPION))
    except MlflowException as error:
        if error.error_code not in _NOT_THERE:
            raise
        return None
