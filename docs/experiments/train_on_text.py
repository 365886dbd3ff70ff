"""Train the language model on real text, once on one device and once as placed.

A placement is worth what it saves in a real training. So the built-in RNNLM step (small) is
trained on the sources of Python's standard library, by two sessions that differ in nothing but
the devices of their ops: same initial values, same batches, one step of each in turn, the order
alternating. A placement's time is the sum of its own steps, from the first one on. Training
ends once the mean loss of the last steps has reached a target.

    python docs/experiments/train_on_text.py --placement placement.json --out results

writes ``train_on_text.json`` and ``train_on_text.png`` into the folder. The placement file is one
that ``placer optimize --workload rnnlm --out placement.json`` writes.

Tokens: runs of letters, single digits, line breaks with the indentation behind them, runs of
other blanks, and single other characters. The vocabulary is the most frequent of them; all
others are one and the same word. The text is cut into one lane for each sequence of a batch,
and a batch reads on where the one before ended, as is usual for this model.
"""

import argparse
import collections
import dataclasses
import datetime
import hashlib
import importlib.metadata
import platform
import re
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from flows.process import prepare, quiet_start
from placer.errors import InvalidValueError, PlacerError
from placer.figures import loss_curves
from placer.files import load_placement, write_json
from placer.graph import FloatArray, IntArray
from placer.placement import Placement
from placer.statistics import ratio_interval

prepare()
with quiet_start():
    from profiling.cluster import LocalCluster
    from profiling.links import local_topology
    from profiling.placed_step import ImportedStep, PlacedStep
    from profiling.step import CapturedStep
    from profiling.workloads import capture_workload
    from profiling.workloads.rnnlm import SIZES, RnnlmSizes

_TOKEN = re.compile(r"[A-Za-z]+|[0-9]|\n[ \t]*|[^\S\n]+|.", re.DOTALL)
_UNKNOWN = 0
_TIMEOUT_S = 120.0
_SAME_LOSS = 1e-3
_REPORT_EVERY = 25
_OUT = Console(highlight=False, soft_wrap=True)

Batch = tuple[IntArray, IntArray]
"""Words and the words that follow them, ``[B, T]`` each."""


def read_text() -> str:
    """Return the modules at the top of Python's standard library, one after the other."""
    folder = Path(sysconfig.get_path("stdlib"))
    return "".join(path.read_text("utf-8") for path in sorted(folder.glob("*.py")))


def cut(text: str) -> list[str]:
    """Return the tokens of a text; joined, they are the text."""
    return _TOKEN.findall(text)


def encode(tokens: Sequence[str], vocabulary_size: int) -> IntArray:
    """Return the number of each token, by frequency from 1 on; 0 for all that is rarer.

    Tokens of equal frequency are numbered in the order of their characters.
    """
    counts = collections.Counter(tokens)
    known = sorted(counts, key=lambda token: (-counts[token], token))[: vocabulary_size - 1]
    number_of_token = {token: number for number, token in enumerate(known, start=1)}
    return np.array([number_of_token.get(token, _UNKNOWN) for token in tokens], dtype=np.int64)


def batches(words: IntArray, sizes: RnnlmSizes) -> Iterator[Batch]:
    """Yield the batches of a text, over and over again.

    Raises:
        InvalidValueError: If the text is too short for one batch.
    """
    length = (len(words) - 1) // sizes.batch_size
    if length < sizes.steps:
        raise InvalidValueError(
            f"a batch needs {sizes.batch_size * sizes.steps + 1} tokens, the text has {len(words)}"
        )
    used = length * sizes.batch_size
    lanes = words[:used].reshape(sizes.batch_size, length)
    next_lanes = words[1 : used + 1].reshape(sizes.batch_size, length)
    while True:
        for start in range(0, length - sizes.steps + 1, sizes.steps):
            part = slice(start, start + sizes.steps)
            yield lanes[:, part], next_lanes[:, part]


def moving_mean(values: Sequence[float], window: int) -> FloatArray:
    """Return after each value the mean of the last ``window`` values, or of all so far."""
    sums = np.cumsum([0.0, *values])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    means: FloatArray = (sums[ends] - sums[starts]) / (ends - starts)
    return means


@dataclasses.dataclass(frozen=True)
class Training:
    """The same training on several placements.

    Attributes:
        losses: After each step, by the placement's name.
        step_times_s: Of each step, by the placement's name.
        reached: Whether the loss fell to the target.
    """

    losses: Mapping[str, list[float]]
    step_times_s: Mapping[str, list[float]]
    reached: bool

    @property
    def largest_difference(self) -> float:
        """The largest relative difference between the losses of one step."""
        losses = np.array(list(self.losses.values()))
        return float(((losses.max(axis=0) - losses.min(axis=0)) / losses.max(axis=0)).max())


def train(
    placed: Mapping[str, PlacedStep],
    text: Iterator[Batch],
    names: tuple[str, str],
    *,
    target_loss: float,
    window: int,
    max_steps: int,
) -> Training:
    """Train in turns until the loss of every placement has reached the target.

    Args:
        placed: Open steps, by the placement's name.
        text: Batches.
        names: Of the tensors that a batch replaces.
        target_loss: What the mean loss of the last steps is to reach.
        window: Over how many steps that mean goes.
        max_steps: When to give up.
    """
    losses: dict[str, list[float]] = {name: [] for name in placed}
    times_s: dict[str, list[float]] = {name: [] for name in placed}
    for number, batch in zip(range(max_steps), text, strict=False):
        feed = dict(zip(names, batch, strict=True))
        order = list(placed.items())
        for name, step in order if number % 2 == 0 else reversed(order):
            times_s[name].append(step.run(feed=feed))
            losses[name].append(step.loss)
        means = [float(np.mean(each[-window:])) for each in losses.values()]
        if number % _REPORT_EVERY == 0:
            _OUT.print(f"step {number + 1:>5}  loss {max(means):.4f}")
        if number + 1 >= window and max(means) <= target_loss:
            return Training(losses, times_s, reached=True)
    return Training(losses, times_s, reached=False)


