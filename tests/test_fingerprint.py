"""Fingerprints are equal exactly when the contents are."""

import hashlib
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.fingerprint import fingerprint

PARTS = st.lists(st.one_of(st.text(), st.binary(), st.integers()), max_size=4)


def test_it_is_sixteen_hexadecimal_digits_of_sha_256_over_kind_length_and_content() -> None:
    encoded = b"str:2:ab" + b"bytes:1:c" + b"int:2:42"

    assert fingerprint(["ab", b"c", 42]) == hashlib.sha256(encoded).hexdigest()[:16]


@given(PARTS, PARTS)
def test_other_parts_give_another_fingerprint(first: list[object], second: list[object]) -> None:
    same = [(type(part), part) for part in first] == [(type(part), part) for part in second]

    assert (fingerprint(first) == fingerprint(second)) == same


@pytest.mark.parametrize(
    ("first", "second"),
    list(
        itertools.combinations(
            [
                ["ab", "c"],
                ["a", "bc"],
                ["abc"],
                ["ab", "c", ""],
                [np.array([1, 2])],
                [np.array([[1, 2]])],
                [np.array([1, 2], dtype=np.int32)],
                [np.array([1.0, 2.0])],
                [np.array([2, 1])],
                [np.array([1]), np.array([2])],
            ],
            2,
        )
    ),
)
def test_no_two_of_these_share_one(first: list[object], second: list[object]) -> None:
    assert fingerprint(first) != fingerprint(second)


def test_the_memory_layout_of_an_array_is_no_part_of_it() -> None:
    array = np.arange(6).reshape(2, 3)

    assert fingerprint([array]) == fingerprint([np.asfortranarray(array)])
    assert fingerprint([array[:, ::2]]) == fingerprint([array[:, ::2].copy()])
