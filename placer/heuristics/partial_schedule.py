"""What list schedulers share: groups that are pinned, memory that is left, inputs of ops.

The graph of groups may have cycles, so ops are scheduled and not groups, producers before
consumers. A group is pinned to the device of the first of its ops that is scheduled, and
the others follow there.

Memory is counted as in Baechi (Jeon et al., 2020): a group takes, for the whole step, what
its ops hold and every tensor they make. This is more than its ops need at any moment; copies
of tensors that were made elsewhere are not counted, so that a device which is almost full may
still run out of memory in a simulation.

Array shapes: N ops, G groups, D devices, E pairs of ops.
"""

import dataclasses

import numpy as np

from placer.errors import InfeasibleError
from placer.graph import BoolArray, FloatArray, IntArray, OpGraph
from placer.grouping import Grouping
from placer.heuristics.permitted import accelerators
from placer.policy import Actions
from placer.profile import Profile
from placer.traffic import GroupTraffic, group_traffic

NOWHERE = -1
"""The device of a group that is not pinned yet."""


class PinnedGroups:
    """Which groups have a device, and what memory that leaves.

    Args:
        profile: What is placed.
        grouping: Its groups.
        choices: The devices among which each group is to be placed, ``[G, D]``.
    """

    def __init__(self, profile: Profile, grouping: Grouping, choices: BoolArray) -> None:
        self._profile, self._grouping = profile, grouping
        self._choices: list[list[int]] = [np.flatnonzero(row).tolist() for row in choices]
        self._size_bytes: list[int] = group_bytes(profile, grouping).tolist()
        self._free_bytes: list[int] = profile.topology.memory_bytes.tolist()
        self._device_of_group = [NOWHERE] * grouping.num_groups

    @property
    def actions(self) -> Actions:
        """The device of each group, ``NOWHERE`` if it has none, ``[G]``."""
        return np.array(self._device_of_group, dtype=np.int32)

    def device(self, group: int) -> int:
        """Return the device to which a group is pinned, or ``NOWHERE``."""
        return self._device_of_group[group]

    def choices(self, group: int) -> list[int]:
        """Return the devices among which a group is to be placed, with or without room."""
        return self._choices[group]

    def is_open(self, group: int, device: int) -> bool:
        """Return whether an op of the group may go to a device.

        A pinned group's may go to its device alone, another's where the group has room.
        """
        if self._device_of_group[group] != NOWHERE:
            return self._device_of_group[group] == device
        return (
            device in self._choices[group] and self._size_bytes[group] <= self._free_bytes[device]
        )

    def devices(self, group: int) -> list[int]:
        """Return the devices that are open to a group.

        Raises:
            InfeasibleError: If there is none; the message says what lacks.
        """
        devices = [device for device in self._choices[group] if self.is_open(group, device)]
        if not devices:
            raise InfeasibleError(self._refusal(group))
        return devices

    def pin(self, group: int, device: int) -> None:
        """Put a group on a device that is open to it; nothing happens if it is there."""
        if self._device_of_group[group] == NOWHERE:
            self._device_of_group[group] = device
            self._free_bytes[device] -= self._size_bytes[group]

    def _refusal(self, group: int) -> str:
        ops = self._grouping.ops_of_group[group]
        others = f" and {len(ops) - 1} more" if len(ops) > 1 else ""
        devices = self._profile.topology.devices
        free = (f"{self._free_bytes[d]} on {devices[d].name!r}" for d in self._choices[group])
        return (
            f"group {group} (op {self._profile.graph.ops[ops[0]].name!r}{others}) needs"
            f" {self._size_bytes[group]} bytes, but free are {', '.join(free)}"
        )


class TransferTimes:
    """How long tensors take between devices; no time at all on one device."""

    def __init__(self, profile: Profile) -> None:
        self._latency_s: list[list[float]] = profile.topology.latency_s.tolist()
        self._bytes_per_s: list[list[float]] = profile.topology.bandwidth_bytes_per_s.tolist()
        self._size_bytes = [tensor.size_bytes for tensor in profile.graph.tensors]

    def seconds(self, tensor: int, source: int, destination: int) -> float:
        """Return the time of one transfer."""
        sending_s = self._size_bytes[tensor] / self._bytes_per_s[source][destination]
        return self._latency_s[source][destination] + sending_s


def group_bytes(profile: Profile, grouping: Grouping) -> IntArray:
    """Return what each group takes of its device's memory, ``[G]``: see the module."""
    size_bytes = profile.memory_bytes.copy()
    for tensor in profile.graph.tensors:
        size_bytes[tensor.producer] += tensor.size_bytes
    of_group = np.zeros(grouping.num_groups, dtype=np.int64)
    np.add.at(of_group, grouping.group_of_op, size_bytes)
    return of_group


def accelerator_choices(profile: Profile, grouping: Grouping) -> BoolArray:
    """Return the accelerators for groups that may run there, ``[G, D]``.

    For other groups, the devices that are permitted. For rules that take devices to be
    equally fast, and would leave half of the work to a CPU.
    """
    allowed = grouping.allowed(profile)
    targets = accelerators(profile.topology)
    accelerated = np.zeros_like(allowed)
    accelerated[:, targets] = allowed[:, targets]
    return np.where(accelerated.any(axis=1, keepdims=True), accelerated, allowed)


def mean_compute_time_s(profile: Profile, grouping: Grouping, choices: BoolArray) -> FloatArray:
    """Return each op's compute time, averaged over the devices of its group, ``[N]``."""
    devices = choices[grouping.group_of_op]
    mean_s: FloatArray = (profile.compute_time_s * devices).sum(axis=1) / devices.sum(axis=1)
    return mean_s


def op_traffic(profile: Profile, grouping: Grouping) -> GroupTraffic:
    """Return what every op sends to every other, by the mean link, ``[E]``.

    Within a group a transfer takes no time, since it is never made.
    """
    traffic = group_traffic(profile, Grouping(np.arange(profile.graph.num_ops)))
    groups = grouping.group_of_op
    within = groups[traffic.edges.sources] == groups[traffic.edges.destinations]
    return dataclasses.replace(
        traffic, transfer_time_s=np.where(within, 0.0, traffic.transfer_time_s)
    )


def inputs_of_ops(graph: OpGraph) -> list[list[int]]:
    """Return the tensors that each op waits for, ascending."""
    inputs: list[list[int]] = [[] for _ in graph.ops]
    for number, tensor in enumerate(graph.tensors):
        for op in tensor.consumers:
            inputs[op].append(number)
    return inputs
