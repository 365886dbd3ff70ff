"""Favourite children: beside which of its consumers an op should run.

The linear relaxation of Hanen and Munier (2001), as in Baechi (Jeon et al., 2020). ``x_e`` is 1
where the producer and the consumer of an edge ``e = (i, j)`` are separated and its transfer
takes ``c_e``, and 0 where j is the favourite child of i. With ``p_i`` the compute time of op
i, ``s_i`` its start and w the makespan, minimise w subject to

    s_i + p_i + c_e x_e <= s_j      for every edge e = (i, j)
    s_i + p_i <= w                  for every op i
    sum of x_e over the edges from i >= their number - 1
    sum of x_e over the edges to j >= their number - 1
    0 <= x_e <= 1

and take those edges of ``x_e < 1/2``: no op is then the favourite of two, or has two.
Times are those of the mean device and the mean link. Edges have an ``x_e`` only where bytes
are sent from group to group; the others order the starts and no more.

Off the longest path ``x_e`` may be what it likes. A small term in the objective settles it:
the sum of ``c_e x_e``, less than a hundredth of the longest transfer in all.

Array shapes: N ops, E edges that send bytes, P pairs of ops joined by any tensor, V variables:
``x`` of the E edges, then ``s`` of the N ops, then w.
"""

import logging
from typing import Any

import numpy as np
import scipy.optimize
import scipy.sparse

from placer.graph import BoolArray, FloatArray, IntArray
from placer.grouping import Grouping
from placer.heuristics.etf import NO_OP
from placer.heuristics.partial_schedule import (
    accelerator_choices,
    mean_compute_time_s,
    op_traffic,
)
from placer.profile import Profile
from placer.traffic import GroupEdges

MOST_EDGES = 20_000
"""With more edges that send bytes no program is solved, which would take minutes."""

_TIE_BREAKER = 0.01
_SEPARATED = 0.5

_LOGGER = logging.getLogger(__name__)


def favorite_children(profile: Profile, grouping: Grouping) -> IntArray:
    """Return the favourite child of each op, or ``NO_OP``, ``[N]``.

    Above ``MOST_EDGES`` edges, or if the solver fails, the edges are taken by falling
    transfer time instead, as long as neither end has been taken before.
    """
    choices = accelerator_choices(profile, grouping)
    traffic = op_traffic(profile, grouping)
    edges = traffic.edges
    sends = (edges.size_bytes > 0) & (traffic.transfer_time_s > 0)
    transfer_s = traffic.transfer_time_s[sends]
    order = np.argsort(-transfer_s, kind="stable")
    if 0 < len(order) <= MOST_EDGES:
        compute_s = mean_compute_time_s(profile, grouping, choices)
        separated = _separations(compute_s, edges, sends, transfer_s)
        if separated is not None:
            order = np.argsort(separated, kind="stable")
            order = order[separated[order] < _SEPARATED]
    producers, consumers = edges.sources[sends][order], edges.destinations[sends][order]
    return _matched(producers, consumers, profile.graph.num_ops)


def _matched(producers: IntArray, consumers: IntArray, num_ops: int) -> IntArray:
    """Return the favourites that the edges, the best first, give each op, ``[N]``."""
    favorites = np.full(num_ops, NO_OP, dtype=np.int64)
    is_favorite = np.zeros(num_ops, dtype=np.bool_)
    for producer, consumer in zip(producers.tolist(), consumers.tolist(), strict=True):
        if favorites[producer] == NO_OP and not is_favorite[consumer]:
            favorites[producer] = consumer
            is_favorite[consumer] = True
    return favorites


def _separations(
    compute_s: FloatArray, edges: GroupEdges, sends: BoolArray, transfer_s: FloatArray
) -> FloatArray | None:
    """Solve the relaxation and return ``x``, ``[E]``; None if the solver failed.

    Args:
        compute_s: Of each op, ``[N]``.
        edges: All pairs of ops joined by a tensor, ``[P]``.
        sends: Where these send bytes to another group, ``[P]``, at least one.
        transfer_s: Of the pairs that do, ``[E]``.
    """
    unit_s = transfer_s.max()  # times of about one suit the solver's tolerances
    num_edges, num_variables = len(transfer_s), len(transfer_s) + len(compute_s) + 1
    producers, consumers = edges.sources[sends], edges.destinations[sends]
    blocks = [
        *_starts(compute_s / unit_s, edges, sends, transfer_s / unit_s),
        _at_most_one(producers, num_variables),
        _at_most_one(consumers, num_variables),
    ]
    upper = np.full(num_variables, np.inf)
    has_rivals = (np.bincount(producers)[producers] > 1) | (np.bincount(consumers)[consumers] > 1)
    upper[:num_edges] = has_rivals
    objective = np.zeros(num_variables)
    objective[:num_edges] = transfer_s / unit_s
    objective[-1] = num_edges / _TIE_BREAKER
    # Typed loosely: the stubs of scipy know no sparse constraints.
    matrix: Any = scipy.sparse.vstack([block for block, _ in blocks], format="csr")
    bounds: Any = np.stack([np.zeros(num_variables), upper], axis=1)
    found: Any = scipy.optimize.linprog(
        objective,
        A_ub=matrix,
        b_ub=np.concatenate([limits for _, limits in blocks]),
        bounds=bounds,
        method="highs",
    )
    if found.x is None:
        _LOGGER.warning("no favourite children by linear programming: %s", found.message)
        return None
    return np.asarray(found.x[:num_edges], dtype=np.float64)


_Block = tuple[Any, FloatArray]
"""Rows of constraints, ``[rows, V]``, and what each may sum to at most."""


def _starts(
    compute: FloatArray, edges: GroupEdges, sends: BoolArray, transfer: FloatArray
) -> list[_Block]:
    """Return that consumers start after producers, and that all end by the makespan.

    Ops with consumers end by it if these do, so it is asked of the others alone.
    """
    num_edges, num_pairs = len(transfer), len(edges.sources)
    shape = (num_pairs, num_edges + len(compute) + 1)
    pairs = np.arange(num_pairs)
    rows = np.concatenate([pairs, pairs, pairs[sends]])
    columns = [num_edges + edges.sources, num_edges + edges.destinations, np.arange(num_edges)]
    values = np.concatenate([np.ones(num_pairs), -np.ones(num_pairs), transfer])
    order = scipy.sparse.coo_array((values, (rows, np.concatenate(columns))), shape=shape)

    last = np.setdiff1d(np.arange(len(compute)), edges.sources)
    rows = np.tile(np.arange(len(last)), 2)
    ends = np.concatenate([num_edges + last, np.full(len(last), shape[1] - 1)])
    values = np.repeat([1.0, -1.0], len(last))
    makespan = scipy.sparse.coo_array((values, (rows, ends)), shape=(len(last), shape[1]))
    return [(order, -compute[edges.sources]), (makespan, -compute[last])]


def _at_most_one(ends: IntArray, num_variables: int) -> _Block:
    """Return that of the edges with the same end, ``[E]``, all but one are separated."""
    ops, rows, counts = np.unique(ends, return_inverse=True, return_counts=True)
    entries = (-np.ones(len(ends)), (rows, np.arange(len(ends))))
    block = scipy.sparse.coo_array(entries, shape=(len(ops), num_variables))
    most: FloatArray = np.asarray(1.0 - counts, dtype=np.float64)
    return block, most
