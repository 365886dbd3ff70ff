"""The bound by a mixed-integer linear program, for graphs of some tens of ops.

A placement that fits the memory, and any schedule of it, is a solution of

    minimise T over x, s, y, before subject to

    sum_d x_gd = 1, x_gd in {0, 1}                      group g is on one permitted device
    sum_g m_g x_gd <= M_d                               what groups hold fits
    sum_b y_gh,ab = x_ga,  sum_a y_gh,ab = x_hb         y_gh,ab = 1: g is on a and h on b
    s_v >= s_u + t_u + sum_ab c_ab y_gh,ab              v waits for u, and for the transfer
    s_p >= s_o + t_o - H (1 - before_op)                o runs before p
    before_op + before_po >= x_gd + x_hd - 1            on one device, one of two is first
    T >= s_o + t_o                                      the step ends after every op
    T >= sum_g t_gd x_gd                                a device does its work
    T >= sum of c_ab over tensors sent from a to b      a link sends its tensors

with s_o the start of op o, ``t_o = sum_d t_od x_gd`` its compute time, ``c_ab`` the transfer time
of the tensor (0 for a = b), H a makespan that the best placement does not exceed, and g, h the
groups of the ops in question. (Manne, *On the job-shop scheduling problem*, Operations Research
1960, has the order of ops by binary variables.) The program may start ops and transfers in an
order that the simulation would not choose, and lets a link send several tensors at once; the loads
of links on devices are left out. So its optimum is no more than the best makespan.

HiGHS solves it by branch and bound; what it has proved when it stops is the bound. It stops at the
optimum or after a number of nodes, not of seconds, so that results repeat. If ops that could run in
either order are too many, their order is left out. The solver works in floating point, with
tolerances: one part in 100,000 of H is taken off.

Array shapes: N ops, G groups, D devices.
"""

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import scipy.optimize
import scipy.sparse

from placer.bounds.paths import compute_ps, fastest_ps, heads_ps, tails_ps, transfer_ps
from placer.event_loop import PS_PER_S
from placer.graph import BoolArray, FloatArray, OpGraph
from placer.grouping import Grouping
from placer.profile import Profile

MAX_OPS = 40
MAX_DEVICES = 4
MAX_UNORDERED_PAIRS = 100
"""Of ops, in a program that orders them."""
MAX_NODES = 200
"""Of the search tree. With at most these sizes the search takes about a second."""

_MARGIN = 1e-5
"""What is taken off for the solver's tolerances, as a share of H."""


def is_small(profile: Profile) -> bool:
    """Return whether the program is quick to solve."""
    return profile.graph.num_ops <= MAX_OPS and profile.topology.num_devices <= MAX_DEVICES


def program_s(
    profile: Profile, grouping: Grouping, *, known_s: float = 0.0, max_nodes: int = MAX_NODES
) -> float:
    """Return what branch and bound proves; infinite if no placement fits the memory.

    Args:
        profile: Small, see :func:`is_small`.
        grouping: Its groups.
        known_s: Another lower bound, from which the search starts.
        max_nodes: Nodes of the search tree at most.

    Raises:
        InfeasibleError: If a group has no permitted device.
    """
    horizon_s = _horizon_s(profile, grouping)
    if horizon_s == 0:
        return 0.0
    found = _Program(profile, grouping, horizon_s, known_s).solve(max_nodes)
    if found == math.inf:
        return math.inf
    return max(0.0, found - _MARGIN) * horizon_s


def _horizon_s(profile: Profile, grouping: Grouping) -> float:
    """Return a makespan that the best placement does not exceed: of one device, or all in a row."""
    allowed = grouping.allowed(profile).all(axis=0)
    fits = allowed & (profile.memory_bytes.sum() <= profile.topology.memory_bytes)
    times_s = compute_ps(profile) / PS_PER_S
    if fits.any():
        return float(times_s.sum(axis=0)[fits].min())
    sizes = np.array([tensor.size_bytes for tensor in profile.graph.tensors], dtype=np.int64)
    longest_s = transfer_ps(profile.topology, sizes).max(axis=(1, 2)) / PS_PER_S
    copies = np.array([len(tensor.consumers) for tensor in profile.graph.tensors])
    return float(times_s.max(axis=1).sum() + (longest_s * copies).sum())


