"""The fidelity flow: predict placements of every kind, measure them, and compare.

Each is measured in turns with all groups on the first device: ``placer.fidelity`` says why.
Unlike the other stages it is never reused from an earlier run: it is a measurement.
"""

import dataclasses
import importlib.metadata
import logging
import platform
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect import flow, task

from flows.group import group
from flows.process import quiet_start
from flows.profile import profile
from flows.real_devices import RealDevices, real_devices, require_real_devices
from flows.stages import FIDELITY, FIDELITY_FILE, GroupedInputs, read_grouping, stage_key
from placer.config import FidelitySettings, MeasureFidelitySettings
from placer.errors import WorkerError
from placer.fidelity import (
    Fidelity,
    FidelityRow,
    fidelity_placements,
    measured_rows,
)
from placer.figures import fidelity_scatter
from placer.files import write_json
from placer.mlflow_store import OpenRun, now, open_store
from placer.report import seconds
from placer.sampled_placements import reference_placement
from placer.simulator import SimulatedEnvironment, Simulator
from placer.tracking_names import (
    DRIFT_CORRECTED_ERROR,
    DRIFT_CORRECTED_SPEARMAN,
    FIDELITY_ERROR,
    FIDELITY_SPEARMAN,
)

if TYPE_CHECKING:
    from profiling.received import TransferComparison

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class _Found:
    """What was found: how well times agree, and which tensors of each placement do."""

    fidelity: Fidelity
    transfers: dict[str, dict[str, Any] | None]


@task(task_run_name="measure the fidelity for the grouping of run {grouping_run}")
def measure_grouping(grouping_run: str, settings: FidelitySettings) -> str:
    """Predict and measure placements of a grouped profile; return the id of the stage's run."""
    store = open_store()
    inputs = read_grouping(store, grouping_run)
    require_real_devices(store, inputs)
    with quiet_start():
        from profiling.real_environment import MeasurementConfig

    key = stage_key(FIDELITY, inputs.content, settings)
    name = f"fidelity {inputs.graph_name} on {inputs.profile.topology.name}, seed {settings.seed}"
    params = settings.model_dump()
    config = MeasurementConfig(**settings.measurement.model_dump())
    with (
        store.stage(FIDELITY, key, name=name, params=params, tags=inputs.tags) as run,
        real_devices(store, inputs, config) as devices,
    ):
        _log_fidelity(run, inputs, settings, _measure(inputs, settings, devices))
    return run.run_id


def _measure(inputs: GroupedInputs, settings: FidelitySettings, devices: RealDevices) -> _Found:
    profile, grouping, seed = inputs.profile, inputs.grouping, settings.seed
    simulator = Simulator(profile)
    simulated, real = SimulatedEnvironment(simulator), devices.environment
    chosen = fidelity_placements(profile, grouping, settings.count, seed=seed)
    reference = reference_placement(profile, grouping)
    rows: list[FidelityRow] = []
    for row in measured_rows(chosen, reference, simulated, real, seed=seed):
        rows.append(row)
        predicted, measured = seconds(row.predicted.step_time_s), seconds(row.step_time_s)
        count = f"{len(rows)} of {len(chosen)}"
        _log.info("%s: %s: simulated %s, measured %s", count, row.chosen.name, predicted, measured)
    fidelity = Fidelity(tuple(rows))
    return _Found(fidelity, _compare_transfers(fidelity, simulator, devices))


def _compare_transfers(
    fidelity: Fidelity, simulator: Simulator, devices: RealDevices
) -> dict[str, dict[str, Any] | None]:
    """Return for each placement that ran what it received beside what was predicted."""
    from profiling.placed_step import ImportedStep
    from profiling.received import compare_transfers

    imported = ImportedStep(devices.step)
    transfers: dict[str, dict[str, Any] | None] = {}
    for row in fidelity.judged:
        name, placement = row.chosen.name, row.chosen.placement
        try:
            found = compare_transfers(imported, placement, simulator, devices.cluster)
        except WorkerError as error:
            _log.warning("%s: its transfers are not known: %s", name, error)
            transfers[name] = None
        else:
            transfers[name] = _transfers_document(found)
    return transfers


