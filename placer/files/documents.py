"""What all files share: strict reading, one-line errors, atomic and repeatable writing.

A file is read in three steps: bytes to text, text to plain values (a *document*: what JSON
or TOML can say), and a document to a checked model. Whatever is wrong becomes one line that
names the file, the field, the value and what would be right; only the first error is told.

Writing goes to a temporary name in the same folder, then to the disk, then to the real name:
a reader sees the old content or the new one, never a part.
"""

import contextlib
import functools
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from placer.devices import UNLIMITED_BYTES
from placer.errors import (
    FileFormatError,
    InvalidValueError,
    MissingFileError,
    StoreError,
    UnknownNameError,
)
from placer.graph import OpGraph

StrPath = str | os.PathLike[str]

VERSION = 1
"""Of every file that Placer writes."""


# Writing


UNFINISHED = ".*.tmp"
"""Pattern of the names that files have until they are whole; a kill leaves one behind."""


def atomic_write(path: StrPath, content: bytes) -> None:
    """Write a file so that no reader and no crash ever sees a part of it.

    Missing folders are made. A symbolic link keeps pointing where it pointed.

    Raises:
        StoreError: If the folder cannot be written, or the path is no regular file.
    """
    target = Path(os.path.realpath(path))
    temporary = target.parent / f".{secrets.token_hex(8)}.tmp"
    try:
        if target.exists() and not target.is_file():
            raise StoreError(f"cannot write {path}: it is not a regular file")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            # "x" leaves the permissions to the user's mask, as any new file has them.
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error


def write_json(value: object, path: StrPath) -> None:
    """Write a value as JSON for people: indented, keys in the order given.

    NumPy scalars and arrays are written as numbers and lists.

    Raises:
        InvalidValueError: If it holds NaN, an infinity, or something JSON cannot say.
        StoreError: If the file cannot be written.
    """
    atomic_write(path, _json_text(value, path, indent=2).encode())


def write_compact_json(value: object, path: StrPath) -> None:
    """Write a value as JSON for machines: one line without spaces."""
    atomic_write(path, _json_text(value, path, indent=None).encode())


def _json_text(value: object, path: StrPath, *, indent: int | None) -> str:
    separators = (",", ":") if indent is None else None
    try:
        text = json.dumps(
            value, allow_nan=False, indent=indent, separators=separators, default=_plain
        )
    except (TypeError, ValueError, RecursionError) as error:
        reason = str(error)
        if reason.startswith("Out of range float"):
            reason = f"{next(_not_finite(value, ''), reason)}; a number must be finite"
        raise InvalidValueError(f"cannot write {path} as JSON: {reason}") from error
    return text + "\n"


def _plain(value: object) -> object:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} is not among the values of JSON")


def _not_finite(value: object, where: str) -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{where or 'the value'} is {value}"
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _not_finite(item, _within(where, str(key)))
    elif isinstance(value, list | tuple | np.ndarray):
        for index, item in enumerate(value):
            yield from _not_finite(item, _within(where, index))


def _within(where: str, part: str | int) -> str:
    if isinstance(part, int):
        return f"{where}[{part}]"
    name = part if part.isprintable() and len(part) <= 60 else short(part)
    return f"{where}.{name}" if where else name


# Reading


def read_text(path: StrPath) -> str:
    """Return a file's text.

    Raises:
        MissingFileError: If there is no such file.
        FileFormatError: If it cannot be read or is not text.
    """
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise MissingFileError(f"there is no file {path}") from error
    except UnicodeDecodeError as error:
        raise FileFormatError(
            f"{path} is not a text file: byte {error.start} is not UTF-8"
        ) from error
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror or error}") from error


def read_json(path: StrPath) -> dict[str, Any]:
    """Return the object of a JSON file, read strictly.

    Raises:
        MissingFileError: If there is no such file.
        FileFormatError: If it is not valid JSON, is cut short, holds NaN or an infinity,
            says a key twice, or is not an object.
    """
    return parse_json(read_text(path), path)


def parse_json(text: str, path: StrPath) -> dict[str, Any]:
    """Return the object of a JSON text, read strictly; ``path`` is what errors call it.

    Raises:
        FileFormatError: As ``read_json``.
    """
    try:
        document = _parse(text)
    except json.JSONDecodeError as error:
        if not text[error.pos :].strip() or error.msg.startswith("Unterminated"):
            reason = "it ends too early; is it truncated?"
        else:
            reason = f"{error.msg} at line {error.lineno}, column {error.colno}"
        raise FileFormatError(f"{path} is not valid JSON: {reason}") from error
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise FileFormatError(f"{path} should hold a JSON object, got {short(document)}")
    return document


