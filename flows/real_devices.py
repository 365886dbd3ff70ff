"""The real devices of a profile, for the stages that measure on them.

A profile's step can be measured if it was kept, and if the profile's devices are those of this
machine or of a cluster, on which its ops were traced. A graph file brings no step; devices that
are only described have estimated times; equal devices without a description lend their op times
from this machine's.
"""

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flows.process import quiet_start
from flows.stages import HOSTS_FILE, STEP_FOLDER, ProfileInputs
from placer.errors import InvalidValueError
from placer.mlflow_store import Store
from placer.profile import Profile
from placer.tracking_names import PROFILE_RUN

if TYPE_CHECKING:
    from profiling.cluster import Cluster
    from profiling.real_environment import MeasurementConfig, RealEnvironment
    from profiling.step import CapturedStep

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class RealDevices:
    """The devices of this machine or of a cluster, up and ready to run a profile's step.

    Attributes:
        environment: Measures placements of the step.
        step: The step that was profiled.
        cluster: The workers.
    """

    environment: "RealEnvironment"
    step: "CapturedStep"
    cluster: "Cluster"


def why_not_real(store: Store, inputs: ProfileInputs) -> str | None:
    """Return why a profile's step cannot be measured here, in one line; None if it can."""
    profile = inputs.profile
    if not store.artifacts.names(inputs.tags[PROFILE_RUN], STEP_FOLDER):
        return f"graph {inputs.graph_name!r} was read from a file, which brings no step to run"
    if profile.provenance.method != "trace" or profile.topology.is_reference:
        return (
            f"the profile's devices are described, not present: topology {profile.topology.name!r}"
        )
    return None


def require_real_devices(store: Store, inputs: ProfileInputs) -> None:
    """Check that a profile's step can be measured here, before anything else is done.

    Raises:
        InvalidValueError: If it cannot; says why, and what would be right.
    """
    if reason := why_not_real(store, inputs):
        raise InvalidValueError(
            f"{reason}; what can be measured is a built-in workload, profiled on this machine"
            " with --topology local"
        )


@contextlib.contextmanager
def real_devices(
    store: Store, inputs: ProfileInputs, config: "MeasurementConfig | None" = None
) -> Iterator[RealDevices]:
    """Start the workers of the devices that the profile is of; end them with the block.

    Args:
        store: Holds the step.
        inputs: The profile.
        config: How to measure; the defaults of ``MeasurementConfig`` if None.

    Raises:
        InvalidValueError: If the profile's step cannot be measured here.
        WorkerError: If a worker does not come up.
    """
    require_real_devices(store, inputs)
    leave_gpus_to_workers()
    with quiet_start():
        from profiling.cluster import open_cluster
        from profiling.real_environment import MeasurementConfig, RealEnvironment
        from profiling.step_files import load_step

    run_id = inputs.tags[PROFILE_RUN]
    step = load_step(store.download(run_id, STEP_FOLDER))
    hosts_file = None
    if HOSTS_FILE in store.artifacts.names(run_id, "."):
        hosts_file = store.download(run_id, HOSTS_FILE)
    _log.info("measuring on %s devices", "this machine's" if hosts_file is None else "a cluster's")
    with open_cluster(hosts_file) as cluster:
        topology = inputs.profile.topology
        environment = RealEnvironment(step, topology, cluster, config or MeasurementConfig())
        yield RealDevices(environment, step, cluster)


@contextlib.contextmanager
def further_environments(
    devices: RealDevices,
    profile: Profile,
    hosts_files: Sequence[Path],
    config: "MeasurementConfig",
) -> Iterator[list["RealEnvironment"]]:
    """Start more clusters that measure the same step; end them with the block.

    Args:
        devices: Those that are up already.
        profile: Whose devices each further cluster must have.
        hosts_files: Of each further cluster.
        config: How to measure.

    Raises:
        InvalidValueError: If a cluster's devices differ from the profile's.
        WorkerError: If a worker does not come up.
    """
    with quiet_start():
        from profiling.cluster import open_cluster
        from profiling.real_environment import RealEnvironment

    with contextlib.ExitStack() as stack:
        clusters = [stack.enter_context(open_cluster(path)) for path in hosts_files]
        yield [
            RealEnvironment(devices.step, profile.topology, cluster, config) for cluster in clusters
        ]


@contextlib.contextmanager
def real_environment(
    store: Store, inputs: ProfileInputs, config: "MeasurementConfig | None" = None
) -> Iterator["RealEnvironment | None"]:
    """Yield the environment of ``real_devices``, or None where the step cannot be measured."""
    if why_not_real(store, inputs):
        yield None
        return
    with real_devices(store, inputs, config) as devices:
        yield devices.environment


def leave_gpus_to_workers() -> None:
    """Hide the GPUs from this process's TensorFlow, so that the workers have their memory.

    TensorFlow takes nearly all memory of every GPU that it sees as soon as it starts, and that
    is with the first op or variable, such as those of the policy network. So this comes first
    in a process that is going to measure.

    Raises:
        InvalidValueError: If TensorFlow has started with GPUs in this process.
    """
    with quiet_start():
        import tensorflow as tf

    try:
        tf.config.set_visible_devices([], "GPU")
    except RuntimeError as error:
        raise InvalidValueError(
            "TensorFlow has taken the GPUs in this process already and the workers need them:"
            " start this stage in a process of its own, such as `placer train --grouping RUN`"
        ) from error
