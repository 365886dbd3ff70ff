"""Settings say the same as the code that they set, and refuse what cannot be right."""

import dataclasses
from pathlib import Path
from typing import get_args

import pydantic
import pytest

from placer.config import (
    CrossEntropySettings,
    EvaluateSettings,
    GroupSettings,
    MeasurementSettings,
    NetworkName,
    OptimizeSettings,
    PolicySettings,
    PpoSettings,
    ProfileSettings,
    TrainSettings,
    WorkloadName,
)
from placer.cross_entropy import CrossEntropyConfig
from placer.group_ops import GroupingConfig
from placer.paper import PAPER
from placer.policies.by_name import NETWORKS
from placer.ppo import PpoConfig
from placer.reinforce import ReinforceConfig

EVERY_SETTINGS = [
    CrossEntropySettings,
    EvaluateSettings,
    GroupSettings,
    MeasurementSettings,
    OptimizeSettings,
    PolicySettings,
    PpoSettings,
    ProfileSettings,
    TrainSettings,
]


@pytest.mark.parametrize("kind", EVERY_SETTINGS)
def test_every_field_that_is_not_a_group_of_settings_is_described(kind):
    undescribed = [
        name
        for name, field in kind.model_fields.items()
        if not field.description and not issubclass(type(field.default), pydantic.BaseModel)
    ]

    assert undescribed == []


@pytest.mark.parametrize("kind", EVERY_SETTINGS)
def test_an_unknown_setting_is_refused(kind):
    with pytest.raises(pydantic.ValidationError, match="extra"):
        kind(speed="high")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (TrainSettings, {"trials": 0}),
        (TrainSettings, {"environment": "reel"}),
        (TrainSettings, {"real_trials": 0}),
        (MeasurementSettings, {"max_timed_steps": 5}),
        (MeasurementSettings, {"relative_half_width": 0.0}),
        (MeasurementSettings, {"budget_s": 0.0}),
        (MeasurementSettings, {"timeout_factor": 1.0}),
        (TrainSettings, {"seed": -1}),
        (TrainSettings, {"baseline_decay": 1.0}),
        (TrainSettings, {"failing_step_time_s": 0.0}),
        (TrainSettings, {"failing_step_time_s": float("inf")}),
        (TrainSettings, {"trainer": "a2c"}),
        (TrainSettings, {"in_flight": 0}),
        (TrainSettings, {"warm_start": "metis", "warm_start_run": "abc"}),
        (TrainSettings, {"more_clusters": ["hosts.toml"]}),
        (PpoSettings, {"clip": 1.0}),
        (PpoSettings, {"epochs": 0}),
        (CrossEntropySettings, {"elite_share": 0.0}),
        (PolicySettings, {"learning_rate": float("nan")}),
        (GroupSettings, {"max_groups": 0}),
        (EvaluateSettings, {"rounds": 2}),
        (ProfileSettings, {"workload": "alexnet"}),
        (ProfileSettings, {"trace_steps": 0}),
    ],
)
def test_a_setting_out_of_its_bounds_is_refused(kind, values):
    with pytest.raises(pydantic.ValidationError):
        kind(**values)


def test_settings_cannot_be_changed():
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        TrainSettings().trials = 5


def test_defaults_of_grouping_are_those_of_the_code():
    assert GroupSettings().max_groups == GroupingConfig().max_groups


def test_defaults_of_training_are_those_of_the_code():
    settings = TrainSettings()
    config = ReinforceConfig(failing_step_time_s=1.0)

    for field in ("batch_size", "baseline_decay", "runnable_only_after", "in_flight", "seed"):
        assert getattr(settings, field) == getattr(config, field)


@pytest.mark.parametrize(
    ("settings", "kind"),
    [(PpoSettings(), PpoConfig), (CrossEntropySettings(), CrossEntropyConfig)],
)
def test_defaults_of_a_trainer_are_those_of_the_code(settings, kind):
    config = kind(failing_step_time_s=1.0)

    for field, value in settings.model_dump().items():
        assert value == getattr(config, field)


