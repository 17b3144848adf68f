# Every target works as the first command after `git clone`; the environment is made when it is missing or out of date.
#
#   PYTHON       the interpreter that makes .venv, 3.11 or newer
#   CONSTRAINTS  the file of pinned versions; another file, or nothing (`CONSTRAINTS=`), lets you bring another torch
#   AREAS        what `make bench` measures
#   SEED         what `make soak` draws its examples from; it shows the one it took, to be given again

PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
PEER_AREAS := ring caches kv scheduler prefix sidecar
AREAS ?= $(PEER_AREAS) eviction flood
SEED ?= $(shell od -An -N3 -tu4 /dev/urandom | tr -d ' ')

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PEERS := .venv-peers
PEERS_INSTALLED := $(PEERS)/.installed
VLLM := vllm==0.33.0
VLLM_OMNI := vllm-omni==0.22.0
VLLM_OMNI_MANAGER := vllm-omni==0.30.0
PINNED := $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))
BUILD_PINNED := $(if $(CONSTRAINTS),--build-constraint $(CONSTRAINTS))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test pytest lint soak chaos explore bench bench-peers clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z.-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(INSTALLED) ## start the service on this host and show what it saves
	$(BIN)/mmcached demo

test: $(INSTALLED) ## lint and the tests, side by side
	@$(MAKE) --no-print-directory --jobs=2 lint pytest

pytest: $(INSTALLED)
	$(BIN)/python -m pytest $$($(BIN)/python tests/house/isolation.py)

lint: $(INSTALLED) ## style, types and layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

soak: $(INSTALLED) ## the tests that run long, and 20 times the examples of the others, from a new SEED
	$(BIN)/python -m pytest -m "soak or hypothesis" --hypothesis-profile=soak --hypothesis-seed=$(SEED) \
	  --timeout=0 -o faulthandler_timeout=0

chaos: $(INSTALLED) ## kill the ring's processes at random for two minutes, and check every byte
	$(BIN)/python -m scripts.verification.chaos --seconds 60

explore: $(INSTALLED) ## look at every state of the ring's protocol, and find every rule's removal: minutes
	$(BIN)/python -m scripts.verification.explore

bench: $(INSTALLED) ## every area of scripts/bench, one after the other; some: `make bench AREAS="ring kv"`
	@set -e; for area in $(AREAS); do echo "== $$area"; $(BIN)/python -m scripts.bench.$$area; done

bench-peers: $(PEERS_INSTALLED) ## all that has a peer beside it: vLLM, vllm-omni and others (2 GB)
	@set -e; for area in $(PEER_AREAS); do echo "== $$area"; $(PEERS)/bin/python -m scripts.bench.$$area; done

clean: ## remove the environment, builds and caches
	rm -rf $(VENV) $(PEERS) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -type d -name __pycache__ -prune -exec rm -rf {} +

# Dependency groups and build constraints need pip 25.3; a fresh venv starts with whatever came with the interpreter.
$(INSTALLED): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "mmcached needs Python 3.11 or newer, and '$(PYTHON)' is not: try 'make PYTHON=python3.12 ...'" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade $(PINNED) 'pip>=25.3'
	$(BIN)/python -m pip install --quiet $(PINNED) $(BUILD_PINNED) --group dev --editable '.[demo]'
	touch $@

# Redis is measured too if its server is on the path. vLLM asks for far more than its store needs, hence --no-deps.
$(PEERS_INSTALLED): scripts/bench/peers.txt pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --upgrade $(PINNED) 'pip>=25.3'
	$(PEERS)/bin/python -m pip install --quiet $(PINNED) $(BUILD_PINNED) --requirement scripts/bench/peers.txt --editable '.[server]'
	$(PEERS)/bin/python -m pip install --quiet --no-deps $(VLLM) $(VLLM_OMNI)
	$(PEERS)/bin/python -m pip install --quiet --no-deps --target $(PEERS)/vllm-omni-0.30 $(VLLM_OMNI_MANAGER)
	touch $@
