"""What all tests share: small profiles, the reference workloads, golden files."""

import re
import signal
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

from placer.devices import DeviceTopology, Link
from placer.profile import Profile
from tests.builders import make_profile, make_topology

MSR_FOLDER = Path(__file__).parents[2] / "shared" / "workloads" / "msr"
GOLDEN_FOLDER = Path(__file__).parent / "golden"
SLOW_FILE = re.compile(r"^pytestmark = .*\bslow\b", re.MULTILINE)

# The same examples in every run, nothing written to disk: all of them in `make test`, the first
# of them in `make test-fast`. To search further afield: pytest --hypothesis-profile thorough
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.register_profile("quick", deadline=None, derandomize=True, max_examples=20)
hypothesis.settings.register_profile("thorough", deadline=None, database=None, max_examples=1000)
hypothesis.settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files anew, to be reviewed"
    )
    parser.addoption(
        "--faults", type=int, default=4, help="accidents of workers in test_fault_injection.py"
    )
    parser.addoption(
        "--kills", type=int, default=5, help="how often test_crashes.py kills its training"
    )


def pytest_configure() -> None:
    """Heed Ctrl-C also as a shell's background job, as programs that tests interrupt must."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out whole files of slow tests where none is wanted: their imports take long."""
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    return bool(SLOW_FILE.search(collection_path.read_text(encoding="utf-8"))) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where files run beside each other, begin with the slow ones: the others fill the end."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with the golden file of this name, or write it with --update-golden."""

    def check(name: str, text: str) -> None:
        path = GOLDEN_FOLDER / name
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no golden file {path}: run pytest --update-golden and review it"
        assert text == path.read_text(encoding="utf-8")

    return check


@pytest.fixture
def two_gpus() -> DeviceTopology:
    """``gpu:0`` and ``gpu:1``, 1 MB/s either way, no latency."""
    return make_topology(2, Link(bandwidth_bytes_per_s=1e6))


@pytest.fixture
def diamond(two_gpus: DeviceTopology) -> Profile:
    """a feeds b and c with one tensor, both feed d; 1 s an op, 1 s a transfer."""
    tensors = [(0, (1, 2), 10**6), (1, (3,), 10**6), (2, (3,), 10**6)]
    return make_profile([1.0, 1.0, 1.0, 1.0], tensors, two_gpus)


@pytest.fixture
def msr() -> Callable[[str], Path]:
    """The path of a reference workload by its name, such as ``gnmt_training``."""

    def path_of(name: str) -> Path:
        path = MSR_FOLDER / f"{name}.json"
        if not path.exists():
            pytest.skip(f"the reference workloads are not there: no {path}")
        return path

    return path_of
