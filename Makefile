# `make demo` and `make test` need Python 3.11 or 3.12 with pip, and nothing else.

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
BIN := $(VENV)/bin

# What mypy checks strictly: the public surface, and the data types between the stages.
TYPED := src/quickfuse/__init__.py src/quickfuse/compile.py src/quickfuse/compiled.py src/quickfuse/settings.py \
         src/quickfuse/config.py src/quickfuse/errors.py src/quickfuse/logs.py src/quickfuse/cli.py \
         src/quickfuse/doctor.py src/quickfuse/bench src/quickfuse/export src/quickfuse/ir benchmarks/update_readme.py

.PHONY: help demo test conformance lint results clean

help:
	@echo "make demo     install into $(VENV) and compare eager, torch.compile and quickfuse on this machine"
	@echo "make test     install into $(VENV) and run lint, types, import contract and tests"
	@echo "make conformance  compare all of PyTorch's operators with eager mode (about an hour; it goes on where it stopped)"
	@echo "make lint     only lint, types and import contract"
	@echo "make results  measure the CPU benchmarks again; update the tables and the plot in README.md"
	@echo "make clean    remove $(VENV) and caches"

demo: $(VENV)/installed-bench
	$(BIN)/quickfuse bench optimizer

test: lint
	$(BIN)/python -m pytest -n $(WORKERS)

# Results so far are in build/conformance; `make conformance CONFORMANCE=--fresh` forgets them. Tables: benchmarks/results.
conformance: $(VENV)/installed-test
	$(BIN)/python tests/conformance/run.py $(CONFORMANCE)
	$(BIN)/python tests/conformance/run.py --gradients $(CONFORMANCE)

lint: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/mypy $(TYPED)
	$(BIN)/lint-imports

results: $(VENV)/installed-bench
	PATH="$(abspath $(BIN)):$$PATH" bash benchmarks/cpu.sh
	$(BIN)/python benchmarks/update_readme.py

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info < (3, 13) else \
	  "quickfuse needs Python 3.11 or 3.12; $(PYTHON) is %d.%d. Try: make PYTHON=python3.12 ..." % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)

# Stamps: a second `make` installs nothing, unless pyproject.toml changed.
$(VENV)/installed-bench: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable ".[bench]"
	@touch $@

$(VENV)/installed-test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable ".[bench,test]"
	@touch $@ $(VENV)/installed-bench
