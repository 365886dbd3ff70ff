"""Policies by the names that settings have for them.

Only the networks in TensorFlow need TensorFlow, so they are imported once one is asked for.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from placer.errors import UnknownNameError
from placer.features import group_features
from placer.grouping import Grouping
from placer.policies.first_groups import units_of
from placer.policies.graph import pretrained
from placer.policy import Actions, Policy
from placer.profile import Profile

GRAPH = "graph"
"""The network that places any graph; the others know the one that they are trained on."""

SEQ2SEQ = "seq2seq"
HIERARCHICAL = "hierarchical"
NETWORKS = (SEQ2SEQ, HIERARCHICAL, GRAPH)


class NetworkPolicy(Policy, Protocol):
    """A policy that also knows its likeliest placement."""

    def greedy(self) -> Actions:
        """Return the likeliest device of each group, given those it depends on, ``[G]``."""


def policy_by_name(
    network: str,
    profile: Profile,
    grouping: Grouping,
    settings: Mapping[str, Any],
    *,
    seed: int,
) -> NetworkPolicy:
    """Return a policy as it is before its first trial.

    Args:
        network: One of ``NETWORKS``.
        profile: What is placed.
        grouping: Its groups.
        settings: Sizes and rates by name; a network takes those of its own config. The graph
            network has none to choose.
        seed: Of the initial parameters.

    Raises:
        UnknownNameError: If there is no such network.
        InvalidValueError: If a setting cannot be right.
        InfeasibleError: If a group has no permitted device.
    """
    if network == GRAPH:
        return pretrained(profile, grouping)
    if network == HIERARCHICAL:
        from placer.policies.hierarchical import HierarchicalConfig, HierarchicalPolicy

        units = units_of(profile, grouping)
        return HierarchicalPolicy(units, _config(HierarchicalConfig, settings), seed=seed)
    if network == SEQ2SEQ:
        from placer.policies.seq2seq import Seq2SeqConfig, Seq2SeqPolicy

        features = group_features(profile, grouping)
        return Seq2SeqPolicy(features, _config(Seq2SeqConfig, settings), seed=seed)
    raise UnknownNameError("network", network, NETWORKS)


def _config(kind: type, settings: Mapping[str, Any]) -> Any:
    names = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in settings.items() if name in names})
