"""Intervals hold what they promise, warming up ends in time, and turns are fair."""

import math
from collections import Counter
from itertools import pairwise

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from placer.errors import InvalidValueError
from placer.statistics import (
    Interval,
    balanced_order,
    has_settled,
    median_interval,
    ratio_interval,
    relative_half_width,
    samples_needed,
)

TIMES_S = st.floats(1e-4, 1e3)
SERIES = st.lists(TIMES_S, min_size=1, max_size=40)
LONG_SERIES = st.lists(TIMES_S, min_size=6, max_size=20)
PAIRS = st.lists(st.tuples(TIMES_S, TIMES_S), min_size=6, max_size=20)


def columns(pairs):
    return [list(column) for column in zip(*pairs, strict=True)]


# Intervals.


def test_an_interval_contains_both_its_ends():
    interval = Interval(1.0, 2.0)

    assert 1.0 in interval
    assert 2.0 in interval
    assert 2.1 not in interval


@pytest.mark.parametrize(
    ("low", "high"), [(2.0, 1.0), (math.nan, 1.0), (0.0, math.nan), (0.0, math.inf)]
)
def test_what_has_no_two_ends_in_order_is_no_interval(low, high):
    with pytest.raises(InvalidValueError, match="goes from low to high, both finite"):
        Interval(low, high)


# The median.


@pytest.mark.parametrize(
    ("confidence", "needed"),
    # 1 - 2·(1/2)^n: 0.5 for 2, 0.75 for 3, 0.9375 for 5, 0.96875 for 6, 0.992 for 8.
    [(0.5, 2), (0.75, 3), (0.9, 5), (0.95, 6), (0.99, 8)],
)
def test_an_interval_needs_so_many_samples_that_one_side_rarely_gets_them_all(confidence, needed):
    assert samples_needed(confidence) == needed


def test_the_interval_of_six_samples_is_their_range():
    # P(all six on one side of the median) = 2/64 = 3 % < 5 %; leaving one out: 14/64.
    assert median_interval([3, 1, 2, 6, 5, 4]) == Interval(1, 6)


def test_the_interval_of_ten_samples_leaves_out_one_at_either_end():
    # P(at most one of ten on a side) = 2 · 11/1024 = 2.1 % < 5 %; at most two: 10.9 %.
    assert median_interval(range(1, 11)) == Interval(2, 9)


def test_too_few_samples_for_the_confidence_give_their_range():
    assert median_interval([3.0, 1.0, 2.0]) == Interval(1.0, 3.0)
    assert median_interval([3.0]) == Interval(3.0, 3.0)


@hypothesis.given(samples=SERIES)
def test_the_interval_contains_the_median_and_ends_at_samples(samples):
    interval = median_interval(samples)

    assert float(np.median(samples)) in interval
    assert interval.low in samples
    assert interval.high in samples


@hypothesis.given(samples=SERIES, exponent=st.integers(-20, 20))
def test_the_interval_scales_with_the_samples(samples, exponent):
    # A power of two changes no digit.
    scaled = median_interval([sample * 2.0**exponent for sample in samples])

    plain = median_interval(samples)
    assert scaled == Interval(plain.low * 2.0**exponent, plain.high * 2.0**exponent)


@hypothesis.given(samples=LONG_SERIES, order=st.randoms(use_true_random=False))
def test_the_order_of_the_samples_does_not_matter(samples, order):
    shuffled = list(samples)
    order.shuffle(shuffled)

    assert median_interval(shuffled) == median_interval(samples)


@hypothesis.given(samples=SERIES)
def test_less_confidence_is_never_wider(samples):
    half, almost = median_interval(samples, 0.5), median_interval(samples, 0.95)

    assert almost.low <= half.low
    assert half.high <= almost.high


def test_the_true_median_is_in_at_least_95_of_100_intervals():
    # Log-normal times: skewed like those of steps. The guarantee is 95 % or more; of 2,000
    # repetitions, 1,900 expected at least, with a standard deviation of 10.
    rng = np.random.default_rng(1)
    repetitions = rng.lognormal(sigma=0.3, size=(2000, 12))

    hits = sum(1.0 in median_interval(samples) for samples in repetitions)

    assert hits >= 1900 - 3 * 10


