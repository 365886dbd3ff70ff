"""The compiled event loop behind the simulator.

A *channel* is anything that serves one piece of work at a time. Channel ``s * D + d`` is
the link from device s to device d, and ``d * D + d`` is device d itself. Work waits in
its channel's queue in order of a key: the instant at which it could first have started,
then its number. Instants are counted, not timed: the k-th distinct time of the step is
instant k, so that a key is a single integer.

Numbers are chosen so that a tie falls to the lower one: ops are numbered by topological
index, tensors by producer and then by tensor index, transfers by tensor. Only the
simulator knows the caller's numbers.

Time is counted in whole picoseconds. Times that are equal on paper are then equal here,
however they were summed, and ties are settled by the rule instead of by rounding.

State lies in arrays of records that are passed one by one: numba would count references
for every array of a tuple at every call, which costs ten times the simulation itself.

Array shapes: B placements, N ops, T tensors, E pairs of tensor and consumer, X transfers at
most, D devices, C = D * D channels. Lists of lists are flat; record n holds where list n
starts, and one more record where the last one ends.

numba keeps the compiled code beside this module, in ``__pycache__``; where that cannot be
written, in the user's cache folder, or wherever ``NUMBA_CACHE_DIR`` says.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numba
import numpy as np
import numpy.typing as npt

Records = npt.NDArray[Any]

PS_PER_S = 1e12
NEVER_PS = np.iinfo(np.int64).max

OP = np.dtype(
    [
        ("first_tensor", np.int32),
        ("first_input", np.int32),  # in ``inputs``
        ("memory_bytes", np.int64),  # for the whole step
        ("output_bytes", np.int64),  # of all its tensors
        ("compute_ps", np.int64),  # on its device
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
        ("done_ps", np.int64),  # when it will have served what it serves
        ("served", np.int32),  # an op or transfer, or -1
        ("is_active", np.int32),  # it serves something, or its queue is not empty
        ("head", np.int32),  # of the queue, in ``keys``
        ("tail", np.int32),  # one past its end
        ("heap", np.int32),  # where its late keys start, in ``late_keys``
        ("num_late", np.int32),
    ],
    align=True,
)

_INSTANT_BITS = 32
_NUMBER_MASK = 2**_INSTANT_BITS - 1

_Function = TypeVar("_Function", bound=Callable[..., object])


def _compiled(function: _Function) -> _Function:
    """Compile with numba, without the interpreter lock, and keep the machine code."""
    options = {"nogil": True, "error_model": "numpy", "forceinline": function.__name__ not in ("run_steps",)}
    try:
        compiled: _Function = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # nowhere to keep it: every process compiles for itself
        compiled = numba.njit(**options)(function)
    return compiled


class Run(NamedTuple):
    """A graph with its costs, and all that changes while its steps run."""

    order: npt.NDArray[np.int32]
    """The caller's number of each op, ``[N]``."""
    compute_ps: npt.NDArray[np.int64]
    """Of each op on each device, ``[N, D]``."""
    ops: Records
    """``[N + 1]``."""
    tensors: Records
    """``[T + 1]``."""
    consumers: npt.NDArray[np.int32]
    """Ops, ascending for each tensor, ``[E]``."""
    inputs: npt.NDArray[np.int32]
    """Tensors, ``[E]``."""
    transfers: Records
    """``[X]``."""
    channels: Records
    """``[C]``."""
    holders: npt.NDArray[np.int32]
    """How many consumers and transfers still need a tensor on a device, ``[T, D]``."""
    resident_bytes: npt.NDArray[np.int64]
    """On each device, now, ``[D]``."""
    keys: npt.NDArray[np.int64]
    """Queues: of each channel, the keys that came in ascending order, ``[N + X]``."""
    late_keys: npt.NDArray[np.int64]
    """Heaps: of each channel, the keys that came after a greater one, ``[N + X]``."""
    active: npt.NDArray[np.int32]
    """How many channels are active, then these channels in no order, ``[C + 1]``."""


