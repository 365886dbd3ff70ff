"""Times between two hosts, whose clocks do not agree.

What leaves one host at a time of its clock arrives at another at a time of another clock:
the difference is the transfer plus the offset of the clocks, and on the way back it is the
transfer minus the offset. The two are told apart as the Network Time Protocol does (RFC 5905,
section 8): the smallest message takes as long one way as the other.
"""

import numpy as np

from placer.errors import InvalidValueError
from placer.graph import FloatArray


def without_clock_offset(there_s: FloatArray, back_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the times of transfers there and back as one clock would show them.

    Args:
        there_s: Seconds from the sender's clock to the receiver's, the smallest tensor first,
            shape ``[S]``; negative where the receiver's clock is behind.
        back_s: The same the other way.

    Returns:
        Both, with the offset of the clocks taken out: half of what the two directions differ
        by for the smallest tensor.

    Raises:
        InvalidValueError: If there are no times, or not as many back as there.
    """
    there, back = np.asarray(there_s, dtype=np.float64), np.asarray(back_s, dtype=np.float64)
    if there.ndim != 1 or there.shape != back.shape or not there.size:
        raise InvalidValueError(
            f"times there and back must be as many, got {there.shape} and {back.shape}"
        )
    offset_s = (there[0] - back[0]) / 2
    return there - offset_s, back + offset_s
