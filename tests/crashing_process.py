"""A training that kills itself with SIGKILL at a chosen moment.

It trains in the embedded store of a folder, goes on where an earlier one was killed, and is killed
within a delay after a moment came for so many times. Its wall clock stands still, so that two
trainings may be the same to the byte.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

from flows.train import train_policy
from placer import measuring
from placer.config import PolicySettings, TrainSettings
from placer.journal import Journal
from placer.mlflow_store import OpenRun
from placer.policies.seq2seq import Seq2SeqPolicy
from placer.tracking_names import CHECKPOINT, CHECKPOINTS_FOLDER, TRIALS_FOLDER

NEVER = "never"
MOMENTS = ("trial", "shard", "checkpoint", "tag", "transaction")
"""Between anything; while that file is written; as the checkpoint's tag is set; at a commit."""

NETWORK = Seq2SeqPolicy
"""Loaded with this module: many processes begin as copies of one that has it."""

POLICY = PolicySettings(hidden_size=8, attention_size=4, embedding_size=4, jit_compile=False)


def settings(num_trials: int) -> TrainSettings:
    return TrainSettings(trials=num_trials, batch_size=8, checkpoint_every=4, policy=POLICY)


def kill_within(delay_s: float) -> None:
    """Let a thread kill this process a little later, while the caller goes on."""
    timer = threading.Timer(delay_s, os.kill, [os.getpid(), signal.SIGKILL])
    timer.daemon = True
    timer.start()


def arm(moment: str, count: int, delay_s: float) -> None:
    """Kill this process once the moment has come so many times."""
    num_seen = 0

    def seen() -> None:
        nonlocal num_seen
        num_seen += 1
        if num_seen == count:
            kill_within(delay_s)

    def before(owner: type, name: str, concerns: Callable[..., bool]) -> None:
        original = getattr(owner, name)

        def watched(self: Any, *arguments: Any) -> Any:
            if concerns(*arguments):
                seen()
            return original(self, *arguments)

        setattr(owner, name, watched)

    if moment in ("trial", "shard"):
        before(Journal, "write", lambda artifact, _: artifact.startswith(TRIALS_FOLDER))
    elif moment == "checkpoint":
        before(Journal, "write", lambda artifact, _: artifact.startswith(CHECKPOINTS_FOLDER))
    elif moment == "tag":
        before(OpenRun, "set_tags", lambda tags: CHECKPOINT in tags)
    elif moment == "transaction":
        event.listen(Engine, "commit", lambda _: seen())


class _StoppedClock:
    """The clock of the measurements."""

    monotonic = staticmethod(time.monotonic)

    @staticmethod
    def time() -> float:
        return 1e9


def train(
    folder: Path, grouping_run: str, num_trials: int, moment: str, count: int, delay_s: float
) -> None:
    """Train in a folder until the end, or until the kill."""
    os.chdir(folder)
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    measuring.time = _StoppedClock  # type: ignore[assignment]
    arm(moment, count, delay_s)
    run_id = train_policy.fn(grouping_run, settings(num_trials))
    Path(f"{run_id}.finished").touch()
