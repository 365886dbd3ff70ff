"""A placement: the device of every op."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from placer.errors import InvalidValueError
from placer.fingerprint import fingerprint
from placer.grouping import Grouping


@dataclasses.dataclass(frozen=True, eq=False)
class Placement:
    """The device index of every op, ``[N]``; equal and hashed by content.

    Raises:
        InvalidValueError: If it is empty, an index is negative, or one is no whole number.
    """

    device_of_op: npt.NDArray[np.int32]

    def __init__(self, device_of_op: Sequence[int] | npt.NDArray[np.integer]) -> None:
        given = np.asarray(device_of_op)
        if given.ndim != 1 or given.size == 0:
            raise InvalidValueError(
                f"a placement names one device an op, got an array of shape {given.shape}"
            )
        if not np.issubdtype(given.dtype, np.integer):
            raise InvalidValueError(f"device indices must be whole numbers, got {given.dtype}")
        if given.min() < 0:
            raise InvalidValueError(f"device indices must not be negative, got {given.min()}")
        if given.max() > np.iinfo(np.int32).max:
            raise InvalidValueError(f"device indices must be below 2**31, got {given.max()}")
        array = given.astype(np.int32)  # a copy: the caller may go on writing to his own
        array.setflags(write=False)
        object.__setattr__(self, "device_of_op", array)

    @classmethod
    def from_groups(
        cls, grouping: Grouping, device_of_group: Sequence[int] | npt.NDArray[np.integer]
    ) -> "Placement":
        """Return the placement that puts every op on its group's device.

        Raises:
            InvalidValueError: If there is not one device for each group.
        """
        actions = np.asarray(device_of_group)
        if actions.shape != (grouping.num_groups,):
            raise InvalidValueError(
                f"expected one device for each of {grouping.num_groups} groups,"
                f" got an array of shape {actions.shape}"
            )
        return cls(actions[grouping.group_of_op])

    @functools.cached_property
    def fingerprint(self) -> str:
        """A name for the content."""
        return fingerprint([self.device_of_op])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Placement):
            return NotImplemented
        return np.array_equal(self.device_of_op, other.device_of_op)

    def __hash__(self) -> int:
        return hash(self.device_of_op.tobytes())
