"""What `placer devices` shows and writes."""

import io

import pytest
from rich.console import Console
from rich.table import Table

from flows.devices import devices_document, devices_table, links_table
from placer.devices import Device, DeviceTopology, Link

TOPOLOGY = DeviceTopology(
    (
        Device("host0/cpu:0", "CPU", "cpu-host", 2**35),
        Device("host1/gpu:0", "GPU", "tesla-k80", 3 * 2**30),
    ),
    {(0, 1): Link(1.25e9, 100e-6), (1, 0): Link(12e9, 0.0)},
    name="cluster",
)


def lines(table: Table, width: int = 80) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return [" ".join(line.split()) for line in out.getvalue().splitlines() if line.strip(" ─")]


def test_the_devices_of_several_hosts_are_shown_with_their_hosts():
    assert lines(devices_table(TOPOLOGY, ["node-a", "node-b"], [16, None])) == [
        "device host kind type memory threads",
        "host0/cpu:0 node-a CPU cpu-host 32.00 GiB 16",
        "host1/gpu:0 node-b GPU tesla-k80 3.00 GiB –",
    ]


def test_the_devices_of_one_host_are_shown_without_it():
    assert lines(devices_table(TOPOLOGY, ["node-a", "node-a"], [16, None])) == [
        "device kind type memory threads",
        "host0/cpu:0 CPU cpu-host 32.00 GiB 16",
        "host1/gpu:0 GPU tesla-k80 3.00 GiB –",
    ]


def test_every_directed_pair_has_a_row_of_latency_and_bandwidth():
    assert lines(links_table(TOPOLOGY)) == [
        "from to latency bandwidth",
        "host0/cpu:0 host1/gpu:0 100 µs 1.25 GB/s",
        "host1/gpu:0 host0/cpu:0 0 s 12 GB/s",
    ]


@pytest.mark.parametrize(
    "table", [devices_table(TOPOLOGY, ["a", "b"], [1, None]), links_table(TOPOLOGY)]
)
def test_no_line_is_wider_than_the_terminal(table):
    out = io.StringIO()
    Console(file=out, width=60).print(table)

    assert max(map(len, out.getvalue().splitlines())) <= 60


def test_the_document_lists_every_device_and_every_link_by_itself():
    document = devices_document(TOPOLOGY, ["node-a", "node-b"], [16, None])

    assert document["devices"][1] == {
        "name": "host1/gpu:0",
        "kind": "GPU",
        "type": "tesla-k80",
        "memory_bytes": 3 * 2**30,
        "host": "node-b",
        "threads": None,
    }
    assert document["links"] == [
        {
            "source": "host0/cpu:0",
            "destination": "host1/gpu:0",
            "latency_s": 100e-6,
            "bandwidth_bytes_per_s": 1.25e9,
        },
        {
            "source": "host1/gpu:0",
            "destination": "host0/cpu:0",
            "latency_s": 0.0,
            "bandwidth_bytes_per_s": 12e9,
        },
    ]
    assert document["topology"] == TOPOLOGY.fingerprint
