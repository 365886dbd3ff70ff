"""The compiled event loop behind the simulator.

A *channel* is anything that serves one piece of work at a time. Channel ``s * D + d`` is
the link from device s to device d, and ``d * D + d`` is device d itself. Work waits in
its channel's queue in order of a key: the instant at which it could first have started,
then its number. Instants are counted, not timed: the k-th distinct time of the step is
instant k, so that a key is a single integer.

Numbers are chosen so that a tie falls to the lower one: ops are numbered by topological
index, tensors by producer and then by tensor index, transfers by tensor. Only the
simulator knows the caller's numbers.

A transfer may load the devices at its ends: the op that runs there then progresses at a
*rate* below ``FULL_RATE``. Its work is counted in picoseconds times rate, so that it is a whole
number however often the rate changes, and it is done at the first picosecond at which no work
is left.

Time is counted in whole picoseconds. Times that are equal on paper are then equal here,
however they were summed, and ties are settled by the rule instead of by rounding.

State lies in arrays of records, and all of them in one tuple. numba would count references
to each of these arrays at every call, which costs ten times the simulation itself; nothing
here allocates, so its reference counting is switched off (``_nrt``).

Array shapes: B placements, N ops, T tensors, E pairs of tensor and consumer, X transfers at
most, D devices, C = D * D channels. Lists of lists are flat; record n holds where list n
starts, and one more record where the last one ends.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numba
import numpy as np
import numpy.typing as npt

from placer.compiled import compiled

Records = npt.NDArray[Any]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

PS_PER_S = 1e12
NEVER_PS = 2**63 - 1
FULL_RATE = 1000
"""Of an op on a device that no transfer loads; loads are whole thousandths of it."""

OP = np.dtype(
    [
        ("first_tensor", np.int32),
        ("first_input", np.int32),  # in ``inputs``
        ("memory_bytes", np.int64),  # for the whole step
        ("output_bytes", np.int64),  # of all its tensors
        ("compute_ps", np.int64),  # on its device; once it is done, as long as it took
        ("start_ps", np.int64),
        ("device", np.int32),
        ("waiting", np.int32),  # inputs that are not yet on its device
    ],
    align=True,
)
TENSOR = np.dtype(
    [
        ("size_bytes", np.int64),
        ("first_consumer", np.int32),  # in ``consumers``
        ("first_transfer", np.int32),
    ],
    align=True,
)
TRANSFER = np.dtype(
    [
        ("size_bytes", np.int64),
        ("duration_ps", np.int64),
        ("start_ps", np.int64),
        ("tensor", np.int32),
        ("channel", np.int32),
    ],
    align=True,
)
CHANNEL = np.dtype(
    [
        ("source", np.int32),
        ("destination", np.int32),
        ("latency_s", np.float64),
        ("bandwidth_bytes_per_s", np.float64),
        ("source_load", np.int32),  # of a link, in units of 1 / FULL_RATE
        ("destination_load", np.int32),
        ("rate", np.int32),  # of a device: FULL_RATE less its loads; may be below zero
        ("work_left", np.int64),  # of the op it serves, when the rate last changed
        ("rate_since_ps", np.int64),
        ("served", np.int32),  # an op or transfer, or -1
        ("place", np.int32),  # among the busy ones, if it serves something
        ("is_listed", np.int32),  # among the busy or the idle ones
        ("head", np.int32),  # of the queue, in ``keys``
        ("tail", np.int32),  # one past its end
        ("heap", np.int32),  # where its late keys start, in ``late_keys``
        ("num_late", np.int32),
    ],
    align=True,
)

_INSTANT_BITS = 32
_NUMBER_MASK = 2**_INSTANT_BITS - 1

_OPTIONS = {"nogil": True, "error_model": "numpy", "_nrt": False}
_Function = TypeVar("_Function", bound=Callable[..., object])


def _inlined(function: _Function) -> _Function:
    """Compile as a part of whatever calls it."""
    inlined: _Function = numba.njit(forceinline=True, **_OPTIONS)(function)
    return inlined


class Run(NamedTuple):
    """A graph with its costs, and all that changes while its steps run."""

    order: Int32Array
    """The caller's number of each op, ``[N]``."""
    compute_ps: Int64Array
    """Of each op on each device, ``[N, D]``."""
    ops: Records
    """``[N + 1]``."""
    tensors: Records
    """``[T + 1]``."""
    consumers: Int32Array
    """Ops, ascending for each tensor, ``[E]``."""
    inputs: Int32Array
    """Tensors, ``[E]``."""
    transfers: Records
    """``[X]``."""
    channels: Records
    """``[C]``."""
    holders: Int32Array
    """How many consumers and transfers still need a tensor on a device, ``[T, D]``."""
    resident_bytes: Int64Array
    """On each device, now, ``[D]``."""
    keys: Int64Array
    """Queues: of each channel, the keys that came in ascending order, ``[N + X]``."""
    late_keys: Int64Array
    """Heaps: of each channel, the keys that came after a greater one, ``[N + X]``."""
    busy: Int32Array
    """How many channels serve something, then these channels in no order, ``[C + 1]``."""
    done_ps: Int64Array
    """When each of ``busy``, in its order, will have served what it serves, ``[C + 1]``."""
    idle: Int32Array
    """How many channels may have work to start, then these channels, ``[C + 1]``."""