def _transfers_document(found: "TransferComparison") -> dict[str, Any]:
    return {
        "predicted": len(found.predicted),
        "received": len(found.received),
        "in_both": len(found.in_both),
        "missing": [str(tensor) for tensor in found.missing],
        "extra": [str(tensor) for tensor in found.extra],
        "by_client": [str(tensor) for tensor in sorted(found.by_client)],
    }


def _log_fidelity(
    run: OpenRun, inputs: GroupedInputs, settings: FidelitySettings, found: _Found
) -> None:
    document = _document(run, inputs, settings, found)
    with tempfile.TemporaryDirectory() as scratch:
        write_json(document, Path(scratch, FIDELITY_FILE))
        run.log_folder(Path(scratch))
    raw, corrected = found.fidelity.agreement, found.fidelity.drift_corrected
    figures = {
        FIDELITY_ERROR: raw.median_absolute_percentage_error,
        FIDELITY_SPEARMAN: raw.spearman,
        DRIFT_CORRECTED_ERROR: corrected.median_absolute_percentage_error,
        DRIFT_CORRECTED_SPEARMAN: corrected.spearman,
    }
    run.log_metrics({name: value for name, value in figures.items() if value is not None})
    figure = fidelity_scatter(
        document["rows"],
        error=corrected.median_absolute_percentage_error,
        spearman=corrected.spearman,
    )
    run.log_figure(figure, "fidelity.png")
    run.describe(document["answer"], ["fidelity.png"])
    _log.info("%s", document["answer"])


def _document(
    run: OpenRun, inputs: GroupedInputs, settings: FidelitySettings, found: _Found
) -> dict[str, Any]:
    document = found.fidelity.document()
    profile = inputs.profile
    rows = [{**row, "transfers": found.transfers.get(row["name"])} for row in document["rows"]]
    return {
        "version": 1,
        "kind": "placer.fidelity",
        "run_id": run.run_id,
        "answer": found.fidelity.answer(inputs.graph_name, profile.topology.name),
        "graph": inputs.graph_name,
        "topology": profile.topology.name,
        "graph_fingerprint": profile.graph.fingerprint,
        "profile_fingerprint": profile.fingerprint,
        "topology_fingerprint": profile.topology.fingerprint,
        "num_groups": inputs.grouping.num_groups,
        "host": platform.node(),
        "date": now(),
        "versions": {name: importlib.metadata.version(name) for name in ("placer", "tensorflow")},
        "seed": settings.seed,
        "measurement": settings.measurement.model_dump(),
        **document,
        "rows": rows,
    }


@flow(name="fidelity", flow_run_name="fidelity for the grouping of run {grouping_run}")
def fidelity(grouping_run: str, settings: FidelitySettings = FidelitySettings()) -> str:
    """Measure how well the simulation of a grouped profile predicts, on the real devices.

    Args:
        grouping_run: Id of the MLflow run that holds the grouping.
        settings: Which placements, and how to measure them.

    Returns:
        Id of the MLflow run that holds the comparison.
    """
    return measure_grouping(grouping_run, settings)


@flow(
    name="measure-fidelity",
    flow_run_name="fidelity of {settings.profile.graph_name} on {settings.profile.topology_name}",
)
def measure_fidelity(settings: MeasureFidelitySettings = MeasureFidelitySettings()) -> str:
    """Profile and group a training step, then measure how well its simulation predicts.

    Args:
        settings: The graph, the devices, and how each stage works.

    Returns:
        Id of the MLflow run that holds the comparison.
    """
    profile_run = profile(settings.profile)
    grouping_run = group(profile_run, settings.group)
    return fidelity(grouping_run, settings.fidelity)
