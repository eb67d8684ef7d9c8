# Each target does its own set-up: a machine with Python >= 3.10, pip and make is enough. See CONTRIBUTING.md.
PYTHON ?= python3
#: How torch is installed before everything else, so that no other package pulls in a build with GPU libraries.
TORCH ?= torch==2.13.0
TORCH_PIP_ARGS ?=
#: Worker processes of the test run, and what else pytest is given (make test PYTEST_ARGS="-k matmul").
WORKERS ?= 2
PYTEST_ARGS ?=
BENCH_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: help setup demo test lint format bench clean
.DEFAULT_GOAL := help

help: ## say what each target does
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: $(INSTALLED) ## make .venv and install the project into it, if that is not done yet

# venv without its own pip, then pip from outside: works where the ensurepip module is not installed.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	    { echo "$(PYTHON) is older than Python 3.10; try: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv --without-pip $(VENV)
	$(PYTHON) -m pip --disable-pip-version-check --python $(BIN)/python install --quiet pip

$(INSTALLED): pyproject.toml | $(BIN)/python
	@echo "Installing torch and the project's dependencies into $(VENV): a minute or two, this once."
	$(PIP) install --quiet $(TORCH_PIP_ARGS) "$(TORCH)"
	$(PIP) install --quiet --editable ".[torch,test,dev]"
	@touch $@

demo: $(INSTALLED) ## BERT-base in float32 and in mixed precision: latency, memory, casts, error
	@$(BIN)/python -m autocast demo

test: $(INSTALLED) ## the test suite
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --durations 15 $(PYTEST_ARGS)

lint: $(INSTALLED) ## formatting, lint and types, as pre-commit runs them
	@$(BIN)/pre-commit run --all-files

format: $(INSTALLED) ## format the code and mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED) ## the benchmarks, an hour; BENCH_ARGS=--quick: 3 minutes; results in benchmarks/results/
	$(PIP) install --quiet --editable ".[bench]"
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

clean: ## remove the environment, caches and build outputs
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
