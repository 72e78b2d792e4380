# Two commands do everything on a machine with Python 3.11+, pip and make: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -q -c constraints.txt
# Without it `import fedlit` in the folder above a checkout called fedlit finds the checkout instead of the package.
EDITABLE := --config-settings editable_mode=compat
SPREAD := -n auto --maxprocesses 4 --dist worksteal --durations 30

.PHONY: help run test test-all check lint docs install install-test install-docs bench clean

help: ## list these targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: install ## train FedBC on generated data; repeat it to resume
	$(BIN)/fedlit fit --config synthetic_fedbc.yaml --resume

test: lint ## ruff, mypy and the tests, as many at a time as there are cores (four at most)
	@$(call with_types,$(BIN)/python -m pytest -q -m "not slow" $(SPREAD))

test-all: lint ## also the slow tests
	@$(call with_types,$(BIN)/python -m pytest -q $(SPREAD))

check: lint ## ruff and mypy
	$(BIN)/mypy

lint: install-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

# mypy has one thread: it runs beside the tests and is heard after them. Either fails the target.
define with_types
$(BIN)/mypy > $(VENV)/mypy.txt 2>&1 & types=$$!; \
	echo '$(1)'; $(1); tests=$$?; \
	wait $$types; typed=$$?; echo mypy; cat $(VENV)/mypy.txt; \
	[ $$tests = 0 ] && [ $$typed = 0 ]
endef

docs: install-docs ## the site, from docs/ into build/docs; a warning is an error
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo build/docs/index.html

bench: install ## client steps per second of each engine
	$(BIN)/python -m benchmarks

install: $(VENV)/.installed ## the package, into .venv
install-test: $(VENV)/.installed-test
install-docs: $(VENV)/.installed-docs

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedlit needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)

# torch first and pinned: a CPU build that is at hand is taken, and no second torch is downloaded.
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing torch, then fedlit and what it needs, into $(VENV): some minutes, once"
	$(PIP) torch
	$(PIP) $(EDITABLE) -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) $(EDITABLE) -e '.[test]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP) $(EDITABLE) -e '.[docs]'
	@touch $@

clean: ## remove the environment and caches, keep runs
	rm -rf $(VENV) build docs/made *.egg-info .mypy_cache .ruff_cache .pytest_cache
