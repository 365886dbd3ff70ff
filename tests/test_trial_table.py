"""Trials survive tables, frames and Parquet files unchanged."""

import io
import math
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.environment import Measurement, Outcome
from placer.errors import FileFormatError
from placer.grouping import Grouping
from placer.placement import Placement
from placer.trial_table import (
    SCHEMA,
    decode_parquet,
    encode_parquet,
    frame_to_trials,
    table_to_trials,
    top_placements,
    trials_to_frame,
    trials_to_table,
)
from placer.trials import Trial

SECONDS = st.floats(min_value=0, allow_infinity=False, allow_nan=False)
BYTES = st.integers(min_value=0, max_value=2**62)


@st.composite
def measurements(draw: st.DrawFn) -> Measurement:
    outcome = draw(st.sampled_from(Outcome))
    return Measurement(
        outcome=outcome,
        step_time_s=draw(SECONDS) if outcome is Outcome.OK else None,
        samples_s=tuple(draw(st.lists(SECONDS, max_size=3))),
        peak_memory_bytes=tuple(draw(st.lists(BYTES, max_size=3))),
        detail=draw(st.text(max_size=5)),
    )


@st.composite
def trials(draw: st.DrawFn) -> Trial:
    return Trial(
        number=draw(st.integers(0, 10**9)),
        update=draw(st.integers(0, 10**6)),
        device_of_group=tuple(draw(st.lists(st.integers(0, 1000), max_size=4))),
        method=draw(st.sampled_from(["policy", "scotch", ""])),
        environment=draw(st.sampled_from(["simulated", "real", ""])),
        measurement=draw(st.none() | measurements()),
        finished_at_s=draw(SECONDS),
    )


LISTS_OF_TRIALS = st.lists(trials(), max_size=4)
UPDATES = st.dictionaries(
    st.integers(0, 100),
    st.dictionaries(st.text(max_size=3), st.floats(allow_nan=False, allow_infinity=False)),
    max_size=3,
)


@given(LISTS_OF_TRIALS)
def test_a_table_gives_its_trials_back(expected: list[Trial]) -> None:
    assert table_to_trials(trials_to_table(expected)) == expected


@given(LISTS_OF_TRIALS)
def test_a_frame_gives_its_trials_back(expected: list[Trial]) -> None:
    assert frame_to_trials(trials_to_frame(expected)) == expected


@given(LISTS_OF_TRIALS, UPDATES)
def test_a_parquet_file_gives_its_trials_and_metrics_back(
    expected: list[Trial], updates: dict[int, dict[str, float]]
) -> None:
    content = encode_parquet(trials_to_table(expected), updates)

    table, found_updates = decode_parquet(content, "shard")

    assert table_to_trials(table) == expected
    assert found_updates == updates


@given(LISTS_OF_TRIALS, LISTS_OF_TRIALS)
def test_a_file_is_the_same_whatever_parts_it_was_written_in(
    first: list[Trial], second: list[Trial]
) -> None:
    at_once = encode_parquet(trials_to_table(first + second), {})

    begun, _ = decode_parquet(encode_parquet(trials_to_table(first), {}), "shard")
    in_parts = encode_parquet(pa.concat_tables([begun, trials_to_table(second)]), {})

    assert in_parts == at_once


def one_trial(
    number: int,
    step_time_s: float | None,
    actions: tuple[int, ...] = (0, 1),
    environment: str = "simulated",
) -> Trial:
    outcome = Outcome.TIMED_OUT if step_time_s is None else Outcome.OK
    return Trial(
        number=number,
        update=0,
        device_of_group=actions,
        environment=environment,
        measurement=Measurement(outcome=outcome, step_time_s=step_time_s),
    )


def test_a_frame_has_a_row_a_trial_and_the_names_of_the_design() -> None:
    frame = trials_to_frame([one_trial(0, 0.5), one_trial(1, None)])

    assert list(frame.columns) == SCHEMA.names
    assert {"number", "update", "device_of_group", "outcome", "step_time_s"} <= set(frame.columns)
    assert list(frame["outcome"]) == ["OK", "TIMED_OUT"]
    assert frame["step_time_s"][0] == 0.5
    assert math.isnan(frame["step_time_s"][1])


