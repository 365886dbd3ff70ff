"""A checkpoint's file gives it back, or says that it is damaged."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.checkpoint_files import checkpoint_name, decode_checkpoint, encode_checkpoint
from placer.errors import FileFormatError, InvalidValueError
from placer.fingerprint import fingerprint
from placer.trials import Checkpoint

CHECKPOINT = Checkpoint(
    update=25,
    num_trials=400,
    arrays={
        "policy/kernel:0": np.arange(6, dtype=np.float32).reshape(2, 3),
        "file": np.array(7, dtype=np.int64),
        "empty": np.zeros((0, 2), dtype=np.bool_),
    },
    scalars={"baseline": -1.5, "best": None, "config": {"seed": 3, "flags": [True]}},
)
CONTENT = encode_checkpoint(CHECKPOINT)
NAME = checkpoint_name(CHECKPOINT, CONTENT)


def with_name(content: bytes) -> str:
    return f"update-00000025-{fingerprint([content])}.npz"


def test_a_checkpoint_comes_back_to_the_bit() -> None:
    found = decode_checkpoint(CONTENT, NAME)

    assert (found.update, found.num_trials) == (25, 400)
    assert found.scalars == CHECKPOINT.scalars
    assert found.arrays.keys() == CHECKPOINT.arrays.keys()
    for name, array in CHECKPOINT.arrays.items():
        assert found.arrays[name].dtype == array.dtype
        assert np.array_equal(found.arrays[name], array)


def test_equal_checkpoints_have_equal_files() -> None:
    assert encode_checkpoint(CHECKPOINT) == CONTENT


def test_names_sort_by_update() -> None:
    late = Checkpoint(update=1000, num_trials=1, arrays={}, scalars={})

    assert checkpoint_name(late, b"") > NAME


def test_the_file_is_a_plain_numpy_archive(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(CONTENT)

    with np.load(tmp_path / NAME, allow_pickle=False) as archive:
        assert archive["array/file"] == 7


@given(st.integers(0, len(CONTENT) - 1), st.integers(0, 7))
def test_any_flipped_bit_is_found(position: int, bit: int) -> None:
    damaged = bytearray(CONTENT)
    damaged[position] ^= 1 << bit

    with pytest.raises(FileFormatError, match=f"{NAME} is damaged: its checksum differs"):
        decode_checkpoint(bytes(damaged), NAME)


@given(st.integers(0, len(CONTENT) - 1))
def test_any_truncation_is_found(length: int) -> None:
    with pytest.raises(FileFormatError, match="checksum differs"):
        decode_checkpoint(CONTENT[:length], NAME)


def test_a_whole_file_that_is_no_checkpoint_is_refused() -> None:
    with pytest.raises(FileFormatError, match="not one of Placer's"):
        decode_checkpoint(b"something else", with_name(b"something else"))


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        later.setattr("placer.checkpoint_files.VERSION", 2)
        content = encode_checkpoint(CHECKPOINT)

    with pytest.raises(FileFormatError, match="expected version 1, got 2"):
        decode_checkpoint(content, with_name(content))


@pytest.mark.parametrize("scalar", [float("nan"), float("inf"), np.float32(1), {1, 2}])
def test_a_scalar_that_json_cannot_say_is_refused(scalar: object) -> None:
    checkpoint = Checkpoint(update=1, num_trials=1, arrays={}, scalars={"x": scalar})

    with pytest.raises(InvalidValueError, match="checkpoint of update 1 cannot be kept"):
        encode_checkpoint(checkpoint)


def test_an_array_of_objects_is_refused_and_never_pickled() -> None:
    arrays = {"x": np.array([object()], dtype=object)}
    checkpoint = Checkpoint(update=1, num_trials=1, arrays=arrays, scalars={})

    with pytest.raises(InvalidValueError, match="checkpoint of update 1 cannot be kept"):
        encode_checkpoint(checkpoint)
