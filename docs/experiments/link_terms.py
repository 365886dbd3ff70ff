"""What each term of a calibrated link is good for, from the rows of one fidelity run.

Every other placement of the run is used to fit, the rest to judge; then the halves change
places. The links are first put back to what they were when measured alone. Errors are of step times
relative to all ops on the first device, measured in turns.

    python docs/experiments/link_terms.py --fidelity RUN_ID
"""

import argparse
import dataclasses
import json
from collections.abc import Collection

import numpy as np
import scipy.stats
from rich.console import Console

from flows.process import prepare
from flows.stages import FIDELITY_FILE, read_grouping
from placer.calibration import (
    TERMS,
    CalibrationSample,
    LinkTerms,
    fit_terms,
    ratio_errors,
    with_terms,
)
from placer.devices import Link
from placer.mlflow_store import open_store
from placer.placement import Placement
from placer.profile import EXTRA_LATENCY_S, Profile
from placer.sampled_placements import reference_placement
from placer.simulator import Simulator
from placer.tracking_names import GROUPING_RUN

OUT = Console(soft_wrap=True, highlight=False, markup=False)

CHOICES: dict[str, Collection[str]] = {
    "none: links as measured alone": (),
    "all": TERMS,
    "without extra latency": ("source_load", "destination_load"),
    "without source load": ("extra_latency_s", "destination_load"),
    "without destination load": ("extra_latency_s", "source_load"),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fidelity", required=True, help="run id of a fidelity run")
    run_id = parser.parse_args().fidelity
    prepare()
    store = open_store()
    inputs = read_grouping(store, store.run(run_id).tags[GROUPING_RUN])
    document = json.loads(store.download(run_id, FIDELITY_FILE).read_text())
    profile = links_alone(inputs.profile)
    reference = reference_placement(profile, inputs.grouping)
    samples = [
        CalibrationSample(
            Placement.from_groups(inputs.grouping, np.array(row["device_of_group"])),
            row["measured_ratio"],
        )
        for row in document["rows"]
        if row["measured_ratio"] is not None
    ]
    OUT.print(f"{document['graph']}, {len(samples)} placements")
    OUT.print("| terms fitted | median error | nine of ten below | rank correlation |")
    OUT.print("|---|---|---|---|")
    for name, terms in CHOICES.items():
        errors = cross_errors(profile, reference, samples, terms)
        measured = np.array([sample.ratio for sample in samples])
        rank = scipy.stats.spearmanr((1 + errors) * measured, measured).statistic
        sizes = np.abs(errors)
        OUT.print(
            f"| {name} | {np.median(sizes):.1%} | {np.quantile(sizes, 0.9):.1%} | {rank:.2f} |"
        )
    every = fit_terms(profile, reference, samples)
    OUT.print(f"fitted to all rows: {every}")


def links_alone(profile: Profile) -> Profile:
    """Return the profile with its links as they were before the calibration."""
    extra_s = float(profile.provenance.facts.get(EXTRA_LATENCY_S, "0"))
    topology = profile.topology
    links = {
        pair: Link(link.bandwidth_bytes_per_s, max(link.latency_s - extra_s, 0.0))
        for pair, link in topology.links.items()
    }
    return dataclasses.replace(profile, topology=dataclasses.replace(topology, links=links))


def cross_errors(
    profile: Profile,
    reference: Placement,
    samples: list[CalibrationSample],
    terms: Collection[str],
) -> np.ndarray:
    """Return the error of each sample, with terms fitted to the half that it is not in."""
    errors = np.zeros(len(samples))
    for half in range(2):
        fitted: LinkTerms = fit_terms(profile, reference, samples[1 - half :: 2], terms)
        simulator = Simulator(with_terms(profile, fitted))
        errors[half::2] = ratio_errors(simulator, reference, samples[half::2])
    return errors


if __name__ == "__main__":
    main()
