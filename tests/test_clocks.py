"""Times between hosts whose clocks differ: the offset is found and taken out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.errors import InvalidValueError
from profiling.clocks import without_clock_offset


def test_half_of_what_the_directions_of_the_smallest_differ_by_is_the_offset():
    # The receiver's clock is 5 s ahead. Transfers take 1 and 3 s there, 1 and 4 s back.
    there_s, back_s = without_clock_offset(np.array([6.0, 8.0]), np.array([-4.0, -1.0]))

    np.testing.assert_array_equal(there_s, [1.0, 3.0])
    np.testing.assert_array_equal(back_s, [1.0, 4.0])


def test_times_of_one_clock_stay_as_they_are():
    there_s, back_s = without_clock_offset(np.array([1.0, 2.0]), np.array([1.0, 7.0]))

    np.testing.assert_array_equal(there_s, [1.0, 2.0])
    np.testing.assert_array_equal(back_s, [1.0, 7.0])


times_s = st.lists(st.floats(1e-6, 10), min_size=3, max_size=3).map(np.array)


@given(there_s=times_s, back_s=times_s, offset_s=st.floats(-100, 100))
def test_whatever_the_clocks_say_the_outcome_is_the_same(there_s, back_s, offset_s):
    plain = without_clock_offset(there_s, back_s)
    skewed = without_clock_offset(there_s + offset_s, back_s - offset_s)

    np.testing.assert_allclose(skewed, plain, atol=1e-12)


@given(there_s=times_s, back_s=times_s)
def test_the_round_trip_of_every_size_is_kept(there_s, back_s):
    there, back = without_clock_offset(there_s, back_s)

    np.testing.assert_allclose(there + back, there_s + back_s)
    np.testing.assert_allclose(there[0], back[0])


@pytest.mark.parametrize(("there_s", "back_s"), [([], []), ([1.0], [1.0, 2.0]), (1.0, 1.0)])
def test_times_must_be_as_many_back_as_there(there_s, back_s):
    with pytest.raises(InvalidValueError, match="must be as many"):
        without_clock_offset(np.array(there_s), np.array(back_s))
