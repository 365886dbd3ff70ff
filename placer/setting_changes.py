"""Settings by dotted name, as people give them: ``ppo.clip=0.1``."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from placer.errors import UnknownNameError

NOTHING = "none"
"""How to say that an optional setting is not set."""


def flat_settings(settings: BaseModel) -> dict[str, Any]:
    """Return the value of each setting by its dotted name."""
    return _flat(settings.model_dump())


def with_changes(settings: BaseModel, changes: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings with some of them changed, as values that are still to be checked.

    Raises:
        UnknownNameError: If there is no setting of a name.
    """
    values = settings.model_dump()
    known = _flat(values)
    for name, text in changes.items():
        if name not in known:
            raise UnknownNameError("setting", name, known)
        *groups, last = name.split(".")
        inner = values
        for group in groups:
            inner = inner[group]
        inner[last] = None if text == NOTHING else text
    return values


def differing(ours: BaseModel, theirs: BaseModel) -> dict[str, tuple[Any, Any]]:
    """Return both values of each setting in which two of the same kind differ, by dotted name."""
    first, second = flat_settings(ours), flat_settings(theirs)
    return {name: (first[name], second[name]) for name in first if first[name] != second[name]}


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
