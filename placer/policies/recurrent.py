"""The two costly parts of a sequence network, with backward passes written out.

What TensorFlow derives for a loop keeps or computes again everything inside it, and multiplies
matrices step by step. Here the loop over the steps of an LSTM holds only what depends on the step
before; the gradient of its matrix is one product over all steps and placements.

Array shapes: T steps, B placements, H hidden units, A attention units, G groups.
"""

from typing import Any

import tensorflow as tf

Tensor = Any  # TensorFlow has no type stubs.


def lstm_step(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Return the next cell and state (Hochreiter and Schmidhuber, 1997), ``[B, H]`` each.

    Args:
        gates: Input, forget and output gate and candidate before their activation, ``[B, 4H]``.
        cell: ``[B, H]``.
    """
    enter, forget, leave, candidate = _activated(gates)
    cell = forget * cell + enter * candidate
    return cell, leave * tf.tanh(cell)


def _lstm_states(
    inputs: Tensor, recurrent: Tensor, first_cell: Tensor, first_state: Tensor
) -> tuple[tuple[Tensor, Tensor], Any]:
    """Return the states and cells of an LSTM whose inputs are all known, ``[T, B, H]`` each.

    Args:
        inputs: What each step adds to the gates, ``[T, B, 4H]``.
        recurrent: ``[H, 4H]``.
        first_cell: ``[B, H]``.
        first_state: ``[B, H]``.
    """
    num_steps = inputs.shape[0]
    empty = tf.TensorArray(tf.float32, num_steps, element_shape=first_cell.shape)

    def forward(step: Tensor, cell: Tensor, state: Tensor, cells: Any, states: Any) -> Any:
        cell, state = lstm_step(inputs[step] + state @ recurrent, cell)
        return step + 1, cell, state, cells.write(step, cell), states.write(step, state)

    loop = tf.while_loop(
        lambda step, *_: step < num_steps, forward, (0, first_cell, first_state, empty, empty)
    )
    cells, states = loop[3].stack(), loop[4].stack()

    def gradient(of_states: Tensor, of_cells: Tensor) -> tuple[Tensor, ...]:
        states_before = tf.concat([first_state[None], states[:-1]], axis=0)
        cells_before = tf.concat([first_cell[None], cells[:-1]], axis=0)
        enter, forget, leave, candidate = _activated(inputs + states_before @ recurrent)
        squashed = tf.tanh(cells)
        # What does not depend on later steps, for all of them at once.
        into_cell = leave * (1 - squashed * squashed)
        into_gates = tf.concat(
            [
                candidate * enter * (1 - enter),
                cells_before * forget * (1 - forget),
                squashed * leave * (1 - leave),
                enter * (1 - candidate * candidate),
            ],
            axis=2,
        )
        transposed = tf.transpose(recurrent)

        def backward(step: Tensor, of_cell: Tensor, of_state: Tensor, of_gates: Any) -> Any:
            of_state += of_states[step]
            of_cell += of_cells[step] + of_state * into_cell[step]
            of_gate = into_gates[step] * tf.concat([of_cell, of_cell, of_state, of_cell], axis=1)
            of_gates = of_gates.write(step, of_gate)
            return step - 1, of_cell * forget[step], of_gate @ transposed, of_gates

        zero = tf.zeros_like(first_cell)
        written = tf.TensorArray(tf.float32, num_steps, element_shape=inputs.shape[1:])
        _, of_cell, of_state, of_gates = tf.while_loop(
            lambda step, *_: step >= 0, backward, (num_steps - 1, zero, zero, written)
        )
        of_inputs = of_gates.stack()
        of_recurrent = tf.tensordot(states_before, of_inputs, [[0, 1], [0, 1]])
        return of_inputs, of_recurrent, of_cell, of_state

    return (states, cells), gradient


lstm_states = tf.custom_gradient(_lstm_states)


def _additive_scores(queries: Tensor, keys: Tensor, score: Tensor) -> tuple[Tensor, Any]:
    """Return ``score · tanh(query + key)`` for each query and key, ``[T, B, G]``.

    Forwards and backwards the ``[B, G, A]`` of tanh are there for one step at a time: those of
    all steps would take gigabytes, and what fits into a cache is soon computed again.

    Args:
        queries: ``[T, B, A]``.
        keys: ``[G, A]``.
        score: ``[A]``.
    """
    num_steps, num_placements, _ = queries.shape
    num_keys = keys.shape[0]

    def forward(step: Tensor, scores: Any) -> Any:
        hidden = tf.tanh(queries[step][:, None] + keys)
        return step + 1, scores.write(step, tf.tensordot(hidden, score, 1))

    written = tf.TensorArray(tf.float32, num_steps, element_shape=[num_placements, num_keys])
    _, scores = tf.while_loop(lambda step, _: step < num_steps, forward, (0, written))

    def gradient(upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def backward(step: Tensor, of_queries: Any, of_keys: Tensor, of_score: Tensor) -> Any:
            hidden = tf.tanh(queries[step][:, None] + keys)
            slope = upstream[step][:, :, None] * (1 - hidden * hidden) * score
            of_score += tf.tensordot(upstream[step], hidden, [[0, 1], [0, 1]])
            of_queries = of_queries.write(step, tf.reduce_sum(slope, axis=1))
            return step + 1, of_queries, of_keys + tf.reduce_sum(slope, axis=0), of_score

        written = tf.TensorArray(tf.float32, num_steps, element_shape=queries.shape[1:])
        _, of_queries, of_keys, of_score = tf.while_loop(
            lambda step, *_: step < num_steps,
            backward,
            (0, written, tf.zeros_like(keys), tf.zeros_like(score)),
        )
        return of_queries.stack(), of_keys, of_score

    return scores.stack(), gradient


additive_scores = tf.custom_gradient(_additive_scores)


def _activated(gates: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    enter, forget, leave, candidate = tf.split(gates, 4, axis=-1)
    return tf.sigmoid(enter), tf.sigmoid(forget), tf.sigmoid(leave), tf.tanh(candidate)
