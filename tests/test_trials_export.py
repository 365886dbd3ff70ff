"""The trial table of a training as a file and as a DataFrame."""

import contextlib
import json
from pathlib import Path

import pandas as pd
import pytest

import placer
from flows.trials import export_trials
from placer.errors import InvalidValueError, UnknownNameError
from placer.mlflow_store import Store, open_store
from placer.mlflow_trial_log import MLflowTrialLog
from placer.trial_table import SCHEMA
from tests.tracking import too_large, trial_of, trials_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("export")


@pytest.fixture(scope="module")
def store(folder: Path) -> Store:
    return open_store(folder / "mlruns")


@pytest.fixture(scope="module")
def run_id(store: Store) -> str:
    """An unfinished training of four trials, of which the third did not fit."""
    with (
        contextlib.suppress(KeyboardInterrupt),
        store.training("key", name="t", params={}, tags={}) as run,
        MLflowTrialLog(store, run.run_id) as log,
    ):
        log.append([*trials_of([0, 1]), trial_of(2, too_large()), trial_of(3)], {})
        raise KeyboardInterrupt
    return run.run_id


def test_a_training_is_one_row_a_trial(folder: Path, run_id: str) -> None:
    frame = placer.load_trials(run_id, folder / "mlruns")

    assert list(frame.columns) == SCHEMA.names
    assert frame["number"].tolist() == [0, 1, 2, 3]
    assert frame["outcome"].tolist() == ["OK", "OK", "OUT_OF_MEMORY", "OK"]
    assert frame["step_time_s"].dropna().tolist() == [2.0 - n / 1024 for n in (0, 1, 3)]
    assert [row.tolist() for row in frame["device_of_group"]] == [[n % 2, 1, 0] for n in range(4)]


def test_both_formats_hold_the_table(
    folder: Path, run_id: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    export_trials(run_id, folder / "trials.parquet")
    export_trials(run_id, folder / "trials.csv")

    expected = placer.load_trials(run_id)
    pd.testing.assert_frame_equal(pd.read_parquet(folder / "trials.parquet"), expected)
    table = pd.read_csv(folder / "trials.csv")
    assert table["step_time_s"].tolist()[:2] == expected["step_time_s"].tolist()[:2]
    assert json.loads(table["device_of_group"][3]) == [1, 1, 0]
    assert json.loads(table["peak_memory_bytes"][0]) == [7, 2**40]
    assert capsys.readouterr().out.startswith(f"4 trials of run {run_id} in ")


def test_another_format_is_refused_before_the_store_is_opened(folder: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"'trials.txt' must end in .parquet or .csv"):
        export_trials("whatever", Path("trials.txt"))


def test_what_is_no_training_is_refused(folder: Path, store: Store) -> None:
    with store.stage("profile", "key", name="p", params={}, tags={}) as run:
        pass

    with pytest.raises(InvalidValueError, match=f"run {run.run_id} is of profile"):
        placer.load_trials(run.run_id, folder / "mlruns")
    with pytest.raises(UnknownNameError, match="'0123'"):
        placer.load_trials("0123", folder / "mlruns")