def copy_of(run: Run) -> Run:
    """Return a copy that another thread may work in."""
    return Run._make(array.copy() for array in run)


@compiled(**_OPTIONS)
def run_steps(
    run: Run,
    device_of_op: Int32Array,
    makespan_ps: Int64Array,
    peak_memory_bytes: Int64Array,
) -> None:
    """Run one step of each placement; ``run`` is left as the last one ended.

    Args:
        run: Graph, costs and working memory.
        device_of_op: Devices by the caller's numbers, ``[B, N]``.
        makespan_ps: Filled, ``[B]``.
        peak_memory_bytes: Filled, ``[B, D]``.
    """
    for placement in range(device_of_op.shape[0]):
        _plan(run, device_of_op[placement])
        makespan_ps[placement] = _run_step(run, peak_memory_bytes[placement])


@_inlined
def _plan(run: Run, device_of_op: Int32Array) -> None:
    """Find the transfers of a placement, count who needs what, and empty all queues."""
    ops, tensors, holders = run.ops, run.tensors, run.holders
    num_devices = run.resident_bytes.size
    run.resident_bytes[:] = 0
    holders[:] = 0
    for channel in range(run.channels.size):
        run.channels[channel].tail = 0
    for op in range(run.order.size):
        ops[op].device = device = device_of_op[run.order[op]]
        ops[op].compute_ps = run.compute_ps[op, device]
        ops[op].waiting = ops[op + 1].first_input - ops[op].first_input
        run.resident_bytes[device] += ops[op].memory_bytes
        run.channels[device * num_devices + device].tail += 1
    num_transfers = 0
    for op in range(run.order.size):
        source = ops[op].device
        for tensor in range(ops[op].first_tensor, ops[op + 1].first_tensor):
            tensors[tensor].first_transfer = num_transfers
            for at in range(tensors[tensor].first_consumer, tensors[tensor + 1].first_consumer):
                device = ops[run.consumers[at]].device
                if device != source and holders[tensor, device] == 0:
                    _plan_transfer(run, num_transfers, tensor, source * num_devices + device)
                    holders[tensor, source] += 1
                    num_transfers += 1
                holders[tensor, device] += 1
    tensors[tensors.size - 1].first_transfer = num_transfers
    start = 0
    for number in range(run.channels.size):  # each tail counted what the channel will serve
        channel = run.channels[number]
        length = channel.tail
        channel.head = channel.tail = channel.heap = start
        channel.num_late = channel.is_listed = 0
        channel.served = -1
        channel.rate = FULL_RATE
        start += length


@_inlined
def _plan_transfer(run: Run, number: int, tensor: int, channel: int) -> None:
    link, transfer = run.channels[channel], run.transfers[number]
    size_bytes = run.tensors[tensor].size_bytes
    duration_s = link.latency_s + size_bytes / link.bandwidth_bytes_per_s
    transfer.tensor = tensor
    transfer.channel = channel
    transfer.size_bytes = size_bytes
    transfer.duration_ps = np.int64(np.rint(duration_s * PS_PER_S))
    link.tail += 1


