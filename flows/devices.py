"""The devices command: what a cluster has, measured now, without tracking and without Prefect."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from flows.console import OUT
from flows.process import quiet_start
from placer.devices import DeviceTopology
from placer.files import save_topology, write_json
from placer.files.topologies import topology_document
from placer.report import gibibytes, seconds


def show_devices(
    cluster_file: Path | None, *, topology_file: Path | None, json_file: Path | None
) -> None:
    """Find the devices of a cluster and measure their links; print and write what was found.

    Args:
        cluster_file: A hosts file; this host if None.
        topology_file: Where to write the topology, for ``--topology`` of other commands.
        json_file: Where to write devices and links as JSON.

    Raises:
        PlacerError: If the file is not usable, or a worker does not come up; one line.
    """
    with quiet_start():
        from profiling.cluster import open_cluster
        from profiling.links import local_topology

    with open_cluster(cluster_file) as cluster:
        topology = local_topology(cluster)
        facts = [cluster.facts[worker] for worker in cluster.worker_of_device]
    hosts = [each.host_name for each in facts]
    threads = [
        each.threads if device.kind == "CPU" else None
        for device, each in zip(topology.devices, facts, strict=True)
    ]
    if topology_file is not None:
        save_topology(topology, topology_file)
    if json_file is not None:
        write_json(devices_document(topology, hosts, threads), json_file)
    OUT.print(devices_table(topology, hosts, threads))
    if topology.links:
        OUT.print(links_table(topology))


def devices_table(
    topology: DeviceTopology, hosts: Sequence[str], threads: Sequence[int | None]
) -> Table:
    """Return the table of the devices.

    Args:
        topology: The devices.
        hosts: The name of the host of each; shown where there is more than one.
        threads: Threads that run ops on each; None for a GPU.
    """
    several = len(set(hosts)) > 1
    table = Table(header_style="bold", box=SIMPLE_HEAD)
    for heading in ("device", *(["host"] if several else []), "kind", "type"):
        table.add_column(heading)
    for heading in ("memory", "threads"):
        table.add_column(heading, justify="right", no_wrap=True)
    for device, host, count in zip(topology.devices, hosts, threads, strict=True):
        where = [host] if several else []
        memory = gibibytes(device.memory_bytes)
        how_many = "–" if count is None else str(count)
        table.add_row(device.name, *where, device.kind, device.type, memory, how_many)
    return table


def links_table(topology: DeviceTopology) -> Table:
    """Return the table of the links, one row for each ordered pair of devices."""
    table = Table(header_style="bold", box=SIMPLE_HEAD)
    for heading in ("from", "to"):
        table.add_column(heading)
    for heading in ("latency", "bandwidth"):
        table.add_column(heading, justify="right", no_wrap=True)
    for (source, destination), link in sorted(topology.links.items()):
        ends = (topology.devices[source].name, topology.devices[destination].name)
        bandwidth = f"{link.bandwidth_bytes_per_s / 1e9:.3g} GB/s"
        table.add_row(*ends, seconds(link.latency_s), bandwidth)
    return table


def devices_document(
    topology: DeviceTopology, hosts: Sequence[str], threads: Sequence[int | None]
) -> dict[str, Any]:
    """Return what was found as plain values: every device, and every link by itself."""
    names = [device.name for device in topology.devices]
    devices = [
        {**entry, "host": host, "threads": count}
        for entry, host, count in zip(
            topology_document(topology)["devices"], hosts, threads, strict=True
        )
    ]
    links = [
        {
            "source": names[source],
            "destination": names[destination],
            "latency_s": link.latency_s,
            "bandwidth_bytes_per_s": link.bandwidth_bytes_per_s,
        }
        for (source, destination), link in sorted(topology.links.items())
    ]
    return {"devices": devices, "links": links, "topology": topology.fingerprint}
