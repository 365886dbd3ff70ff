"""A training that is sent SIGTERM: its run says so, its trials are kept, nothing stays behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from placer.files import save_profile
from placer.mlflow_store import open_store
from placer.mlflow_trial_log import MLflowTrialLog
from tests.builders import SECOND_PER_BYTE, make_profile, make_topology
from tests.processes import is_running, wait_until

pytestmark = pytest.mark.slow

COMMAND = "from flows.cli import main; main()"
OPTIONS = ("--graph", "chains.json", "--network", "graph", "--trials", "1000000")


def children_of(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in found for child in path.read_text().split()]


def test_sigterm_ends_a_training_with_its_trials_kept_and_its_run_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    tensors = [(0, (1,), 10), (2, (3,), 10)]
    topology = make_topology(2, SECOND_PER_BYTE)
    save_profile(make_profile([1.0] * 4, tensors, topology), tmp_path / "chains.json")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, "optimize", *OPTIONS],
        cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True,
    ) as command:  # fmt: skip
        shards = tmp_path / "mlruns" / "artifacts"
        assert wait_until(lambda: [*shards.glob("*/artifacts/checkpoints/*")])
        started = children_of(command.pid)
        assert started  # Prefect's own server among them

        command.terminate()
        _, told = command.communicate(timeout=60)

    assert command.returncode == 128 + signal.SIGTERM
    assert told.splitlines()[-1] == "placer: terminated; what was finished is kept"
    assert "Traceback" not in told
    assert wait_until(lambda: not any(map(is_running, started)))
    store = open_store(tmp_path / "mlruns")
    client = store.connection.client
    query = "tags.`placer.stage` = 'train'"
    (run,) = client.search_runs([store.connection.experiment_id], filter_string=query)
    assert run.info.status == "KILLED"
    assert run.data.tags["placer.error"].endswith("interrupted; started again it goes on")
    log = MLflowTrialLog(store, run.info.run_id)
    checkpoint = log.load_checkpoint()
    assert checkpoint is not None
    assert 0 < checkpoint.num_trials <= len(log.trials()) < 1_000_000
