"""The optimize flow: from a graph to the best placement, through all stages."""

from prefect import flow

from flows.evaluate import evaluate
from flows.group import group
from flows.profile import profile
from flows.real_devices import leave_gpus_to_workers
from flows.train import train
from placer.config import OptimizeSettings


@flow(
    name="optimize",
    flow_run_name="optimize {settings.profile.graph_name} on {settings.profile.topology_name}",
)
def optimize(settings: OptimizeSettings = OptimizeSettings()) -> str:
    """Find the best placement of a training step on the devices.

    Args:
        settings: The graph, the devices, and how each stage works.

    Returns:
        Id of the MLflow run that holds the evaluation and the winning placement.
    """
    if settings.profile.is_traced_here:
        leave_gpus_to_workers()
    profile_run = profile(settings.profile)
    grouping_run = group(profile_run, settings.group)
    training_run = train(grouping_run, settings.train)
    return evaluate(training_run, settings.evaluate)
