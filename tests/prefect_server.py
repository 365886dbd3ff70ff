"""The Prefect server that all tests of flows share, as a plugin: it takes ten seconds to start."""

from collections.abc import Iterator

import pytest
from prefect.testing.utilities import prefect_test_harness


@pytest.fixture(scope="session")
def prefect() -> Iterator[None]:
    """A server with a database of its own. Nothing but flows' states is kept there."""
    with prefect_test_harness(server_startup_timeout=120):
        yield