@_compiled
def run_steps(
    run: Run,
    device_of_op: npt.NDArray[np.int32],
    makespan_ps: npt.NDArray[np.int64],
    peak_memory_bytes: npt.NDArray[np.int64],
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


@_compiled
def _plan(run: Run, device_of_op: npt.NDArray[np.int32]) -> None:
    """Find the transfers of a placement, count who needs what, and empty all queues."""
    order, compute_ps, consumers, holders = run.order, run.compute_ps, run.consumers, run.holders
    ops, tensors, transfers, channels = run.ops, run.tensors, run.transfers, run.channels
    resident_bytes = run.resident_bytes
    num_devices = compute_ps.shape[1]
    resident_bytes[:] = 0
    holders[:] = 0
    for channel in range(channels.size):
        channels[channel].tail = 0
    number = 0
    for op in range(order.size):
        ops[op].device = source = device_of_op[order[op]]
        ops[op].compute_ps = compute_ps[op, source]
        ops[op].waiting = ops[op + 1].first_input - ops[op].first_input
        resident_bytes[source] += ops[op].memory_bytes
        channels[source * num_devices + source].tail += 1
    for op in range(order.size):
        source = ops[op].device
        for tensor in range(ops[op].first_tensor, ops[op + 1].first_tensor):
            tensors[tensor].first_transfer = number
            for at in range(tensors[tensor].first_consumer, tensors[tensor + 1].first_consumer):
                device = ops[consumers[at]].device
                if device != source and holders[tensor, device] == 0:
                    link = source * num_devices + device
                    _plan_transfer(tensors, transfers, channels, number, tensor, link)
                    holders[tensor, source] += 1
                    number += 1
                holders[tensor, device] += 1
    tensors[tensors.size - 1].first_transfer = number
    start = 0
    for at in range(channels.size):  # each tail counted what the channel will serve
        channel = channels[at]
        length = channel.tail
        channel.head = channel.tail = channel.heap = start
        channel.num_late = channel.is_active = 0
        channel.served = -1
        start += length


@_compiled
def _plan_transfer(
    tensors: Records, transfers: Records, channels: Records, number: int, tensor: int, channel: int
) -> None:
    link, transfer = channels[channel], transfers[number]
    size_bytes = tensors[tensor].size_bytes
    duration_s = link.latency_s + size_bytes / link.bandwidth_bytes_per_s
    transfer.tensor = tensor
    transfer.channel = channel
    transfer.size_bytes = size_bytes
    transfer.duration_ps = np.int64(np.rint(duration_s * PS_PER_S))
    link.tail += 1


@_compiled
def _run_step(run: Run, peak_bytes: npt.NDArray[np.int64]) -> int:
    """Run the planned step, fill the peak of each device and return the makespan."""
    ops, tensors, transfers, channels = run.ops, run.tensors, run.transfers, run.channels
    consumers, inputs, holders = run.consumers, run.inputs, run.holders
    keys, late_keys, active, resident_bytes = run.keys, run.late_keys, run.active, run.resident_bytes
    num_devices = resident_bytes.size
    now_ps = np.int64(0)
    instant = np.int64(0)
    active[0] = 0
    for device in range(num_devices):
        peak_bytes[device] = resident_bytes[device]
    for op in range(ops.size - 1):
        if ops[op].waiting == 0:
            _enqueue(channels, keys, late_keys, active, ops[op].device * (num_devices + 1), op)
    while True:
        next_ps = _start_work(ops, transfers, channels, keys, late_keys, active, resident_bytes, now_ps)
        if next_ps == NEVER_PS:
            return now_ps
        if next_ps > now_ps:
            # Work of no duration repeats the round at the same time; what was resident in
            # between was so for no time, hence peaks are taken when time moves on.
            for device in range(num_devices):
                peak_bytes[device] = max(peak_bytes[device], resident_bytes[device])
            now_ps = next_ps
            instant += 1 << _INSTANT_BITS
        for at in range(1, active[0] + 1):  # starts nothing, so that the order does not matter
            channel = channels[active[at]]
            if channel.served < 0 or channel.done_ps > now_ps:
                continue
            device = channel.destination
            if channel.source == device:
                op = channel.served
                for i in range(ops[op].first_input, ops[op + 1].first_input):
                    _release(tensors, holders, resident_bytes, inputs[i], device)
                for tensor in range(ops[op].first_tensor, ops[op + 1].first_tensor):
                    if holders[tensor, device] == 0:
                        resident_bytes[device] -= tensors[tensor].size_bytes
                        continue
                    _deliver(ops, tensors, consumers, channels, keys, late_keys, active, tensor, device, num_devices, instant)
                    for transfer in range(tensors[tensor].first_transfer, tensors[tensor + 1].first_transfer):
                        _enqueue(channels, keys, late_keys, active, transfers[transfer].channel, instant | transfer)
            else:
                tensor = transfers[channel.served].tensor
                _release(tensors, holders, resident_bytes, tensor, channel.source)
                _deliver(ops, tensors, consumers, channels, keys, late_keys, active, tensor, device, num_devices, instant)
            channel.served = -1


@_compiled
def _release(tensors, holders, resident_bytes, tensor, device):
    """Take away one of those who need the tensor on the device; the last one frees it."""
    holders[tensor, device] -= 1
    if holders[tensor, device] == 0:
        resident_bytes[device] -= tensors[tensor].size_bytes


@_compiled
def _deliver(ops, tensors, consumers, channels, keys, late_keys, active, tensor, device, num_devices, instant):
    """Tell the tensor's consumers on the device that it is there."""
    for at in range(tensors[tensor].first_consumer, tensors[tensor + 1].first_consumer):
        op = consumers[at]
        if ops[op].device == device:
            ops[op].waiting -= 1
            if ops[op].waiting == 0:
                _enqueue(channels, keys, late_keys, active, device * (num_devices + 1), instant | op)


@_compiled
def _start_work(ops, transfers, channels, keys, late_keys, active, resident_bytes, now_ps):
    """Let every idle channel take the first of its queue, and return when one is done next."""
    next_ps = NEVER_PS
    at = 1
    while at <= active[0]:
        channel = channels[active[at]]
        if channel.served < 0:
            if channel.head == channel.tail and channel.num_late == 0:
                channel.is_active = 0
                active[at] = active[active[0]]
                active[0] -= 1
                continue
            number = _dequeue(channel, keys, late_keys)
            channel.served = number
            if channel.source == channel.destination:
                ops[number].start_ps = now_ps
                channel.done_ps = now_ps + ops[number].compute_ps
                resident_bytes[channel.source] += ops[number].output_bytes
            else:
                transfers[number].start_ps = now_ps
                channel.done_ps = now_ps + transfers[number].duration_ps
                resident_bytes[channel.destination] += transfers[number].size_bytes
        next_ps = min(next_ps, channel.done_ps)
        at += 1
    return next_ps


@_compiled
def _enqueue(channels, keys, late_keys, active, number, key):
    """Add a key to a channel's queue: nearly always behind all others, else to the heap."""
    channel = channels[number]
    if channel.is_active == 0:
        channel.is_active = 1
        active[0] += 1
        active[active[0]] = number
    tail = channel.tail
    if tail == channel.head or keys[tail - 1] < key:
        keys[tail] = key
        channel.tail = tail + 1
        return
    first, child = channel.heap, channel.num_late
    channel.num_late += 1
    while child > 0 and late_keys[first + (child - 1) // 2] > key:
        late_keys[first + child] = late_keys[first + (child - 1) // 2]
        child = (child - 1) // 2
    late_keys[first + child] = key


@_compiled
def _dequeue(channel, keys, late_keys):
    """Take the smallest key from a channel's queue and return the op or transfer in it."""
    head, first, size = channel.head, channel.heap, channel.num_late
    if size == 0 or (head < channel.tail and keys[head] < late_keys[first]):
        channel.head = head + 1
        return keys[head] & _NUMBER_MASK
    smallest = late_keys[first]
    size -= 1
    channel.num_late = size
    last = late_keys[first + size]
    parent = 0
    while 2 * parent + 1 < size:
        child = 2 * parent + 1
        if child + 1 < size and late_keys[first + child + 1] < late_keys[first + child]:
            child += 1
        if late_keys[first + child] >= last:
            break
        late_keys[first + parent] = late_keys[first + child]
        parent = child
    late_keys[first + parent] = last
    return smallest & _NUMBER_MASK