class _Program:
    """The variables and rows of the program."""

    def __init__(
        self, profile: Profile, grouping: Grouping, horizon_s: float, known_s: float
    ) -> None:
        unit_ps = horizon_s * PS_PER_S  # H is 1 in the program
        self._profile, self._grouping = profile, grouping
        self._groups = grouping.group_of_op.tolist()
        self._devices = range(profile.topology.num_devices)
        self._times: FloatArray = compute_ps(profile) / unit_ps
        sizes = np.array([t.size_bytes for t in profile.graph.tensors], dtype=np.int64)
        self._transfers: FloatArray = transfer_ps(profile.topology, sizes) / unit_ps
        self._lower: list[float] = []
        self._upper: list[float] = []
        self._is_integer: list[bool] = []
        self._rows: list[tuple[Mapping[int, float], float, float]] = []

        self._makespan = self._add(known_s / horizon_s, 1.0)
        self._place_groups()
        self._start_ops(unit_ps)
        self._send_tensors()
        self._order_ops()

    def solve(self, max_nodes: int) -> float:
        """Return the proved bound on T; infinite if there is no solution."""
        numbers = [len(coefficients) for coefficients, _, _ in self._rows]
        matrix: Any = scipy.sparse.csr_array(
            (
                [value for row, _, _ in self._rows for value in row.values()],
                [column for row, _, _ in self._rows for column in row],
                np.concatenate([[0], np.cumsum(numbers)]),
            ),
            shape=(len(self._rows), len(self._lower)),
        )
        objective = np.zeros(len(self._lower))
        objective[self._makespan] = 1.0
        found: Any = scipy.optimize.milp(
            objective,
            integrality=np.array(self._is_integer, dtype=np.int64),
            bounds=scipy.optimize.Bounds(np.array(self._lower), np.array(self._upper)),
            constraints=scipy.optimize.LinearConstraint(
                matrix,
                np.array([low for _, low, _ in self._rows]),
                np.array([high for _, _, high in self._rows]),
            ),
            # Presolving gains nothing here, and lets HiGHS now and then print a line to stdout.
            options={"node_limit": max_nodes, "mip_rel_gap": 1e-7, "presolve": False},
        )
        if found.status == 2:
            return math.inf
        return float(found.mip_dual_bound or 0.0)

    def _add(self, lower: float, upper: float, *, is_integer: bool = False) -> int:
        """Return the number of a new variable."""
        self._lower.append(lower)
        self._upper.append(upper)
        self._is_integer.append(is_integer)
        return len(self._lower) - 1

    def _at_least(self, terms: Iterable[tuple[int, float]], bound: float) -> None:
        """Demand that a sum of variables times coefficients is at least ``bound``."""
        row: dict[int, float] = {}
        for column, value in terms:
            row[column] = row.get(column, 0.0) + value
        self._rows.append((row, bound, math.inf))

    def _place_groups(self) -> None:
        profile, grouping = self._profile, self._grouping
        allowed = grouping.allowed(profile) & _first_of_alike(profile, grouping)
        self._on = [
            [self._add(0.0, float(is_open), is_integer=True) for is_open in row] for row in allowed
        ]
        for row in self._on:
            self._rows.append((dict.fromkeys(row, 1.0), 1.0, 1.0))
        limits = profile.topology.memory_bytes.tolist()
        for device in self._devices:
            work, held = {self._makespan: 1.0}, {}
            for group, ops in enumerate(grouping.ops_of_group):
                on = self._on[group][device]
                work[on] = -float(self._times[ops, device].sum())
                held[on] = float(profile.memory_bytes[ops].sum() / limits[device])
            self._rows.append((work, 0.0, math.inf))
            self._rows.append((held, -math.inf, 1.0))

    def _start_ops(self, unit_ps: float) -> None:
        shortest = fastest_ps(self._profile, self._grouping)
        heads = heads_ps(self._profile.graph, shortest)
        self._start = [self._add(head / unit_ps, 1.0) for head in heads]
        tails = tails_ps(self._profile.graph, shortest)
        for op, tail in enumerate(tails):
            end = [(self._makespan, 1.0), (self._start[op], -1.0), *self._time(op, -1.0)]
            self._at_least(end, tail / unit_ps)

    def _time(self, op: int, factor: float) -> list[tuple[int, float]]:
        """Return the terms of an op's compute time, times a factor."""
        on = self._on[self._groups[op]]
        return [(on[device], factor * float(self._times[op, device])) for device in self._devices]

    def _send_tensors(self) -> None:
        both: dict[tuple[int, int], list[list[int]]] = {}
        load: dict[tuple[int, int], list[tuple[int, float]]] = {}
        for number, tensor in enumerate(self._profile.graph.tensors):
            source, times = self._groups[tensor.producer], self._transfers[number]
            targets = sorted({self._groups[consumer] for consumer in tensor.consumers} - {source})
            for target in targets:
                if (source, target) not in both:
                    both[source, target] = self._both(source, target)
            for consumer in tensor.consumers:
                ends = both.get((source, self._groups[consumer]))
                wait = [(self._start[consumer], 1.0), (self._start[tensor.producer], -1.0)]
                wait += self._time(tensor.producer, -1.0)
                if ends is not None:
                    wait += [(ends[a][b], -float(times[a, b])) for a, b in self._links()]
                self._at_least(wait, 0.0)
            for a, b in self._links():
                sent = [both[source, target][a][b] for target in targets]
                if len(sent) > 1:
                    once = self._add(0.0, 1.0)
                    for each in sent:
                        self._at_least([(once, 1.0), (each, -1.0)], 0.0)
                    sent = [once]
                load.setdefault((a, b), []).extend((each, -float(times[a, b])) for each in sent)
        for terms in load.values():
            self._at_least([(self._makespan, 1.0), *terms], 0.0)

    def _links(self) -> list[tuple[int, int]]:
        return list(itertools.permutations(self._devices, 2))

    def _both(self, group: int, other: int) -> list[list[int]]:
        """Return the variables that say where two groups are, ``[D, D]``."""
        y = [[self._add(0.0, 1.0) for _ in self._devices] for _ in self._devices]
        for device in self._devices:
            row = dict.fromkeys(y[device], 1.0) | {self._on[group][device]: -1.0}
            column = {y[a][device]: 1.0 for a in self._devices} | {self._on[other][device]: -1.0}
            self._rows += [(row, 0.0, 0.0), (column, 0.0, 0.0)]
        return y

    def _order_ops(self) -> None:
        takes_time: BoolArray = np.any(self._times > 0, axis=1)
        pairs = [pair for pair in _unordered(self._profile.graph) if takes_time[list(pair)].all()]
        for op, other in pairs if len(pairs) <= MAX_UNORDERED_PAIRS else ():
            first, second = self._before(op, other), self._before(other, op)
            groups = self._groups[op], self._groups[other]
            if groups[0] == groups[1]:
                self._at_least([(first, 1.0), (second, 1.0)], 1.0)
                continue
            for device in self._devices:
                on = (self._on[group][device] for group in groups)
                self._at_least([(first, 1.0), (second, 1.0), *((x, -1.0) for x in on)], -1.0)

    def _before(self, op: int, other: int) -> int:
        """Return the variable that lets an op end before another starts."""
        before = self._add(0.0, 1.0, is_integer=True)
        starts = [(self._start[other], 1.0), (self._start[op], -1.0), *self._time(op, -1.0)]
        self._at_least([*starts, (before, -1.0)], -1.0)
        return before


