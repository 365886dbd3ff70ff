"""Offering the flows on a Prefect server, from a process that runs what is triggered."""

import os
from typing import cast

from prefect import serve
from prefect.deployments.runner import RunnerDeployment

from flows.benchmark import benchmark
from flows.evaluate import evaluate
from flows.fidelity import fidelity, measure_fidelity
from flows.group import group
from flows.optimize import optimize
from flows.profile import profile
from flows.resume import resume
from flows.train import train
from placer.errors import InvalidValueError

FLOWS = (
    optimize,
    profile,
    group,
    train,
    resume,
    evaluate,
    fidelity,
    measure_fidelity,
    benchmark,
)


def serve_flows() -> None:
    """Make a deployment of every flow on the server, and run what is triggered until ended.

    Raises:
        InvalidValueError: If no server is named: nobody could trigger anything.
    """
    if not os.environ.get("PREFECT_API_URL"):
        raise InvalidValueError(
            "PREFECT_API_URL is not set: start a server with `prefect server start` and set it"
        )
    deployments = [flow.to_deployment(name=flow.name, tags=["placer"]) for flow in FLOWS]
    # One at a time: two trainings would share the cores, and two measurements spoil both.
    serve(*cast(list[RunnerDeployment], deployments), limit=1)
