# Two commands: `make run` (private training, start to certificate) and `make test` (lint, types, tests).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.installed-run
TEST_STAMP := $(VENV)/.installed-test

.PHONY: run test lint types clean

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "dpjax needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(RUN_STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(TEST_STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@ $(RUN_STAMP)

run: $(RUN_STAMP)
	@$(BIN)/dpjax train --data digits --epsilon 3 --delta 1e-4 --adjacency add-remove --out runs/digits

lint: $(TEST_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(TEST_STAMP)
	$(BIN)/pyrefly check

test: lint types
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations 15

clean:
	rm -rf $(VENV) runs build dist .pytest_cache .ruff_cache .hypothesis