def test_the_relative_half_width_is_of_the_median():
    # The interval of these six is from 1.9 to 2.1, their median 2: 0.1 of 2.
    width = relative_half_width([1.9, 2.0, 2.0, 2.0, 2.0, 2.1])

    assert width == pytest.approx(0.05)


@pytest.mark.parametrize("confidence", [0.0, 1.0, -1.0, math.nan])
def test_there_is_neither_no_confidence_nor_certainty(confidence):
    with pytest.raises(InvalidValueError, match="confidence must be between 0 and 1"):
        median_interval([1.0, 2.0], confidence)


def test_no_samples_have_no_median():
    with pytest.raises(InvalidValueError, match="no samples"):
        median_interval([])


# The ratio of medians.


@hypothesis.settings(max_examples=25)
@hypothesis.given(samples=LONG_SERIES, exponent=st.integers(-3, 3))
def test_a_series_that_is_a_multiple_in_every_round_has_that_ratio_exactly(samples, exponent):
    interval = ratio_interval([sample * 2.0**exponent for sample in samples], samples)

    np.testing.assert_allclose([interval.low, interval.high], 2.0**exponent, rtol=1e-12)


@hypothesis.settings(max_examples=25)
@hypothesis.given(samples=LONG_SERIES)
def test_the_ratio_of_equal_series_is_1(samples):
    assert 1.0 in ratio_interval(samples, samples)


@hypothesis.settings(max_examples=25)
@hypothesis.given(pairs=PAIRS)
def test_swapping_the_series_inverts_the_interval(pairs):
    first, second = columns(pairs)

    interval, swapped = ratio_interval(first, second), ratio_interval(second, first)

    np.testing.assert_allclose(swapped.low, 1 / interval.high, rtol=1e-9)
    np.testing.assert_allclose(swapped.high, 1 / interval.low, rtol=1e-9)


@hypothesis.settings(max_examples=25)
@hypothesis.given(pairs=PAIRS)
def test_less_confidence_is_never_wider_for_a_ratio(pairs):
    first, second = columns(pairs)

    half = ratio_interval(first, second, confidence=0.5)
    almost = ratio_interval(first, second, confidence=0.95)

    assert almost.low <= half.low
    assert half.high <= almost.high


@hypothesis.settings(max_examples=25)
@hypothesis.given(pairs=PAIRS)
def test_no_ratio_of_the_interval_lies_beyond_that_of_any_two_samples(pairs):
    first, second = columns(pairs)

    interval = ratio_interval(first, second)

    assert interval.low >= min(first) / max(second) * (1 - 1e-9)
    assert interval.high <= max(first) / min(second) * (1 + 1e-9)


def test_the_same_seed_draws_the_same_rounds():
    rng = np.random.default_rng(3)
    first, second = rng.lognormal(size=(2, 20))

    assert ratio_interval(first, second, seed=5) == ratio_interval(first, second, seed=5)
    assert ratio_interval(first, second, seed=5) != ratio_interval(first, second, seed=6)


def test_what_hits_both_series_of_a_round_does_not_widen_the_interval():
    # Rounds differ tenfold, for both alike: the ratio is 1.5 in every round.
    rounds = np.geomspace(1, 10, 12)

    together = ratio_interval(1.5 * rounds, rounds)
    apart = ratio_interval(1.5 * rounds, rounds[::-1])

    assert together.high - together.low < 1e-9
    assert apart.high - apart.low > 0.5


