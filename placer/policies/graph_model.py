"""The arithmetic of the graph policy: devices drawn, log-probabilities and gradients, on any graph.

Array shapes: B placements, G groups, D devices, K inputs, M units of the decoder.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from placer.errors import FileFormatError, InvalidValueError, MissingFileError
from placer.graph import FloatArray
from placer.policies.graph_decoder import INPUTS, NUM_INPUTS, Decoding, Followed, draw, follow
from placer.policies.graph_network import (
    Encoded,
    Parameters,
    encode,
    encode_gradient,
    initial_parameters,
)
from placer.policies.graph_problem import GraphProblem
from placer.policy import Actions

NUM_UNITS = 16
LOGIT_BOUND = 10.0
METADATA = "metadata"
"""Name of the JSON text in the file of weights that says how they were made."""

PRETRAINED = Path(__file__).with_name("graph_weights.npz")
"""The variables that come with Placer."""

_FIRST_CUTS = 8
_PRIOR = {"stay": 0.4, "pull": 0.6, "slow": 1.0, "full": 1.0}


@dataclasses.dataclass(frozen=True, eq=False)
class GraphTerms:
    """What belongs to the groups of one graph alone.

    Attributes:
        table: Added to the score of each device, ``[G, D]``.
        shift: Added to the weight of each input, ``[G, K]``.
    """

    table: FloatArray
    shift: FloatArray

    @classmethod
    def zeros(cls, problem: GraphProblem) -> "GraphTerms":
        """Return the terms of a graph that was not trained on."""
        groups, devices = problem.num_groups, problem.num_devices
        return cls(np.zeros((groups, devices)), np.zeros((groups, NUM_INPUTS)))


@dataclasses.dataclass(frozen=True, eq=False)
class Gradient:
    """What a batch of actions says: of each choice, ``[B, G]``, and the gradients.

    The gradients are of the mean over B of ``advantage · Σ_g log p + bonus · Σ_g entropy``.

    Attributes:
        log_probs: Of each chosen device, ``[B, G]``.
        entropies: Of each choice, in nats, ``[B, G]``.
        shared: By the variables of network and decoder.
        terms: By the terms of the graph.
    """

    log_probs: FloatArray
    entropies: FloatArray
    shared: Parameters
    terms: GraphTerms


def new_parameters(seed: int = 0) -> Parameters:
    """Return the variables of an untrained network and decoder."""
    return initial_parameters(NUM_INPUTS, NUM_UNITS, seed=seed)


def sampled(
    parameters: Mapping[str, FloatArray],
    problem: GraphProblem,
    terms: GraphTerms,
    noise: FloatArray,
    *,
    temperature: float = 1.0,
) -> Actions:
    """Return the devices of the largest sums of logit and noise, ``[B, G]``.

    Args:
        parameters: Of network and decoder.
        problem: The graph.
        terms: Of its groups.
        noise: Of each group and device, by the groups' numbers, ``[B, G, D]``.
        temperature: Logits are divided by it.
    """
    placed = np.empty(noise.shape[:2], dtype=np.int32)
    encoded = encode(parameters, problem)
    decoding = _decoding(parameters, problem, terms, encoded, temperature)
    draw(problem.program, decoding, np.ascontiguousarray(noise[:, problem.order]), placed)
    actions = np.empty_like(placed)
    actions[:, problem.order] = placed
    return actions


def gradient_of(
    parameters: Mapping[str, FloatArray],
    problem: GraphProblem,
    terms: GraphTerms,
    actions: Actions,
    advantages: FloatArray,
    *,
    entropy_bonus: float = 0.0,
    temperature: float = 1.0,
) -> Gradient:
    """Return log-probabilities of actions, and the gradients that favour them.

    Args:
        parameters: Of network and decoder.
        problem: The graph.
        terms: Of its groups.
        actions: What was done, ``[B, G]``.
        advantages: Of each placement, ``[B]``.
        entropy_bonus: Weight of the entropy.
        temperature: Logits are divided by it.
    """
    if actions.ndim != 2 or actions.shape[1] != problem.num_groups:
        raise InvalidValueError(
            f"actions must have shape [B, {problem.num_groups}], got {actions.shape}"
        )
    encoded = encode(parameters, problem)
    decoding = _decoding(parameters, problem, terms, encoded, temperature)
    placed = np.ascontiguousarray(actions[:, problem.order], dtype=np.int32)
    out = Followed(
        np.empty(placed.shape),
        np.empty(placed.shape),
        *(np.zeros_like(part) for part in decoding[:-2]),
    )
    advantages = np.asarray(advantages, dtype=np.float64)
    follow(problem.program, decoding, placed, advantages, entropy_bonus, out)
    prior = _prior(problem)
    shared = encode_gradient(parameters, problem, encoded, prior * out.weights, out.bias)
    shared |= {"units_in": out.units, "units_score": prior * out.score}
    in_given_order = np.argsort(problem.order)
    return Gradient(
        out.log_probs[:, in_given_order],
        out.entropies[:, in_given_order],
        shared,
        GraphTerms(out.table[in_given_order], out.weights[in_given_order]),
    )


def _prior(problem: GraphProblem) -> float:
    """Return how sure a placement must be of each choice.

    With it an untrained policy goes to another device at about ``_FIRST_CUTS`` places, however
    many groups there are.
    """
    others = max(1, problem.num_devices - 1)
    return float(np.log(1 + others * max(1.0, problem.num_groups / _FIRST_CUTS - 1)))


def _decoding(
    parameters: Mapping[str, FloatArray],
    problem: GraphProblem,
    terms: GraphTerms,
    encoded: Encoded,
    temperature: float,
) -> Decoding:
    first = np.array([_PRIOR.get(name, 0.0) for name in INPUTS])
    prior = _prior(problem)
    return Decoding(
        weights=prior * (first + encoded.weights) + terms.shift[problem.order],
        bias=encoded.bias,
        units=parameters["units_in"],
        score=prior * parameters["units_score"],
        table=terms.table[problem.order],
        bound=LOGIT_BOUND,
        temperature=temperature,
    )


def load_parameters(path: Path) -> Parameters:
    """Return the variables of network and decoder from a file.

    Raises:
        MissingFileError: If there is no such file.
        FileFormatError: If it is of another version of the network.
    """
    if not path.is_file():
        raise MissingFileError(f"there is no file of weights at {str(path)!r}")
    expected = {name: value.shape for name, value in new_parameters().items()}
    with np.load(path, allow_pickle=False) as arrays:
        found = {name: arrays[name].shape for name in arrays.files if name != METADATA}
        if found != expected:
            odd = sorted(name for name, _ in found.items() ^ expected.items())
            raise FileFormatError(
                f"{str(path)!r} is of another version of the network: it differs in {odd[0]!r}"
            )
        return {name: arrays[name].astype(np.float64) for name in expected}