def input_tensors(step: CapturedStep) -> tuple[str, str]:
    """Return the tensors that read the two inputs: the words, and the words that follow.

    Raises:
        InvalidValueError: If the step does not read two inputs, each in one place.
    """
    nodes = {node.name: node for node in step.graph_def.node}
    readers = [
        (node.input[0], node.name)
        for node in nodes.values()
        if node.op == "ReadVariableOp" and node.input[0].startswith("input/")
    ]
    if [name for name, _ in sorted(readers)] != ["input/next_words", "input/words"]:
        raise InvalidValueError(f"step {step.name!r} must read two inputs once each, got {readers}")
    reader_of = dict(readers)
    return f"{reader_of['input/words']}:0", f"{reader_of['input/next_words']}:0"


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Do the experiment; return what is written to the JSON file but the settings."""
    sizes = dataclasses.replace(SIZES["small"], **dict(options.set))
    step = capture_workload("rnnlm", "small", **dict(options.set))
    text = read_text()
    words = encode(cut(text), sizes.vocabulary_size)
    with LocalCluster() as cluster:
        topology = local_topology(cluster)
        names = [device.name for device in topology.devices]
        chosen = load_placement(options.placement, step.op_graph, topology)
        placements = {
            f"all on {names[0]}": Placement([0] * step.op_graph.num_ops),
            options.placement.stem: chosen,
        }
        training = _train_placed(step, placements, cluster, batches(words, sizes), options)
    return {
        "workload": step.name,
        "graph": step.op_graph.fingerprint,
        "placements": {name: each.fingerprint for name, each in placements.items()},
        "text": {
            "characters": len(text),
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
            "tokens": len(words),
            "unknown_share": float((words == _UNKNOWN).mean()),
        },
        **result(training),
    }


def _train_placed(
    step: CapturedStep,
    placements: Mapping[str, Placement],
    cluster: LocalCluster,
    text: Iterator[Batch],
    options: argparse.Namespace,
) -> Training:
    imported = ImportedStep(step)
    placed: dict[str, PlacedStep] = {}
    try:
        for name, placement in placements.items():
            devices = [cluster.devices[device] for device in placement.device_of_op]
            placed[name] = PlacedStep(imported, devices, cluster, timeout_s=_TIMEOUT_S)
        return train(
            placed,
            text,
            input_tensors(step),
            target_loss=options.target_loss,
            window=options.window,
            max_steps=options.max_steps,
        )
    finally:
        for each in placed.values():
            each.close()


def result(training: Training) -> dict[str, Any]:
    """Return the figures of a training, the first placement being the reference.

    Raises:
        InvalidValueError: If the placements did not compute the same losses.
    """
    if training.largest_difference > _SAME_LOSS:
        raise InvalidValueError(
            f"losses of one step differ by {training.largest_difference:.2g} of their value between"
            f" placements, more than {_SAME_LOSS:g}: they do not do the same training"
        )
    times_s = training.step_times_s
    total_s = {name: sum(each) for name, each in times_s.items()}
    reference, placed = times_s
    interval = ratio_interval(times_s[reference], times_s[placed])
    return {
        "reached": training.reached,
        "steps": len(times_s[reference]),
        "seconds": total_s,
        "seconds_ratio": total_s[reference] / total_s[placed],
        "median_step_time_ratio": float(np.median(times_s[reference]) / np.median(times_s[placed])),
        "median_step_time_ratio_interval": [interval.low, interval.high],
        "largest_relative_difference_of_losses": training.largest_difference,
        "losses": training.losses,
        "step_times_s": times_s,
    }


def _setting(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    return name, int(value)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    summary, _, rest = str(__doc__).partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--placement", type=Path, required=True, help="a placement file (JSON)")
    parser.add_argument("--out", type=Path, default=Path(), help="folder to write into")
    parser.add_argument("--target-loss", type=float, default=5.0, help="nats a token")
    parser.add_argument("--window", type=int, default=20, help="steps of the moving mean")
    parser.add_argument("--max-steps", type=int, default=600, help="when to give up")
    parser.add_argument(
        "--set", type=_setting, action="append", default=[], metavar="NAME=VALUE",
        help="change one size of the model, e.g. units=256",
    )  # fmt: skip
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the experiment and write its files."""
    options = _options(arguments)
    try:
        found = run(options)
    except PlacerError as error:
        raise SystemExit(f"train_on_text: {error}") from error
    settings = {name: str(value) for name, value in vars(options).items()}
    document = {
        "version": 1,
        "kind": "placer.train_on_text",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "host": platform.node(),
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in ("placer", "tensorflow")},
        },
        "settings": settings,
        **found,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    write_json(document, options.out / "train_on_text.json")
    means = {name: moving_mean(each, options.window) for name, each in found["losses"].items()}
    times_s = {name: np.array(each) for name, each in found["step_times_s"].items()}
    figure = loss_curves(means, times_s, target_loss=options.target_loss)
    figure.savefig(options.out / "train_on_text.png")
    end = "reached the target" if found["reached"] else "did NOT reach the target"
    _OUT.print(f"{end} after {found['steps']} steps: {found['seconds_ratio']:.3f} × as fast as")
    for name, total_s in found["seconds"].items():
        _OUT.print(f"  {name:<24} {total_s:.1f} s")


if __name__ == "__main__":
    main()
