"""Errors derive from one root and from the builtin that a caller would expect."""

import inspect

import pytest

from placer import errors
from placer.errors import PlacerError, UnknownNameError


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.InvalidValueError, ValueError),
        (errors.InfeasibleError, ValueError),
        (errors.FileFormatError, ValueError),
        (errors.MissingFileError, FileNotFoundError),
        (errors.StoreError, OSError),
        (errors.WorkerError, RuntimeError),
        (errors.UnknownNameError, LookupError),
    ],
)
def test_an_error_is_of_the_root_and_of_a_builtin(
    error: type[Exception], builtin: type[Exception]
) -> None:
    assert issubclass(error, PlacerError)
    assert issubclass(error, builtin)


def test_every_error_of_the_module_derives_from_the_root() -> None:
    classes = [
        c for _, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ == errors.__name__
    ]

    assert PlacerError in classes
    assert all(issubclass(error, PlacerError) for error in classes)


class TestUnknownName:
    def test_the_nearest_name_is_offered(self) -> None:
        error = UnknownNameError("workload", "inception", ["rnnlm", "nmt", "inception_v3"])

        assert str(error) == "unknown workload 'inception'; did you mean 'inception_v3'?"

    def test_all_names_are_listed_where_none_is_near(self) -> None:
        error = UnknownNameError("workload", "zzz", ["rnnlm", "nmt"])

        assert str(error) == "unknown workload 'zzz'; known: nmt, rnnlm"

    def test_an_example_is_given_where_there_are_too_many_to_list(self) -> None:
        error = UnknownNameError("op", "zzz", [f"layer/{number}" for number in range(100)])

        assert str(error) == "unknown op 'zzz'; there are 100, for example 'layer/0'"

    def test_it_says_so_where_there_is_nothing_to_know(self) -> None:
        assert str(UnknownNameError("device", "x", [])) == "unknown device 'x'; known: none"
