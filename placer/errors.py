"""Every error that Placer raises on purpose.

Each one derives from :class:`PlacerError` and from the builtin that a caller would
expect, and its message is one line: the thing, its value, what would be right. The
command line prints that line and exits with code 2.

A placement that runs badly is not an error: it is a ``Measurement`` with an outcome.
"""

import difflib
from collections.abc import Iterable


class PlacerError(Exception):
    """The root of all errors that Placer raises on purpose."""


class InvalidValueError(PlacerError, ValueError):
    """A value, a graph or a setting that cannot be right."""


class InfeasibleError(PlacerError, ValueError):
    """No permitted device is left for an op, or nothing fits the devices' memory."""


class FileFormatError(PlacerError, ValueError):
    """A file that is truncated, of another version, or not what its reader expects."""


class MissingFileError(PlacerError, FileNotFoundError):
    """A file that does not exist."""


class StoreError(PlacerError, OSError):
    """The tracking store, or a folder that must be written, does not answer."""


class WorkerError(PlacerError, RuntimeError):
    """Workers that did not come up, ran ops elsewhere than placed, or left no trace."""


class UnknownNameError(PlacerError, LookupError):
    """A name that nothing is called by; the message offers the nearest one."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        if nearest:
            hint = f"did you mean {nearest[0]!r}?"
        elif len(names) > 12:
            hint = f"there are {len(names)}, for example {names[0]!r}"
        else:
            hint = "known: " + (", ".join(names) or "none")
        super().__init__(f"unknown {what} {name!r}; {hint}")