@_inlined
def _run_step(run: Run, peak_bytes: Int64Array) -> int:
    """Run the planned step, fill the peak of each device and return the makespan."""
    peak_bytes[:] = 0
    _note_peaks(run, peak_bytes)
    run.busy[0] = run.idle[0] = 0
    for op in range(run.order.size):
        if run.ops[op].waiting == 0:
            _enqueue(run, run.ops[op].device * (peak_bytes.size + 1), op)
    now_ps = 0
    instant = 0
    next_ps = _start_work(run, now_ps)
    while next_ps < NEVER_PS:
        if next_ps > now_ps:
            # Work of no duration repeats the round at the same time; what was resident in
            # between was so for no time, hence peaks are taken when time moves on.
            _note_peaks(run, peak_bytes)
            now_ps = next_ps
            instant += 1 << _INSTANT_BITS
        _apply_completions(run, now_ps, instant)
        next_ps = _start_work(run, now_ps)
    return now_ps


@_inlined
def _note_peaks(run: Run, peak_bytes: Int64Array) -> None:
    for device in range(peak_bytes.size):
        peak_bytes[device] = max(peak_bytes[device], run.resident_bytes[device])


@_inlined
def _apply_completions(run: Run, now_ps: int, instant: int) -> None:
    """Apply all that is done now; starts nothing, so that the order does not matter."""
    at = 1
    while at <= run.busy[0]:
        if run.done_ps[at] > now_ps:
            at += 1
            continue
        number = run.busy[at]
        channel = run.channels[number]
        _leave(run, at)
        if channel.source == channel.destination:
            run.ops[channel.served].compute_ps = now_ps - run.ops[channel.served].start_ps
            _finish_op(run, channel.served, channel.source, instant)
        else:
            tensor = run.transfers[channel.served].tensor
            _change_loads(run, channel, -1, now_ps)
            _release(run, tensor, channel.source)
            _deliver(run, tensor, channel.destination, instant)
        channel.served = -1
        run.idle[0] += 1
        run.idle[run.idle[0]] = number


@_inlined
def _leave(run: Run, place: int) -> None:
    """Take a channel from the busy ones; the last of them gets its place."""
    last = run.busy[0]
    run.busy[place] = run.busy[last]
    run.done_ps[place] = run.done_ps[last]
    run.channels[run.busy[place]].place = place
    run.busy[0] = last - 1


@_inlined
def _finish_op(run: Run, op: int, device: int, instant: int) -> None:
    """Let go of an op's inputs; hand its tensors to the consumers here and to the links."""
    ops, tensors = run.ops, run.tensors
    for at in range(ops[op].first_input, ops[op + 1].first_input):
        _release(run, run.inputs[at], device)
    for tensor in range(ops[op].first_tensor, ops[op + 1].first_tensor):
        if run.holders[tensor, device] == 0:  # nobody wants it
            run.resident_bytes[device] -= tensors[tensor].size_bytes
            continue
        _deliver(run, tensor, device, instant)
        for number in range(tensors[tensor].first_transfer, tensors[tensor + 1].first_transfer):
            _enqueue(run, run.transfers[number].channel, instant | number)


@_inlined
def _release(run: Run, tensor: int, device: int) -> None:
    """Take away one of those who need a tensor on a device; the last one frees it."""
    run.holders[tensor, device] -= 1
    if run.holders[tensor, device] == 0:
        run.resident_bytes[device] -= run.tensors[tensor].size_bytes


@_inlined
def _deliver(run: Run, tensor: int, device: int, instant: int) -> None:
    """Tell a tensor's consumers on a device that it is there."""
    for at in range(run.tensors[tensor].first_consumer, run.tensors[tensor + 1].first_consumer):
        op = run.consumers[at]
        if run.ops[op].device == device:
            run.ops[op].waiting -= 1
            if run.ops[op].waiting == 0:
                _enqueue(run, device * (run.resident_bytes.size + 1), instant | op)


