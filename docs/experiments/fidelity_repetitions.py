"""What repetitions of a fidelity run have in common: how far predictions can be expected to go.

The files are what ``placer fidelity --json`` wrote for the same workload and seed, so that all
measured the same placements. Step times are relative to all ops on the first device, measured in
turns. Two repetitions agree only as well as the machine repeats itself: the rank correlation
between their measurements is what a perfect prediction could be expected to reach.

    python docs/experiments/fidelity_repetitions.py rnnlm-1.json rnnlm-2.json rnnlm-3.json
"""

import argparse
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
from rich.console import Console

from placer.errors import InvalidValueError
from placer.fidelity import Agreement

OUT = Console(soft_wrap=True, highlight=False, markup=False)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+", help="results of placer fidelity (JSON)")
    documents = [json.loads(path.read_text()) for path in parser.parse_args().files]
    ratios = [ratio_of_placement(document) for document in documents]
    common = sorted(set.intersection(*(set(one) for one in ratios)))
    if not common:
        raise InvalidValueError("the files have no placement in common")
    measured = np.array([[one[placement][1] for placement in common] for one in ratios])
    predicted = np.array([[one[placement][0] for placement in common] for one in ratios])

    OUT.print(f"{documents[0]['graph']}: {len(common)} placements in all {len(documents)} files")
    OUT.print("| repetition | median error | nine of ten below | rank correlation |")
    OUT.print("|---|---|---|---|")
    for number, document in enumerate(documents, 1):
        print_row(f"{number}: step times", Agreement(**agreement(document)))
        print_row(f"{number}: relative to one device", Agreement(**document["drift_corrected"]))
    together = np.median(measured, axis=0)
    pairs = zip(np.median(predicted, axis=0), together, strict=True)
    print_row("median of all, relative", Agreement.of(pairs))
    between = [
        float(scipy.stats.spearmanr(measured[a], measured[b]).statistic)
        for a, b in itertools.combinations(range(len(documents)), 2)
    ]
    if between:
        changes = [
            float(np.median(np.abs(measured[a] / measured[b] - 1)))
            for a, b in itertools.combinations(range(len(documents)), 2)
        ]
        OUT.print(
            f"between measurements: median change {statistics.median(changes):.1%}, rank"
            f" correlation {', '.join(f'{rank:.2f}' for rank in between)}"
        )
    OUT.print(f"measured, relative: {together.min():.2f} to {together.max():.2f}")


def agreement(document: dict[str, Any]) -> dict[str, float | None]:
    """Return the figures of step times as they stand in a result."""
    return {
        name: document[name]
        for name in (
            "median_absolute_percentage_error",
            "percentile_90_absolute_percentage_error",
            "spearman",
        )
    }


def ratio_of_placement(document: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Return the predicted and the measured ratio of each placement that ran."""
    return {
        row["placement"]: (row["predicted_ratio"], row["measured_ratio"])
        for row in document["rows"]
        if row["measured_ratio"] is not None and row["predicted_ratio"] is not None
    }


def print_row(name: str, found: Agreement) -> None:
    """Print one line of the table."""
    error, most = (
        found.median_absolute_percentage_error,
        found.percentile_90_absolute_percentage_error,
    )
    OUT.print(f"| {name} | {error:.1%} | {most:.1%} | {found.spearman:.2f} |")


if __name__ == "__main__":
    main()
