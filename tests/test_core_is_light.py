"""The core is imported without TensorFlow, MLflow, Prefect or matplotlib."""

import json
import subprocess
import sys

import pytest

HEAVY = {"tensorflow", "keras", "mlflow", "prefect", "matplotlib"}

CORE = [
    "placer",
    "placer.errors",
    "placer.fingerprint",
    "placer.graph",
    "placer.devices",
    "placer.profile",
    "placer.grouping",
    "placer.placement",
    "placer.environment",
    "placer.event_loop",
    "placer.simulator",
    "placer.policy",
    "placer.trials",
]


def modules_after(statement: str) -> set[str]:
    command = f"{statement}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"
    finished = subprocess.run(
        [sys.executable, "-c", command], check=True, capture_output=True, text=True
    )
    return set(json.loads(finished.stdout.splitlines()[-1]))


def test_the_core_imports_nothing_heavy() -> None:
    modules = modules_after(f"import {', '.join(CORE)}")

    assert set(CORE) <= modules
    assert modules & HEAVY == set()


@pytest.mark.parametrize("module", ["placer.graph", "placer.grouping", "placer.placement"])
def test_the_values_need_no_compiler(module: str) -> None:
    assert "numba" not in modules_after(f"import {module}")


def test_compiling_nothing_happens_on_import() -> None:
    statement = "from placer.event_loop import run_steps; assert run_steps.signatures == []"

    assert "placer.event_loop" in modules_after(statement)
