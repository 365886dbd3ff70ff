"""An empty folder that a module of tests works in, with its own embedded store."""

from collections.abc import Iterator

import pytest

from placer.mlflow_store import Store, open_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """The store in the working directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("work"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield open_store()
