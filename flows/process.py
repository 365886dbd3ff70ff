"""What a process that runs flows needs around it, set before Prefect and TensorFlow load.

Nothing here overrides what the user has set: each variable is a default.
"""

import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path

from placer.errors import StoreError

_DEFAULTS = {
    # Without a server of the user's, Prefect starts one of its own for the process; the first
    # start creates its database and takes several times as long as the later ones.
    "PREFECT_SERVER_EPHEMERAL_ENABLED": "true",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    # Placer's own loggers speak to the terminal, and to the Prefect page.
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "flows,placer,profiling",
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
