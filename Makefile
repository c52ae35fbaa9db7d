# `make help` says what each target is for. Everything sets itself up.
# Tests start many processes, each of which would compile the package's modules anew.
unexport PYTHONDONTWRITEBYTECODE
PYTHON ?= python3
# Pythons that jax 0.7.2 and the lowest versions have wheels for, and the newest that dpjax supports.
OLDEST_PYTHON ?= $(shell .ci/python 3.11 3.12)
NEWEST_PYTHON ?= $(shell .ci/python 3.13 3.12)
VENV := .venv
BIN := $(VENV)/bin
# What every target installs: one version of each library, for Python 3.11 to 3.13 (`make lock`).
LOCK := constraints.txt
BACKEND_STAMP := $(VENV)/.installed-backend
RUN_STAMP := $(VENV)/.installed-run
TEST_STAMP := $(VENV)/.installed-test
DOCS_STAMP := $(VENV)/.installed-docs
PIP := -m pip install --no-compile --quiet --disable-pip-version-check
LOCKED := -c $(LOCK)
# What builds dpjax (and what hatchling asks for where it builds editably) comes first, in the lock's
# versions: the environment that pip would make for a build takes the newest of its own accord.
BACKEND := hatchling editables
INSTALL := $(PIP) --no-build-isolation --editable
PYTEST := -m pytest -n 2 --dist worksteal

# What each file may import, and the style; run by `make check` alone.
STYLE := tests/test_architecture.py tests/test_style.py
# The fast tests: one a package, and the style.
QUICK := tests/test_quick.py $(STYLE)
# Left to `make test-exact`: prices beside integrals, brute force and audits, large products of cases,
# every example of the documentation. Left to `make test-processes`: what starts processes.
SHORT := -m "not exact and not processes"
# Tests of what is made with the package, run by `make test-results`.
RESULTS := tests/experiments tests/test_notebooks.py
# What the lowest versions must pass: what reads records or compiles, and of the accountant its prices
# beside the frozen ones, its traces and its files; what its mathematics says no version changes.
PRICES := calibration certificate exported frozen_answers mechanisms methods pricing same_answer \
  serialization traced_inputs verification
OLDEST := $(addprefix tests/,_numerics data erm estimators gradients sampling training transforms) \
  $(PRICES:%=tests/accounting/test_%.py) \
  tests/test_quick.py tests/test_public_api.py -k "not test_public_api or README" -m "not exact"
# What the newest Python must pass: `make test` has the newest libraries already, so that here is what
# Python itself may change, and every example of the documentation.
NEWEST := $(addprefix tests/,_numerics cli data) tests/test_quick.py tests/test_public_api.py \
  -m "not exact or examples"

define HELP
make run      train privately on the digits, from start to certificate (a minute)
make test     the tests of the package, with no linter: for every commit (6 min)
make check    style, types, counts and the fast tests: for every change (90 s)

For maintainers:
make test-processes  commands, kills and meshes in processes of their own
make test-exact      prices beside exact values, brute force and audits, all cases, at length
make test-results    the papers' experiments and the notebooks, each at a small size
make test-oldest     the lowest supported versions, in a fresh environment
make test-newest     the newest Python and releases, in a fresh environment
make lock            write constraints.txt, the versions of all targets above but the last two, anew
make test-browser    the HTML report in a browser (650 MB)
make package         wheel and sdist as a user installs them
make docs            the documentation, into build/docs
make written         what files take from one place: links, badges, pictures, counts
make clean           remove environments, runs and caches
endef
export HELP

.PHONY: help run check test test-processes test-exact test-results test-browser test-oldest test-newest package written docs lint types house lock clean

.DEFAULT_GOAL := help
help:
	@echo "$$HELP"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "dpjax needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(BACKEND_STAMP): $(LOCK) | $(BIN)/python
	$(BIN)/python $(PIP) $(BACKEND) $(LOCKED)
	@touch $@

$(RUN_STAMP): pyproject.toml $(LOCK) | $(BACKEND_STAMP)
	$(BIN)/python $(INSTALL) '.[cli]' $(LOCKED)
	@touch $@

$(TEST_STAMP): pyproject.toml $(LOCK) | $(BACKEND_STAMP)
	$(BIN)/python $(INSTALL) '.[test,lint]' $(LOCKED)
	@touch $@ $(RUN_STAMP)

