"""What one must know of the machine to read a time that was taken on it."""

import importlib.metadata
import os
import platform
from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")


def machine() -> dict[str, str | int]:
    """Return host, system, number of cores and model of the CPU."""
    return {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count() or 1,
        "cpu": _cpu_model(),
    }


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of Python and of these installed packages."""
    installed = {name: importlib.metadata.version(name) for name in packages}
    return {"python": platform.python_version(), **installed}


def _cpu_model() -> str:
    if _CPU_INFO.exists():
        for line in _CPU_INFO.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or "unknown"
