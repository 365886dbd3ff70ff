"""What commands share: common options, and how they become checked settings."""

from pathlib import Path
from typing import Annotated, Any, TypeVar

import pydantic
import typer

from flows.console import show_messages
from flows.process import prepare
from placer.errors import InvalidValueError

MaxGroups = Annotated[int, typer.Option(help="Groups at most, for graphs without model rules.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the result to this file.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more on stderr.")]

S = TypeVar("S", bound=pydantic.BaseModel)


def start(verbose: bool) -> None:
    """Do what a command does before it runs flows."""
    show_messages(verbose=verbose)
    prepare()


def checked(kind: type[S], **values: Any) -> S:
    """Return settings of these values.

    Raises:
        InvalidValueError: If one is not right; the message names it.
    """
    try:
        return kind(**values)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        if not name:  # what several settings say together
            raise InvalidValueError(first["msg"].removeprefix("Value error, ")) from error
        raise InvalidValueError(f"{name}: {first['msg']}, got {first['input']!r}") from error
