"""Fingerprints: short names for contents, equal exactly when the contents are."""

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Part = str | bytes | int | npt.NDArray[np.generic]


def fingerprint(parts: Iterable[Part]) -> str:
    """Return 16 hexadecimal digits of SHA-256 over the parts.

    Each part is preceded by its kind and length, so that no two sequences of parts share
    an encoding: ``("ab", "c")`` differs from ``("a", "bc")``.
    """
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            head = f"{part.dtype.str}{part.shape}"
            body = np.ascontiguousarray(part).tobytes()
        elif isinstance(part, bytes):
            head, body = "bytes", part
        else:
            head, body = type(part).__name__, str(part).encode()
        digest.update(f"{head}:{len(body)}:".encode())
        digest.update(body)
    return digest.hexdigest()[:16]
