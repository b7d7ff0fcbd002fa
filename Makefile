# The only entry point. `make` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
UV := $(BIN)/uv

# Property tests find the same examples on every run; HYPOTHESIS_PROFILE=dev looks for new ones.
export HYPOTHESIS_PROFILE ?= ci

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# --- set-up ------------------------------------------------------------------

.PHONY: setup
setup: $(VENV)/.setup ## make .venv with the locked tools and the project in it; instant when nothing changed

$(VENV)/.venv:
	@PYTHON=$(PYTHON) scripts/preflight
	$(PYTHON) -m venv --clear $(VENV)
	sed -n '/^uv==/,/[^\\]$$/p' requirements/dev.lock > $(VENV)/uv.txt
	$(PY) -m pip install --quiet --require-hashes -r $(VENV)/uv.txt
	@touch $@

# uv is fast; pip is the way out where only pip is configured for the network at hand.
$(VENV)/.dev: requirements/dev.lock $(VENV)/.venv
	$(UV) pip sync --quiet --python $(PY) --require-hashes requirements/dev.lock \
	  || $(PY) -m pip install --quiet --require-hashes -r requirements/dev.lock
	@touch $@

$(VENV)/.setup: $(VENV)/.dev pyproject.toml
	$(UV) pip install --quiet --python $(PY) --no-deps --no-build-isolation --offline -e .
	@touch $@
