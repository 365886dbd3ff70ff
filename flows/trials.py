"""The trials command: the trial table of a training as one file."""

import io
import json
from pathlib import Path

import placer
from flows.console import OUT
from placer.errors import InvalidValueError
from placer.files import atomic_write

_LISTS = ("device_of_group", "samples_s", "peak_memory_bytes")


def export_trials(run_id: str, out: Path) -> None:
    """Write the trial table of a training, finished or not, and say how many trials it has.

    In a CSV file lists are JSON text.

    Raises:
        PlacerError: If the file's name ends neither in ``.parquet`` nor in ``.csv``, the run is
            no training, or the file cannot be written; the message is one line.
    """
    if out.suffix not in (".parquet", ".csv"):
        raise InvalidValueError(f"--out {str(out)!r} must end in .parquet or .csv")
    frame = placer.load_trials(run_id)
    content = io.BytesIO()
    if out.suffix == ".parquet":
        frame.to_parquet(content, index=False)
    else:
        for name in _LISTS:
            frame[name] = frame[name].map(lambda row: json.dumps(row.tolist()), na_action="ignore")
        frame.to_csv(content, index=False)
    atomic_write(out, content.getvalue())
    OUT.print(f"{len(frame):,} trials of run {run_id} in {out}", soft_wrap=True)
