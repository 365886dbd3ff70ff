"""How good the pretrained graph policy is on graphs that it has never seen, without any search.

    python docs/experiments/zero_shot.py --generated 60
    python docs/experiments/zero_shot.py --graph graph.json --topology four.toml

The likeliest placement, and the best of it and 16 samples (17 evaluations), against every heuristic
and the best of them (about as many evaluations): makespans, over that of the best heuristic,
and the seconds that placing takes (features, network and 16 samples, compilation not).
Generated graphs are of seeds that were not trained on, and two of their families were held out.
Means are geometric, over the placements that fit.
"""

import argparse
import collections
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from placer.files import load_graph_file, load_topology
from placer.generated_graphs import FAMILIES, generated_profile
from placer.graph import FloatArray
from placer.group_ops import group_ops
from placer.grouping import Grouping
from placer.heuristics import heuristic_placements
from placer.policies.graph import GraphPolicy
from placer.policies.graph_model import PRETRAINED, load_parameters
from placer.policy import Actions
from placer.profile import Profile
from placer.simulator import Simulator

_SEED = 2026
_SAMPLES = 16
OUT = Console(soft_wrap=True, highlight=False, markup=False)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--generated", type=int, default=0, help="how many generated graphs")
    parser.add_argument("--graph", type=Path, action="append", default=[])
    parser.add_argument("--topology", help="of the graph files")
    parser.add_argument("--weights", type=Path, default=PRETRAINED)
    arguments = parser.parse_args()
    parameters = load_parameters(arguments.weights)
    warm = generated_profile(np.random.default_rng(0))
    GraphPolicy(warm, group_ops(warm).grouping, parameters=parameters).greedy()
    ratios_of_family: dict[str, list[tuple[float, float]]] = collections.defaultdict(list)
    wins_of_heuristic: collections.Counter[str] = collections.Counter()
    count_of_heuristic: collections.Counter[str] = collections.Counter()
    OUT.print("| graph | groups | devices | best heuristic | greedy | over it | of 17 | seconds |")
    OUT.print("|---|---|---|---|---|---|---|---|")
    for name, family, profile in _graphs(arguments):
        grouping = group_ops(profile).grouping
        started_s = time.perf_counter()
        policy = GraphPolicy(profile, grouping, parameters=parameters)
        placed = np.concatenate(
            [policy.greedy()[np.newaxis], policy.sample(0, np.arange(_SAMPLES))]
        )
        seconds = time.perf_counter() - started_s
        policy_s, sampled_s, of_heuristic = _makespans(profile, grouping, placed)
        best = min(of_heuristic, key=lambda method: of_heuristic[method])
        ratio, sampled_ratio = policy_s / of_heuristic[best], sampled_s / of_heuristic[best]
        ratios_of_family[family].append((ratio, sampled_ratio))
        for method, makespan_s in of_heuristic.items():
            short = "single" if method.startswith("single") else method
            count_of_heuristic[short] += 1
            wins_of_heuristic[short] += policy_s < makespan_s
        OUT.print(
            f"| {name} | {grouping.num_groups} | {profile.topology.num_devices}"
            f" | {1e6 * of_heuristic[best]:,.0f} µs ({best}) | {1e6 * policy_s:,.0f} µs"
            f" | {ratio:.3f} | {sampled_ratio:.3f} | {seconds:.2f} |"
        )
    _print_families(ratios_of_family)
    OUT.print("\n| heuristic | policy is faster on |\n|---|---|")
    for method, count in count_of_heuristic.items():
        OUT.print(f"| {method} | {100 * wins_of_heuristic[method] / count:.0f} % of {count} |")


def _graphs(arguments: argparse.Namespace) -> Iterator[tuple[str, str, Profile]]:
    """Yield name, family and profile of each graph."""
    for path in arguments.graph:
        topology = load_topology(arguments.topology)
        yield path.stem, "published", load_graph_file(path).profile(topology)
    for number in range(arguments.generated):
        family = FAMILIES[number % len(FAMILIES)]
        rng = np.random.default_rng([_SEED, number])
        yield f"{family} {number}", family, generated_profile(rng, family=family)


def _makespans(
    profile: Profile, grouping: Grouping, placed: Actions
) -> tuple[float, float, dict[str, float]]:
    """Return the makespan of the first placement, the best, and that of each heuristic.

    That of a placement that does not fit is infinite.
    """
    of_heuristic = heuristic_placements(profile, grouping)
    actions = np.concatenate([placed, np.stack(list(of_heuristic.values()))])
    found = Simulator(profile).run(actions[:, grouping.group_of_op])
    makespans_s = np.where(found.fits, found.makespan_s, np.inf).tolist()
    others = dict(zip(of_heuristic, makespans_s[len(placed) :], strict=True))
    return makespans_s[0], min(makespans_s[: len(placed)]), others


def _print_families(ratios_of_family: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    everything = [ratios for found in ratios_of_family.values() for ratios in found]
    for column, what in enumerate(("likeliest placement", "best of 17")):
        OUT.print(f"\n| {what} | graphs | faster | equal | slower | does not fit | median | mean |")
        OUT.print("|---|---|---|---|---|---|---|---|")
        for family, found in [*ratios_of_family.items(), ("all", everything)]:
            _print_family(family, np.array(found)[:, column])


def _print_family(family: str, ratios: FloatArray) -> None:
    fitting = ratios[np.isfinite(ratios)]
    faster, equal = int((ratios < 1).sum()), int((ratios == 1).sum())
    OUT.print(
        f"| {family} | {len(ratios)} | {faster} | {equal} | {len(fitting) - faster - equal}"
        f" | {len(ratios) - len(fitting)} | {np.median(ratios):.3f}"
        f" | {np.exp(np.mean(np.log(fitting))):.3f} |"
    )


if __name__ == "__main__":
    main()
