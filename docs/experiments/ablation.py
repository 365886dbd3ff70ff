"""What each part of the search is good for: the search without it, at equal evaluations.

    python docs/experiments/ablation.py --generated 12 --graph graph.json --topology four.toml

``auto`` without one of its parts, and policies alone without their prior or their pretraining. Of
each graph and variant the median of the seeds. Relative to the full method: below 1 the part does
harm there. Generated graphs are of seeds that nothing was trained on.
"""

import argparse
import functools
import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from rich.console import Console

from placer.files import load_graph_file, load_topology
from placer.generated_graphs import FAMILIES, generated_profile
from placer.group_ops import group_ops
from placer.policies.graph import GraphPolicy
from placer.policies.locality import LocalityConfig, LocalityPolicy, placed_neighbors
from placer.profile import Profile
from placer.search.climbing import climb, race
from placer.search.driver import Strategy, run_search
from placer.search.elite import Elite
from placer.search.learned import BATCH_SIZE, policy_search
from placer.search.memetic import take_turns
from placer.search.methods import METHODS, SearchProblem
from placer.simulator import SimulatedEnvironment, Simulator

_SEED = 2028
_RACED = 0.2
OUT = Console(soft_wrap=True, highlight=False, markup=False)

Variant = Callable[[SearchProblem], Strategy]


def auto(
    problem: SearchProblem,
    *,
    heuristics: bool = True,
    weights: bool = True,
    raced: float = _RACED,
    policy_goes_on: bool = True,
    climber_goes_on: bool = True,
) -> Strategy:
    """The method ``auto``, with a switch for each part."""
    space, elite = problem.space, Elite()
    policy = problem.pretrained if weights else GraphPolicy(problem.profile, problem.grouping)
    known = [policy.greedy(), *policy.sample(problem.seed, np.arange(BATCH_SIZE))]
    if heuristics:
        known = [*problem.heuristics.values(), *known]
    actions = np.stack(known)
    elite.add(space.canonical(actions), (yield actions))
    rng = np.random.default_rng([problem.seed, 2])
    yield from race(space, elite, num_steps=int(raced * problem.num_trials), rng=rng)
    if policy_goes_on and climber_goes_on:
        yield from take_turns(policy, space, elite, seed=problem.seed, rng=rng)
    elif policy_goes_on:
        yield from policy_search(policy, space, elite, seed=problem.seed)
    while climber_goes_on:
        yield from climb(space, elite, num_steps=BATCH_SIZE, rng=rng)


def graph_policy_from_scratch(problem: SearchProblem) -> Strategy:
    """The graph policy with variables that nothing was learned by."""
    policy = GraphPolicy(problem.profile, problem.grouping)
    return policy_search(policy, problem.space, Elite(), seed=problem.seed)


def locality_without_prior(problem: SearchProblem) -> Strategy:
    """The policy ``policy``, every device equally likely at first."""
    policy = LocalityPolicy(
        placed_neighbors(problem.profile, problem.grouping),
        problem.space.allowed,
        LocalityConfig(stay=0.0, pull=0.0),
        preferred=int(problem.one_device[0]),
    )
    return policy_search(policy, problem.space, Elite(), seed=problem.seed)


TABLES: Mapping[str, Mapping[str, Variant]] = {
    "auto": {
        "auto": auto,
        "without heuristics": functools.partial(auto, heuristics=False),
        "without pretrained weights": functools.partial(auto, weights=False),
        "without the race": functools.partial(auto, raced=0.0),
        "without the policy's turns": functools.partial(auto, policy_goes_on=False),
        "without the climber's turns": functools.partial(auto, climber_goes_on=False),
    },
    "graph-policy": {
        "graph-policy": METHODS["graph-policy"],
        "from scratch": graph_policy_from_scratch,
    },
    "policy": {
        "policy": METHODS["policy"],
        "without the locality prior": locality_without_prior,
    },
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--generated", type=int, default=0, help="how many generated graphs")
    parser.add_argument("--graph", type=Path, action="append", default=[])
    parser.add_argument("--topology", help="of the graph files")
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    profiles = dict(_profiles(arguments))
    for full, variants in TABLES.items():
        found_s = {
            name: {
                graph: _median_s(variant, profile, arguments.trials, arguments.seeds)
                for graph, profile in profiles.items()
            }
            for name, variant in variants.items()
        }
        _print_table(full, found_s)


def _profiles(arguments: argparse.Namespace) -> Iterator[tuple[str, Profile]]:
    for path in arguments.graph:
        yield path.stem, load_graph_file(path).profile(load_topology(arguments.topology))
    for number in range(arguments.generated):
        family = FAMILIES[number % len(FAMILIES)]
        rng = np.random.default_rng([_SEED, number])
        yield f"{family} {number}", generated_profile(rng, family=family)


def _median_s(variant: Variant, profile: Profile, num_trials: int, num_seeds: int) -> float:
    """Return the median of the seeds; infinity if most found nothing that fits."""
    grouping = group_ops(profile).grouping
    environment = SimulatedEnvironment(Simulator(profile))
    found_s = []
    for seed in range(num_seeds):
        problem = SearchProblem(profile, grouping, num_trials, seed)
        found = run_search(
            variant(problem), problem.space, profile, grouping, environment, num_trials=num_trials
        )
        found_s.append(found.best_step_time_s or np.inf)
    return float(statistics.median(found_s))


def _print_table(full: str, found_s: Mapping[str, Mapping[str, float]]) -> None:
    """Print makespans over that of the full method: by graph the extremes, and their mean."""
    OUT.print(f"\n| {full} | mean | faster on | equal | slower on | worst graph |")
    OUT.print("|---|---|---|---|---|---|")
    for name, of_graph in found_s.items():
        ratios = {graph: of_graph[graph] / found_s[full][graph] for graph in of_graph}
        values = np.array(list(ratios.values()))
        worst = max(ratios, key=lambda graph: ratios[graph])
        OUT.print(
            f"| {name} | {np.exp(np.log(values).mean()):.4f} | {(values < 1).sum()}"
            f" | {(values == 1).sum()} | {(values > 1).sum()} | {ratios[worst]:.3f} ({worst}) |"
        )


if __name__ == "__main__":
    main()