def _parse(text: str) -> object:
    """Return the value of a JSON text; ValueError where Python is laxer than JSON."""
    constants: list[str] = []

    def constant(name: str) -> float:
        constants.append(name)
        return float(name)

    document = json.loads(text, parse_constant=constant, object_pairs_hook=_distinct_keys)
    if constants:
        raise ValueError(f"{next(_not_finite(document, ''))}, which is no number of JSON")
    if "\\ud" in text.lower():
        # An escape can say half a character, which nothing can print or encode afterwards.
        try:
            json.dumps(document, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = error.object[error.start : error.end]
            raise ValueError(f"{half!a} is half of a Unicode character") from error
    return document


def _distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Python keeps the last of equal keys; here it would be an op that is placed twice.
    document = dict(pairs)
    if len(document) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key!r} is there twice")
            seen.add(key)
    return document


def check_version(document: Mapping[str, Any], path: StrPath) -> None:
    """Check that a document is of the version that Placer reads.

    Raises:
        FileFormatError: If it is of another version or says none.
    """
    version = document.get("version")
    if type(version) is not int or version != VERSION:
        found = f"got {short(version)}" if "version" in document else "the file has none"
        raise FileFormatError(f"{path}: expected version {VERSION}, {found}")


def check_kind(document: Mapping[str, Any], path: StrPath, kind: str) -> None:
    """Check that a document is of a kind, such as ``placer.profile``.

    Raises:
        FileFormatError: If it is of another kind or says none.
    """
    if document.get("kind") != kind:
        found = f"got {short(document['kind'])}" if "kind" in document else "the file has none"
        raise FileFormatError(f"{path}: expected kind {kind!r}, {found}")


def check_graph(found: str, graph: OpGraph, path: StrPath, what: str) -> None:
    """Check that what a file holds was written for a graph.

    Raises:
        FileFormatError: If it was written for another.
    """
    if found != graph.fingerprint:
        raise FileFormatError(
            f"{path} is a {what} of graph {short(found)}, expected {graph.fingerprint!r}"
        )


class Document(BaseModel):
    """The root of all models of documents: strict, and closed to unknown keys."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _keys_are_known(cls, value: object) -> object:
        # pydantic would refuse an unknown key as well, but without the nearest match.
        if isinstance(value, dict) and cls.model_config.get("extra") == "forbid":
            for key in value:
                if key not in cls.model_fields:
                    message = str(UnknownNameError("key", str(key), cls.model_fields))
                    raise PydanticCustomError("unknown_key", "{message}", {"message": message})
        return value


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


SizeBytes = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=UNLIMITED_BYTES)]
"""A number of bytes; ``12e9`` is as good as ``12000000000``."""

LimitBytes = Annotated[int, BeforeValidator(_whole), Field(gt=0, le=UNLIMITED_BYTES)]
"""A device's memory in bytes."""

PositiveFloat = Annotated[float, Field(gt=0)]

NonNegativeFloat = Annotated[float, Field(ge=0)]

Model = TypeVar("Model", bound=Document)


def check(model: type[Model], document: object, path: StrPath) -> Model:
    """Return a document as a checked model.

    Args:
        model: What the document should be.
        document: Plain values, as read.
        path: The file they come from, for the error.

    Raises:
        FileFormatError: If it is not; one line about the first error.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise FileFormatError(f"{path}: {_line(first)}") from error


@contextlib.contextmanager
def naming(path: StrPath) -> Iterator[None]:
    """Turn what the core refuses into an error that also names the file."""
    try:
        yield
    except (InvalidValueError, UnknownNameError) as error:
        raise FileFormatError(f"{path}: {error}") from error


def _line(error: ErrorDetails) -> str:
    where = functools.reduce(_within, error["loc"], "")
    match error["type"]:
        case "missing":
            return f"{where} is missing"
        case "unknown_key" | "columns":
            return f"{where}: {error['msg']}" if where else error["msg"]
        case "model_type" | "dict_type":
            wanted = "should be an object of keys and values"
        case _:
            wanted = error["msg"].removeprefix("Input ").replace("a valid integer", "an integer")
            wanted = wanted.replace("valid ", "")
    return f"{where} {wanted}, got {short(error['input'])}"


def short(value: object) -> str:
    """Return a value as one short line."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python agrees to print
        text = "a very long number"
    return text if len(text) <= 60 else f"{text[:57]}..."
