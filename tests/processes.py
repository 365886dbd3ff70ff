"""Looking at other processes from outside, and waiting for what they will do."""

import socket
import time
from collections.abc import Callable
from pathlib import Path

_PATIENCE_S = 120.0


def is_running(pid: int) -> bool:
    """Tell whether a process runs; one that nobody waited for yet (a zombie, Z) does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_listening(port: int, host: str = "127.0.0.1") -> bool:
    """Tell whether a connection is accepted there."""
    try:
        with socket.create_connection((host, port), timeout=2):
            return True
    except OSError:
        return False


def outside_address() -> str | None:
    """Return the address by which other hosts know this one; None if it has no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket sends nothing, but chooses an interface.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def wait_until(condition: Callable[[], object]) -> bool:
    """Wait for a condition, and tell whether it came true."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return bool(condition())
