"""What a process that runs flows needs around it, set before Prefect and TensorFlow load.

Nothing here overrides what the user has set: each variable is a default.
"""

import contextlib
import http.client
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from placer.errors import StoreError

LOGGERS = ("flows", "placer", "profiling")
"""Roots of Placer's own loggers."""

_DEFAULTS = {
    # Without a server of the user's, Prefect starts one of its own for the process; the first
    # start creates its database and takes several times as long as the later ones.
    "PREFECT_SERVER_EPHEMERAL_ENABLED": "true",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def prepare() -> None:
    """Set the defaults of Prefect, MLflow and TensorFlow for this process and its children.

    Raises:
        StoreError: If ``PREFECT_API_URL`` is set and nothing answers there.
    """
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("PREFECT_HOME", str(Path.cwd() / ".prefect"))
    url = os.environ.get("PREFECT_API_URL")
    if url:
        _check_prefect(url)
        # The server's page shows what the terminal shows.
        os.environ.setdefault("PREFECT_LOGGING_EXTRA_LOGGERS", ",".join(LOGGERS))
    else:
        # Nobody will read the records of a server that ends with the command.
        os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL")


@contextlib.contextmanager
def quiet_start() -> Iterator[None]:
    """Keep what TensorFlow's libraries say while they load from the terminal.

    They write to the file descriptor before any setting of theirs is read. If loading fails,
    what they said is shown after all.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        yield
        return
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as kept:
        os.dup2(kept.fileno(), 2)
        try:
            yield
        except BaseException:
            kept.seek(0)
            os.write(terminal, kept.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)


def _check_prefect(url: str) -> None:
    # Prefect has no fall-back from a server that is away, and says so in a page of traceback.
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=5):  # noqa: S310
            pass
    except (OSError, ValueError, urllib.error.URLError, http.client.HTTPException) as error:
        raise StoreError(
            f"PREFECT_API_URL={url} does not answer ({error}); start that server, or unset the"
            " variable to run without one"
        ) from error
