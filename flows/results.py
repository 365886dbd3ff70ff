"""What the commands print and write once a flow is done: read back from the run's artifacts."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from flows.console import OUT, results_table
from flows.stages import (
    EVALUATION_FILE,
    FIDELITY_FILE,
    PLACEMENT_FILE,
    REPORT_FILE,
    TRAIN,
    finished_run,
    read_grouping,
    read_profile,
)
from placer.bounds import Bound
from placer.environment import REAL
from placer.files import atomic_write, write_json
from placer.mlflow_store import open_store
from placer.mlflow_trial_log import MLflowTrialLog
from placer.paper import PAPER, PAPER_GPUS
from placer.ranking import fastest, step_time_s
from placer.report import bound_sentence, seconds
from placer.training_summary import training_summary


def show_profile(run_id: str, *, json_file: Path | None) -> None:
    """Print what a profile run found."""
    profile = read_profile(open_store(), run_id).profile
    names = [device.name for device in profile.topology.devices]
    total_s = dict(zip(names, profile.compute_time_s.sum(axis=0).tolist(), strict=True))
    document = {
        "run_id": run_id,
        "graph": profile.graph.fingerprint,
        "topology": profile.topology.fingerprint,
        "num_ops": profile.graph.num_ops,
        "num_tensors": len(profile.graph.tensors),
        "method": profile.provenance.method,
        "measured_share": float(profile.costs.measured.mean()),
        "compute_time_s": total_s,
        "facts": dict(profile.provenance.facts),
    }
    OUT.print(f"{profile.graph.num_ops:,} ops, {len(profile.graph.tensors):,} tensors")
    OUT.print(f"op times by {profile.provenance.method}; all ops on one device:")
    for name, time_s in total_s.items():
        OUT.print(f"  {name:<10} {seconds(time_s)}")
    _finish(document, json_file, next_command=f"placer group --profile {run_id}")


def show_grouping(run_id: str, *, json_file: Path | None) -> None:
    """Print what a grouping run found, beside the paper's counts where there are some."""
    inputs = read_grouping(open_store(), run_id)
    num_ops, num_groups = inputs.profile.graph.num_ops, inputs.grouping.num_groups
    document = {"run_id": run_id, "num_ops": num_ops, "num_groups": num_groups}
    OUT.print(f"{inputs.graph_name}: {_counts(inputs.graph_name, num_ops, num_groups)}")
    _finish(document, json_file, next_command=f"placer train --grouping {run_id}")


def show_training(run_id: str, *, json_file: Path | None) -> None:
    """Print what a training found."""
    store = open_store()
    finished_run(store, run_id, TRAIN)
    trials = MLflowTrialLog(store, run_id).trials()
    real = [trial for trial in trials if trial.environment == REAL]
    simulated = [trial for trial in trials if trial.environment != REAL]
    best = fastest(trials)
    document = {
        "run_id": run_id,
        "num_trials": len(trials),
        "num_real_trials": len(real),
        "best_makespan_s": step_time_s(fastest(simulated)),
        "best_step_time_s": step_time_s(fastest(real)),
        "best_trial": None if best is None else best.number,
    }
    OUT.print(training_summary(trials), soft_wrap=True)
    _finish(document, json_file, next_command=f"placer evaluate --training {run_id}")


def show_evaluation(run_id: str, *, json_file: Path | None, placement_file: Path | None) -> None:
    """Print the table of an evaluation and where its files are; copy what was asked for."""
    store = open_store()
    document = json.loads(store.download(run_id, EVALUATION_FILE).read_text())
    placement = store.download(run_id, PLACEMENT_FILE)
    if placement_file is not None:
        atomic_write(placement_file, placement.read_bytes())
    counts = _counts(document["graph"], document["num_ops"], document["num_groups"])
    OUT.print(f"{document['graph']}: {counts}", soft_wrap=True)
    title = f"{document['graph']} on {document['topology']}"
    OUT.print(results_table(document["results"], document["devices"], title=title))
    for line in paper_lines(document["graph"], document["topology"]):
        OUT.print(line, soft_wrap=True)
    OUT.print(document["answer"], style="bold", soft_wrap=True)
    if document.get("lower_bound_s") is not None:
        bound = Bound(document["lower_bound"], document["lower_bound_s"])
        sentence = bound_sentence(bound, document["gap"], measured=document["measured"])
        OUT.print(f"bound      {sentence}", soft_wrap=True)
    OUT.print(f"placement  {placement_file or placement}", soft_wrap=True)
    OUT.print(f"report     {store.download(run_id, REPORT_FILE)}", soft_wrap=True)
    _finish(document, json_file, next_command="placer ui  (the MLflow page of all runs)")


def show_fidelity(run_id: str, *, json_file: Path | None) -> None:
    """Print every placement's simulated and measured time, and how well they agree."""
    document = json.loads(open_store().download(run_id, FIDELITY_FILE).read_text())
    OUT.print(_fidelity_table(document["rows"], f"{document['graph']} on {document['topology']}"))
    for kind, error in document["median_error_by_kind"].items():
        OUT.print(f"  {kind:<12} median {_signed(error)}")
    OUT.print(document["answer"], style="bold", soft_wrap=True)
    _finish(document, json_file, next_command="placer ui  (the MLflow page has the figure)")


def _fidelity_table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Return the table of the placements, the fastest first; what failed comes last."""
    table = Table(title=title, title_justify="left", header_style="bold", box=SIMPLE_HEAD)
    table.add_column("placement", no_wrap=True)
    for heading in ("simulated", "measured", "error", "without\ndrift", "transfers\nas simulated"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in sorted(rows, key=lambda row: (row["error"] is None, row["measured_s"] or 0.0)):
        ran, found = row["error"] is not None, row["transfers"]
        moved = f"{found['in_both']} of {found['received']}" if found else "–"
        measured = seconds(row["measured_s"]) if ran else row["outcome"]
        errors = [_signed(row["error"]), _signed(row["drift_corrected_error"])]
        table.add_row(row["name"], seconds(row["predicted_s"]), measured, *errors, moved)
    return table


def _signed(error: float | None) -> str:
    return "–" if error is None else f"{error:+.1%}"


def paper_lines(graph_name: str, topology_name: str) -> list[str]:
    """Return the step times of the paper's table 2 for one of its own cells, if this is one."""
    row = PAPER.get(graph_name.removesuffix("-paper"))
    num_gpus = PAPER_GPUS.get(topology_name)
    if row is None or num_gpus is None or not graph_name.endswith("-paper"):
        return []
    one_gpu = "out of memory" if row.gpu_s is None else f"{row.gpu_s:.2f} s"
    methods = ", ".join(
        f"{name} {time_s:.2f} s" for name, time_s in row.methods_s[num_gpus].items()
    )
    return [
        f"the paper measured: host {row.cpu_s:.2f} s, one GPU {one_gpu}; on {num_gpus} GPUs"
        f" {methods}"
    ]


def _counts(graph_name: str, num_ops: int, num_groups: int) -> str:
    counts = f"{num_ops:,} ops → {num_groups:,} groups"
    row = PAPER.get(graph_name.split("-", maxsplit=1)[0])
    if row is None:
        return counts
    return f"{counts} (the paper: {row.num_ops:,} → {row.num_groups:,})"


def _finish(document: Mapping[str, Any], json_file: Path | None, *, next_command: str) -> None:
    if json_file is not None:
        write_json(dict(document), json_file)
    OUT.print(f"next       {next_command}", soft_wrap=True)
