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
    "update/importance": "mean weight of placements that an older policy drew",
    "update/epochs": "policy updates made by one batch",
    "update/divergence": "how far a choice moved from the policy that drew the batch",
    "update/clipped_share": "share of placements that push no further",
    "update/elite_reward_mean": "mean reward of the placements that were imitated",
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

EVALUATION_BOUND = "evaluation/lower_bound_s"
EVALUATION_GAP = "evaluation/gap"

EVALUATION_METRICS: Mapping[str, str] = {
    EVALUATION_BOUND: "makespan that no placement of the groups is below",
    EVALUATION_GAP: "how far the winner's makespan is above that, as a share of it",
}

SEARCH_BEST = "search/best_step_time_s"
SEARCH_MAKESPAN = "search/makespan_s"
SEARCH_BOUND = "search/lower_bound_s"
SEARCH_GAP = "search/gap"
SEARCH_EVALUATIONS = "search/evaluations"
SEARCH_DURATION = "search/duration_s"

SEARCH_METRICS: Mapping[str, str] = {
    SEARCH_BEST: "makespan of the best placement so far, by evaluations",
    SEARCH_MAKESPAN: "makespan of the best placement of the search",
    SEARCH_BOUND: "makespan that no placement is below",
    SEARCH_GAP: "how far the best is above that, as a share of it",
    SEARCH_EVALUATIONS: "placements that were measured",
    SEARCH_DURATION: "wall time of the search",
}

SPEED_PREFIX = "simulator/"
SPEED_METRICS: Mapping[str, str] = {
    "simulator/one_device/one_thread_per_s": "all ops on one device, one thread",
    "simulator/groups/one_thread_per_s": "every group at random, one thread",
    "simulator/ops/one_thread_per_s": "every op at random, one thread",
    "simulator/one_device/all_cores_per_s": "all ops on one device, all cores",
    "simulator/groups/all_cores_per_s": "every group at random, all cores",
    "simulator/ops/all_cores_per_s": "every op at random, all cores",
}

PARENT_RUN = "mlflow.parentRunId"
"""MLflow's own tag: below which run its page shows this one."""

STAGE = "placer.stage"
KEY = "placer.key"
HOST = "placer.host"
PID = "placer.pid"
HEARTBEAT = "placer.heartbeat"
CLAIM = "placer.claim"
CHECKPOINT = "placer.checkpoint"
LOGGED_TRIALS = "placer.logged_trials"
ERROR = "placer.error"
EXTENDED_TO = "placer.extended_to"
FORKED_FROM = "placer.forked_from"

GRAPH = "placer.graph"
TOPOLOGY = "placer.topology"
GRAPH_FINGERPRINT = "placer.graph_fingerprint"
TOPOLOGY_FINGERPRINT = "placer.topology_fingerprint"
PROFILE_RUN = "placer.profile_run"
GROUPING_RUN = "placer.grouping_run"
TRAINING_RUN = "placer.training_run"
METHOD = "placer.method"
COMPARED_RUNS = "placer.compared_runs"

TAGS: Mapping[str, str] = {
    STAGE: "which stage the run is: profile, group, train, evaluate, fidelity, benchmark, search or"
    " compare",
    KEY: "fingerprint of everything the stage's result depends on",
    HOST: "host of the process that worked on the run last",
    PID: "its process id",
    HEARTBEAT: "when it last wrote, UTC; at least once a minute",
    CLAIM: "name of its claim on the run; another process that sets it has the run",
    CHECKPOINT: "artifact that holds the last checkpoint",
    LOGGED_TRIALS: "number of trials whose metrics are in the store",
    ERROR: "why the last attempt failed, or how it was interrupted",
    EXTENDED_TO: "number of trials wanted, once it was extended",
    FORKED_FROM: "run whose checkpoint this training goes on from",
    GRAPH: "how people call the graph",
    TOPOLOGY: "how people call the topology",
    GRAPH_FINGERPRINT: "fingerprint of the graph's structure",
    TOPOLOGY_FINGERPRINT: "fingerprint of devices, links and hardware",
    PROFILE_RUN: "run of the profile that was grouped",
    GROUPING_RUN: "run of the grouping that was trained on",
    TRAINING_RUN: "run of the training that was evaluated",
    METHOD: "who found the best placement",
    COMPARED_RUNS: "runs that were compared",
}

TRIALS_FOLDER = "trials"
CHECKPOINTS_FOLDER = "checkpoints"
TOP_PLACEMENTS_FILE = "top_placements.csv"
TRAINING_SETTINGS_FILE = "settings.json"

TRAINING_ARTIFACTS: Mapping[str, str] = {
    TRIALS_FOLDER: "the trial table, in Parquet shards",
    CHECKPOINTS_FOLDER: "the last two checkpoints of the trainer",
    TOP_PLACEMENTS_FILE: "the fastest distinct placements",
    TRAINING_SETTINGS_FILE: "what it was begun with: all settings, and versions",
}

COMPARISON_FILE = "comparison.json"
COMPARISON_TABLE_FILE = "comparison.md"
COMPARISON_FIGURE = "best_so_far.png"

COMPARISON_ARTIFACTS: Mapping[str, str] = {
    COMPARISON_FILE: "what the runs found, and in what they differ",
    COMPARISON_TABLE_FILE: "the same as tables for people",
    COMPARISON_FIGURE: "best step time against trials and against wall time",
}

CHAMPION = "champion"
"""The alias of the best version of a registered policy."""

PROFILE_FINGERPRINT = "placer.profile_fingerprint"
NETWORK = "placer.network"
ENVIRONMENT = "placer.environment"
BEST_STEP_TIME_S = "placer.best_step_time_s"

MODEL_TAGS: Mapping[str, str] = {
    GRAPH: TAGS[GRAPH],
    TOPOLOGY: TAGS[TOPOLOGY],
    GRAPH_FINGERPRINT: TAGS[GRAPH_FINGERPRINT],
    TOPOLOGY_FINGERPRINT: TAGS[TOPOLOGY_FINGERPRINT],
    PROFILE_FINGERPRINT: "fingerprint of graph, costs and topology",
    TRAINING_RUN: "run of the training that made it",
    NETWORK: "name of the policy network",
    ENVIRONMENT: "where the best placement was measured",
    BEST_STEP_TIME_S: "what a step of the best placement took there",
}

POLICY_MODEL_FOLDER = "policy_model"
"""Artifact of a training that is or was the champion: its versions of the registered model."""
