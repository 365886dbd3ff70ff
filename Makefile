# Everything a person or a machine does with this repository, one target each.
# `make run` and `make test` do all set-up themselves.

VENV ?= .venv
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  "$$p" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null \
  && command -v "$$p" && break; done)
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
ARGS ?=

export MLFLOW_DISABLE_TELEMETRY := true
export DO_NOT_TRACK := true
export PREFECT_SERVER_ANALYTICS_ENABLED := false

.PHONY: help install run ui test test-fast crash-test check format clean

help:  ## Show what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

install: $(INSTALLED)  ## Create the virtual environment and install everything into it

$(INSTALLED): pyproject.toml
	@test -n "$(PYTHON)" || { echo "Placer needs Python 3.11, 3.12 or 3.13; none was found" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

run: $(INSTALLED)  ## Run the main job: place a small language model on this machine
	$(BIN)/placer optimize $(ARGS)

ui: $(INSTALLED)  ## Open the page of all trainings
	$(BIN)/placer ui

# A file's tests share servers and trainings: it stays in one process. tests/conftest.py orders them.
test: $(INSTALLED)  ## Run all tests, three files at a time
	$(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder $(ARGS)

test-fast: $(INSTALLED)  ## Run the tests that start no TensorFlow, MLflow or Prefect
	$(BIN)/python -m pytest -m 'not slow' --numprocesses 2 --hypothesis-profile quick $(ARGS)

crash-test: $(INSTALLED)  ## Kill a training of 2,000 trials 20 times; it must end as one left alone
	$(BIN)/python -m pytest tests/test_crashes.py --kills 20 --timeout 1800 --log-cli-level INFO $(ARGS)

check: $(INSTALLED)  ## Lint, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy docs/experiments/*.py
	$(BIN)/lint-imports

format: $(INSTALLED)  ## Let ruff format and mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## Remove what was installed and cached; trainings in mlruns/ stay
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
