"""The decoder of the graph policy: a list scheduler whose rule is learned.

Groups are placed one by one. What the running schedule (``graph_schedule``) says of each device
for the next group, and where its neighbours are, are the *inputs* of the decision:

    score[d] = weights[g] · inputs[d] + score · relu(inputs[d] · units + bias[g]) + table[g, d]
    logit[d] = C · tanh(score[d] / C) / temperature

The weights and the bias come from the network, ``table`` is zero until a graph is learned. No
input changes if equal devices exchange their names.

Array shapes: B placements, G groups, D devices, K inputs, M units.
"""

from typing import NamedTuple

import numpy as np

from placer.compiled import compiled
from placer.graph import FloatArray
from placer.policies.graph_problem import Program
from placer.policies.graph_schedule import Schedule, Tried, clear, new_schedule, place, try_opening
from placer.policy import Actions

INPUTS = (
    "stay",  # the previous group is there
    "pull",  # share of the placed neighbours that are there
    "strongest",  # the neighbour that counts most is there
    "last",  # the input that is made last is made there
    "late",  # how much later than on the best device the opening ops end
    "very late",  # the same on a scale of ten groups
    "wait",  # how much later than on the best device their inputs are there
    "sending",  # time in which their inputs are sent
    "longer",  # how much later than everything so far they end
    "load",  # work that is there, above the least
    "slow",  # logarithm of the compute time, above the least
    "cut",  # time in which what it shares with placed neighbours elsewhere is sent
    "memory",  # share of memory that will be taken
    "full",  # whether that is more than there is
    "crowded",  # whether it is with copies of what was made elsewhere
    "unused",  # nothing is there yet
)
"""The inputs, all between -3 and 3. Those that speak against a device are negative."""

NUM_INPUTS = len(INPUTS)
_LARGEST = 3.0
_compiled = compiled(error_model="numpy")


class Decoding(NamedTuple):
    """All that the scores depend on beside the graph; see the module.

    Attributes:
        weights: Of the inputs, ``[G, K]``.
        bias: Of the units, ``[G, M]``.
        units: From inputs to units, ``[K, M]``.
        score: From units to the score, ``[M]``.
        table: Added to each score, ``[G, D]``.
        bound: C.
        temperature: Of the softmax.
    """

    weights: FloatArray
    bias: FloatArray
    units: FloatArray
    score: FloatArray
    table: FloatArray
    bound: float
    temperature: float


class Followed(NamedTuple):
    """What is known of given actions: of each choice, ``[B, G]``, and the gradients."""

    log_probs: FloatArray
    entropies: FloatArray
    weights: FloatArray
    bias: FloatArray
    units: FloatArray
    score: FloatArray
    table: FloatArray


class _Scratch(NamedTuple):
    """Room for one decision: ``inputs`` are ``[D, K]``, ``units`` ``[D, M]``, all else ``[D]``."""

    tried: Tried

    near: FloatArray
    inputs: FloatArray
    units: FloatArray
    logits: FloatArray
    slopes: FloatArray


@_compiled
def draw(program: Program, decoding: Decoding, noise: FloatArray, actions: Actions) -> None:
    """Fill ``actions``, ``[B, G]``: the device of the largest sum of logit and noise."""
    schedule = new_schedule(program)
    scratch = _new_scratch(program, decoding)
    for trial in range(actions.shape[0]):
        clear(schedule)
        for group in range(actions.shape[1]):
            _fill_inputs(program, schedule, actions[trial], group, scratch)
            _fill_logits(program, decoding, group, scratch)
            actions[trial, group] = np.argmax(scratch.logits + noise[trial, group])
            place(program, schedule, actions[trial], group)


@_compiled
def follow(
    program: Program,
    decoding: Decoding,
    actions: Actions,
    advantages: FloatArray,
    entropy_bonus: float,
    out: Followed,
) -> None:
    """Fill log-probabilities and entropies, and add up the gradients.

    They are those of the mean over B of ``advantage · Σ_g log p + entropy_bonus · Σ_g entropy``.
    """
    schedule = new_schedule(program)
    scratch = _new_scratch(program, decoding)
    for trial in range(actions.shape[0]):
        clear(schedule)
        for group in range(actions.shape[1]):
            chosen = actions[trial, group]
            _fill_inputs(program, schedule, actions[trial], group, scratch)
            _fill_logits(program, decoding, group, scratch)
            top = np.max(scratch.logits)
            norm = top + np.log(np.sum(np.exp(scratch.logits - top)))
            entropy = 0.0
            for device in range(scratch.logits.size):
                if program.allowed[group, device]:
                    log_prob = scratch.logits[device] - norm
                    entropy -= np.exp(log_prob) * log_prob
            out.log_probs[trial, group] = scratch.logits[chosen] - norm
            out.entropies[trial, group] = entropy
            for device in range(scratch.logits.size):
                slope = 0.0
                if program.allowed[group, device]:
                    log_prob = scratch.logits[device] - norm
                    prob = np.exp(log_prob)
                    slope = advantages[trial] * ((chosen == device) - prob)
                    slope -= entropy_bonus * prob * (log_prob + entropy)
                    logit = scratch.logits[device] * decoding.temperature
                    slope *= (1 - (logit / decoding.bound) ** 2) / decoding.temperature
                scratch.slopes[device] = slope / actions.shape[0]
            _add_gradient(decoding, group, scratch, out)
            place(program, schedule, actions[trial], group)


