"""The devices of a cluster as a topology describes them: names, types, memory.

On one machine they are called ``cpu:0``, ``cpu:1``, …, ``gpu:0``, …; on several the machine
comes first, ``host0/cpu:0``, so that a pattern such as ``host1/*`` is all devices of one.

The type of a device decides how long an op takes there. A CPU that a worker has a single core
of is a ``cpu-core``, and one that it has all of a ``cpu-host``. Where not all of them are the same
processor with as many threads, the type says which, such as ``cpu-core-xeon-e5-2690``.
"""

import collections
import re
from collections.abc import Iterable, Sequence

import tensorflow as tf

from placer.devices import Device
from placer.errors import WorkerError
from profiling.cluster import Cluster
from profiling.messages import WorkerFacts


def discover_devices(cluster: Cluster) -> tuple[Device, ...]:
    """Return the cluster's devices, in the order of ``cluster.devices``.

    Raises:
        WorkerError: If the workers do not answer.
    """
    try:
        with cluster.session(tf.Graph()) as session:
            limit_of = {each.name: each.memory_limit_bytes for each in session.list_devices()}
    except tf.errors.OpError as error:
        raise WorkerError(f"the workers do not answer: {error.message}") from error
    kinds = [tf.DeviceSpec.from_string(name).device_type for name in cluster.devices]
    names = device_names(kinds, cluster.clocks)
    cpu_type_of_worker = cpu_types(cluster.facts)
    gpu_names = iter(cluster.gpu_names)
    devices = []
    for name, kind, worker, device in zip(
        names, kinds, cluster.worker_of_device, cluster.devices, strict=True
    ):
        if kind == "GPU":
            devices.append(Device(name, kind, slug(next(gpu_names)), limit_of[device]))
        else:
            memory_bytes = cluster.facts[worker].memory_bytes
            devices.append(Device(name, kind, cpu_type_of_worker[worker], memory_bytes))
    return tuple(devices)


def device_names(kinds: Sequence[str], machines: Sequence[str]) -> list[str]:
    """Return what the devices are called.

    Args:
        kinds: ``CPU`` or ``GPU`` of each.
        machines: Of each, something that is the same for devices of one machine alone.
    """
    numbers = {machine: number for number, machine in enumerate(dict.fromkeys(machines))}
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    names = []
    for kind, machine in zip(kinds, machines, strict=True):
        where = f"host{numbers[machine]}/" if len(numbers) > 1 else ""
        names.append(f"{where}{kind.lower()}:{counts[kind, machine]}")
        counts[kind, machine] += 1
    return names


def cpu_types(facts: Iterable[WorkerFacts]) -> list[str]:
    """Return the type of each worker's CPU."""
    bases = [("cpu-host" if each.core is None else "cpu-core", each) for each in facts]
    variants = collections.defaultdict(set)
    for base, each in bases:
        variants[base].add((each.cpu, each.threads))
    return [
        base if len(variants[base]) == 1 else _variant(base, each.cpu, each.threads)
        for base, each in bases
    ]


def slug(name: str) -> str:
    """Return a name in small letters, digits and single dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unknown"


def _variant(base: str, cpu: str, threads: int) -> str:
    return f"{base}-{slug(cpu)}" + (f"-{threads}-threads" if base == "cpu-host" else "")
