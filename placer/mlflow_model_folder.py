"""The folder of a trained policy that MLflow loads as ``mlflow.pyfunc``.

``mlflow.pyfunc.save_model`` would write it as well, but it looks through all installed packages,
which takes seconds, and copies lock files that it finds in the folder that the user works in.
"""

import importlib.metadata
import platform
from pathlib import Path
from typing import Any

from placer import placement_model
from placer.files import atomic_write, write_json
from placer.placement_model import (
    FOUND_BY_COLUMN,
    GRAPH_COLUMN,
    MAKESPAN_COLUMN,
    OUTCOME_COLUMN,
    PLACEMENT_COLUMN,
)
from placer.policies.by_name import GRAPH
from placer.trained_policy import TrainedPolicy

# isort: split
import mlflow.pyfunc
from mlflow.models import Model, ModelSignature
from mlflow.types import ColSpec, DataType, Schema

_DATA = "policy"
_REQUIREMENTS = "requirements.txt"
_PYTHON_ENV = "python_env.yaml"


def write_model(trained: TrainedPolicy, folder: Path) -> None:
    """Write a trained policy, and beside it what MLflow needs to load it.

    Raises:
        StoreError: If a file cannot be written.
    """
    packages = ["placer", "mlflow", "numpy", "pandas"]
    if trained.network != GRAPH:
        packages.append("tensorflow")
    requirements = [f"{name}=={importlib.metadata.version(name)}\n" for name in packages]
    environment = {"python": platform.python_version(), "dependencies": [f"-r {_REQUIREMENTS}"]}
    trained.save(folder / _DATA)
    atomic_write(folder / _REQUIREMENTS, "".join(requirements).encode())
    write_json(environment, folder / _PYTHON_ENV)
    model = Model(signature=_signature())
    mlflow.pyfunc.add_to_model(
        model, loader_module=placement_model.__name__, data=_DATA, python_env=_PYTHON_ENV
    )
    model.save(str(folder / "MLmodel"))


def _signature() -> Any:
    columns = {
        PLACEMENT_COLUMN: DataType.string,
        MAKESPAN_COLUMN: DataType.double,
        OUTCOME_COLUMN: DataType.string,
        FOUND_BY_COLUMN: DataType.string,
    }
    return ModelSignature(
        inputs=Schema([ColSpec(DataType.string, GRAPH_COLUMN)]),
        outputs=Schema([ColSpec(type_, name) for name, type_ in columns.items()]),
    )
