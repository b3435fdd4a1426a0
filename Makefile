# Everything a developer types. The environment in .venv is made on the first call, and made anew when it is outdated.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DOCS := .venv-docs
CONSTRAINTS := $(wildcard constraints.txt)
INSTALL = $(BIN)/python -m pip install -qq $(CONSTRAINTS:%=-c %)
# The strict editable install links single files, so it is made anew when a product file comes, goes or is renamed.
FILES := $(shell find states drivers engine -name '*.py' -o -name py.typed -o -name '*.html' -o -name '*.css' -o -name '*.js' | LC_ALL=C sort | cksum | cut -d' ' -f1)
INSTALLED := $(VENV)/installed-$(FILES)
# Two tests at a time, one thread each: sums are added in one order, and two cores aren't fought over. 0: one at a time.
WORKERS ?= 2
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help demo test test-all check bench docs clean

help: ## say this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(INSTALLED) ## train, kill the training, go on, and see that nothing was lost: about a minute
	@$(BIN)/python examples/demo.py

test: $(INSTALLED) ## all tests but the long sweeps
	@$(PYTEST) -n $(WORKERS) -m "not sweep"

test-all: $(INSTALLED) ## all tests
	@$(PYTEST) -n $(WORKERS)

check: $(INSTALLED) ## ruff, mypy, and the rules of the house
	@$(BIN)/ruff check --quiet --output-format concise .
	@$(BIN)/mypy --no-error-summary -p tachograph.states -p tachograph.drivers -p tachograph.engine
	@$(PYTEST) tests/test_house.py

bench: $(INSTALLED) ## measure every budget, and write the tables and the plot of it: BENCH="--only growth" for a part
	@$(BIN)/python benchmarks/table.py $(BENCH)

docs: $(DOCS)/installed ## build the documentation: site/index.html, which needs no network
	@$(DOCS)/bin/zensical build --strict
	@cp $(DOCS)/mermaid/sphinx_immaterial/bundles/mermaid/mermaid.min.js site/assets/javascripts/

clean: ## remove the environments, and all that was built or cached
	rm -rf $(VENV) $(DOCS) .cache site build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -r {} +

$(INSTALLED): pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	@echo "Installing into $(VENV) ..."
	@rm -f $(VENV)/installed-*
	@if [ -d build ]; then find -L build -type l -exec rm {} +; fi # links to files that are gone
	@$(INSTALL) -e '.[metrics,dev]' --config-settings editable_mode=strict
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("Tachograph needs Python 3.10 or newer, but \
	$(PYTHON) is " + sys.version.split()[0] + ": say for example make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv $(VENV)

# Groups of dependencies need pip 25.1. PyPI has Mermaid itself in this one wheel, which is installed for that file only.
$(DOCS)/installed: pyproject.toml
	@echo "Installing into $(DOCS) ..."
	@$(PYTHON) -m venv --clear $(DOCS)
	@$(DOCS)/bin/python -m pip install -qq --upgrade 'pip>=25.1'
	@$(DOCS)/bin/python -m pip install -qq --group docs
	@$(DOCS)/bin/python -m pip install -qq --no-deps --target $(DOCS)/mermaid --group mermaid
	@touch $@
