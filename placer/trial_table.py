"""The trial table: trials as rows of an Arrow table, a DataFrame or a Parquet file.

One row a trial. A trial that was not measured has no outcome; one that could not run has
no step time. A Parquet file carries the version of this schema in its metadata and, beside
the rows, the metrics of the updates whose last trial it holds: metrics can be logged again
from the file alone.
"""

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from placer.environment import Measurement, Outcome
from placer.errors import FileFormatError
from placer.grouping import Grouping
from placer.placement import Placement
from placer.ranking import fastest_first, step_time_s, without_outdated
from placer.trials import Trial

VERSION = 1

SCHEMA = pa.schema(
    [
        pa.field("number", pa.int64(), nullable=False),
        pa.field("update", pa.int64(), nullable=False),
        pa.field("method", pa.string(), nullable=False),
        pa.field("environment", pa.string(), nullable=False),
        pa.field("device_of_group", pa.list_(pa.int16()), nullable=False),
        pa.field("outcome", pa.string()),
        pa.field("step_time_s", pa.float64()),
        pa.field("samples_s", pa.list_(pa.float64())),
        pa.field("peak_memory_bytes", pa.list_(pa.int64())),
        pa.field("detail", pa.string()),
        pa.field("finished_at_s", pa.float64(), nullable=False),
    ]
)
"""Columns of the trial table."""

UpdateMetrics = Mapping[int, Mapping[str, float]]
"""The metrics of some updates, by update."""

_REPEATED = ["device_of_group.list.element", "method", "environment", "outcome", "detail"]
_VERSION_KEY = b"placer.trial_table"
_UPDATES_KEY = b"placer.updates"
_OF_TRIAL = ("number", "update", "method", "environment", "device_of_group", "finished_at_s")
_OF_MEASUREMENT = ("outcome", "step_time_s", "samples_s", "peak_memory_bytes", "detail")


def trials_to_table(trials: Sequence[Trial]) -> pa.Table:
    """Return the trials as rows of ``SCHEMA``, in the order given."""
    columns = {name: [getattr(trial, name) for trial in trials] for name in _OF_TRIAL}
    for name in _OF_MEASUREMENT:
        columns[name] = [
            None if trial.measurement is None else getattr(trial.measurement, name)
            for trial in trials
        ]
    arrays = [pa.array(columns[field.name], type=field.type) for field in SCHEMA]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def table_to_trials(table: pa.Table) -> list[Trial]:
    """Return the trials that ``trials_to_table`` was given.

    Raises:
        InvalidValueError: If a row holds a measurement that cannot be.
    """
    return [_trial(row) for row in table.to_pylist()]


def trials_to_frame(trials: Sequence[Trial]) -> pd.DataFrame:
    """Return the trials as a DataFrame with the columns of ``SCHEMA``."""
    frame: pd.DataFrame = trials_to_table(trials).to_pandas()
    return frame


def frame_to_trials(frame: pd.DataFrame) -> list[Trial]:
    """Return the trials that ``trials_to_frame`` was given.

    Raises:
        FileFormatError: If a column is missing or holds something else.
    """
    try:
        table = pa.Table.from_pandas(frame, schema=SCHEMA, preserve_index=False)
    except (KeyError, pa.ArrowException) as error:
        raise FileFormatError(f"not a trial table: {_first_line(error)}") from error
    return table_to_trials(table)


def encode_parquet(table: pa.Table, updates: UpdateMetrics) -> bytes:
    """Return a trial table and the metrics of its updates as a Parquet file.

    The bytes depend on the rows alone, not on the parts in which they came together.
    """
    metadata = {
        _VERSION_KEY: str(VERSION).encode(),
        _UPDATES_KEY: json.dumps(updates, allow_nan=False).encode(),
    }
    buffer = io.BytesIO()
    whole = table.combine_chunks().replace_schema_metadata(metadata)
    # Statistics and dictionaries of what seldom repeats cost more than they save.
    pq.write_table(
        whole, buffer, compression="zstd", write_statistics=False, use_dictionary=_REPEATED
    )
    return buffer.getvalue()


def decode_parquet(content: bytes, name: str) -> tuple[pa.Table, dict[int, dict[str, float]]]:
    """Return what ``encode_parquet`` was given.

    Args:
        content: The bytes of the file.
        name: What to call the file in a message.

    Raises:
        FileFormatError: If it is damaged, of another version, or no trial table.
    """
    try:
        table = pq.read_table(io.BytesIO(content))
    except (pa.ArrowException, OSError) as error:
        reason = _first_line(error)
        raise FileFormatError(f"{name} is damaged or not a Parquet file: {reason}") from error
    metadata = table.schema.metadata or {}
    version = metadata.get(_VERSION_KEY, b"none").decode(errors="replace")
    if version != str(VERSION):
        raise FileFormatError(f"{name}: expected trial table version {VERSION}, got {version}")
    if not table.schema.equals(SCHEMA):
        raise FileFormatError(f"{name}: its columns are not those of a trial table")
    updates = json.loads(metadata[_UPDATES_KEY])
    # Parquet has its own names for the elements of lists: they would be written again.
    table = pa.Table.from_arrays(table.columns, schema=SCHEMA)
    return table, {int(update): metrics for update, metrics in updates.items()}


def top_placements(
    trials: Sequence[Trial], grouping: Grouping, device_names: Sequence[str], *, limit: int = 20
) -> pd.DataFrame:
    """Return the fastest distinct placements that ran, for people to look at.

    Real trials come before simulated ones, and of equal step times the earlier trial; of equal
    placements only the first is listed. What real trials tried counts by them alone: a
    placement that failed on the real devices is not listed by its makespan.

    Args:
        trials: Measured or not, in any order.
        grouping: From groups to ops.
        device_names: By device index.
        limit: Number of rows at most.

    Returns:
        Columns ``rank`` from 1, ``step_time_s``, ``environment``, ``method``, ``trial``,
        ``placement`` (its fingerprint), and for each device the number of groups on it.
    """
    rows: dict[tuple[int, ...], dict[str, object]] = {}
    for trial in fastest_first(without_outdated(trials)):
        actions = trial.device_of_group
        if actions in rows or len(rows) == limit:
            continue
        rows[actions] = {
            "rank": len(rows) + 1,
            "step_time_s": step_time_s(trial),
            "environment": trial.environment,
            "method": trial.method,
            "trial": trial.number,
            "placement": Placement.from_groups(grouping, actions).fingerprint,
            **{f"groups on {name}": actions.count(d) for d, name in enumerate(device_names)},
        }
    columns = ["rank", "step_time_s", "environment", "method", "trial", "placement"]
    columns += [f"groups on {name}" for name in device_names]
    return pd.DataFrame(list(rows.values()), columns=columns)


def _trial(row: Mapping[str, Any]) -> Trial:
    measurement = None
    if row["outcome"] is not None:
        measurement = Measurement(
            outcome=Outcome(row["outcome"]),
            step_time_s=row["step_time_s"],
            samples_s=tuple(row["samples_s"]),
            peak_memory_bytes=tuple(row["peak_memory_bytes"]),
            detail=row["detail"],
        )
    fields = {name: row[name] for name in _OF_TRIAL}
    fields["device_of_group"] = tuple(row["device_of_group"])
    return Trial(**fields, measurement=measurement)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
