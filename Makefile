# `make` alone lists the targets. Python 3.11 or newer and Go 1.26 are taken from PATH; everything else is installed or
# built when a target needs it, and kept in ~/.cache/eagle3-operator (EAGLE3_CACHE).

.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory

export OMP_NUM_THREADS ?= 1
export UV_PYTHON_DOWNLOADS ?= never
# Python keeps what it compiled, whatever the surroundings say: a process that compiles torch anew starts in three times the time.
unexport PYTHONDONTWRITEBYTECODE

# Where `make setup` puts uv if there is none
export PATH := $(PATH):$(CURDIR)/.uv/bin

BIN := .venv/bin
READY := .venv/.ready
PYTEST := $(BIN)/pytest --durations=5 -m "not long"
# Most of a test against real parts is waiting: two files at a time, each with a cluster or servers of its own. A cluster that is
# there already is one. The order is that of tests/conftest.py.
TWO_FILES := $(if $(EAGLE3_TEST_KUBECONFIG),,-n 2 --dist loadfile --no-loadscope-reorder)
TESTS_PATH := PYTHONPATH=tests:images/sglang-cpu
TYPES := mypy crds operator images/draft tests
CRD := helm/eagle3-operator/files/crd.yaml

# In the order in which they run, the quick ones first.
SUITES := lint test-unit test-stages test-cluster test-sglang test-e2e

.PHONY: help setup prepare programs sglang-cpu test $(SUITES) test-long test-gpu test-object-store demo format crd cluster-up cluster-install cluster-down clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' Makefile

## ---------------------------------------------------------------------------------------------------- set-up

setup: $(READY) ## Make the Python environment in .venv, with uv

$(READY): pyproject.toml uv.lock
	@uv --version >/dev/null 2>&1 || PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --target .uv uv
	uv sync --all-extras --locked
	@touch $@

prepare: ## Make all that the tests and the demo need: Python, Kubernetes and helm from Go modules, SGLang for the CPU and a target for it
	@python3 images/sglang-cpu/image.py
	@$(MAKE) --jobs=2 programs sglang-cpu

programs:
	@$(TESTS_PATH) python3 tests/testcluster/build.py >/dev/null

sglang-cpu: $(READY)
	@$(BIN)/python images/sglang-cpu/environment.py >/dev/null
	@$(TESTS_PATH) $(BIN)/python -c "from tiny.make import cached; cached()"

## ----------------------------------------------------------------------------------------------------- tests

test: prepare ## Run everything that CI runs, and say how long each suite took
	@times=() failed=()
	for suite in $(SUITES); do
	  printf '\n==> make %s\n' $$suite
	  begin=$$SECONDS
	  $(MAKE) $$suite || failed+=($$suite)
	  took=$$((SECONDS - begin))
	  times+=("$$(printf '%-14s %3d:%02d' $$suite $$((took / 60)) $$((took % 60)))")
	done
	printf '\nminutes\n'; printf '  %s\n' "$${times[@]}"
	if [ $${#failed[@]} -gt 0 ]; then echo "failed: $${failed[*]}"; exit 1; fi

lint: $(READY) ## Check style, types, the direction of imports and the images' recipes
	@status=0
	for check in 'ruff check .' 'ruff format --check .' '$(TYPES) --num-workers 2' lint-imports \
	    'hadolint images/draft/Dockerfile images/operator/Dockerfile'; do
	  echo "$$check"
	  $(BIN)/$$check && continue || code=$$?
	  # mypy's workers, where a busy machine starts them too slowly, end it with 2
	  [[ $$check == mypy* && $$code == 2 ]] && $(BIN)/$(TYPES) || status=1
	done
	exit $$status

test-unit: $(READY) ## Run the unit tests, in about a minute
	$(PYTEST) -n auto --dist worksteal -m "not stages and not long" tests/unit

test-stages: $(READY) ## Run the stages as processes: kill them, starve them, resume them
	$(PYTEST) -n auto --dist worksteal -m "stages and not long" tests/stages tests/unit

test-cluster: $(READY) ## Run the tests against a real API server
	$(PYTEST) $(TWO_FILES) tests/cluster

test-sglang: $(READY) ## Run the tests against a real SGLang on the CPU
	$(PYTEST) $(TWO_FILES) tests/sglang

test-e2e: $(READY) ## Run the tests with pods on a real node (needs root, or docker for kind)
	$(PYTEST) $(TWO_FILES) tests/e2e

test-long: prepare ## Run the tests that take too long for every change
	$(BIN)/pytest --durations=0 -m long tests

test-gpu: $(READY) ## Run the tests that need a GPU, and those that need two where there are two
	$(PYTEST) tests/gpu

test-object-store: $(READY) ## Run the tests of object stores, against one of yours where EAGLE3_TEST_BUCKET names it
	$(PYTEST) tests/stages/test_object_store.py tests/stages/test_publishing.py

demo: prepare ## Train, serve, break and roll back a draft on a small cluster of its own
	@$(TESTS_PATH) $(BIN)/python -m demo

## ---------------------------------------------------------------------------------------------- by hand

format: $(READY) ## Format the code and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

crd: $(READY) ## Generate the chart's CustomResourceDefinition from the models
	$(BIN)/python -m eagle3_api.crd > $(CRD)

cluster-up: sglang-cpu ## Start a test cluster with a node and two GPUs that are not there
	@$(TESTS_PATH) $(BIN)/python -m testbed up

cluster-install: $(READY) ## Install the product of this working tree on it; again after a change
	@$(TESTS_PATH) $(BIN)/python -m testbed install

cluster-down: $(READY) ## End the test cluster
	@$(TESTS_PATH) $(BIN)/python -m testcluster down

clean: ## Remove the environment and what tools left; what was built once stays in the cache
	rm -rf .venv .uv dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A recipe is one script.
.ONESHELL:
