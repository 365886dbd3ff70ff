"""The MLflow trial log: exact curves, whole shards, and nothing lost when it is killed."""

import dataclasses
import itertools
import logging
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from placer.errors import FileFormatError, InvalidValueError
from placer.mlflow_store import Store
from placer.mlflow_trial_log import SHARD_TRIALS, MLflowTrialLog, has_points
from placer.trial_table import encode_parquet, trials_to_table
from placer.trials import Checkpoint
from tests import training_process
from tests.processes import wait_until
from tests.tracking import BATCH, ok, store, store_root, too_large, trial_of, trials_of

__all__ = ["store", "store_root"]

pytestmark = pytest.mark.slow

KEYS = (f"trial log {number}" for number in itertools.count())


@pytest.fixture
def log(store: Store) -> Iterator[MLflowTrialLog]:
    with store.training(next(KEYS), name="log", params={}, tags={}) as run:
        log = MLflowTrialLog(store, run.run_id)
    yield log
    log.close()


def reopened(log: MLflowTrialLog) -> MLflowTrialLog:
    return MLflowTrialLog(log.store, log.run_id)


def curve(log: MLflowTrialLog, metric: str) -> list[tuple[int, float, int]]:
    """Return the points of a metric: step, value, milliseconds; by step."""
    history = log.store.connection.client.get_metric_history(log.run_id, metric)
    return sorted((point.step, point.value, point.timestamp) for point in history)


def shards(log: MLflowTrialLog) -> list[str]:
    return log.store.artifacts.names(log.run_id, "trials")


def append_all(log: MLflowTrialLog, num_trials: int, batch: int = BATCH) -> None:
    for start in range(0, num_trials, batch):
        log.append(trials_of(range(start, start + batch)), {"baseline": start / 8})


# Curves


def test_curves_have_the_trials_times_and_skip_what_did_not_run(log: MLflowTrialLog) -> None:
    # trial_of(n) finished n ms after second 1,000.
    measured = [too_large(), ok(3.0), too_large(), ok(4.0), ok(2.0)]
    trials = [trial_of(number, found) for number, found in enumerate(measured)]

    with log:
        log.append(trials[:4], {"reward_mean": -1.5, "invalid_share": 0.5})
        log.append(trials[4:], {})

    assert curve(log, "trial/step_time_s") == [
        (1, 3.0, 1000001),
        (3, 4.0, 1000003),
        (4, 2.0, 1000004),
    ]
    assert curve(log, "trial/best_step_time_s") == [
        (1, 3.0, 1000001),
        (3, 3.0, 1000003),  # the end of an update
        (4, 2.0, 1000004),
    ]
    assert curve(log, "update/reward_mean") == [(0, -1.5, 1000003)]
    assert curve(log, "update/invalid_share") == [(0, 0.5, 1000003)]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_metric_that_is_not_finite_is_named_and_left_out(
    log: MLflowTrialLog, value: float, caplog: pytest.LogCaptureFixture
) -> None:
    with log, caplog.at_level(logging.WARNING, "placer"):
        log.append(trials_of(range(4)), {"entropy": value, "baseline": -1.0})

    assert curve(log, "update/entropy") == []
    assert curve(log, "update/baseline") == [(0, -1.0, 1000003)]
    assert "update 0: entropy is" in caplog.text


def test_points_that_a_kill_left_out_are_sent_when_the_log_goes_on(log: MLflowTrialLog) -> None:
    # What is left by a process that was killed between the shard and its points.
    updates = {update: {"baseline": update / 2} for update in range(10)}
    shard = encode_parquet(trials_to_table(trials_of(range(40))), updates)
    log.store.artifacts.write(log.run_id, "trials/00000000.parquet", shard)

    with reopened(log) as again:
        again.append(trials_of(range(40, 44)), {})

    assert [step for step, _, _ in curve(log, "trial/step_time_s")] == list(range(44))
    assert [step for step, _, _ in curve(log, "trial/best_step_time_s")] == list(range(44))
    assert [step for step, _, _ in curve(log, "update/baseline")] == list(range(10))


def test_points_whose_count_a_kill_left_out_are_not_drawn_twice(log: MLflowTrialLog) -> None:
    with log:
        append_all(log, 12)
    log.store.connection.client.set_tag(log.run_id, "placer.logged_trials", "4")

    with reopened(log) as again:
        again.append(trials_of(range(12, 16)), {"baseline": 1.5})

    assert [step for step, _, _ in curve(log, "trial/step_time_s")] == list(range(16))
    assert curve(log, "update/baseline") == [
        (update, update / 2, 1000003 + 4 * update) for update in range(4)
    ]


def test_appending_the_same_trials_again_changes_nothing(log: MLflowTrialLog) -> None:
    with log:
        append_all(log, 8)

    with reopened(log) as again:
        append_all(again, 8)

    assert again.trials() == trials_of(range(8))
    assert len(curve(log, "trial/step_time_s")) == 8


def test_long_trainings_have_points_of_fewer_and_fewer_updates() -> None:
    charted = [update for update in range(4096) if has_points(update)]

    assert charted[:256] == list(range(256))
    for first in (256, 512, 1024, 2048):
        stride = first // 128
        assert [update for update in charted if first <= update < 2 * first] == list(
            range(first, 2 * first, stride)
        )


def test_an_update_without_points_is_kept_all_the_same(log: MLflowTrialLog) -> None:
    numbers = range(256 * BATCH, 258 * BATCH)  # the updates 256 and 257

    with log:
        log.append(trials_of(range(256 * BATCH)), {})
        for first in numbers[::BATCH]:
            log.append(trials_of(range(first, first + BATCH)), {"loss": float(first)})

    assert [step for step, _, _ in curve(log, "update/loss")] == [256]
    assert [metrics for _, metrics in log.updates()[256:]] == [{"loss": 1024.0}, {"loss": 1028.0}]


def test_many_points_are_sent_without_waiting_for_the_end(log: MLflowTrialLog) -> None:
    append_all(log, 1024, batch=256)  # two points a trial and one an update

    assert wait_until(lambda: len(curve(log, "trial/step_time_s")) == 1024)
    assert [step for step, _, _ in curve(log, "trial/step_time_s")] == list(range(1024))


def test_the_best_so_far_goes_on_from_the_shards(log: MLflowTrialLog) -> None:
    with log:
        log.append([trial_of(0, ok(1.0))], {})

    with reopened(log) as again:
        again.append([trial_of(1, ok(5.0))], {})

    assert [value for _, value, _ in curve(log, "trial/best_step_time_s")] == [1.0]


def test_with_the_first_real_trial_that_runs_the_best_starts_anew(log: MLflowTrialLog) -> None:
    simulated = [trial_of(0, ok(1.0)), trial_of(1, ok(3.0))]
    measured = [too_large(), ok(5.0), ok(6.0), ok(4.0)]
    real = [
        dataclasses.replace(trial_of(number, found), environment="real")
        for number, found in enumerate(measured, start=2)
    ]

    with log:
        log.append(simulated, {})
    with reopened(log) as again:
        for trial in real:
            again.append([trial], {})

    assert [value for _, value, _ in curve(log, "trial/step_time_s")] == [1, 3, 5, 6, 4]
    assert [value for _, value, _ in curve(log, "trial/best_step_time_s")] == [1, 5, 4]


def test_an_update_kept_trial_by_trial_has_its_metrics_at_its_last_trial(
    log: MLflowTrialLog,
) -> None:
    with log:
        for number in range(3):
            log.append(trials_of([number]), {})
    with reopened(log) as again:  # as after a kill
        again.append(trials_of([3]), {"baseline": -1.0})

    assert log.trials() == trials_of(range(4))
    assert curve(log, "update/baseline") == [(0, -1.0, 1000003)]
    assert [step for step, _, _ in curve(log, "trial/step_time_s")] == [0, 1, 2, 3]


# Shards


def test_shards_are_few_and_named_by_their_first_trial(log: MLflowTrialLog) -> None:
    append_all(log, 608, batch=16)  # 256 = 16 x 16: full shards end with a batch

    assert SHARD_TRIALS == 256
    assert shards(log) == [f"trials/{first:08d}.parquet" for first in (0, 256, 512)]
    assert log.trials() == trials_of(range(608))


def test_a_reopened_log_fills_its_last_shard(log: MLflowTrialLog) -> None:
    append_all(log, 8)

    with reopened(log) as again:
        again.append(trials_of(range(8, 12)), {})

    assert shards(log) == ["trials/00000000.parquet"]
    assert reopened(log).trials() == trials_of(range(12))


def test_a_shard_is_opened_by_pandas_alone(log: MLflowTrialLog) -> None:
    append_all(log, 4)

    frame = pd.read_parquet(log.store.download(log.run_id, shards(log)[0]))

    assert list(frame["number"]) == [0, 1, 2, 3]
    assert list(frame["device_of_group"][1]) == [1, 1, 0]


def test_a_gap_in_the_numbers_is_refused_and_nothing_is_kept(log: MLflowTrialLog) -> None:
    append_all(log, 4)

    with pytest.raises(InvalidValueError, match="got trial 5 where 4 belongs"):
        log.append(trials_of([5, 6]), {})

    assert log.trials() == trials_of(range(4))


def test_no_trials_are_no_update(log: MLflowTrialLog) -> None:
    with log:
        log.append([], {"baseline": 1.0})

    assert shards(log) == []
    assert curve(log, "update/baseline") == []