@_compiled
def _new_scratch(program: Program, decoding: Decoding) -> _Scratch:
    num_devices = program.compute.shape[1]
    return _Scratch(
        Tried(np.zeros(num_devices), np.zeros(num_devices), np.zeros(num_devices)),
        np.zeros(num_devices),
        np.zeros((num_devices, NUM_INPUTS)),
        np.zeros((num_devices, decoding.score.size)),
        np.zeros(num_devices),
        np.zeros(num_devices),
    )


@_compiled
def _strongest(program: Program, chosen: Actions, group: int, near: FloatArray) -> int:
    """Fill the share of placed neighbours on each device; return that of the strongest, or -1."""
    near[:] = 0
    strongest, largest = -1, 0.0
    for at in range(program.first_neighbor[group], program.first_neighbor[group + 1]):
        device = chosen[program.neighbors[at]]
        near[device] += program.shares[at]
        if program.shares[at] > largest:
            strongest, largest = device, program.shares[at]
    return strongest


@_compiled
def _bounded(x: float) -> float:
    """Return a number between 0 and 1 for one that is not negative."""
    return x / (1 + x)


@_compiled
def _fill_inputs(
    program: Program, schedule: Schedule, chosen: Actions, group: int, scratch: _Scratch
) -> None:
    """Fill the inputs of the next decision, in the order of ``INPUTS``."""
    tried = scratch.tried
    last_source = try_opening(program, schedule, chosen, group, tried)
    strongest = _strongest(program, chosen, group, scratch.near)
    least_end = least_ready = least_load = least_compute = np.inf
    for device in range(tried.end.size):
        if program.allowed[group, device]:
            least_end = min(least_end, tried.end[device])
            least_ready = min(least_ready, tried.ready[device])
            least_load = min(least_load, schedule.load[device])
            least_compute = min(least_compute, program.load[group, device])
    inputs = scratch.inputs
    for device in range(tried.end.size):
        inputs[device, :] = 0
        if not program.allowed[group, device]:
            continue
        inputs[device, 0] = group > 0 and chosen[group - 1] == device
        inputs[device, 1] = scratch.near[device]
        inputs[device, 2] = strongest == device
        inputs[device, 3] = last_source == device
        late = tried.end[device] - least_end
        inputs[device, 4] = -_bounded(late)
        inputs[device, 5] = -_bounded(late / 10)
        inputs[device, 6] = -_bounded(tried.ready[device] - least_ready)
        inputs[device, 7] = -_bounded(tried.sending[device])
        inputs[device, 8] = -_bounded(max(0.0, tried.end[device] - schedule.latest[0]))
        inputs[device, 9] = -min(schedule.load[device] - least_load, _LARGEST)
        if least_compute > 0:
            slowness = np.log(program.load[group, device] / least_compute)
            inputs[device, 10] = -min(slowness, _LARGEST)
        inputs[device, 11] = -_bounded(program.shared[group] * (1 - scratch.near[device]))
        held = schedule.held[device] + program.held[group, device]
        inputs[device, 12] = -min(held, _LARGEST)
        inputs[device, 13] = -1.0 if held > 1 else 0.0
        inputs[device, 14] = -1.0 if held + schedule.copies[device] > 1 else 0.0
        inputs[device, 15] = schedule.load[device] == 0 and schedule.held[device] == 0


@_compiled
def _fill_logits(program: Program, decoding: Decoding, group: int, scratch: _Scratch) -> None:
    """Fill units and logits from the inputs; a device that is not permitted has minus infinity."""
    inputs, units, into, score = scratch.inputs, scratch.units, decoding.units, decoding.score
    for device in range(scratch.logits.size):
        if not program.allowed[group, device]:
            scratch.logits[device] = -np.inf
            continue
        raw = decoding.table[group, device]
        for unit in range(score.size):
            units[device, unit] = decoding.bias[group, unit]
        for i in range(NUM_INPUTS):
            value = inputs[device, i]
            if value != 0:
                raw += decoding.weights[group, i] * value
                for unit in range(score.size):
                    units[device, unit] += value * into[i, unit]
        for unit in range(score.size):
            units[device, unit] = max(units[device, unit], 0.0)
            raw += score[unit] * units[device, unit]
        logit = decoding.bound * np.tanh(raw / decoding.bound)
        scratch.logits[device] = logit / decoding.temperature


@_compiled
def _add_gradient(decoding: Decoding, group: int, scratch: _Scratch, out: Followed) -> None:
    """Add the gradient of the sum of ``slopes · scores``; the units are used up."""
    inputs, units, score = scratch.inputs, scratch.units, decoding.score
    d_weights, d_bias, d_units, d_score = out.weights, out.bias, out.units, out.score
    for device in range(scratch.slopes.size):
        slope = scratch.slopes[device]
        if slope == 0:
            continue
        out.table[group, device] += slope
        for unit in range(score.size):
            active = units[device, unit]
            d_score[unit] += slope * active
            units[device, unit] = slope * score[unit] if active > 0 else 0.0
            d_bias[group, unit] += units[device, unit]
        for i in range(NUM_INPUTS):
            value = inputs[device, i]
            if value != 0:
                d_weights[group, i] += slope * value
                for unit in range(score.size):
                    d_units[i, unit] += value * units[device, unit]
