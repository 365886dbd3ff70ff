"""Checkpoints as files: a NumPy archive whose name holds the checksum of its content.

A file that was cut short or changed does not agree with its own name. Names sort by update.
Nothing in a checkpoint is code: arrays are plain, and the rest is JSON.
"""

import io
import json
import zipfile

import numpy as np

from placer.errors import FileFormatError, InvalidValueError
from placer.fingerprint import fingerprint
from placer.trials import Checkpoint

VERSION = 1

_HEADER = "header"
_ARRAY = "array/"


def checkpoint_name(checkpoint: Checkpoint, content: bytes) -> str:
    """Return the name of the file that holds this content."""
    return f"update-{checkpoint.update:08d}-{fingerprint([content])}.npz"


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return a checkpoint as the content of a file.

    Raises:
        InvalidValueError: If a scalar is not plain JSON, or an array holds objects.
    """
    header = {
        "version": VERSION,
        "update": checkpoint.update,
        "num_trials": checkpoint.num_trials,
        "scalars": checkpoint.scalars,
    }
    buffer = io.BytesIO()
    try:
        text = json.dumps(header, allow_nan=False)
        arrays = {f"{_ARRAY}{name}": array for name, array in checkpoint.arrays.items()}
        arrays[_HEADER] = np.frombuffer(text.encode(), dtype=np.uint8)
        np.savez(buffer, allow_pickle=False, **arrays)
    except (TypeError, ValueError) as error:
        raise InvalidValueError(
            f"checkpoint of update {checkpoint.update} cannot be kept: {error}"
        ) from error
    return buffer.getvalue()


def decode_checkpoint(content: bytes, name: str) -> Checkpoint:
    """Return what ``encode_checkpoint`` was given.

    Args:
        content: The bytes of the file.
        name: The file's name, which holds the checksum.

    Raises:
        FileFormatError: If the content does not agree with the name, or is of another version.
    """
    if not name.endswith(f"-{fingerprint([content])}.npz"):
        raise FileFormatError(f"checkpoint {name} is damaged: its checksum differs")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            header = json.loads(archive[_HEADER].tobytes())
            arrays = {
                key.removeprefix(_ARRAY): archive[key] for key in archive.files if key != _HEADER
            }
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise FileFormatError(f"checkpoint {name} is not one of Placer's: {error}") from error
    if header["version"] != VERSION:
        raise FileFormatError(
            f"checkpoint {name}: expected version {VERSION}, got {header['version']}"
        )
    return Checkpoint(
        update=header["update"],
        num_trials=header["num_trials"],
        arrays=arrays,
        scalars=header["scalars"],
    )
