"""A worker process: one TensorFlow runtime that runs its part of a placed step.

``python -m profiling.worker`` pins itself to a core, starts the server of one task of a
cluster, writes a small JSON file to say that it is up, and ends when its standard input
does. The parent holds the other end of that pipe, so a worker never outlives it, however
the parent dies. (``PR_SET_PDEATHSIG`` would be wrong here: it fires when the *thread* that
started the worker ends, and flows run their stages in threads.)

TensorFlow is imported after the pinning, because threads inherit their parent's cores.
"""

import argparse
import contextlib
import json
import os
import re
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PORT_IS_TAKEN = os.EX_TEMPFAIL
"""Exit code of a worker whose port was taken by another process."""


def main(arguments: Sequence[str]) -> int:
    """Serve one task until standard input ends; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m profiling.worker")
    parser.add_argument("--ports", required=True, help="ports of all workers, with commas")
    parser.add_argument("--task", type=int, required=True, help="which of them this is")
    parser.add_argument("--ready-file", type=Path, required=True, help="written once it is up")
    parser.add_argument("--core", type=int, help="pin to this core; without it: all, and GPUs")
    options = parser.parse_args(arguments)

    _be_the_first_to_go_when_memory_runs_out()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    ports = [int(port) for port in options.ports.split(",")]
    up = _serve(ports, options.task, has_gpus=options.core is None)
    if up is None:
        return PORT_IS_TAKEN
    partial = options.ready_file.with_suffix(".partial")
    partial.write_text(json.dumps(up))
    os.replace(partial, options.ready_file)
    sys.stdin.buffer.read()
    return 0


def _serve(ports: Sequence[int], task: int, *, has_gpus: bool) -> dict[str, Any] | None:
    """Start the server; return what the parent wants to know, or None if the port is taken."""
    import tensorflow as tf  # noqa: PLC0415 - after the pinning, see the module's docstring

    gpus = tf.config.list_physical_devices("GPU") if has_gpus else []
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    config = tf.compat.v1.ConfigProto()
    config.gpu_options.allow_growth = True
    if not has_gpus:
        config.intra_op_parallelism_threads = 1
        config.inter_op_parallelism_threads = 1
    cluster = tf.train.ClusterSpec({"worker": [f"127.0.0.1:{port}" for port in ports]})
    try:
        # The server lives in C++ and serves for as long as this process does.
        tf.distribute.Server(cluster, job_name="worker", task_index=task, config=config)
    except tf.errors.UnknownError as error:
        sys.stderr.write(f"port {ports[task]}: {error.message}\n")
        return None
    return {
        "gpu_names": [str(detail.get("device_name", "gpu")) for detail in details],
        "loopback_only": _listen_on_loopback_only(ports[task]),
    }


def _listen_on_loopback_only(port: int) -> bool:
    """Confine the server to the loopback interface; return whether the system allowed it.

    TensorFlow's server runs any graph for whoever connects, and always listens on all
    interfaces, so its listening socket is bound to the loopback device after the fact.
    """
    confined = False
    for descriptor in Path("/proc/self/fd").iterdir():
        target = ""
        with contextlib.suppress(OSError):
            target = os.readlink(descriptor)
        if not re.fullmatch(r"socket:\[\d+\]", target):
            continue
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(descriptor.name))) as it:
            listens = it.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if listens and it.getsockname()[1] == port:
                it.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
                confined = True
    return confined


def _be_the_first_to_go_when_memory_runs_out() -> None:
    """Let the kernel end this worker, and not the trainer, when the host is out of memory."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    # TensorFlow's threads cannot be joined: leave without running destructors under them.
    os._exit(main(sys.argv[1:]))