def _first_of_alike(profile: Profile, grouping: Grouping) -> BoolArray:
    """Return where groups may go without loss if devices can exchange their names, ``[G, D]``.

    If all devices and links are alike, group g is on one of the first g + 1.
    """
    topology, num_groups = profile.topology, grouping.num_groups
    are_alike = (
        len(set(topology.links.values())) <= 1
        and len(set(topology.memory_bytes.tolist())) == 1
        and bool((profile.compute_time_s == profile.compute_time_s[:, :1]).all())
        and bool((profile.allowed == profile.allowed[:, :1]).all())
    )
    if not are_alike:
        return np.ones((num_groups, topology.num_devices), dtype=np.bool_)
    return np.tri(num_groups, topology.num_devices, dtype=np.bool_)


def _unordered(graph: OpGraph) -> list[tuple[int, int]]:
    """Return the pairs of ops neither of which waits for the other, lower index first."""
    waits_for = [0] * graph.num_ops
    for op in graph.topological_order.tolist():
        for producer in graph.predecessors[op]:
            waits_for[op] |= waits_for[producer] | 1 << producer
    return [
        (op, other)
        for op, other in itertools.combinations(range(graph.num_ops), 2)
        if not (waits_for[op] >> other & 1 or waits_for[other] >> op & 1)
    ]
