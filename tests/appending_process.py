"""A process that appends made-up trials one at a time, for tests that kill it or start several.

Run as ``python -m tests.appending_process RUN_ID``, it appends to that run of the store that
``MLFLOW_TRACKING_URI`` names, until it is killed.
"""

import itertools
import sys
import time
from pathlib import Path

from placer.mlflow_store import open_store
from placer.mlflow_trial_log import MLflowTrialLog
from tests.tracking import BATCH, trials_of


def append_for_ever(run_id: str) -> None:
    with MLflowTrialLog(open_store(), run_id) as log:
        for number in itertools.count():
            log.append(trials_of([number]), {})
            time.sleep(0.01)


def train(root: Path, key: str, num_trials: int) -> str:
    """Make a training of so many trials in the embedded store; return its run."""
    store = open_store(root)
    with (
        store.training(key, name=key, params={"trials": num_trials}, tags={}) as run,
        MLflowTrialLog(store, run.run_id) as log,
    ):
        for first in range(0, num_trials, BATCH):
            metrics = {"baseline": float(first)}
            log.append(trials_of(range(first, first + BATCH)), metrics)
            time.sleep(0.05)
    return run.run_id


if __name__ == "__main__":
    append_for_ever(sys.argv[1])
