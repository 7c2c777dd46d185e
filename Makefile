# Everything here needs only make and a Python of 3.11 or newer; the rest is installed into .venv.
#   make demo                              the demo, from a fresh clone
#   make test ARGS="-m 'not slow'"         the quick tests (ARGS goes to pytest, the demo or the benchmark)
#   make demo PYTHON=/path/to/python3.12   a Python of your choice for a new .venv

PYTHON ?=
ARGS ?=

# Tests are shared out to one process per core; threads that wait for each other leave the core to the next process.
SHARED_OUT := -n logical --maxprocesses 8 --dist worksteal

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
TORCH := $(shell grep '^torch==' constraints.txt)
PYTHONS := python3 python3.13 python3.12 python3.11

# Stamps: each step is done again only when what it was made from has changed.
ENV := $(VENV)/.stamp-env
PYTORCH := $(VENV)/.stamp-torch
BASE := $(VENV)/.stamp-base
DEV := $(VENV)/.stamp-dev

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-gpu docs demo-figure lint format typecheck wheel-check campaign paper-tables bench bench-peers install install-dev clean distclean FORCE

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: install  ## Install what is needed and run the demo
	@$(BIN)/commonground demo $(ARGS)

test: install-dev  ## Install the development tools too and run the whole test suite
	@OMP_WAIT_POLICY=passive $(BIN)/python -m pytest $(SHARED_OUT) $(ARGS)

# In an environment that is there already and has a PyTorch for the GPU: .venv has one for the CPU.
test-gpu:  ## Compare runs on a GPU with runs on the CPU (PYTHON=… with PyTorch for CUDA, pytest and this library's needs)
	@PYTHONPATH=src $(or $(PYTHON),python3) -m pytest -q -m gpu tests/devices $(ARGS)

docs: install-dev  ## Build the documentation as a site in docs/_build/html
	@$(BIN)/python -m sphinx -q -E -W --keep-going -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

demo-figure: install  ## Draw the README's figure anew from the demo's own runs
	@$(BIN)/python docs/demo_figure.py

lint: install-dev  ## Check style, formatting and spelling
	@echo "==> ruff check"
	@$(BIN)/ruff check
	@echo "==> ruff format --check"
	@$(BIN)/ruff format --check
	@echo "==> codespell"
	@$(BIN)/codespell

format: install-dev  ## Format the code and mend what can be mended by itself
	@$(BIN)/ruff check --fix --exit-zero --quiet
	@$(BIN)/ruff format

typecheck: install-dev  ## Check the types (mypy, strict for src)
	@echo "==> mypy"
	@$(BIN)/mypy

wheel-check: install-dev  ## Build the distributions, install the wheel into an empty environment and run it there
	@.ci/wheel $(BIN)/python

campaign: install-dev  ## Try to break it: kills, damage, random command lines, tables, messages, models, a network (half an hour)
	@$(BIN)/python -m tests.campaign --seed 0 --out results/campaign.json $(ARGS)

paper-tables: install  ## Measure the next missing cells of the papers' tables (ARGS="--device cuda --minutes 40 --out …")
	@$(BIN)/commonground reproduce --paper-tables --out results/paper $(ARGS)

bench: install  ## Time rounds of different kind, tests, start, checkpoints, a million clients (ARGS="--short --only mlp,flute")
	@$(BIN)/python -m benchmarks $(ARGS)

bench-peers: install-dev  ## Time rounds beside other simulators (ARGS="--peer fedrep_authors=PATH --data-dir DIR --out …")
	@$(BIN)/python -m benchmarks.peers $(ARGS)

install: $(BASE)  ## Make .venv with the library

install-dev: $(DEV)  ## Make .venv with the library and the development tools

clean:  ## Remove build output and caches (results in runs/ stay)
	rm -rf build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean  ## Remove .venv and the unpacked test data as well
	rm -rf $(VENV) .ci-data

# A .venv that was moved or copied here still points to its old folder: make it anew.
ifneq ($(wildcard $(ENV)),)
ifneq ($(shell cat $(ENV)),$(CURDIR))
$(ENV): FORCE
CLEAR := --clear
endif
endif

$(ENV):
	@for python in $(or $(PYTHON),$(PYTHONS)); do \
	  if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    echo "==> Making $(VENV) with $$("$$python" --version)"; \
	    "$$python" -m venv $(CLEAR) $(VENV) && printf '%s\n' "$(CURDIR)" >$@; \
	    exit; \
	  fi; \
	done; \
	echo "CommonGround needs Python 3.11 or newer with its venv module, and there is none under the name(s)" \
	  "$(or $(PYTHON),$(PYTHONS)): install one, or name yours with make PYTHON=/path/to/python3." >&2; \
	exit 1

# Alone and by its exact version: a range would let pip choose a build with gigabytes of GPU libraries.
$(PYTORCH): $(ENV) constraints.txt
	@echo "==> Installing $(TORCH) (a large download the first time)"
	@$(PIP) $(TORCH)
	@touch $@

$(BASE): $(PYTORCH) pyproject.toml constraints.txt
	@echo "==> Installing CommonGround"
	@$(PIP) -c constraints.txt -e .
	@touch $@

$(DEV): $(PYTORCH) pyproject.toml constraints.txt
	@echo "==> Installing CommonGround and its development tools"
	@$(PIP) -c constraints.txt -e '.[dev]'
	@touch $(BASE) $@
