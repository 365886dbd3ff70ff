"""The network of the graph policy: from features of groups to weights of the decoder.

    h = relu(features · embed)
    h = h + relu(h · own + before · h · before_r + after · h · after_r + bias_r)    three rounds
    h = h + softmax(h query (h key)ᵀ / √width) h value · mix                        two heads
    weights = h · weights_out,    bias = h · bias_out

``before`` and ``after`` average over what a group receives from and sends to. The last two are
what the decoder needs of each group. Forward and backward are written out in numpy: the search
must start at once, and TensorFlow takes seconds to load.

Array shapes: G groups, H hidden units, K inputs and M units of the decoder.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from placer.graph import FloatArray
from placer.policies.graph_features import NUM_FEATURES
from placer.policies.graph_problem import GraphProblem

Parameters = dict[str, FloatArray]
"""The variables of network and decoder, by name; the same for all graphs."""

HIDDEN = 32
_ROUNDS = 3
_HEADS = 2
_WIDTH = HIDDEN // _HEADS


class Encoded(NamedTuple):
    """What the network says of each group, and what its gradient needs.

    Attributes:
        weights: Of the decoder's inputs, ``[G, K]``.
        bias: Of the decoder's units, ``[G, M]``.
        hidden: After each layer, ``[G, H]`` each: embedding, rounds, attention.
        attention: Of each head, ``[G, G]``.
    """

    weights: FloatArray
    bias: FloatArray
    hidden: list[FloatArray]
    attention: list[FloatArray]


def initial_parameters(num_inputs: int, num_units: int, *, seed: int) -> Parameters:
    """Return random variables whose outputs do not depend on the features yet.

    Args:
        num_inputs: K.
        num_units: M.
        seed: Of the draws.
    """
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> FloatArray:
        return np.asarray(gain * rng.normal(size=(rows, columns)) / np.sqrt(rows))

    parameters = {
        "embed": matrix(NUM_FEATURES, HIDDEN, 1.4),
        "embed_bias": np.zeros(HIDDEN),
    }
    for round_ in range(_ROUNDS):
        for name in ("own", "before", "after"):
            parameters[f"{name}{round_}"] = matrix(HIDDEN, HIDDEN, 0.5)
        parameters[f"bias{round_}"] = np.zeros(HIDDEN)
    for head in range(_HEADS):
        for name in ("query", "key", "value"):
            parameters[f"{name}{head}"] = matrix(HIDDEN, _WIDTH, 0.5)
        parameters[f"mix{head}"] = matrix(_WIDTH, HIDDEN, 0.5)
    return parameters | {
        "weights_out": np.zeros((HIDDEN, num_inputs)),
        "weights_bias": np.zeros(num_inputs),
        "units_out": matrix(HIDDEN, num_units, 0.3),
        "units_bias": np.zeros(num_units),
        "units_in": matrix(num_inputs, num_units),
        "units_score": np.zeros(num_units),
    }


def encode(parameters: Mapping[str, FloatArray], problem: GraphProblem) -> Encoded:
    """Return what the network says of a graph's groups."""
    p = parameters
    hidden = [_relu(problem.features @ p["embed"] + p["embed_bias"])]
    for round_ in range(_ROUNDS):
        h = hidden[-1]
        hidden.append(h + _relu(_round_input(p, problem, h, round_)))
    h = hidden[-1]
    attention = [_attention(p, h, head) for head in range(_HEADS)]
    for head, shares in enumerate(attention):
        h = h + shares @ (hidden[-1] @ p[f"value{head}"]) @ p[f"mix{head}"]
    hidden.append(h)
    return Encoded(
        weights=h @ p["weights_out"] + p["weights_bias"],
        bias=h @ p["units_out"] + p["units_bias"],
        hidden=hidden,
        attention=attention,
    )


