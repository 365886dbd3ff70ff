"""The group flow: decide which ops of a profiled graph move together."""

import logging
import tempfile
from pathlib import Path

from prefect import flow, task

from flows.stages import GROUP, GROUPING_FILE, read_profile, reused, stage_key
from placer.config import GroupSettings
from placer.files import save_grouping
from placer.group_ops import GroupingConfig, group_ops
from placer.mlflow_inputs import log_graph
from placer.mlflow_store import open_store

_log = logging.getLogger(__name__)


@task(task_run_name="group the profile of run {profile_run}")
def group_profile(profile_run: str, settings: GroupSettings) -> str:
    """Group the ops of a profile; return the id of the stage's run."""
    store = open_store()
    inputs = read_profile(store, profile_run)
    key = stage_key(GROUP, inputs.content, settings)
    if run_id := reused(store, GROUP, key):
        return run_id
    result = group_ops(inputs.profile, GroupingConfig(max_groups=settings.max_groups))
    name = f"group {inputs.graph_name}"
    params = settings.model_dump()
    with (
        tempfile.TemporaryDirectory() as scratch,
        store.stage(GROUP, key, name=name, params=params, tags=inputs.tags) as run,
    ):
        save_grouping(result.grouping, inputs.profile.graph, Path(scratch, GROUPING_FILE))
        run.log_folder(Path(scratch))
        log_graph(run, inputs.graph_name, inputs.profile)
        run.log_params({"num": result.num_groups_after})
    counts = ", ".join(f"{count} by {step}" for step, count in result.num_groups_after.items())
    _log.info("%s: %s", name, counts.replace(" by ops", " ops", 1))
    return run.run_id


@flow(name="group", flow_run_name="group the profile of run {profile_run}")
def group(profile_run: str, settings: GroupSettings = GroupSettings()) -> str:
    """Decide which ops of a profiled graph move together.

    Args:
        profile_run: Id of the MLflow run that holds the profile.
        settings: How to group.

    Returns:
        Id of the MLflow run that holds the grouping.
    """
    return group_profile(profile_run, settings)
