"""Agents of this host in processes of their own, as if they were of others."""

import contextlib
import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from placer.files.hosts import Address

ROOT = Path(__file__).parents[1]


@dataclasses.dataclass(frozen=True)
class Agent:
    """An agent of this host, in a process of its own."""

    process: "subprocess.Popen[str]"
    address: Address


@contextlib.contextmanager
def running_agent(core: int) -> Iterator[Agent]:
    """Run an agent whose worker is pinned to this core."""
    program = (
        "from placer.files.hosts import Address\n"
        "from profiling.agent import serve_host\n"
        "announce = lambda address: print(address, flush=True)\n"
        f"serve_host(Address('127.0.0.1', 0), core={core}, announce=announce)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Agent(process, Address.parse(process.stdout.readline().strip()))
        finally:
            process.kill()
