# AgentTrace: everything runs from .venv of this clone; `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help install demo up down test lint fmt bench conformance chaos clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## make .venv with everything that demo, tests and development need

$(STAMP): pyproject.toml setup.py constraints.txt services/forwarder/agenttrace_hook.c services/forwarder/agenttrace-hook.sh
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed, this is $$($(PYTHON) -V); name another with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "Python's venv module is missing; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (the first time takes a minute or two)"
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: install ## the main job on recorded sessions: real Kafka, real ClickHouse, ends by itself
	@$(BIN)/agenttrace demo $(ARGS)

up: install ## keep the stack running on this machine (`make down` ends it)
	@$(BIN)/agenttrace up

down: install ## end the running stack
	@$(BIN)/agenttrace down

test: install lint ## lint, types, unit, contract, integration and end-to-end tests
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT INT TERM && \
	  $(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder --basetemp="$$folder/t" $(ARGS)

lint: install ## ruff, mypy, import-linter
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

fmt: install ## format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: install ## measure the hot paths; writes docs/benchmarks.md
	@$(BIN)/python -c 'import quixstreams' 2>/dev/null || \
	  $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	@$(BIN)/python -m tests.bench.run $(ARGS)

conformance: install ## the official MCP suite and real clients and servers, directly and through the proxy, compared
	@$(BIN)/python -m tests.conformance.run $(ARGS)
	@$(BIN)/python -m tests.conformance.stdio
	@$(BIN)/python -m tests.conformance.fuzz

chaos: install ## storms on the real stack and what held, about 45 minutes; ARGS="kills --short" for one of them
	@$(BIN)/python -m tests.chaos.run $(ARGS)

clean: ## remove .venv, caches and the state of demo and tests
	@rm -rf $(VENV) .agenttrace build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
