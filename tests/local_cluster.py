"""The worker processes that all slow tests share, as a plugin: they take seconds to start."""

from collections.abc import Iterator

import pytest

from profiling.cluster import LocalCluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """Two CPU workers. A test that harms them must leave both alive."""
    with LocalCluster(2, gpus=False) as two_workers:
        yield two_workers
