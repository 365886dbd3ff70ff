"""A training that a test kills: it logs made-up trials until there are enough of them.

Run as ``python -m tests.training_process ROOT KEY NUM_TRIALS``. It goes on where the log
ends, as a trainer would, and checkpoints every second update.
"""

import sys
from pathlib import Path

import numpy as np

from placer.mlflow_store import open_store
from placer.mlflow_trial_log import MLflowTrialLog
from placer.trials import Checkpoint
from tests.tracking import BATCH, trials_of


def run(root: Path, key: str, num_trials: int) -> str:
    store = open_store(root)
    with (
        store.training(key, name="killed", params={"trials": num_trials}, tags={}) as run,
        MLflowTrialLog(store, run.run_id) as log,
    ):
        checkpoint = log.load_checkpoint()
        known = len(log.trials())
        first = 0 if checkpoint is None else checkpoint.update
        for update in range(first, num_trials // BATCH):
            numbers = range(update * BATCH, (update + 1) * BATCH)
            if numbers.start >= known:
                log.append(trials_of(numbers), {"reward_mean": -1.0 / (update + 1)})
            if update % 2:
                log.save_checkpoint(checkpoint_after(update))
    return run.run_id


def checkpoint_after(update: int) -> Checkpoint:
    arrays = {"kernel": np.full(1000, update, dtype=np.float32)}
    return Checkpoint(
        update=update + 1, num_trials=(update + 1) * BATCH, arrays=arrays, scalars={"last": update}
    )


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
