"""Every name that Placer writes into the tracking store, with what it means.

``docs/metrics.md`` explains each of them; a test holds the two together. Metrics are few
and have many steps, so that the charts of a training stay readable.
"""

from collections.abc import Mapping

EXPERIMENT = "placer"
"""The experiment that holds all runs."""

STEP_TIME = "trial/step_time_s"
BEST_STEP_TIME = "trial/best_step_time_s"
UPDATE_PREFIX = "update/"
"""Before the name of each metric that a trainer returns for an update."""

METRICS: Mapping[str, str] = {
    STEP_TIME: "step time of a trial that ran, simulated or measured",
    BEST_STEP_TIME: "smallest step time so far, of real trials as soon as one ran",
    "update/reward_mean": "mean reward of the update's trials",
    "update/baseline": "what the rewards were compared with",
    "update/invalid_share": "share of the update's trials that could not run",
    "update/entropy": "mean entropy of the policy's choices",
    "update/gradient_norm": "norm of the gradient before clipping",
    "update/loss": "the surrogate loss that was differentiated",
}

FIDELITY_ERROR = "fidelity/median_absolute_percentage_error"
FIDELITY_SPEARMAN = "fidelity/spearman"
DRIFT_CORRECTED_ERROR = "fidelity/drift_corrected/median_absolute_percentage_error"
DRIFT_CORRECTED_SPEARMAN = "fidelity/drift_corrected/spearman"

FIDELITY_METRICS: Mapping[str, str] = {
    FIDELITY_ERROR: "median of |simulated - measured| / measured over placements",
    FIDELITY_SPEARMAN: "rank correlation of simulated with measured step times",
    DRIFT_CORRECTED_ERROR: "the same error of step times relative to a reference's",
    DRIFT_CORRECTED_SPEARMAN: "rank correlation of step times relative to a reference's",
}

STAGE = "placer.stage"
KEY = "placer.key"
HOST = "placer.host"
PID = "placer.pid"
HEARTBEAT = "placer.heartbeat"
CHECKPOINT = "placer.checkpoint"
LOGGED_TRIALS = "placer.logged_trials"
ERROR = "placer.error"

GRAPH = "placer.graph"
TOPOLOGY = "placer.topology"
GRAPH_FINGERPRINT = "placer.graph_fingerprint"
TOPOLOGY_FINGERPRINT = "placer.topology_fingerprint"
PROFILE_RUN = "placer.profile_run"
GROUPING_RUN = "placer.grouping_run"
TRAINING_RUN = "placer.training_run"
METHOD = "placer.method"

TAGS: Mapping[str, str] = {
    STAGE: "which stage the run is: profile, group, train, evaluate or fidelity",
    KEY: "fingerprint of everything the stage's result depends on",
    HOST: "host of the process that worked on the run last",
    PID: "its process id",
    HEARTBEAT: "when it last wrote, UTC",
    CHECKPOINT: "artifact that holds the last checkpoint",
    LOGGED_TRIALS: "number of trials whose metrics are in the store",
    ERROR: "why the last attempt failed",
    GRAPH: "how people call the graph",
    TOPOLOGY: "how people call the topology",
    GRAPH_FINGERPRINT: "fingerprint of the graph's structure",
    TOPOLOGY_FINGERPRINT: "fingerprint of devices, links and hardware",
    PROFILE_RUN: "run of the profile that was grouped",
    GROUPING_RUN: "run of the grouping that was trained on",
    TRAINING_RUN: "run of the training that was evaluated",
    METHOD: "who found the best placement",
}

TRIALS_FOLDER = "trials"
CHECKPOINTS_FOLDER = "checkpoints"
TOP_PLACEMENTS_FILE = "top_placements.csv"

TRAINING_ARTIFACTS: Mapping[str, str] = {
    TRIALS_FOLDER: "the trial table, in Parquet shards",
    CHECKPOINTS_FOLDER: "the last two checkpoints of the trainer",
    TOP_PLACEMENTS_FILE: "the fastest distinct placements",
}
