"""Random models, by family: units of forward work, what each reads, and who shares weights."""

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np


@dataclasses.dataclass(frozen=True, slots=True)
class Unit:
    """A piece of forward work.

    Attributes:
        reads: The units whose output it reads, ascending.
        work: How heavy it is, relative to others of the model.
        output: How much it makes, relative to others.
        weights: Name of its weights, the same for units that share them; empty if it has none.
    """

    reads: tuple[int, ...]
    work: float = 1.0
    output: float = 1.0
    weights: str = ""


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """Return a number between two, by the logarithm equally likely."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _chain(rng: np.random.Generator, num_units: int) -> list[Unit]:
    """Layers in a row, some with a shortcut around the last few."""
    shortcut = rng.uniform(0, 0.5)
    units = [Unit((), 0.2)]
    for unit in range(1, num_units):
        reads = {unit - 1}
        if unit > 3 and rng.random() < shortcut:
            reads.add(unit - int(rng.integers(2, 4)))
        units.append(Unit(tuple(sorted(reads)), weights=f"layer{unit}"))
    return units


def _recurrent(rng: np.random.Generator, num_units: int) -> list[Unit]:
    """Cells of several layers at several times; each time has an embedding and a softmax."""
    num_layers = int(rng.integers(1, 1 + min(5, max(1, num_units // 5))))
    units: list[Unit] = []
    _grid(rng, units, num_layers, max(2, num_units // (num_layers + 2)), "cell", softmax=True)
    return units


def _encoder_decoder(rng: np.random.Generator, num_units: int) -> list[Unit]:
    """Two grids of cells; each time of the second attends to the last layer of the first."""
    num_layers = int(rng.integers(1, 1 + min(4, max(1, num_units // 10))))
    num_times = max(2, num_units // (2 * num_layers + 4))
    units: list[Unit] = []
    encoded = _grid(rng, units, num_layers, num_times, "encoder", softmax=False)
    units.append(Unit(tuple(encoded), 0.1, float(num_times)))
    memory = len(units) - 1
    _grid(rng, units, num_layers, num_times, "decoder", softmax=True, memory=memory)
    return units


def _grid(
    rng: np.random.Generator,
    units: list[Unit],
    num_layers: int,
    num_times: int,
    name: str,
    *,
    softmax: bool,
    memory: int | None = None,
) -> list[int]:
    """Append cells of layers × times and what is around them; return those of the last layer."""
    work_of_layer = rng.lognormal(0, 0.3, num_layers)
    softmax_work = log_uniform(rng, 0.3, 10)
    before: list[int] = []
    lasts: list[int] = []
    for _ in range(num_times):
        units.append(Unit((), 0.02, weights=f"{name}/embedding"))
        cells: list[int] = []
        for layer in range(num_layers):
            reads = {len(units) - 1, *before[layer : layer + 1]}
            units.append(Unit(tuple(sorted(reads)), work_of_layer[layer], 1.0, f"{name}/{layer}"))
            cells.append(len(units) - 1)
        before = cells
        if memory is not None:
            units.append(Unit((memory, cells[-1]), 0.5, 1.0, f"{name}/attention"))
        lasts.append(len(units) - 1)
        if softmax:
            units.append(Unit((lasts[-1],), softmax_work, 0.1, f"{name}/softmax"))
    return lasts


def _transformer(rng: np.random.Generator, num_units: int) -> list[Unit]:
    """Blocks of attention heads in parallel and a feed-forward part, each with a shortcut."""
    num_heads = int(rng.integers(1, min(9, max(2, num_units // 6))))
    wide = rng.uniform(1, 4)
    units = [Unit((), 0.1, weights="embedding")]
    for block in range(max(1, (num_units - 2) // (num_heads + 4))):
        start = len(units) - 1
        for head in range(num_heads):
            units.append(Unit((start,), 2 / num_heads, 1 / num_heads, f"{block}/head{head}"))
        heads = tuple(range(start + 1, start + 1 + num_heads))
        units.append(Unit((start, *heads), 0.7, weights=f"{block}/projection"))
        joined = len(units) - 1
        units.append(Unit((joined,), wide, wide, f"{block}/inner"))
        units.append(Unit((joined + 1,), wide, weights=f"{block}/outer"))
        units.append(Unit((joined, joined + 2), 0.1))
    units.append(Unit((len(units) - 1,), log_uniform(rng, 0.3, 10), 2, "softmax"))
    return units


def _inception(rng: np.random.Generator, num_units: int) -> list[Unit]:
    """A stem, then blocks of branches of different length that are joined again."""
    units = [Unit((), 0.2)]
    for layer in range(int(rng.integers(1, 5))):
        units.append(Unit((len(units) - 1,), 2.0, 3.0, f"stem{layer}"))
    while len(units) < num_units:
        start, ends = len(units) - 1, []
        for _ in range(int(rng.integers(2, 7))):
            end = start
            for _ in range(int(rng.integers(1, 5))):
                work = float(rng.lognormal(0, 0.7))
                units.append(Unit((end,), work, 0.5, f"branch{len(units)}"))
                end = len(units) - 1
            ends.append(end)
        units.append(Unit(tuple(ends), 0.1, 1.5))
    units.append(Unit((len(units) - 1,), 0.5, 0.1, "softmax"))
    return units


def _layered(rng: np.random.Generator, num_units: int) -> list[Unit]:
    """Layers of random width; a unit reads a few of the layer before, or of any before."""
    mean_width = log_uniform(rng, 1.5, 10)
    units: list[Unit] = []
    before: list[int] = []
    while len(units) < num_units:
        width = int(rng.integers(1, max(2, round(2 * mean_width))))
        layer: list[int] = []
        for _ in range(width):
            count = min(len(before), int(rng.integers(1, 4)))
            reads = set(rng.choice(before, count, replace=False).tolist()) if before else set()
            if units and rng.random() < 0.1:
                reads.add(int(rng.integers(len(units) - len(layer))) if before else 0)
            reads &= set(range(len(units)))
            weights = f"unit{len(units)}" if rng.random() < 0.6 else ""
            units.append(Unit(tuple(sorted(reads)), float(rng.lognormal(0, 0.5)), 1.0, weights))
            layer.append(len(units) - 1)
        before = layer
    return units


MODELS: Mapping[str, Callable[[np.random.Generator, int], list[Unit]]] = {
    "chain": _chain,
    "recurrent": _recurrent,
    "transformer": _transformer,
    "inception": _inception,
    "encoder-decoder": _encoder_decoder,
    "layered": _layered,
}
"""By the family's name: draws a model of about so many units, units before their readers."""
