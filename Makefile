# The two commands a newcomer needs: `make dev` and `make test`. Everything else depends on `make install`, done once.
# A first run compiles what it imports; a second one is to find that.
unexport PYTHONDONTWRITEBYTECODE
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# The lock is complete and hashed, so pip need not resolve anything; byte code is compiled when first used.
PIP    := $(BIN)/pip --disable-pip-version-check --quiet install --no-deps --no-compile

COMPILE := $(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-annotate --custom-compile-command "make lock" pyproject.toml
ALL     := --extra local --extra postgres --extra redis --extra triton --extra kubernetes

.PHONY: help dev simulated test test-all integration e2e check fix install tools ci bench lock clean

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(VENV)/.run ## a virtual environment with what `make dev` needs
tools: $(VENV)/.dev ## the same, with what the tests and checks need

# Without pip it is half-made, by a Python that lacks a part of itself: then it is made anew.
$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Turnout needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV) && $(BIN)/pip --version >/dev/null || { rm -rf $(VENV); echo "$(PYTHON) cannot make a virtual environment with pip. On Debian and Ubuntu: apt install python3-venv"; exit 1; }

$(VENV)/.run: requirements/run.txt pyproject.toml | $(VENV)/bin/pip
	@echo "Installing Turnout into $(VENV) (about half a minute)"
	$(PIP) --require-hashes -r requirements/run.txt
	$(PIP) --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.run
	@echo "Installing the tools of the tests"
	$(PIP) --require-hashes -r requirements/dev.txt
	@touch $@

dev: install ## run everything on this machine: real models, gateway, console (ARGS="--port 8001")
	$(BIN)/turnout up $(ARGS)

simulated: install ## the same with simulated models
	$(BIN)/turnout up --simulated $(ARGS)

test: tools ## unit, contract and house tests
	$(BIN)/pytest -q -n 3 --dist worksteal

integration: tools ## real services and real processes
	$(BIN)/pytest -q tests/integration

e2e: tools ## the whole product on real models, and the console in a real browser
	$(BIN)/pytest -q tests/e2e

test-all: test integration e2e ## every test there is

check: tools ## formatting, lint, types, import contracts, size budgets, docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/pytest -q tests/house

fix: tools ## format, and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: tools ## the gateway's own cost
	$(BIN)/python benchmarks/gateway_overhead.py

ci: check test-all ## what has to be green

lock: tools ## renew requirements/*.txt from pyproject.toml
	$(BIN)/pip install --quiet uv
	$(COMPILE) $(ALL) --group pyproject.toml:build --group pyproject.toml:dev -o requirements/dev.txt
	$(COMPILE) --extra local --group pyproject.toml:build -c requirements/dev.txt -o requirements/run.txt

clean: ## forget the environment and the caches; the data folder stays
	rm -rf $(VENV) .mypy_cache .ruff_cache .import_linter_cache .hypothesis dist