@_inlined
def _start_work(run: Run, now_ps: int) -> int:
    """Let every idle channel take the first of its queue; return when the next one is done."""
    for at in range(1, run.idle[0] + 1):
        channel = run.channels[run.idle[at]]
        if channel.head == channel.tail and channel.num_late == 0:
            channel.is_listed = 0
            continue
        number = channel.served = _dequeue(run, channel)
        channel.place = run.busy[0] = run.busy[0] + 1
        run.busy[channel.place] = run.idle[at]
        if channel.source == channel.destination:
            run.ops[number].start_ps = now_ps
            channel.work_left = run.ops[number].compute_ps * FULL_RATE
            channel.rate_since_ps = now_ps
            run.done_ps[channel.place] = now_ps + run.ops[number].compute_ps
            if channel.rate != FULL_RATE:
                run.done_ps[channel.place] = _done_ps(channel)
            run.resident_bytes[channel.source] += run.ops[number].output_bytes
        else:
            run.transfers[number].start_ps = now_ps
            run.done_ps[channel.place] = now_ps + run.transfers[number].duration_ps
            _change_loads(run, channel, 1, now_ps)
            run.resident_bytes[channel.destination] += run.transfers[number].size_bytes
    run.idle[0] = 0
    next_ps = NEVER_PS
    for at in range(1, run.busy[0] + 1):
        next_ps = min(next_ps, run.done_ps[at])
    return next_ps


@_inlined
def _change_loads(run: Run, link: Any, sign: int, now_ps: int) -> None:
    """Add what a transfer takes of the devices at its ends, or give it back."""
    num_devices = run.resident_bytes.size
    if link.source_load:
        device = run.channels[link.source * (num_devices + 1)]
        _change_rate(run, device, -sign * link.source_load, now_ps)
    if link.destination_load:
        device = run.channels[link.destination * (num_devices + 1)]
        _change_rate(run, device, -sign * link.destination_load, now_ps)


@_inlined
def _change_rate(run: Run, device: Any, change: int, now_ps: int) -> None:
    """Let the op that the device serves, if any, go on at another rate."""
    device.work_left -= (now_ps - device.rate_since_ps) * max(device.rate, 0)
    device.rate_since_ps = now_ps
    device.rate += change
    if device.served >= 0:
        run.done_ps[device.place] = _done_ps(device)


@_inlined
def _done_ps(device: Any) -> int:
    """Return when the work that is left will be done at the present rate."""
    done_ps: int = NEVER_PS
    if device.work_left <= 0:
        done_ps = device.rate_since_ps
    elif device.rate > 0:
        done_ps = device.rate_since_ps + (device.work_left + device.rate - 1) // device.rate
    return done_ps


@_inlined
def _enqueue(run: Run, number: int, key: int) -> None:
    """Add a key to a channel's queue: nearly always behind all others, else to the heap."""
    channel = run.channels[number]
    if not channel.is_listed:
        channel.is_listed = 1
        run.idle[0] += 1
        run.idle[run.idle[0]] = number
    if channel.head == channel.tail or run.keys[channel.tail - 1] < key:
        run.keys[channel.tail] = key
        channel.tail += 1
    else:
        _push(run.late_keys, channel, key)


@_inlined
def _dequeue(run: Run, channel: Any) -> int:
    """Take the smallest key from a channel's queue and return the op or transfer in it."""
    if channel.num_late == 0 or (
        channel.head < channel.tail and run.keys[channel.head] < run.late_keys[channel.heap]
    ):
        key = run.keys[channel.head]
        channel.head += 1
    else:
        key = _pop(run.late_keys, channel)
    number: int = key & _NUMBER_MASK
    return number


@_inlined
def _push(late_keys: Int64Array, channel: Any, key: int) -> None:
    """Add a key to the channel's binary heap."""
    first, child = channel.heap, channel.num_late
    channel.num_late += 1
    while child > 0 and late_keys[first + (child - 1) // 2] > key:
        late_keys[first + child] = late_keys[first + (child - 1) // 2]
        child = (child - 1) // 2
    late_keys[first + child] = key


@_inlined
def _pop(late_keys: Int64Array, channel: Any) -> int:
    """Take the smallest key from the channel's binary heap."""
    channel.num_late -= 1
    first, size = channel.heap, channel.num_late
    smallest: int = late_keys[first]
    last = late_keys[first + size]
    parent, child = 0, 1
    while child < size:
        if child + 1 < size and late_keys[first + child + 1] < late_keys[first + child]:
            child += 1
        if late_keys[first + child] >= last:
            break
        late_keys[first + parent] = late_keys[first + child]
        parent, child = child, 2 * child + 1
    late_keys[first + parent] = last
    return smallest
