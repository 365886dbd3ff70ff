"""What tracking costs: the time of a training with it and without, and the size of a long run.

    python docs/experiments/tracking_cost.py --graph graph.json --topology four.toml

The default policy is trained in the simulation, in turns with trials kept in an embedded store
and kept in memory alone. A pair's ratio is of the time of the whole training, hand-over at the
end included. With ``--determinism`` trainings with TensorFlow's deterministic ops and without
take turns instead, in processes of their own. With ``--large`` it tells how long 20,000 made-up
trials of 300 groups on four devices take to be kept, how large they are, and leaves the store for
a look.
"""

import argparse
import contextlib
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from tensorflow.python.framework import config as tf_config

from placer.environment import Measurement, Outcome
from placer.features import group_features
from placer.files import load_graph_file, load_topology
from placer.group_ops import group_ops
from placer.grouping import Grouping
from placer.mlflow_connection import sqlite_file
from placer.mlflow_store import Store, open_store
from placer.mlflow_trial_log import MLflowTrialLog
from placer.policies.seq2seq import Seq2SeqConfig, Seq2SeqPolicy
from placer.profile import Profile
from placer.reinforce import ReinforceConfig, ReinforceTrainer, failing_step_time_s
from placer.simulator import SimulatedEnvironment, Simulator
from placer.training import train
from placer.trials import InMemoryTrialLog, Trial, TrialLog

_BATCH_SIZE = 16
OUT = Console(soft_wrap=True, highlight=False, markup=False)


@contextlib.contextmanager
def stored(root: Path, key: str) -> Iterator[MLflowTrialLog]:
    """A log in an embedded store."""
    store = open_store(root)
    with (
        store.training(key, name=key, params={}, tags={}) as run,
        MLflowTrialLog(store, run.run_id) as log,
    ):
        yield log


@contextlib.contextmanager
def in_memory() -> Iterator[InMemoryTrialLog]:
    """A log that keeps nothing."""
    yield InMemoryTrialLog()


class Training:
    """One training that can be repeated: its policy is compiled once."""

    def __init__(self, profile: Profile, grouping: Grouping, num_trials: int) -> None:
        features = group_features(profile, grouping)
        self._policy = Seq2SeqPolicy(features, Seq2SeqConfig(), seed=0)
        self._state = self._policy.state()
        self._profile, self._grouping = profile, grouping
        self._environment = SimulatedEnvironment(Simulator(profile))
        self._num_trials = num_trials

    def time_s(self, log_of: contextlib.AbstractContextManager[TrialLog]) -> float:
        """Train from the beginning; return how long it took."""
        self._policy.restore(self._state)
        config = ReinforceConfig(
            failing_step_time_s=failing_step_time_s(self._profile), batch_size=_BATCH_SIZE
        )
        trainer = ReinforceTrainer(self._policy, config)
        started_s = time.perf_counter()
        with log_of as log:
            updates = train(
                trainer,
                self._environment,
                self._grouping,
                log,
                num_trials=self._num_trials,
                checkpoint_every=25,
            )
            for _ in updates:
                pass
        return time.perf_counter() - started_s


def compare(training: Training, num_trials: int, pairs: int) -> None:
    """Train with tracking and without, in turns, and tell the ratio of their times."""
    with tempfile.TemporaryDirectory() as scratch:
        training.time_s(in_memory())  # compiles
        training.time_s(stored(Path(scratch), "first"))
        ratios, rates = [], []
        for number in range(pairs):
            tracked_s = training.time_s(stored(Path(scratch), f"pair {number}"))
            plain_s = training.time_s(in_memory())
            ratios.append(tracked_s / plain_s)
            rates.append(num_trials / plain_s)
    extra_s = [(ratio - 1) / rate for ratio, rate in zip(ratios, rates, strict=True)]
    OUT.print(f"{pairs} pairs of {num_trials:,} trials, {statistics.median(rates):.0f} trials/s")
    OUT.print(f"with tracking: {spread(ratios)} of the time without")
    OUT.print(f"{spread([1e3 * each for each in extra_s])} ms a trial: at 100 trials/s")
    OUT.print(f"{100 * 100 * statistics.median(extra_s):.1f} % of the wall time")