def test_a_frame_read_by_pandas_alone_holds_the_trials(tmp_path: Path) -> None:
    path = tmp_path / "shard.parquet"
    path.write_bytes(encode_parquet(trials_to_table([one_trial(3, 0.5)]), {}))

    frame = pd.read_parquet(path)

    assert frame_to_trials(frame) == [one_trial(3, 0.5)]


def test_a_frame_without_a_column_is_no_trial_table() -> None:
    frame = trials_to_frame([one_trial(0, 0.5)]).drop(columns="outcome")

    with pytest.raises(FileFormatError, match=r"not a trial table: .*outcome"):
        frame_to_trials(frame)


def test_a_frame_with_words_for_numbers_is_no_trial_table() -> None:
    frame = trials_to_frame([one_trial(0, 0.5)]).assign(number=["first"])

    with pytest.raises(FileFormatError, match="not a trial table"):
        frame_to_trials(frame)


@pytest.mark.parametrize("kept", [0, 1, 100, -1])
def test_a_truncated_file_is_named(kept: int) -> None:
    content = encode_parquet(trials_to_table([one_trial(0, 0.5)]), {})[:kept]

    with pytest.raises(FileFormatError, match="shard 7 is damaged or not a Parquet file") as error:
        decode_parquet(content, "shard 7")

    assert "\n" not in str(error.value)


def parquet(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("version", [None, b"2"])
def test_another_version_is_refused(version: bytes | None) -> None:
    metadata = None if version is None else {b"placer.trial_table": version}
    content = parquet(trials_to_table([]).replace_schema_metadata(metadata))
    found = "none" if version is None else "2"

    with pytest.raises(FileFormatError, match=f"expected trial table version 1, got {found}"):
        decode_parquet(content, "shard")


def test_a_file_with_other_columns_is_refused() -> None:
    table = pa.table({"number": [1]}).replace_schema_metadata({b"placer.trial_table": b"1"})

    with pytest.raises(FileFormatError, match="not those of a trial table"):
        decode_parquet(parquet(table), "shard")


# Three ops, two groups: ops 0 and 2 are group 0, op 1 is group 1.
GROUPING = Grouping([0, 1, 0])


def test_the_fastest_distinct_placements_that_ran_come_first() -> None:
    tried = [
        one_trial(0, 3.0, (0, 0)),
        one_trial(1, None, (1, 0)),
        one_trial(2, 1.0, (1, 1)),
        one_trial(3, 2.0, (0, 1)),
        one_trial(4, 1.0, (1, 1)),  # as trial 2
        Trial(number=5, update=1, device_of_group=(1, 0)),  # not measured
    ]

    table = top_placements(tried, GROUPING, ["cpu:0", "gpu:0"])

    assert list(table["rank"]) == [1, 2, 3]
    assert list(table["trial"]) == [2, 3, 0]
    assert list(table["step_time_s"]) == [1.0, 2.0, 3.0]
    assert list(table["groups on cpu:0"]) == [0, 1, 2]
    assert list(table["groups on gpu:0"]) == [2, 1, 0]
    assert table["placement"][1] == Placement([0, 1, 0]).fingerprint


def test_real_trials_are_listed_before_simulated_ones_and_stand_for_their_placements() -> None:
    tried = [
        one_trial(0, 1.0, (0, 0)),
        one_trial(1, 2.0, (0, 1)),
        one_trial(2, 3.0, (1, 0)),
        one_trial(3, 9.0, (0, 0), "real"),
        one_trial(4, None, (0, 1), "real"),
        one_trial(5, 8.0, (1, 1), "real"),
    ]

    table = top_placements(tried, GROUPING, ["cpu:0", "gpu:0"])

    # Trial 0 is outdated by trial 3, and trial 1 by its failure.
    assert list(table["trial"]) == [5, 3, 2]
    assert list(table["step_time_s"]) == [8.0, 9.0, 3.0]
    assert list(table["environment"]) == ["real", "real", "simulated"]


def test_no_more_placements_are_listed_than_asked_for() -> None:
    tried = [one_trial(0, 3.0, (0, 0)), one_trial(1, 2.0, (0, 1)), one_trial(2, 1.0, (1, 1))]

    assert list(top_placements(tried, GROUPING, ["a", "b"], limit=2)["trial"]) == [2, 1]


def test_without_a_placement_that_ran_the_table_has_columns_and_no_rows() -> None:
    table = top_placements([one_trial(0, None)], GROUPING, ["a"])

    assert list(table.columns)[-1] == "groups on a"
    assert table.empty
