"""A worker process: one TensorFlow runtime that runs its part of a placed step.

``python -m profiling.worker`` pins itself to a core, starts the server of one task of a
cluster, writes one line of JSON to say that it is up, and ends when its standard input
does. Its parent holds the other end of that pipe. A worker that is stopped does not see
that end: for this case it asks the kernel to kill it when the thread that started it ends.

TensorFlow's server runs any graph for whoever connects, and always listens on all
interfaces. It is confined to one address of the host after the fact. Whoever reaches that
address can use the worker: on anything but loopback, the network must be a trusted one.

TensorFlow is imported after the pinning, because threads inherit their parent's cores.
"""

import argparse
import contextlib
import ctypes
import ipaddress
import json
import os
import platform
import re
import resource
import signal
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

PORT_IS_TAKEN = os.EX_TEMPFAIL
"""Exit code of a worker whose port was taken by another process."""

SLACK_BYTES = 2**30
"""What a CPU worker may allocate besides its ops' memory: graphs, messages, threads' stacks."""

_PR_SET_PDEATHSIG = 1
_SO_ATTACH_FILTER = 26


def main(arguments: Sequence[str]) -> int:
    """Serve one task until standard input ends; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m profiling.worker")
    parser.add_argument("--addresses", required=True, help="HOST:PORT of all, with commas")
    parser.add_argument("--task", type=int, required=True, help="which of them this is")
    parser.add_argument("--host", required=True, help="the IPv4 address to be reached at")
    parser.add_argument("--memory-bytes", type=int, required=True, help="for ops on the CPU")
    parser.add_argument("--ready-fd", type=int, required=True, help="written to once it is up")
    parser.add_argument("--core", type=int, help="pin to this core; without it: all, and GPUs")
    options = parser.parse_args(arguments)

    _end_with_the_thread_that_started_this()
    _be_the_first_to_go_when_memory_runs_out()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    addresses = options.addresses.split(",")
    gpu_names = _serve(addresses, options.task, core=options.core)
    if gpu_names is None:
        return PORT_IS_TAKEN
    if not gpu_names:
        _limit_memory(options.memory_bytes + SLACK_BYTES)
    facts = {
        **_host_facts(),
        "core": options.core,
        "threads": len(os.sched_getaffinity(0)),
        "memory_bytes": options.memory_bytes,
        "gpu_names": gpu_names,
        "is_confined": _confine(int(addresses[options.task].rpartition(":")[2]), options.host),
    }
    os.write(options.ready_fd, json.dumps(facts).encode())
    os.close(options.ready_fd)
    sys.stdin.buffer.read()
    return 0


def _serve(addresses: Sequence[str], task: int, *, core: int | None) -> list[str] | None:
    """Start the server; return the names of its GPUs, or None if its port is taken."""
    import tensorflow as tf  # noqa: PLC0415 - after the pinning, see the module's docstring

    gpus = tf.config.list_physical_devices("GPU") if core is None else []
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    config = tf.compat.v1.ConfigProto()
    config.gpu_options.allow_growth = True
    if core is not None:
        config.intra_op_parallelism_threads = 1
        config.inter_op_parallelism_threads = 1
    cluster = tf.train.ClusterSpec({"worker": list(addresses)})
    try:
        # The server lives in C++ and serves for as long as this process does.
        tf.distribute.Server(cluster, job_name="worker", task_index=task, config=config)
    except tf.errors.UnknownError as error:
        sys.stderr.write(f"{addresses[task]}: {error.message}\n")
        return None
    return [str(detail.get("device_name", "gpu")) for detail in details]


def _host_facts() -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    # Containers of one machine have names of their own, but one clock and one boot.
    clock = platform.node()
    with contextlib.suppress(OSError):
        clock = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {"host_name": platform.node(), "clock": clock, "cpu": cpu}


def _confine(port: int, host: str) -> bool:
    """Let the server be reached at this address alone; return whether the system allowed it."""
    confined = False
    for listening in _listening_sockets(port):
        with contextlib.suppress(OSError):
            if ipaddress.IPv4Address(host).is_loopback:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
            else:
                _drop_what_is_not_for(host, listening)
            confined = True
    return confined


def _listening_sockets(port: int) -> Iterator[socket.socket]:
    """Yield a duplicate of each socket of this process that listens on the port."""
    for descriptor in Path("/proc/self/fd").iterdir():
        target = ""
        with contextlib.suppress(OSError):
            target = os.readlink(descriptor)
        if not re.fullmatch(r"socket:\[\d+\]", target):
            continue
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(descriptor.name))) as it:
            listens = it.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if listens and it.getsockname()[1] == port:
                yield it


def _drop_what_is_not_for(host: str, listening: socket.socket) -> None:
    """Attach a packet filter: IPv4, and this destination. Connections inherit it.

    An interface would be no bound: this host reaches its own addresses by the loopback one.
    """
    network_header = 0xFFF00000  # SKF_NET_OFF
    address = int(ipaddress.IPv4Address(host))
    program = [
        (0x30, 0, 0, network_header),  # load the byte with version and header length
        (0x54, 0, 0, 0xF0),  # keep the version
        (0x15, 0, 3, 0x40),  # not 4: drop
        (0x20, 0, 0, network_header + 16),  # load the destination
        (0x15, 0, 1, address),  # another: drop
        (0x06, 0, 0, 0xFFFFFFFF),  # accept all of it
        (0x06, 0, 0, 0),  # drop
    ]
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    pointer = struct.pack("@HP", len(program), ctypes.addressof(buffer))
    listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, pointer)


def _limit_memory(more_bytes: int) -> None:
    """Let this process allocate this much more than it has now.

    Data and not address space is limited: TensorFlow and malloc reserve far more of the
    latter than they ever touch.
    """
    status = Path("/proc/self/status").read_text()
    found = re.search(r"^VmData:\s+(\d+) kB$", status, re.MULTILINE)
    if found is not None:
        limit_bytes = int(found[1]) * 1024 + more_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


def _end_with_the_thread_that_started_this() -> None:
    # The C library's own function: no other way leads there from Python.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _be_the_first_to_go_when_memory_runs_out() -> None:
    """Let the kernel end this worker, and not the trainer, when the host is out of memory."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    # TensorFlow's threads cannot be joined: leave without running destructors under them.
    os._exit(main(sys.argv[1:]))
