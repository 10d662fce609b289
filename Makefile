# make demo and make test set up everything they need in .venv; nothing has to be installed first but Python ≥ 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := $(VENV)/.demo
STAMP := $(VENV)/.installed
EXTRAS := .venv-integrations
MINIMUM := .venv-minimum
# What the tests and the docs need of the extras.
FEATURES := data,reports
# The oldest Python that pyproject.toml allows; old releases of numpy have no wheels for a new one.
OLDEST ?= $(shell sed -n 's/^requires-python = ">=\(.*\)"/python\1/p' pyproject.toml)

.DEFAULT_GOAL := help
.PHONY: help demo test test-all coverage test-minimum test-integrations coverage-integrations lint format docs docs-figures study golden bench bench-native bench-distributed bench-scale reproduce build clean

help:  ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 24

# python3 -m venv fails on systems without ensurepip; say what to install.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV) || { echo "install the venv module of Python (Debian: apt install python3-venv)"; exit 1; }

# The demo needs little, and Python compiles what it imports: installing all of it compiled takes twice as long.
$(DEMO): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --editable '.[plots]'
	@touch $(DEMO)

$(STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[$(FEATURES)]' --group dev
	@touch $(DEMO) $(STAMP)

demo: $(DEMO)  ## solve on embedded data, print the certificate, predicted and observed rate
	@mkdir -p results
	$(BIN)/stepsize-opt demo --figure results/demo.png

test: $(STAMP)  ## run the fast tests
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

test-all: test  ## run the fast tests, then the slow ones
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

# Both tiers in one measurement; pyproject.toml has the floor below which it fails.
coverage: $(STAMP)  ## run all tests and measure which lines they reach
	$(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term:skip-covered

# The constraints are the requirements of pyproject.toml with == in place of >=, so the two cannot differ.
$(MINIMUM)/.installed: pyproject.toml Makefile
	$(OLDEST) -m venv $(MINIMUM) || { echo "install $(OLDEST) with its venv module, or call make OLDEST=/path/to/it"; exit 1; }
	grep -oE '"[a-z0-9-]+>=[0-9.]+' pyproject.toml | sed 's/"//; s/>=/==/' > $(MINIMUM)/constraints.txt
	$(MINIMUM)/bin/python -m pip install --quiet --upgrade pip
	$(MINIMUM)/bin/python -m pip install --quiet --editable '.[$(FEATURES)]' --group test --group docs --constraint $(MINIMUM)/constraints.txt
	@touch $@

test-minimum: $(MINIMUM)/.installed  ## run the same tests with the oldest releases that pyproject.toml allows
	$(MINIMUM)/bin/python -m pytest -n 2

# PyTorch and Flower in the versions that the tests were written with; torch==2.13.0 where a CPU build of it is at hand.
# MOSEK is not in .venv: cvxpy's problem.solve() prefers it when it is installed, and fails where it has no licence.
$(EXTRAS)/.installed: pyproject.toml Makefile
	$(PYTHON) -m venv $(EXTRAS) || { echo "install the venv module of Python (Debian: apt install python3-venv)"; exit 1; }
	$(EXTRAS)/bin/python -m pip install --quiet --upgrade pip
	$(EXTRAS)/bin/python -m pip install --quiet --editable '.[torch,flower,mosek,$(FEATURES)]' --group test torch==2.13.0 'flwr[simulation]==1.41.0' 'mypy>=1.10'
	@touch $@

test-integrations: $(EXTRAS)/.installed  ## run the tests of the extras torch, flower and mosek, with real processes
	$(EXTRAS)/bin/mypy
	$(EXTRAS)/bin/python -m pytest tests/integrations

# The omissions of pyproject.toml are for make coverage; processes that the tests start are not measured.
coverage-integrations: $(EXTRAS)/.installed  ## the same tests, with the lines of torch and Flower that they reach
	$(EXTRAS)/bin/mypy
	$(EXTRAS)/bin/python -m pytest --cov-config=/dev/null --cov-branch --cov=stepsize_opt/torch --cov=stepsize_opt/flower \
		--cov-report=term:skip-covered --cov-fail-under=85 tests/integrations

lint: $(STAMP)  ## ruff, mypy strict, basedpyright, layers of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-cache --no-logo

format: $(STAMP)  ## rewrite the code in its style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

study: $(STAMP)  ## check random problems in exact arithmetic (slow; COUNT=100000 for more, SEED=1 to repeat)
	HYPOTHESIS_PROFILE=study STUDY_COUNT=$(or $(COUNT),30000) OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal \
		--hypothesis-show-statistics $(if $(SEED),--hypothesis-seed=$(SEED)) tests/properties

golden: $(STAMP)  ## compare the answers to stored problems with those stored
	OPENBLAS_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m golden.golden

bench: $(STAMP)  ## compare the solvers at equal certified gap (at most 30 minutes)
	$(BIN)/stepsize-opt bench

reproduce: $(STAMP)  ## the paper's experiments with the optimal D beside them (at most 60 minutes)
	$(BIN)/stepsize-opt reproduce all

SPEED := OPENBLAS_NUM_THREADS=1 PYTHONPATH=validation $(BIN)/python -m benchmarks

bench-distributed: $(STAMP)  ## measure the distributed conditions on real data (slow)
	$(SPEED).distributed

bench-scale: $(STAMP)  ## measure large models, d = 10³ … 10⁶ (slow)
	$(SPEED).scale

bench-native: $(STAMP)  ## measure the native solver and the default call against their targets (slow)
	$(SPEED).native

docs: $(STAMP)  ## build the documentation in site/, warnings are errors
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet docs site

docs-figures: $(STAMP)  ## write all tables and figures of the docs from stored results
	$(BIN)/python docs/fill.py

build: $(STAMP)  ## wheel and sdist in dist/
	$(BIN)/python -m build

clean:  ## remove the environment and what tools leave behind
	rm -rf $(VENV) $(EXTRAS) $(MINIMUM) build dist site jupyter_execute *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
