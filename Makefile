# make demo   installs into .venv and runs real local probes      make test   installs and runs lint, types, unit and integration tests
# make e2e    heavy tests: whole services and real engines        make bench  benchmarks with ratios (make bench ARGS=NAME for one)

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.9
ARGS ?=

# Libraries that the engines' wheels load and do not bring, and `ip` for runs in network namespaces.
RUN_PACKAGES := libibverbs1 librdmacm1 libnuma1 libcurl4 iproute2 python3-venv
TEST_PACKAGES := $(RUN_PACKAGES) prometheus prometheus-alertmanager openssl
# A browser looks at the status page and at the pictures of the dashboards.
E2E_PACKAGES := $(TEST_PACKAGES) chromium fonts-dejavu-core

.PHONY: demo test lint types unit integration pythons e2e bench lock clean setup setup-test setup-e2e
.DEFAULT_GOAL := help

help:
	@head -2 Makefile | sed 's/^# //'

setup:
	@tests/setup.sh packages $(RUN_PACKAGES)
	@$(MAKE) --no-print-directory $(VENV)/.installed

setup-test:
	@tests/setup.sh packages $(TEST_PACKAGES)
	@$(MAKE) --no-print-directory $(VENV)/.installed

setup-e2e:
	@tests/setup.sh packages $(E2E_PACKAGES)
	@$(MAKE) --no-print-directory $(VENV)/.installed

$(VENV)/.installed: requirements.lock pyproject.toml
	@UV_VERSION=$(UV_VERSION) PYTHON=$(PYTHON) VENV=$(VENV) tests/setup.sh venv
	@touch $@

demo: setup
	@$(BIN)/efa-pulse demo $(ARGS)

# What fails on a noisy shared machine is run once more, by itself; what fails twice has failed.
# Unit tests share nothing; those with real engines take the machine for themselves.
TOGETHER := --numprocesses auto --maxprocesses 4
AGAIN := --last-failed --last-failed-no-failures none

test: setup-test lint types
	$(BIN)/python -m pytest tests/unit $(TOGETHER) $(ARGS) || $(BIN)/python -m pytest tests/unit $(AGAIN)
	$(BIN)/python -m pytest tests/integration $(ARGS) || $(BIN)/python -m pytest tests/integration $(AGAIN)
	$(BIN)/python tests/pythons.py

lint: setup-test
	$(BIN)/ruff check --output-format concise charts exporter probes dashboards tests
	$(BIN)/lint-imports --no-cache

types: setup-test
	$(BIN)/mypy

unit: setup-test
	$(BIN)/python -m pytest tests/unit $(TOGETHER) $(ARGS)

integration: setup-test
	$(BIN)/python -m pytest tests/integration $(ARGS)

pythons: setup-test
	$(BIN)/python tests/pythons.py

# Each file has a control plane of its own: nodes and addresses of one are not there for the next.
e2e: setup-e2e
	@failed=0; for file in tests/e2e/test_*.py; do \
	  $(BIN)/python -m pytest $$file $(ARGS) || $(BIN)/python -m pytest $$file $(AGAIN) || { echo "FAILED: $$file"; failed=1; }; \
	done; exit $$failed

bench: setup-test
	$(BIN)/python -m tests.bench $(ARGS)

lock:
	$(BIN)/uv pip compile pyproject.toml --extra exporter --group dev --group engines --python-version 3.11 --generate-hashes --no-header \
	  -o requirements.lock $(ARGS)

clean:
	rm -rf $(VENV) .venv-3.* build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
