"""What is written into the store, what the code lists, and what the page explains agree."""

import contextlib
import dataclasses
import re
import uuid
from pathlib import Path

import pytest

from flows.train import keep_settings
from placer.config import TrainSettings
from placer.grouping import Grouping
from placer.mlflow_store import Store
from placer.mlflow_trial_log import MLflowTrialLog
from placer.tracking_names import (
    CHECKPOINT,
    CLAIM,
    COMPARISON_ARTIFACTS,
    EVALUATION_METRICS,
    EXPERIMENT,
    FIDELITY_METRICS,
    HEARTBEAT,
    HOST,
    KEY,
    LOGGED_TRIALS,
    METRICS,
    PID,
    SEARCH_METRICS,
    SPEED_METRICS,
    STAGE,
    TAGS,
    TRAINING_ARTIFACTS,
)
from placer.trial_table import top_placements
from tests.test_trainers import TRAINERS, make_trainer
from tests.tracking import ok, store, store_root

__all__ = ["store", "store_root"]

pytestmark = pytest.mark.slow

TRAINING = "Metrics of a training"
PAGE = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text()


def explained(heading: str) -> dict[str, str]:
    """Return the first column of the table below a heading, and the rest of each row."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", section, re.MULTILINE))


@pytest.fixture(scope="module")
def run_ids(store: Store) -> dict[str, str]:
    """A training of three updates by each trainer, with all that a training writes."""
    return {kind: trained(store, kind) for kind in TRAINERS}


@pytest.fixture(scope="module")
def run_id(run_ids: dict[str, str]) -> str:
    return run_ids["reinforce"]


def trained(store: Store, kind: str) -> str:
    """Train for three updates, the first two of which end in a failure; return the run's id."""
    key = uuid.uuid4().hex

    def one_more_update() -> str:
        trainer = make_trainer(kind, in_flight=2)
        with (
            store.training(key, name="documented", params={}, tags={}) as run,
            MLflowTrialLog(store, run.run_id) as log,
        ):
            keep_settings(run, TrainSettings())
            if checkpoint := log.load_checkpoint():
                trainer.restore(checkpoint)
            measured = [
                dataclasses.replace(trial, measurement=ok(1.0 + sum(trial.device_of_group)))
                for trial in trainer.ask()
                if trial.update == trainer.update
            ]
            log.append(measured, trainer.tell(measured))
            log.save_checkpoint(trainer.checkpoint())
            log.log_top_placements(top_placements(log.trials(), Grouping([0, 1]), ["a", "b"]))
            if trainer.update < 3:
                raise RuntimeError("interrupted")
        return run.run_id

    for _ in range(2):
        with contextlib.suppress(RuntimeError):
            one_more_update()
    return one_more_update()


def test_the_page_explains_every_listed_metric_tag_and_artifact() -> None:
    assert explained("Metrics of a training").keys() == METRICS.keys()
    assert explained("Metrics of an evaluation").keys() == EVALUATION_METRICS.keys()
    assert explained("Metrics of a fidelity measurement").keys() == FIDELITY_METRICS.keys()
    assert explained("Metrics of a benchmark").keys() == SEARCH_METRICS.keys()
    assert explained("Metrics of the simulator's speed").keys() == SPEED_METRICS.keys()
    assert explained("Tags").keys() == TAGS.keys()
    assert explained("Artifacts of a training").keys() == TRAINING_ARTIFACTS.keys()
    assert explained("Artifacts of a comparison").keys() == COMPARISON_ARTIFACTS.keys()


def test_every_explanation_says_something() -> None:
    for heading in ("Metrics of a training", "Tags", "Artifacts of a training"):
        for name, text in explained(heading).items():
            assert len(text.split()) >= 4, name


def test_every_metric_has_a_unit_a_meaning_and_a_way_to_read_it() -> None:
    for name, row in explained("Metrics of a training").items():
        assert row.count(" | ") == 2, name


def test_the_page_names_the_experiment() -> None:
    assert f"experiment `{EXPERIMENT}`" in PAGE


def test_trainings_write_the_listed_metrics_and_no_other(
    store: Store, run_ids: dict[str, str]
) -> None:
    runs = [store.connection.client.get_run(run_id) for run_id in run_ids.values()]

    assert set().union(*(run.data.metrics for run in runs)) == METRICS.keys()
    for kind, run in zip(run_ids, runs, strict=True):
        of_others = [name for name in METRICS if other_trainer(kind, name)]
        assert not set(of_others) & run.data.metrics.keys()


def other_trainer(kind: str, metric: str) -> bool:
    """Return whether the page says that a metric is of other trainers than this one."""
    named = re.findall("[Tt]rainers? `([a-z-]+)`(?: and `([a-z-]+)`)?", explained(TRAINING)[metric])
    return bool(named) and kind not in named[0]


def test_a_training_writes_listed_tags_only(store: Store, run_id: str) -> None:
    tags = {tag for tag in store.run(run_id).tags if not tag.startswith("mlflow.")}

    # The error of the first attempts went with the attempt that succeeded; flows add the rest.
    assert tags == {STAGE, KEY, HOST, PID, HEARTBEAT, CLAIM, CHECKPOINT, LOGGED_TRIALS}
    assert tags < TAGS.keys()


def test_a_training_writes_the_listed_artifacts_and_no_other(store: Store, run_id: str) -> None:
    assert set(store.artifacts.names(run_id, ".")) == TRAINING_ARTIFACTS.keys()
