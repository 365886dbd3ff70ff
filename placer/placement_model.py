"""A trained policy as a model of MLflow: graphs in, placements out.

MLflow loads it by ``_load_pyfunc`` from the folder that ``placer.trained_policy`` describes. A
graph is the JSON text of a profile or of a graph file. One that names no topology is placed
on that of the training.

For the profile that the policy was trained on, the answer is the fastest of the best placement
of the training, the policy's likeliest placement and some samples, all simulated. If the
training measured on the real devices, its best placement is the answer: a measurement counts before
a simulation. Another graph can be placed by the graph network alone: its ops are grouped as
in the group stage, and the likeliest placement and the samples are what there is to choose from.

This module imports no MLflow, and TensorFlow only if the policy needs it.
"""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from placer.environment import REAL, Outcome
from placer.errors import FileFormatError, InvalidValueError
from placer.files import parse_graph, placement_document
from placer.files.documents import naming, short
from placer.group_ops import group_ops
from placer.grouping import Grouping
from placer.placement import Placement
from placer.policies.by_name import GRAPH, NetworkPolicy, policy_by_name
from placer.policies.graph import transferred
from placer.profile import Profile
from placer.simulator import SimulatedEnvironment, Simulator
from placer.trained_policy import TrainedPolicy

GRAPH_COLUMN = "graph"
"""The input: JSON text of a profile or graph file."""

PLACEMENT_COLUMN = "placement"
MAKESPAN_COLUMN = "makespan_s"
OUTCOME_COLUMN = "outcome"
FOUND_BY_COLUMN = "found_by"

NUM_SAMPLES = 8
"""Placements that are drawn for each graph, beside the likeliest one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """The placement of one graph.

    Attributes:
        profile: The graph, on the topology that it is placed on.
        placement: The fastest that runs in the simulation; if none does, the first tried.
        makespan_s: Of the placement, simulated, whether it runs or not.
        outcome: Whether it runs there.
        found_by: What found it.
    """

    profile: Profile
    placement: Placement
    makespan_s: float
    outcome: Outcome
    found_by: str

    def row(self) -> dict[str, Any]:
        """Return the answer as the model's output has it."""
        document = placement_document(self.placement, self.profile.graph, self.profile.topology)
        return {
            PLACEMENT_COLUMN: json.dumps(document),
            MAKESPAN_COLUMN: self.makespan_s,
            OUTCOME_COLUMN: str(self.outcome),
            FOUND_BY_COLUMN: self.found_by,
        }


class PlacementModel:
    """Places graphs with a trained policy.

    Args:
        trained: The policy, and what it was trained on.

    Raises:
        UnknownNameError: If Placer has no network of that name.
        InvalidValueError: If the variables are of another network.
    """

    def __init__(self, trained: TrainedPolicy) -> None:
        self._trained = trained
        # For a handful of draws XLA would compile longer than it saves.
        settings = {**trained.settings, "jit_compile": False}
        self._policy = policy_by_name(
            trained.network, trained.profile, trained.grouping, settings, seed=trained.seed
        )
        self._policy.restore(trained.state)

    def predict(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the placement of every graph.

        Args:
            frame: One row a graph; column ``graph``.

        Returns:
            The same rows with columns ``placement`` (JSON text of a placement file),
            ``makespan_s`` (simulated), ``outcome`` and ``found_by``.

        Raises:
            FileFormatError: If a text is not that of a profile or graph file.
            InvalidValueError: If the policy knows another graph alone.
            InfeasibleError: If an op has no permitted device.
        """
        if GRAPH_COLUMN not in frame:
            raise InvalidValueError(
                f"the model takes a column {GRAPH_COLUMN!r}, got {list(frame.columns)}"
            )
        rows = [
            self.place(self._profile(text, f"graph of row {number}")).row()
            for number, text in enumerate(frame[GRAPH_COLUMN])
        ]
        columns = [PLACEMENT_COLUMN, MAKESPAN_COLUMN, OUTCOME_COLUMN, FOUND_BY_COLUMN]
        return pd.DataFrame(rows, index=frame.index, columns=columns)

    def place(self, profile: Profile) -> Answer:
        """Return the placement of a profile; raises as ``predict``."""
        simulator = Simulator(profile)
        tried = dict(self._candidates(profile))
        found = SimulatedEnvironment(simulator).measure(list(tried.values()))
        times_s = [np.inf if each.step_time_s is None else each.step_time_s for each in found]
        best = int(np.argmin(times_s))
        found_by, placement = list(tried.items())[best]
        makespan_s = simulator.schedule(placement).makespan_s
        return Answer(profile, placement, makespan_s, found[best].outcome, found_by)

    def _profile(self, text: object, name: str) -> Profile:
        if not isinstance(text, str):
            raise FileFormatError(f"{name} should be the text of a JSON file, got {short(text)}")
        graph = parse_graph(text, name)
        with naming(name):
            return graph.profile(graph.topology or self._trained.profile.topology)

    def _candidates(self, profile: Profile) -> Iterator[tuple[str, Placement]]:
        """Yield what there is to choose from, the first of equals the one to take."""
        trained = self._trained
        if profile.fingerprint == trained.profile.fingerprint:
            yield "training", trained.placement
            if trained.environment != REAL:
                yield from self._drawn(self._policy, trained.grouping)
        elif trained.network == GRAPH:
            grouping = group_ops(profile).grouping
            yield from self._drawn(transferred(trained.state, profile, grouping), grouping)
        else:
            raise InvalidValueError(
                f"profile {profile.fingerprint} cannot be placed: a policy of network"
                f" {trained.network!r} places the profile it was trained on alone, which is"
                f" {trained.profile.fingerprint}; network {GRAPH!r} places any"
            )

    def _drawn(self, policy: NetworkPolicy, grouping: Grouping) -> Iterator[tuple[str, Placement]]:
        yield "policy, likeliest", Placement.from_groups(grouping, policy.greedy())
        for number, actions in enumerate(policy.sample(self._trained.seed, np.arange(NUM_SAMPLES))):
            yield f"policy, sample {number}", Placement.from_groups(grouping, actions)


def _load_pyfunc(data_path: str) -> PlacementModel:
    """Return the model of a folder; MLflow calls this by its name."""
    return PlacementModel(TrainedPolicy.load(Path(data_path)))