def test_a_damaged_shard_is_named(log: MLflowTrialLog) -> None:
    append_all(log, 4)
    path = log.store.download(log.run_id, shards(log)[0])
    path.write_bytes(path.read_bytes()[:-10])

    with pytest.raises(
        FileFormatError, match=f"trials/00000000.parquet of run {log.run_id} is dam"
    ):
        reopened(log).trials()


def test_a_file_that_a_kill_left_half_written_is_no_shard(log: MLflowTrialLog) -> None:
    append_all(log, 4)
    folder = log.store.download(log.run_id, "trials")

    (folder / ".0123456789abcdef.tmp").write_bytes(b"PAR1")

    assert reopened(log).trials() == trials_of(range(4))


# Checkpoints


def checkpoints_in(log: MLflowTrialLog) -> list[Path]:
    names = log.store.artifacts.names(log.run_id, "checkpoints")
    return [log.store.download(log.run_id, name) for name in names]


def save(log: MLflowTrialLog, updates: Sequence[int]) -> None:
    for update in updates:
        arrays = {"kernel": np.full(5, update)}
        log.save_checkpoint(Checkpoint(update=update, num_trials=0, arrays=arrays, scalars={}))


def test_the_last_two_checkpoints_are_kept_and_the_tag_names_the_last(log: MLflowTrialLog) -> None:
    with log:
        save(log, [25, 50, 75])

    names = [path.name for path in checkpoints_in(log)]
    assert [name[:15] for name in names] == ["update-00000050", "update-00000075"]
    assert log.store.run(log.run_id).tags["placer.checkpoint"] == f"checkpoints/{names[-1]}"


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    log: MLflowTrialLog, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    with log:
        save(log, [25, 50])
    last = checkpoints_in(log)[-1]
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(bytes(content) if damage == "flipped" else bytes(content[:-1]))
    if damage == "missing":
        last.unlink()

    with caplog.at_level(logging.WARNING, "placer"):
        found = log.load_checkpoint()

    assert found is not None
    assert found.update == 25
    assert last.name in caplog.text
    assert "using the checkpoint before it" in caplog.text


def test_without_a_checkpoint_that_can_be_read_there_is_none(log: MLflowTrialLog) -> None:
    save(log, [25, 50])
    for path in checkpoints_in(log):
        path.write_bytes(b"")

    assert log.load_checkpoint() is None


def test_saving_a_checkpoint_sends_the_points_that_wait(log: MLflowTrialLog) -> None:
    append_all(log, 4)

    save(log, [1])

    assert wait_until(lambda: len(curve(log, "trial/step_time_s")) == 4)


def test_top_placements_become_a_table_for_the_page(log: MLflowTrialLog) -> None:
    log.log_top_placements(pd.DataFrame({"rank": [1], "step_time_s": [0.5]}))

    path = log.store.download(log.run_id, "top_placements.csv")
    assert path.read_text() == "rank,step_time_s\n1,0.5\n"


# Kills


def killed(root: Path, key: str, after_s: float) -> None:
    """Train without end in a process of its own, and kill it soon after it began to log."""
    command = [sys.executable, "-m", "tests.training_process", str(root), key, str(10**9)]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[1])
    before_s = last_written_s(root)
    while last_written_s(root) == before_s and process.poll() is None:
        time.sleep(0.01)
    time.sleep(after_s)
    process.kill()
    process.wait()


def last_written_s(root: Path) -> float:
    paths = root.glob("artifacts/*/artifacts/trials/*.parquet")
    return max((path.stat().st_mtime for path in paths), default=0.0)


def test_a_training_killed_again_and_again_ends_as_one_left_alone(
    store: Store, store_root: Path
) -> None:
    key = next(KEYS)
    for after_s in (0.05, 0.4):
        killed(store_root, key, after_s)
    interrupted = store.find_training(key)
    assert interrupted is not None
    assert interrupted.status == "RUNNING"
    kept = MLflowTrialLog(store, interrupted.run_id).trials()
    num_trials = len(kept) + 40

    run_id = training_process.run(store_root, key, num_trials)

    log = MLflowTrialLog(store, run_id)
    checkpoint = log.load_checkpoint()
    assert len(kept) >= 2 * BATCH
    assert run_id == interrupted.run_id
    assert store.run(run_id).status == "FINISHED"
    assert log.trials() == trials_of(range(num_trials))
    assert curve(log, "trial/step_time_s") == [
        (trial.number, trial.measurement.step_time_s, 1000000 + trial.number)
        for trial in log.trials()
        if trial.measurement is not None
    ]
    assert len(curve(log, "trial/best_step_time_s")) == num_trials
    assert [step for step, _, _ in curve(log, "update/reward_mean")] == [
        update for update in range(num_trials // BATCH) if has_points(update)
    ]
    assert checkpoint is not None
    assert checkpoint.num_trials > num_trials - 2 * BATCH
