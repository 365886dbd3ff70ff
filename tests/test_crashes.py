"""A training that is killed again and again ends as one that was left alone, to the byte.

``make crash-test`` kills a training of 2,000 trials 20 times; here a shorter one is killed once at
each of the moments at which a kill could do harm.
"""

import hashlib
import logging
import multiprocessing
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.group import group_profile
from flows.profile import profile_graph
from placer.config import GroupSettings, ProfileSettings
from placer.files import save_profile
from placer.mlflow_store import Store, open_store
from tests import crashing_process
from tests.builders import SECOND_PER_BYTE, make_profile, make_topology
from tests.crashing_process import MOMENTS, NEVER

pytestmark = pytest.mark.slow

_log = logging.getLogger(__name__)

LONGEST_DELAY_S = {
    "trial": 0.05,
    "shard": 0.01,
    "checkpoint": 0.01,
    "tag": 0.02,
    "transaction": 0.02,
}
TRIALS_A_KILL = 100


def train(folder: Path, grouping_run: str, num_trials: int, *moment: object) -> int | None:
    """Train in a process of its own; return its exit code."""
    # One process imports TensorFlow and MLflow, and the others begin as copies of it.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.crashing_process"])
    arguments = (folder, grouping_run, num_trials, *moment)
    process = context.Process(target=crashing_process.train, args=arguments)
    process.start()
    process.join()
    return process.exitcode


@pytest.fixture
def chains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A profile of 12 chains of two ops on three devices, and stages that need no server."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    tensors = [(2 * chain, (2 * chain + 1,), 1) for chain in range(12)]
    times_s = [1.0 + chain % 5 for chain in range(24)]
    save_profile(
        make_profile(times_s, tensors, make_topology(3, SECOND_PER_BYTE)), tmp_path / "p.json"
    )
    return tmp_path / "p.json"


def prepared(folder: Path, chains: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make a store in a folder with the grouping of the profile; return its run."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    profile_run = profile_graph.fn(ProfileSettings(graph=chains))
    return str(group_profile.fn(profile_run, GroupSettings()))


def end_state(folder: Path) -> dict[str, Any]:
    """Return all that a training leaves: its files by their content, its curves, its tags."""
    store = open_store(folder / "mlruns")
    (run_id,) = (path.stem for path in folder.glob("*.finished"))
    client = store.connection.client
    run = client.get_run(run_id)
    whose = ("placer.host", "placer.pid", "placer.claim", "placer.heartbeat", "placer.grouping_run")
    return {
        "files": files(store, run_id),
        "curves": {
            name: [
                (point.step, point.value, point.timestamp)
                for point in client.get_metric_history(run_id, name)
            ]
            for name in run.data.metrics
        },
        "params": run.data.params,
        "tags": {
            name: value
            for name, value in run.data.tags.items()
            if name.startswith("placer.") and name not in (*whose, "placer.profile_run")
        },
        "status": run.info.status,
    }


def files(store: Store, run_id: str) -> dict[str, str]:
    folder = store.artifacts.journal(run_id).folder
    # MLflow puts a name of its own and the time into what describes a model.
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != "MLmodel"]
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(paths)
    }


def test_a_training_killed_again_and_again_is_the_same_to_the_byte(
    chains: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    num_kills = request.config.getoption("--kills")
    num_trials = TRIALS_A_KILL * num_kills
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    grouping_run = prepared(whole, chains, monkeypatch)
    assert train(whole, grouping_run, num_trials, NEVER, 0, 0) == 0

    grouping_run = prepared(killed, chains, monkeypatch)
    rng = np.random.default_rng(num_kills)
    codes = []
    for number in range(num_kills):
        moment = MOMENTS[number % len(MOMENTS)]
        # A kill's share are 12 updates, with a checkpoint after every fourth.
        first, last = {"trial": (6, 12), "shard": (6, 12)}.get(moment, (1, 3))
        count = int(rng.integers(first, last, endpoint=True))
        delay_s = rng.uniform(0, LONGEST_DELAY_S[moment])
        codes.append(train(killed, grouping_run, num_trials, moment, count, delay_s))
        shards = sorted(killed.glob("mlruns/artifacts/*/artifacts/trials/*.parquet"))
        _log.info("kill %d, %s: %s", number, moment, [path.name for path in shards[-1:]])
    code = train(killed, grouping_run, num_trials, NEVER, 0, 0)

    assert codes == [-signal.SIGKILL] * num_kills
    assert code == 0
    left, expected = end_state(killed), end_state(whole)
    for what, of_whole in expected.items():
        assert left[what] == of_whole, what
