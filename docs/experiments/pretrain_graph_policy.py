"""Trains the network of the graph policy on generated graphs and writes its weights.

    python docs/experiments/pretrain_graph_policy.py --out placer/policies/graph_weights.npz

The families ``transformer`` and ``encoder-decoder`` are held out, so that the weights can be judged
by them (``zero_shot.py``). Every now and then it prints how far the likeliest placements of
graphs that are not trained on are above the best that a short search found.
"""

import argparse
import importlib.metadata
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from placer.generated_graphs import FAMILIES
from placer.policies.graph_model import METADATA
from placer.policies.graph_network import Parameters
from placer.pretraining import Lesson, Pretraining, first_parameters, generated_lesson

HELD_OUT = ("transformer", "encoder-decoder")
_MAX_GROUPS = 350
_SEARCHED = 300
_JUDGED = 24
_EVERY = 250
OUT = Console(soft_wrap=True, highlight=False, markup=False)


def main() -> None:
    """Train, and write the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lessons", type=int, default=200, help="graphs that are trained on")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--imitation", type=float, default=0.15, help="beside the advantages")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    started_s = time.perf_counter()
    families = tuple(family for family in FAMILIES if family not in HELD_OUT)

    def lesson(role: int, number: int) -> Lesson:
        seed = (arguments.seed, role, number)
        return generated_lesson(seed, families, max_groups=_MAX_GROUPS, num_trials=_SEARCHED)

    lessons = [lesson(0, number) for number in range(arguments.lessons)]
    judged = [lesson(1, number) for number in range(_JUDGED)]
    OUT.print(f"{time.perf_counter() - started_s:.0f} s: {len(lessons)} lessons")
    parameters = first_parameters(arguments.seed)
    training = Pretraining(
        parameters,
        lessons,
        num_steps=arguments.steps,
        imitation=arguments.imitation,
        seed=arguments.seed,
    )
    for number in range(1, arguments.steps + 1):
        progress = training.step()
        if number % _EVERY == 0 or number == 1:
            ratios = [other.greedy_s(parameters) / other.best_s for other in judged]
            OUT.print(
                f"{time.perf_counter() - started_s:.0f} s: step {number}, not trained on:"
                f" median {np.median(ratios):.3f}, mean {np.exp(np.mean(np.log(ratios))):.3f}"
                f" of the search's best; {progress}"
            )
            _write(arguments.out, parameters, _facts(arguments))


def _facts(arguments: argparse.Namespace) -> dict[str, object]:
    """Return how the weights are made."""
    return {
        "seed": arguments.seed,
        "graphs": arguments.lessons,
        "held_out": HELD_OUT,
        "steps": arguments.steps,
        "imitation": arguments.imitation,
        "versions": {name: importlib.metadata.version(name) for name in ("placer", "numpy")},
    }


def _write(path: Path, parameters: Parameters, facts: Mapping[str, object]) -> None:
    arrays: dict[str, Any] = {name: value.astype(np.float32) for name, value in parameters.items()}
    arrays[METADATA] = np.array(json.dumps(facts))
    np.savez(path, **arrays)


if __name__ == "__main__":
    main()
