# Everything that people and CI run. Needs Python 3.11, make and the package registries; nothing else.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Company networks sign with their own authority: trust what the system trusts.
export UV_SYSTEM_CERTS := true

.PHONY: help setup demo test quick lint torture bench lock clean

help: ## List the targets
	@sed -n 's/^\([a-z]*\):.*## /\1	/p' $(MAKEFILE_LIST)

setup: $(VENV)/.ready ## Make .venv with the locked dependencies, fetch the jars, parse the dbt project

$(VENV)/.ready: requirements.lock pyproject.toml lineage_assets/stack/jars.lock
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found: install Python 3.11, or run make PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || { echo "Making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "Installing the locked dependencies"
	@$(BIN)/pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv pip sync --quiet --compile-bytecode --require-hashes requirements.lock
	@$(BIN)/uv pip install --quiet --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m lineage_assets.stack.jars fetch
	@$(BIN)/python -m lineage_assets.marts.manifest
	@touch $@

demo: setup ## Start the stack, run the shop, print the report, leave the UI on port 3000
	@$(BIN)/lineage demo

quick: setup ## The tests that need no service, and the linters; under a minute
	@$(MAKE) --no-print-directory lint
	@$(BIN)/pytest tests/unit

lint: setup ## ruff, types, import rules
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports --no-cache

test: setup ## All that must pass before a change lands
	@$(MAKE) --no-print-directory lint
	@$(BIN)/pytest tests

torture: setup ## A hundred kills at random points; two hours. LINEAGE_KILLS and LINEAGE_SEED change what is done
	@LINEAGE_KILLS=$${LINEAGE_KILLS:-100} $(BIN)/pytest -s -o timeout=0 tests/integration/test_kills.py

bench: setup ## The figures of a stream on this machine, as they are published; two hours, and nothing else beside it
	@LINEAGE_SPARK_MEMORY=3g $(BIN)/lineage bench stream --seconds 900 --plots docs/bench --json > bench.json

lock: ## Resolve the dependencies and the jars again, with hashes
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --all-extras pyproject.toml --output-file requirements.lock
	@$(BIN)/python -m lineage_assets.stack.jars lock

clean: ## Remove what setup made here; the caches stay
	@rm -rf $(VENV) build dist *.egg-info