run: $(RUN_STAMP)
	@$(BIN)/dpjax train --data digits --epsilon 3 --delta 1e-4 --adjacency add-remove --out runs/digits

lint: $(TEST_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(TEST_STAMP)
	$(BIN)/pyrefly check

# What makes the package hard to read, counted, against bars (maintenance/house.py).
house: $(TEST_STAMP)
	$(BIN)/python -m maintenance house

check: lint types house
	$(BIN)/python $(PYTEST) $(SHORT) $(QUICK)

test: $(TEST_STAMP)
	$(BIN)/python $(PYTEST) --durations 15 $(SHORT) $(addprefix --ignore=,tests/exact $(RESULTS) $(STYLE))

# Needed where commands, the ledger, checkpoints or imports changed.
test-processes: $(TEST_STAMP)
	$(BIN)/python $(PYTEST) --durations 15 -m processes $(addprefix --ignore=,tests/exact $(RESULTS))

# Needed where prices or releases changed.
test-exact: $(TEST_STAMP)
	$(BIN)/python $(PYTEST) --durations 15 -m exact $(addprefix --ignore=,$(RESULTS))

# What is made with the package: the papers' experiments and the notebooks, each at a small size.
test-results: $(TEST_STAMP)
	$(BIN)/python $(PYTEST) --durations 15 $(RESULTS)

# The HTML report in Qt's Chromium, which the extra `browser` brings (650 MB).
test-browser: $(TEST_STAMP)
	$(BIN)/python $(INSTALL) '.[test,browser]' $(LOCKED)
	$(BIN)/python -m pytest tests/cli/test_report.py

# In fresh environments: the lowest versions that pyproject.toml declares, and the newest releases, of
# which any may warn.
test-oldest test-newest: export DPJAX_STRICT_WARNINGS := 0
test-oldest:
	@if [ -z "$(OLDEST_PYTHON)" ]; then echo "SKIPPED test-oldest: needs Python 3.11 or 3.12"; else \
	  $(MAKE) --no-print-directory ends ENV=.venv-oldest FROM="$(OLDEST_PYTHON)" PINS="-c tests/oldest.txt" TESTS=OLDEST; fi

test-newest:
	@if [ -z "$(NEWEST_PYTHON)" ]; then echo "SKIPPED test-newest: needs Python 3.13 or 3.12"; else \
	  $(MAKE) --no-print-directory ends ENV=.venv-newest FROM="$(NEWEST_PYTHON)" TESTS=NEWEST; fi

.PHONY: ends
ends:
	rm -rf $(ENV)
	"$(FROM)" -m venv $(ENV)
	$(ENV)/bin/python $(PIP) $(BACKEND) $(LOCKED)
	$(ENV)/bin/python $(INSTALL) '.[test]' $(PINS) --upgrade --upgrade-strategy eager
	$(ENV)/bin/python -c 'import sys, jax; print("Python", sys.version.split()[0], "with jax", jax.__version__)'
	$(ENV)/bin/python $(PYTEST) $($(TESTS))

# Wheel and sdist, each installed alone in an empty environment, with the quickstart run from an empty
# folder: on every Python that is there, with the newest and (where they have wheels) lowest versions.
package:
	@.ci/package

$(DOCS_STAMP): pyproject.toml $(LOCK) | $(BACKEND_STAMP)
	$(BIN)/python $(INSTALL) '.[docs]' $(LOCKED)
	@touch $@

# The documentation, into build/docs; a warning is an error.
docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --site-dir build/docs

# What files take from one place: links, badges, install cells, the picture and counts of CONTRIBUTING.
written: $(TEST_STAMP)
	$(BIN)/python -m maintenance

# The newest versions that agree, for all Pythons at once; addresses of indexes and paths stay out.
LOCK_STAMP := .venv-lock/.installed-uv
$(LOCK_STAMP):
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet --disable-pip-version-check uv
	@touch $@

lock: $(LOCK_STAMP)
	printf '%s\n' $(BACKEND) | UV_CUSTOM_COMPILE_COMMAND="make lock" \
	  .venv-lock/bin/python -m uv pip compile --quiet --upgrade --universal --python-version 3.11 \
	  --no-annotate --extra test --extra lint --extra browser --output-file $(LOCK) pyproject.toml -

clean:
	rm -rf $(VENV) .venv-* runs build dist .pytest_cache .ruff_cache .hypothesis
