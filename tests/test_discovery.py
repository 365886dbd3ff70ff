"""What devices are called, and of which type they are."""

from itertools import pairwise

import hypothesis
import hypothesis.strategies as st
import pytest

from profiling.discovery import cpu_types, device_names, discover_devices, slug
from profiling.messages import WorkerFacts

pytest_plugins = ["tests.local_cluster"]
pytestmark = pytest.mark.slow


def facts(core: int | None, cpu: str = "Xeon E5-2690", threads: int = 1) -> WorkerFacts:
    return WorkerFacts(
        host_name="h", clock="c", cpu=cpu, core=core, threads=threads, memory_bytes=1,
        gpu_names=(), is_confined=True,
    )  # fmt: skip


def test_devices_of_one_machine_are_numbered_by_kind():
    names = device_names(["CPU", "GPU", "GPU"], ["m", "m", "m"])

    assert names == ["cpu:0", "gpu:0", "gpu:1"]


def test_devices_of_several_machines_say_which_and_are_numbered_within_it():
    # TensorFlow lists all CPUs first; the second machine runs two agents.
    names = device_names(["CPU", "CPU", "CPU", "GPU", "GPU"], ["x", "y", "y", "x", "y"])

    assert names == ["host0/cpu:0", "host1/cpu:0", "host1/cpu:1", "host0/gpu:0", "host1/gpu:0"]


@hypothesis.given(
    devices=st.lists(st.tuples(st.sampled_from(["CPU", "GPU"]), st.sampled_from("abc")))
)
def test_no_two_devices_share_a_name(devices):
    names = device_names([kind for kind, _ in devices], [machine for _, machine in devices])

    assert all(a != b for a, b in pairwise(sorted(names)))


def test_a_core_and_a_whole_host_are_different_types():
    types = cpu_types([facts(0), facts(1), facts(None, threads=8)])

    assert types == ["cpu-core", "cpu-core", "cpu-host"]


def test_cores_of_different_processors_are_different_types():
    types = cpu_types([facts(0), facts(0, cpu="EPYC 7302"), facts(1)])

    assert types == ["cpu-core-xeon-e5-2690", "cpu-core-epyc-7302", "cpu-core-xeon-e5-2690"]


def test_hosts_of_a_different_number_of_threads_are_different_types():
    types = cpu_types([facts(None, threads=8), facts(None, threads=32)])

    assert types == ["cpu-host-xeon-e5-2690-8-threads", "cpu-host-xeon-e5-2690-32-threads"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Tesla K80", "tesla-k80"),
        (" NVIDIA A100-SXM4 (80GB) ", "nvidia-a100-sxm4-80gb"),
        ("", "unknown"),
    ],
)
def test_a_name_becomes_letters_digits_and_dashes(name, expected):
    assert slug(name) == expected


def test_the_devices_of_this_host_are_its_workers_cores(cluster):
    devices = discover_devices(cluster)

    assert [device.name for device in devices] == ["cpu:0", "cpu:1"]
    assert {device.type for device in devices} == {"cpu-core"}
    assert {device.memory_bytes for device in devices} == {cluster.memory_bytes}
    assert cluster.worker_of_device == (0, 1)
    assert len(set(cluster.clocks)) == 1
    assert [each.threads for each in cluster.facts] == [1, 1]
