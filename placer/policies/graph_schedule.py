"""What is placed so far, scheduled as far as it can be: the running schedule of the decoder.

An op starts in the first gap of its device that is long enough, as in HEFT (Topcuoglu et al.,
2002). A tensor goes once to each device that needs it, in the first gap of its link: links
carry one tensor at a time. Times are in the units of the program.

Array shapes: G groups, N ops, T tensors, D devices, R timelines.
"""

from typing import NamedTuple

import numpy as np

from placer.compiled import compiled
from placer.graph import FloatArray, IntArray
from placer.policies.graph_problem import Program
from placer.policy import Actions

_MAX_SPANS = 48
_compiled = compiled(error_model="numpy")


class Schedule(NamedTuple):
    """What is scheduled so far.

    Attributes:
        end: Of each op, ``[N]``.
        arrival: Of each tensor on each device it was sent to, else negative, ``[T, D]``.
        starts: Of busy spans, ascending, of each device, then of each pair, ``[R, spans]``.
        ends: Of these, ``[R, spans]``.
        counts: How many spans there are, ``[R]``.
        load: Of each device, ``[D]``.
        held: Share of its memory that is taken, ``[D]``.
        copies: What copies of tensors take beside that, ``[D]``.
        latest: End of everything so far, ``[1]``.
    """

    end: FloatArray
    arrival: FloatArray
    starts: FloatArray
    ends: FloatArray
    counts: IntArray
    load: FloatArray
    held: FloatArray
    copies: FloatArray
    latest: FloatArray


class Tried(NamedTuple):
    """What would be if the opening ops of the next group were on each device, ``[D]``.

    Attributes:
        end: When they would end.
        ready: When their inputs would be there.
        sending: How long their inputs would be sent, one after another.
    """

    end: FloatArray
    ready: FloatArray
    sending: FloatArray


@_compiled
def new_schedule(program: Program) -> Schedule:
    """Return a schedule in which nothing is placed."""
    num_ops, num_devices = program.compute.shape
    num_timelines = num_devices * (num_devices + 1)
    return Schedule(
        np.zeros(num_ops),
        np.full((program.producer.size, num_devices), -1.0),
        np.zeros((num_timelines, _MAX_SPANS)),
        np.zeros((num_timelines, _MAX_SPANS)),
        np.zeros(num_timelines, dtype=np.int64),
        np.zeros(num_devices),
        np.zeros(num_devices),
        np.zeros(num_devices),
        np.zeros(1),
    )


@_compiled
def clear(schedule: Schedule) -> None:
    """Take everything off the devices and links."""
    schedule.arrival[:] = -1.0
    schedule.counts[:] = 0
    schedule.load[:] = 0
    schedule.held[:] = 0
    schedule.copies[:] = 0
    schedule.latest[0] = 0


@_compiled
def try_opening(
    program: Program, schedule: Schedule, chosen: Actions, group: int, tried: Tried
) -> int:
    """Fill when the opening ops of a group would end on each device, and why.

    Args:
        program: The graph.
        schedule: Of all groups before this one.
        chosen: The device of each group before this one, ``[G]``.
        group: The next one.
        tried: Filled.

    Returns:
        The device on which the last of their inputs is made, or -1 if there are none.
    """
    first_input, inputs, producers = program.first_input, program.inputs, program.producer
    group_of_op, computes = program.group_of_op, program.compute
    size_bytes, latency, per_byte = program.size_bytes, program.latency, program.per_byte
    ends, arrival = schedule.end, schedule.arrival
    starts, stops, counts = schedule.starts, schedule.ends, schedule.counts
    num_devices = computes.shape[1]
    first = program.first_op[group]
    last_made, last_source = -1.0, -1
    for device in range(num_devices):
        end, ready, sending = 0.0, 0.0, 0.0
        for op in range(first, program.end_of_opening[group]):
            start = end
            for at in range(first_input[op], first_input[op + 1]):
                tensor = inputs[at]
                producer = producers[tensor]
                if producer >= first:
                    continue
                there = ends[producer]
                source = chosen[group_of_op[producer]]
                if there > last_made:
                    last_made, last_source = there, source
                if source != device:
                    if arrival[tensor, device] >= 0:
                        there = arrival[tensor, device]
                    else:
                        sent = size_bytes[tensor] * per_byte[source, device]
                        sent += latency[source, device]
                        link = (source + 1) * num_devices + device
                        there = sent + first_gap(starts, stops, counts, link, there, sent)
                        sending += sent
                ready = max(ready, there)
                start = max(start, there)
            compute = computes[op, device]
            end = compute + first_gap(starts, stops, counts, device, start, compute)
        tried.end[device], tried.ready[device], tried.sending[device] = end, ready, sending
    return last_source


