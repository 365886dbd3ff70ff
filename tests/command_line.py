"""Commands as a shell runs them, in this process: what they print, and their exit code."""

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from flows.cli import main
from flows.process import LOGGERS


class Answer(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def loggers() -> Iterator[None]:
    """Placer's loggers, put back as they were."""
    known = [logging.getLogger(name) for name in LOGGERS]
    before = [(each.handlers, each.propagate, each.level) for each in known]
    yield
    for logger, (handlers, propagate, level) in zip(known, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.fixture
def placer(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    loggers: None,
) -> Callable[..., Answer]:
    """Run a command in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["placer", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return Answer(int(ended.value.code or 0), *capsys.readouterr())

    return run


def assert_one_line(answer: Answer, *texts: str) -> None:
    assert answer.code == 2
    assert answer.err.startswith("placer: ")
    assert answer.err.count("\n") == 1
    for text in texts:
        assert text in answer.err