@pytest.mark.parametrize(
    ("values", "simulated", "total"),
    [
        ({}, 2000, 2000),
        ({"trials": 100}, 100, 100),
        ({"environment": "real", "trials": 100}, 0, 100),
        ({"environment": "staged", "trials": 2000}, 2000, 2064),
        ({"environment": "staged", "trials": 2001, "real_trials": 5}, 2016, 2021),
        ({"environment": "staged", "trials": 1, "batch_size": 8, "real_trials": 3}, 8, 11),
    ],
)
def test_the_simulated_part_of_a_staged_training_fills_whole_batches(values, simulated, total):
    settings = TrainSettings(**values)

    assert (settings.simulated_trials, settings.total_trials) == (simulated, total)


@pytest.mark.slow
def test_a_training_measures_with_fewer_steps_than_the_default():
    from profiling.real_environment import (  # noqa: PLC0415 - loads TensorFlow
        MeasurementConfig,
    )

    quick, default = MeasurementConfig(**MeasurementSettings().model_dump()), MeasurementConfig()

    assert quick.max_timed_steps < default.max_timed_steps
    assert quick.relative_half_width > default.relative_half_width
    assert quick.budget_s < default.budget_s


@pytest.mark.slow
def test_any_measurement_that_can_be_set_is_one_that_can_be_made():
    from profiling.real_environment import (  # noqa: PLC0415 - loads TensorFlow
        MeasurementConfig,
    )

    fewest = MeasurementSettings(
        max_timed_steps=6, relative_half_width=1, budget_s=1e-3, timeout_factor=1.001
    )

    config = MeasurementConfig(**fewest.model_dump())

    assert config.is_enough([1.0] * 6)


@pytest.mark.slow
def test_policy_settings_have_the_fields_and_defaults_of_the_policy():
    from placer.policies.hierarchical import HierarchicalConfig  # noqa: PLC0415 - loads TensorFlow
    from placer.policies.seq2seq import Seq2SeqConfig  # noqa: PLC0415 - loads TensorFlow

    of_networks = dataclasses.asdict(HierarchicalConfig()) | dataclasses.asdict(Seq2SeqConfig())
    assert PolicySettings().model_dump() == {"network": "seq2seq"} | of_networks


@pytest.mark.slow
def test_the_workloads_that_can_be_set_are_those_that_are_built_in():
    from profiling.workloads import WORKLOADS  # noqa: PLC0415 - loads TensorFlow

    assert set(get_args(WorkloadName)) == set(WORKLOADS)


def test_the_paper_is_cited_for_each_of_its_own_workloads():
    assert set(get_args(WorkloadName)) - set(PAPER) == {"resnet50", "transformer"}
    assert set(PAPER) < set(get_args(WorkloadName))


@pytest.mark.parametrize(
    ("settings", "graph", "topology"),
    [
        (ProfileSettings(), "rnnlm-small", "local"),
        (ProfileSettings(size="paper", topology="haswell-2xk80"), "rnnlm-paper", "haswell-2xk80"),
        (ProfileSettings(sizes={"steps": 3}), "rnnlm-small-steps=3", "local"),
        (ProfileSettings(graph="dir/gnmt.json", topology="a/four.toml"), "gnmt", "four"),
        (ProfileSettings(graph="gnmt.json"), "gnmt", "its own topology"),
    ],
)
def test_graph_and_topology_have_names_for_people(settings, graph, topology):
    assert (settings.graph_name, settings.topology_name) == (graph, topology)


@pytest.mark.parametrize("source", [{"graph": Path("g.json")}, {"topology": "haswell-2xk80"}])
def test_a_cluster_goes_with_a_workload_on_its_own_devices(source):
    with pytest.raises(pydantic.ValidationError, match="a cluster's devices are measured"):
        ProfileSettings(cluster=Path("hosts.toml"), **source)


def test_every_network_has_a_name_in_the_settings() -> None:
    assert set(get_args(NetworkName)) == set(NETWORKS)