@_compiled
def place(program: Program, schedule: Schedule, chosen: Actions, group: int) -> None:
    """Schedule all ops that can be, now that a group is placed."""
    placed_on = chosen[group]
    schedule.load[placed_on] += program.load[group, placed_on]
    schedule.held[placed_on] += program.held[group, placed_on]
    first_input, inputs, producers = program.first_input, program.inputs, program.producer
    group_of_op, computes = program.group_of_op, program.compute
    size_bytes, latency, per_byte = program.size_bytes, program.latency, program.per_byte
    ends, arrival = schedule.end, schedule.arrival
    starts, stops, counts = schedule.starts, schedule.ends, schedule.counts
    num_devices = computes.shape[1]
    for op in range(program.first_op[group], program.first_op[group + 1]):
        device = chosen[group_of_op[op]]
        start = 0.0
        for at in range(first_input[op], first_input[op + 1]):
            tensor = inputs[at]
            there = ends[producers[tensor]]
            source = chosen[group_of_op[producers[tensor]]]
            if source != device:
                if arrival[tensor, device] < 0:
                    sent = size_bytes[tensor] * per_byte[source, device]
                    sent += latency[source, device]
                    link = (source + 1) * num_devices + device
                    begin = first_gap(starts, stops, counts, link, there, sent)
                    arrival[tensor, device] = begin + sent
                    schedule.copies[device] += size_bytes[tensor] * program.per_limit[device]
                    fill_gap(starts, stops, counts, link, begin, begin + sent)
                there = arrival[tensor, device]
            start = max(start, there)
        compute = computes[op, device]
        start = first_gap(starts, stops, counts, device, start, compute)
        ends[op] = start + compute
        schedule.latest[0] = max(schedule.latest[0], ends[op])
        fill_gap(starts, stops, counts, device, start, start + compute)


@_compiled
def first_gap(
    starts: FloatArray,
    ends: FloatArray,
    counts: IntArray,
    timeline: int,
    ready: float,
    duration: float,
) -> float:
    """Return where the first gap begins, from ``ready`` on, that is long enough."""
    low, high = 0, counts[timeline]
    while low < high:
        middle = (low + high) // 2
        if ends[timeline, middle] <= ready:
            low = middle + 1
        else:
            high = middle
    start = ready
    for span in range(low, counts[timeline]):
        if start + duration <= starts[timeline, span]:
            break
        start = max(start, ends[timeline, span])
    return start


@_compiled
def fill_gap(
    starts: FloatArray, ends: FloatArray, counts: IntArray, timeline: int, start: float, end: float
) -> None:
    """Fill a gap, or a part of one; spans that touch become one.

    If there is no room for another span, the first gap is given up.
    """
    if start >= end:
        return
    count = counts[timeline]
    at = count
    while at > 0 and starts[timeline, at - 1] > start:
        at -= 1
    joins_before = at > 0 and ends[timeline, at - 1] >= start
    joins_after = at < count and starts[timeline, at] <= end
    if joins_before:
        ends[timeline, at - 1] = end
    elif joins_after:
        starts[timeline, at] = start
    else:
        for span in range(count, at, -1):
            starts[timeline, span] = starts[timeline, span - 1]
            ends[timeline, span] = ends[timeline, span - 1]
        starts[timeline, at], ends[timeline, at] = start, end
        count += 1
    # Two spans become one: around a gap that is full, or around the first if there are too many.
    first = 0
    if joins_before and joins_after:
        first = at - 1
    elif count < starts.shape[1]:
        counts[timeline] = count
        return
    ends[timeline, first] = ends[timeline, first + 1]
    for span in range(first + 1, count - 1):
        starts[timeline, span] = starts[timeline, span + 1]
        ends[timeline, span] = ends[timeline, span + 1]
    counts[timeline] = count - 1
