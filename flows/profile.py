"""The profile flow: capture a graph and find what each op costs on the devices."""

import logging
import shutil
import tempfile
from pathlib import Path

from prefect import flow, task

from flows.process import quiet_start
from flows.real_devices import leave_gpus_to_workers
from flows.stages import (
    HOSTS_FILE,
    PROFILE,
    PROFILE_FILE,
    STEP_FOLDER,
    profile_key,
    profile_tags,
    reused,
)
from placer.config import ProfileSettings
from placer.files import save_profile
from placer.mlflow_inputs import log_graph
from placer.mlflow_store import open_store

_log = logging.getLogger(__name__)


@task(task_run_name="profile {settings.graph_name} on {settings.topology_name}")
def profile_graph(settings: ProfileSettings) -> str:
    """Capture and cost the graph; return the id of the stage's run."""
    store = open_store()
    key = profile_key(settings)
    if run_id := reused(store, PROFILE, key):
        return run_id
    if settings.is_traced_here:
        leave_gpus_to_workers()
    with quiet_start():
        from profiling.profiler import profile_source
        from profiling.step_files import save_step

    profiled = profile_source(settings)
    profile, step = profiled.profile, profiled.step
    name = f"profile {settings.graph_name} on {profile.topology.name}"
    tags = profile_tags(profile, settings.graph_name)
    params = settings.model_dump(mode="json")
    with (
        tempfile.TemporaryDirectory() as scratch,
        store.stage(PROFILE, key, name=name, params=params, tags=tags) as run,
    ):
        save_profile(profile, Path(scratch, PROFILE_FILE))
        if step is not None:
            save_step(step, Path(scratch, STEP_FOLDER))
        if settings.cluster is not None:
            # The stages that measure go to the same hosts.
            shutil.copyfile(settings.cluster, Path(scratch, HOSTS_FILE))
        run.log_folder(Path(scratch))
        log_graph(run, settings.graph_name, profile)
    _log.info("%s: %d ops, times by %s", name, profile.graph.num_ops, profile.provenance.method)
    return run.run_id


@flow(name="profile", flow_run_name="profile {settings.graph_name} on {settings.topology_name}")
def profile(settings: ProfileSettings = ProfileSettings()) -> str:
    """Find what each op of a training step costs on the devices.

    Args:
        settings: Which graph, on which devices.

    Returns:
        Id of the MLflow run that holds the profile.
    """
    return profile_graph(settings)
