# make help says what there is. Everything is installed into .venv; nothing outside this folder is changed.

PYTHON ?= python3
JOBS ?= 2
MODEL ?= demo
TEXT ?= demo
OUT ?= audit
SITE ?= site

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# What is tested at the lowest versions: whatever another package is behind, and the core.
FLOOR_TESTS ?= tests/test_package.py tests/functional/test_attention.py tests/cli/test_runs.py \
  tests/auditing/test_run.py tests/auditing/report tests/comparing tests/io \
  tests/integrations/transformers/test_backend.py tests/integrations/transformers/test_loading.py \
  tests/nn/test_compile.py::test_one_graph_serves_every_length

.PHONY: help audit test lint types bench docs dist dist-check floors clean

help: ## Say what there is
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1	\2/p' Makefile | expand -t 16

audit: .venv/installed-audit ## Audit a model (MODEL=demo) on a text (TEXT=demo) into a folder (OUT=audit)
	$(BIN)/fenchel audit '$(MODEL)' --text '$(TEXT)' --out '$(OUT)' --overwrite

# One thread a job: jobs that each wake all cores wait for one another. Bytecode is kept wherever this runs: tests that
# start Python would compile the package every time.
test: lint types ## Check the style and the types, and run every test (JOBS=2 at a time)
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

lint: .venv/installed-dev ## Check the style
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: .venv/installed-dev ## Check the types
	$(BIN)/basedpyright

bench: .venv/installed-dev ## Measure speed and memory; the results go to benchmarks/results
	$(BIN)/python -m benchmarks

docs: .venv/installed-docs ## Build the documentation site into a folder (SITE=site); it is read without a network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --site-dir "$(abspath $(SITE))"

dist: .venv/installed-dev ## Build wheel and sdist into dist/
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist

dist-check: dist ## Install the wheel and the sdist into empty environments outside of this folder, and audit the demo there
	./.ci/dist-check '$(PYTHON)' dist

# That old packages call what new ones have deprecated is theirs.
floors: .venv-floors/installed ## Run tests at the lowest versions that are let in (floors.txt)
	OMP_NUM_THREADS=1 .venv-floors/bin/python -m pytest -n $(JOBS) --dist worksteal -W ignore::DeprecationWarning $(FLOOR_TESTS)

clean: ## Remove .venv and everything that was computed
	rm -rf .venv .venv-floors audit build dist site .pytest_cache .ruff_cache .hypothesis

# The stamps make a second call install nothing. torch comes first and pinned, so that a build for the processor alone is
# taken where pip has been given one.
.venv/installed-torch: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fenchel needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Give another: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Setting up .venv; the first time takes a few minutes."
	$(PYTHON) -m venv .venv
	$(PIP) torch==2.13.0
	@touch $@

.venv/installed-audit: .venv/installed-torch pyproject.toml
	$(PIP) -e '.[hf,cli,report,demo]'
	@touch $@

.venv/installed-dev: .venv/installed-torch pyproject.toml
	$(PIP) -e '.[dev]'
	@touch .venv/installed-audit .venv/installed-docs $@

.venv/installed-docs: .venv/installed-torch pyproject.toml
	$(PIP) -e '.[docs]'
	@touch .venv/installed-audit $@

.venv-floors/installed: floors.txt pyproject.toml
	$(PYTHON) -m venv .venv-floors
	.venv-floors/bin/python -m pip install --quiet --disable-pip-version-check -c floors.txt -e '.[hf,cli,report,demo]'
	.venv-floors/bin/python -m pip install --quiet --disable-pip-version-check \
	  $$(grep -E '^(pytest|pytest-xdist|hypothesis|pyyaml)==' constraints.txt)
	@touch $@
