"""How many trials a second a training makes, and what its time goes to.

    python docs/experiments/training_speed.py --graph graph.json --topology four.toml

The policy network of the flows with its default settings is trained in the simulation as
``placer train`` does, trials and checkpoints kept in an embedded store of its own. Short trainings
by each trainer take turns. The first of each compiles the policy and is told apart; of the others
the fastest is told, because other programs of the machine can only slow one down.
"""

import argparse
import collections
import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from placer.cross_entropy import CrossEntropyConfig, CrossEntropyTrainer
from placer.features import group_features
from placer.files import load_graph_file, load_topology
from placer.group_ops import group_ops
from placer.mlflow_store import open_store
from placer.mlflow_trial_log import MLflowTrialLog
from placer.policies.seq2seq import Seq2SeqConfig, Seq2SeqPolicy
from placer.ppo import PpoConfig, PpoTrainer
from placer.reinforce import ReinforceConfig, ReinforceTrainer, failing_step_time_s
from placer.simulator import SimulatedEnvironment, Simulator
from placer.training import train

_TRAINERS: dict[str, tuple[type[Any], type[Any]]] = {
    "reinforce": (ReinforceTrainer, ReinforceConfig),
    "ppo": (PpoTrainer, PpoConfig),
    "cross-entropy": (CrossEntropyTrainer, CrossEntropyConfig),
}
_PARTS = {
    "sample": "sample",
    "log_probs": "log-probs",
    "update": "update",
    "simulate": "simulate",
    "log": "log",
}
OUT = Console(soft_wrap=True, highlight=False, markup=False)


class Training(NamedTuple):
    """What one short training took: trials a second, seconds, and shares of the time."""

    rate: float
    elapsed_s: float
    shares: dict[str, float]


class Clock:
    """Adds up the seconds that named methods take."""

    def __init__(self) -> None:
        self.spent_s: collections.defaultdict[str, float] = collections.defaultdict(float)

    def watch(self, thing: object, method: str, name: str) -> None:
        """Count the time of an object's method under a name."""
        inner = getattr(thing, method)

        def timed(*arguments: object, **options: object) -> object:
            with self.counted(name):
                return inner(*arguments, **options)

        setattr(thing, method, timed)

    @contextlib.contextmanager
    def counted(self, name: str) -> Iterator[None]:
        """Count the time of the block under a name."""
        started_s = time.perf_counter()
        yield
        self.spent_s[name] += time.perf_counter() - started_s


class Bench:
    """One policy, trained again and again from its beginning while a clock watches."""

    def __init__(self, graph: Path, topology: str) -> None:
        self.profile = load_graph_file(graph).profile(load_topology(topology))
        self.grouping = group_ops(self.profile).grouping
        self.environment = SimulatedEnvironment(Simulator(self.profile))
        features = group_features(self.profile, self.grouping)
        self.policy = Seq2SeqPolicy(features, Seq2SeqConfig(), seed=0)
        self.initial = self.policy.state()
        self.clock = Clock()
        self.clock.watch(self.environment, "measure", "simulate")
        for method in ("sample", "log_probs", "update"):
            self.clock.watch(self.policy, method, method)

    def train(self, log: MLflowTrialLog, kind: str, batch_size: int, trials: int) -> Training:
        """Train once; return the rate and the share of each part."""
        trainer, config = _TRAINERS[kind]
        failing_s = failing_step_time_s(self.profile)
        self.policy.restore(self.initial)
        self.clock.spent_s.clear()
        for method in ("append", "save_checkpoint"):
            self.clock.watch(log, method, "log")
        updates = train(
            trainer(self.policy, config(failing_step_time_s=failing_s, batch_size=batch_size)),
            self.environment,
            self.grouping,
            log,
            num_trials=trials,
            checkpoint_every=25,
        )
        started_s = time.perf_counter()
        for _ in updates:
            pass
        elapsed_s = time.perf_counter() - started_s
        shares = {name: self.clock.spent_s[name] / elapsed_s for name in _PARTS}
        return Training(trials / elapsed_s, elapsed_s, shares)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", type=Path, required=True, help="a profile or graph file (JSON)")
    parser.add_argument("--topology", required=True, help="a packaged name or a TOML file")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--trials", type=int, default=320, help="of each short training")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    bench = Bench(arguments.graph, arguments.topology)
    found: dict[str, list[Training]] = {kind: [] for kind in _TRAINERS}
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(Path(folder))
        for number in range(arguments.rounds + 1):
            for kind, trainings in found.items():
                key = f"{kind} {number}"
                with (
                    store.training(key, name=key, params={}, tags={}) as run,
                    MLflowTrialLog(store, run.run_id) as log,
                ):
                    trainings.append(bench.train(log, kind, arguments.batch_size, arguments.trials))
    name, num_groups = arguments.graph.stem, bench.grouping.num_groups
    OUT.print(f"{name}: {num_groups} groups, batches of {arguments.batch_size}")
    OUT.print(f"| trainer | trials/s | {' | '.join(_PARTS.values())} | first training |")
    OUT.print("|---|---|" + "---|" * len(_PARTS) + "---|")
    for kind, (first, *others) in found.items():
        best = max(others, key=lambda training: training.rate)
        shares = " | ".join(f"{share:.0%}" for share in best.shares.values())
        OUT.print(f"| {kind} | {best.rate:.0f} | {shares} | {first.elapsed_s:.0f} s |")


if __name__ == "__main__":
    main()