def spread(values: Sequence[float]) -> str:
    """Return median, least and largest."""
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def keep_many(root: Path, num_trials: int, num_groups: int, num_devices: int) -> None:
    """Keep made-up trials, the devices drawn at random, and tell times and sizes."""
    rng = np.random.default_rng(0)
    names = ("reward_mean", "baseline", "invalid_share", "entropy", "gradient_norm", "loss")
    before = size_bytes(root, open_store(root))
    spent_s = 0.0
    with stored(root, f"{num_trials:,} trials") as log:
        for first in range(0, num_trials, _BATCH_SIZE):
            numbers = range(first, first + _BATCH_SIZE)
            trials = [made_up(number, num_groups, num_devices, rng) for number in numbers]
            metrics = dict(zip(names, rng.normal(size=len(names)).tolist(), strict=True))
            started_s = time.perf_counter()
            log.append(trials, metrics)
            spent_s += time.perf_counter() - started_s
    grown = size_bytes(root, log.store) - before
    each_ms = 1e3 * spent_s / num_trials
    OUT.print(f"{num_trials:,} trials of {num_groups} groups: {each_ms:.2f} ms each")
    OUT.print(f"{grown / 1e6:.2f} MB on disk, in {root}; run {log.run_id}")
    started_s = time.perf_counter()
    found = len(MLflowTrialLog(open_store(root), log.run_id).trials())
    OUT.print(f"{found:,} of them read again in {time.perf_counter() - started_s:.1f} s")


def made_up(number: int, num_groups: int, num_devices: int, rng: np.random.Generator) -> Trial:
    """Return a trial whose devices are drawn at random."""
    peaks = tuple(rng.integers(10**9, 10**10, num_devices).tolist())
    found = Measurement(
        outcome=Outcome.OK, step_time_s=1 / (1 + number) + rng.random(), peak_memory_bytes=peaks
    )
    return Trial(
        number=number,
        update=number // _BATCH_SIZE,
        device_of_group=tuple(rng.integers(0, num_devices, num_groups).tolist()),
        environment="simulated",
        measurement=found,
        finished_at_s=time.time(),
    )


def size_bytes(root: Path, store: Store) -> int:
    """Return the size of a store, its database's log written back."""
    with contextlib.closing(sqlite3.connect(sqlite_file(store.uri) or "")) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def compare_determinism(options: argparse.Namespace) -> None:
    """Train in turns with and without deterministic ops, and tell the ratio of their times."""
    command = [sys.executable, __file__, "--graph", options.graph, "--topology", options.topology]
    command += ["--trials", str(options.trials)]
    ratios = []
    for _ in range(options.pairs):
        times_s = [
            float(subprocess.run([*command, "--one", kind], check=True, capture_output=True).stdout)
            for kind in ("deterministic", "free")
        ]
        ratios.append(times_s[0] / times_s[1])
    OUT.print(f"with deterministic ops: {spread(ratios)} of the time without, {len(ratios)} pairs")


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", type=Path)
    parser.add_argument("--topology", default="4xequal")
    parser.add_argument("--trials", type=int, default=1600)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--determinism", action="store_true")
    parser.add_argument("--one", choices=("deterministic", "free"), help=argparse.SUPPRESS)
    parser.add_argument("--large", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    if options.large is not None:
        keep_many(options.large, 20_000, 300, 4)
        return
    if options.determinism:
        compare_determinism(options)
        return
    if options.one == "free":
        tf_config.enable_op_determinism = lambda: None
    profile = load_graph_file(options.graph).profile(load_topology(options.topology))
    training = Training(profile, group_ops(profile).grouping, options.trials)
    if options.one is not None:
        training.time_s(in_memory())  # compiles
        OUT.print(training.time_s(in_memory()))
        return
    compare(training, options.trials, options.pairs)


if __name__ == "__main__":
    main()
