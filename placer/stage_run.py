"""What a tracking store says about a run, and whether somebody still works on it.

A process that works on a training writes its host, its id and a heartbeat, at least once a
minute, as tags of the run. A process that is killed writes nothing: its run stays RUNNING in the
store until somebody looks.
"""

import dataclasses
import datetime
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from placer.tracking_names import HEARTBEAT, HOST, PID

INTERRUPTED = "INTERRUPTED"
"""The state of a run that was ended before its end, and can go on."""

_SILENCE_S = 600.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageRun:
    """What the store says about a run.

    Attributes:
        run_id: MLflow's id.
        name: For people.
        status: MLflow's: RUNNING, FINISHED, FAILED or KILLED.
        tags: Placer's and the user's own; MLflow's internal ones too.
        params: As text, as MLflow keeps them.
        metrics: The last value of each.
    """

    run_id: str
    name: str
    status: str
    tags: Mapping[str, str]
    params: Mapping[str, str]
    metrics: Mapping[str, float]

    @property
    def state(self) -> str:
        """RUNNING, FINISHED or FAILED, or INTERRUPTED: ended from outside, or its process died."""
        is_dead = self.status == "RUNNING" and HEARTBEAT in self.tags and not self.is_alive
        return INTERRUPTED if is_dead or self.status == "KILLED" else self.status

    @property
    def is_alive(self) -> bool:
        """Whether some process seems to be working on the run.

        It is dead if it was on this host and is gone, or has been silent for ten minutes.
        """
        if self.status != "RUNNING" or HEARTBEAT not in self.tags:
            return False
        silence = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(
            self.tags[HEARTBEAT]
        )
        if silence.total_seconds() > _SILENCE_S:
            return False
        return self.tags[HOST] != platform.node() or _is_running(int(self.tags[PID]))

    @property
    def is_alive_elsewhere(self) -> bool:
        """Whether another process than this one seems to be working on the run."""
        is_own = self.tags.get(HOST) == platform.node() and self.tags.get(PID) == str(os.getpid())
        return self.is_alive and not is_own

    @property
    def worker(self) -> str:
        """Who works on it, or did last, as a message says it."""
        return f"process {self.tags.get(PID, '?')} on {self.tags.get(HOST, '?')}"


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # someone else's
    command_line = Path(f"/proc/{pid}/cmdline")
    # The dead process of a parent that does not collect it still has an id, but no command.
    return not command_line.exists() or command_line.read_bytes() != b""
