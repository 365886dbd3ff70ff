"""The core of Placer: graphs, devices, groupings, simulation, policies and trainers."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def load_trials(run_id: str, root: Path | None = None) -> "pd.DataFrame":
    """Return the trial table of a training, finished or not: one row a trial, by number.

    The columns are those of ``placer.trial_table.SCHEMA``: ``number``, ``update``, ``method``,
    ``environment``, ``device_of_group`` (an array, ``[G]``), ``outcome``, ``step_time_s``,
    ``samples_s``, ``peak_memory_bytes`` (an array, ``[D]``), ``detail`` and ``finished_at_s``
    (seconds since the epoch).

    Args:
        run_id: MLflow's id of the training's run.
        root: Folder of the embedded store. If None, the store that ``MLFLOW_TRACKING_URI``
            names, or else the one in ``mlruns``.

    Raises:
        UnknownNameError: If there is no such run.
        InvalidValueError: If it is no training.
        StoreError: If the store does not answer.
    """
    from placer.errors import InvalidValueError
    from placer.mlflow_store import TRAIN_STAGE, open_store
    from placer.mlflow_trial_log import MLflowTrialLog
    from placer.tracking_names import STAGE
    from placer.trial_table import trials_to_frame

    store = open_store(root)
    stage = store.run(run_id).tags.get(STAGE, "none of Placer's stages")
    if stage != TRAIN_STAGE:
        raise InvalidValueError(f"run {run_id} is of {stage}, expected a training")
    return trials_to_frame(MLflowTrialLog(store, run_id).trials())