@pytest.mark.parametrize("num_rounds", [10, 30])
def test_the_true_ratio_is_in_about_95_of_100_intervals(num_rounds):
    # Ratio 1.2, a drift that both share, 5 % of noise each. Of 200 repetitions 190 are
    # expected, with a standard deviation of 3.1.
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(200):
        drift = rng.lognormal(sigma=0.05, size=num_rounds)
        first, second = drift * rng.lognormal(sigma=0.05, size=(2, num_rounds))
        hits += 1.2 in ratio_interval(1.2 * first, second)

    assert hits >= 190 - 4 * 3.1


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ([1.0] * 6, [1.0] * 7, "equally many samples, got 6 and 7"),
        ([1.0] * 5, [1.0] * 5, r"confidence 0.95 needs 6 rounds, got 5"),
        ([1.0] * 5 + [0.0], [1.0] * 6, "positive and finite"),
        ([1.0] * 6, [1.0] * 5 + [math.inf], "positive and finite"),
        ([1.0] * 6, [1.0] * 5 + [math.nan], "positive and finite"),
    ],
)
def test_what_has_no_ratio_is_refused(first, second, message):
    with pytest.raises(InvalidValueError, match=message):
        ratio_interval(first, second)


# Warming up.


@pytest.mark.parametrize(
    "times_s",
    [
        # A record, then three steps without a new one.
        [5.0, 1.0, 1.0, 1.0, 1.0],
        # Noise of 10 % on three equal steps.
        [5.0, 1.0, 1.1, 0.96, 1.05],
        # A slow step in between is no improvement.
        [5.0, 1.0, 1.0, 9.0, 1.0],
        # Steps that get slower are as warm as they will be.
        [1.0, 2.0, 3.0, 4.0],
    ],
)
def test_times_have_settled_once_three_steps_made_no_record(times_s):
    assert has_settled(times_s)
    assert not has_settled(times_s[:-1])


@pytest.mark.parametrize(
    "times_s",
    [
        [],
        [1.0],
        # Two equal steps can be luck.
        [5.0, 5.0, 1.0],
        [5.0, 2.0, 1.0, 1.0, 1.0],
        # 4 % at a time: after two steps they are more than 5 % below the record.
        [1.0, 0.96, 0.92, 0.88, 0.84, 0.81],
    ],
)
def test_times_that_still_fall_have_not_settled(times_s):
    assert not has_settled(times_s)


@hypothesis.given(
    times_s=st.lists(st.floats(0.97, 1.03), min_size=4, max_size=10),
    first_s=st.floats(2.0, 100.0),
)
def test_times_with_little_noise_settle_once_the_slow_step_is_over(times_s, first_s):
    # 0.97 is less than 6 % below 1.03, and may so make one more record at most.
    assert has_settled([first_s, *times_s, 1.0, 1.0, 1.0])


@hypothesis.given(times_s=st.lists(TIMES_S, max_size=10), exponent=st.integers(-20, 20))
def test_the_unit_of_time_does_not_matter(times_s, exponent):
    scaled = [time_s * 2.0**exponent for time_s in times_s]

    assert has_settled(scaled) == has_settled(times_s)


# Turns.


def test_four_contenders_take_turns_in_this_order():
    # 0, 3, 1, 2 and so on: steps of 3, 2 and 1 around the circle, each once.
    orders = [balanced_order(4, number) for number in range(4)]

    assert orders == [[0, 3, 1, 2], [1, 0, 2, 3], [2, 1, 3, 0], [3, 2, 0, 1]]


@hypothesis.given(count=st.integers(1, 30), round_number=st.integers(0, 1000))
def test_everyone_has_one_turn_in_each_round(count, round_number):
    assert sorted(balanced_order(count, round_number)) == list(range(count))


@hypothesis.given(count=st.integers(2, 15))
def test_everyone_follows_everyone_else_equally_often(count):
    num_rounds = count if count % 2 == 0 else 2 * count

    follows = Counter(
        pair for number in range(num_rounds) for pair in pairwise(balanced_order(count, number))
    )

    assert len(follows) == count * (count - 1)
    assert len(set(follows.values())) == 1


@hypothesis.given(count=st.integers(1, 15))
def test_everyone_is_at_each_place_equally_often(count):
    num_rounds = count if count % 2 == 0 else 2 * count
    orders = [balanced_order(count, number) for number in range(num_rounds)]

    for at_place in zip(*orders, strict=True):
        assert set(Counter(at_place).values()) == {num_rounds // count}


def test_nobody_takes_no_turns():
    assert balanced_order(0, 0) == []
