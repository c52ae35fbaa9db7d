# `make run` trains privately from start to certificate; `make check` is for every change (90 s) and
# `make test` for every commit; `make test-exact` holds the accountant against exact values at length,
# `make test-results` runs experiments and notebooks; `make test-oldest` and `make test-newest` try the
# ends of what is supported in fresh environments, `make package` what a user installs. Everything sets
# itself up.
PYTHON ?= python3
# Pythons that jax 0.7.2 and the lowest versions have wheels for, and the newest that dpjax supports.
OLDEST_PYTHON ?= $(shell .ci/python 3.11 3.12)
NEWEST_PYTHON ?= $(shell .ci/python 3.13 3.12)
VENV := .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.installed-run
TEST_STAMP := $(VENV)/.installed-test
DOCS_STAMP := $(VENV)/.installed-docs
INSTALL := -m pip install --quiet --disable-pip-version-check --editable
PYTEST := -m pytest -n 2 --dist worksteal

# The fast tests: one a package, what each may import, and the style.
QUICK := tests/test_quick.py tests/test_architecture.py tests/test_style.py
# Prices beside integrals, brute force, differences and audits, at length: run by `make test-exact`.
EXACT := tests/exact
# Tests of what is made with the package, run by `make test-results`.
RESULTS := tests/experiments tests/test_notebooks.py
# What both ends of the supported versions must pass; the long comparisons with exact integrals are
# of the mathematics, which no version changes.
ENDS := $(addprefix tests/,accounting exact data erm estimators gradients sampling training transforms) \
  tests/test_quick.py tests/test_public_api.py -k "not test_public_api or README" \
  --ignore-glob="*_soundness.py" \
  $(patsubst %,--ignore=$(EXACT)/test_%.py,certificates exhibited_pairs users users_replaced)

.PHONY: run check test test-exact test-results test-browser test-oldest test-newest package written docs lint types clean

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "dpjax needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(RUN_STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python $(INSTALL) '.[cli]'
	@touch $@

$(TEST_STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python $(INSTALL) '.[test]'
	@touch $@ $(RUN_STAMP)

run: $(RUN_STAMP)
	@$(BIN)/dpjax train --data digits --epsilon 3 --delta 1e-4 --adjacency add-remove --out runs/digits

lint: $(TEST_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(TEST_STAMP)
	$(BIN)/pyrefly check

check: lint types
	$(BIN)/python $(PYTEST) $(QUICK)

test: lint types
	$(BIN)/python $(PYTEST) --durations 15 $(addprefix --ignore=,$(EXACT) $(RESULTS))

# Needed where prices or releases changed.
test-exact: $(TEST_STAMP)
	$(BIN)/python $(PYTEST) --durations 15 $(EXACT)

# What is made with the package: the papers' experiments and the notebooks, each at a small size.
test-results: $(TEST_STAMP)
	$(BIN)/python $(PYTEST) --durations 15 $(RESULTS)

# The HTML report in Qt's Chromium, which the extra `browser` brings (650 MB).
test-browser: $(TEST_STAMP)
	$(BIN)/python $(INSTALL) '.[test,browser]'
	$(BIN)/python -m pytest tests/cli/test_report.py

# In fresh environments: the lowest versions that pyproject.toml declares, and the newest releases.
test-oldest:
	@if [ -z "$(OLDEST_PYTHON)" ]; then echo "SKIPPED test-oldest: needs Python 3.11 or 3.12"; else \
	  $(MAKE) --no-print-directory ends ENV=.venv-oldest FROM="$(OLDEST_PYTHON)" PINS="-c tests/oldest.txt"; fi

test-newest:
	@if [ -z "$(NEWEST_PYTHON)" ]; then echo "SKIPPED test-newest: needs Python 3.13 or 3.12"; else \
	  $(MAKE) --no-print-directory ends ENV=.venv-newest FROM="$(NEWEST_PYTHON)"; fi

.PHONY: ends
ends:
	rm -rf $(ENV)
	"$(FROM)" -m venv $(ENV)
	$(ENV)/bin/python $(INSTALL) '.[test]' $(PINS)
	$(ENV)/bin/python -c 'import sys, jax; print("Python", sys.version.split()[0], "with jax", jax.__version__)'
	$(ENV)/bin/python $(PYTEST) $(ENDS)

# Wheel and sdist, each installed alone in an empty environment, with the quickstart run from an empty
# folder: on every Python that is there, with the newest and (where they have wheels) lowest versions.
package:
	@.ci/package

$(DOCS_STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python $(INSTALL) '.[docs]'
	@touch $@

# The documentation, into build/docs; a warning is an error.
docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --site-dir build/docs

# What files take from one place: links, badges, install cells, the picture and counts of CONTRIBUTING.
written: $(TEST_STAMP)
	$(BIN)/python -m maintenance

clean:
	rm -rf $(VENV) .venv-* runs build dist .pytest_cache .ruff_cache .hypothesis