def encode_gradient(
    parameters: Mapping[str, FloatArray],
    problem: GraphProblem,
    encoded: Encoded,
    d_weights: FloatArray,
    d_bias: FloatArray,
) -> Parameters:
    """Return the gradient of a scalar by the network's variables.

    Args:
        parameters: As given to ``encode``.
        problem: As given to ``encode``.
        encoded: What it returned.
        d_weights: Gradient by its ``weights``, ``[G, K]``.
        d_bias: Gradient by its ``bias``, ``[G, M]``.
    """
    p, last = parameters, encoded.hidden[-1]
    gradient = {
        "weights_out": last.T @ d_weights,
        "weights_bias": d_weights.sum(axis=0),
        "units_out": last.T @ d_bias,
        "units_bias": d_bias.sum(axis=0),
    }
    d_last = d_weights @ p["weights_out"].T + d_bias @ p["units_out"].T
    d_h = d_last.copy()
    for head in range(_HEADS):
        d_h += _attention_gradient(p, encoded, head, d_last, gradient)
    for round_ in reversed(range(_ROUNDS)):
        d_h = _round_gradient(p, problem, encoded, round_, d_h, gradient)
    d_input = d_h * (encoded.hidden[0] > 0)
    return gradient | {
        "embed": problem.features.T @ d_input,
        "embed_bias": d_input.sum(axis=0),
    }


def _relu(x: FloatArray) -> FloatArray:
    return np.maximum(x, 0.0)


def _round_input(
    p: Mapping[str, FloatArray], problem: GraphProblem, h: FloatArray, round_: int
) -> FloatArray:
    received = problem.before @ (h @ p[f"before{round_}"])
    sent = problem.after @ (h @ p[f"after{round_}"])
    return np.asarray(h @ p[f"own{round_}"] + received + sent + p[f"bias{round_}"])


def _round_gradient(
    p: Mapping[str, FloatArray],
    problem: GraphProblem,
    encoded: Encoded,
    round_: int,
    d_out: FloatArray,
    gradient: Parameters,
) -> FloatArray:
    """Add the gradients of a round's variables; return that by its input, ``[G, H]``."""
    h = encoded.hidden[round_]
    d_input = d_out * (encoded.hidden[round_ + 1] > h)
    d_received = np.asarray(problem.before.T @ d_input)
    d_sent = np.asarray(problem.after.T @ d_input)
    d_h = d_out.copy()
    for name, d_part in (("own", d_input), ("before", d_received), ("after", d_sent)):
        gradient[f"{name}{round_}"] = h.T @ d_part
        d_h += d_part @ p[f"{name}{round_}"].T
    gradient[f"bias{round_}"] = d_input.sum(axis=0)
    return d_h


def _attention(p: Mapping[str, FloatArray], h: FloatArray, head: int) -> FloatArray:
    scores = (h @ p[f"query{head}"]) @ (h @ p[f"key{head}"]).T / np.sqrt(_WIDTH)
    exponents = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(exponents / exponents.sum(axis=1, keepdims=True))


def _attention_gradient(
    p: Mapping[str, FloatArray],
    encoded: Encoded,
    head: int,
    d_out: FloatArray,
    gradient: Parameters,
) -> FloatArray:
    """Add the gradients of a head's variables; return that by its input, ``[G, H]``."""
    h, shares = encoded.hidden[-2], encoded.attention[head]
    query, key, value = (h @ p[f"{name}{head}"] for name in ("query", "key", "value"))
    d_mixed = d_out @ p[f"mix{head}"].T
    gradient[f"mix{head}"] = (shares @ value).T @ d_out
    d_shares = d_mixed @ value.T
    d_scores = shares * (d_shares - (d_shares * shares).sum(axis=1, keepdims=True))
    d_scores /= np.sqrt(_WIDTH)
    d_h = np.zeros_like(h)
    for name, d_part in (
        ("query", d_scores @ key),
        ("key", d_scores.T @ query),
        ("value", shares.T @ d_mixed),
    ):
        gradient[f"{name}{head}"] = h.T @ d_part
        d_h += d_part @ p[f"{name}{head}"].T
    return d_h
