# `make demo` and `make test` need Python 3.11 to 3.14 with pip, and nothing else. They install the versions in constraints.txt.

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
DEVICE ?= cpu
BIN := $(VENV)/bin

# What mypy checks strictly: the public surface, the data types between the stages, and what verifies.
TYPED := src/quickfuse/__init__.py src/quickfuse/compile.py src/quickfuse/pipeline/compiled.py src/quickfuse/pipeline/compiling.py src/quickfuse/pipeline/callables.py \
         src/quickfuse/pipeline/reporting.py src/quickfuse/settings.py \
         src/quickfuse/config.py src/quickfuse/errors.py src/quickfuse/logs.py src/quickfuse/cli.py src/quickfuse/cli_options.py \
         src/quickfuse/doctor.py src/quickfuse/support.py src/quickfuse/unsupported.py src/quickfuse/bench src/quickfuse/ir src/quickfuse/bytecode \
         src/quickfuse/export src/quickfuse/verify benchmarks/update_readme.py

ZOO_VENV ?= .venv-zoo
TOOLS_VENV ?= .venv-export-tools
MUTATIONS ?= 20000
ZOO ?=
ONLY ?=
TORCH ?=
TESTS ?=

.PHONY: help demo test run-tests test-all package conformance zoo export-zoo export-tools export-long lint results clean

help:
	@echo "make demo     install into $(VENV) and compare eager, torch.compile and quickfuse on this machine"
	@echo "make test     install into $(VENV) and run lint, types, import contract and tests"
	@echo "make test-all run the tests on each Python that is found with the newest PyTorch, on the oldest also with the oldest"
	@echo "make package  build the wheel and the source archive, install each into an empty environment, and try it"
	@echo "make conformance  compare all of PyTorch's operators with eager mode (about an hour; it goes on where it stopped; DEVICE=cuda)"
	@echo "make zoo      compare models of other libraries with eager mode (hours; ZOO='--shard 1/4' and so on)"
	@echo "make export-zoo  export models of other libraries, and compare them in processes without these (half an hour)"
	@echo "make export-tools  run exported models in ONNX Runtime, ExecuTorch and AOTInductor (minutes, after 2 GB of packages)"
	@echo "make export-long  load 20,000 changed files of exported programs, and compile all programs of the calls' matrix"
	@echo "make lint     only lint, types and import contract"
	@echo "make results  measure the CPU benchmarks again; update the tables and the plot in README.md"
	@echo "make clean    remove $(VENV) and caches"

demo: $(VENV)/installed-bench
	$(BIN)/quickfuse bench optimizer

# Lint beside the tests: it takes one core a minute, which would leave the others without work.
test: $(VENV)/installed-test
	@$(MAKE) --no-print-directory --jobs 2 lint run-tests

# With bytecode on disk, also where that is turned off: the tests start many interpreters, which take half the time with it.
# Each worker has a part of the files, so that few libraries are imported in all, and takes over what others have left.
run-tests: $(VENV)/installed-test
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# It goes on where it stopped. `make test-all ONLY="3.13 3.14" TORCH=2.15` chooses; TESTS="-n 2 tests/language" is for pytest,
# TESTS=--fresh forgets the outcomes so far. The table is benchmarks/results/versions.md.
test-all:
	$(PYTHON) tests/all_versions.py $(addprefix --only=,$(ONLY)) $(addprefix --torch=,$(TORCH)) $(TESTS)

package: $(VENV)/installed-test
	$(BIN)/python -m pip install --quiet build twine
	$(BIN)/python tests/package.py

# Results so far are in build/conformance; `make conformance CONFORMANCE=--fresh` forgets them. Tables: benchmarks/results.
conformance: $(VENV)/installed-test
	$(BIN)/python tests/conformance/run.py --device $(DEVICE) $(CONFORMANCE)
	$(BIN)/python tests/conformance/run.py --device $(DEVICE) --gradients $(CONFORMANCE)

# In an environment of its own, since the libraries bring many others. Results so far are in build/zoo; the table is
# benchmarks/results/zoo.md. `make zoo ZOO="--libraries timm --only resnet18"` runs single models again.
zoo: $(ZOO_VENV)/installed
	$(ZOO_VENV)/bin/python tests/zoo/run.py $(ZOO)
	$(ZOO_VENV)/bin/python -m pytest -q tests/zoo

# Results so far are in build/export-zoo; the table is benchmarks/results/export-zoo.md.
export-zoo: $(ZOO_VENV)/installed
	$(ZOO_VENV)/bin/python tests/export/run_zoo.py $(ZOO)

# In an environment of its own, since the tools bring many other packages.
export-tools: $(TOOLS_VENV)/installed
	EXPORT_LONG=1 $(TOOLS_VENV)/bin/python -m pytest tests/export/test_torch_program.py

export-long: $(VENV)/installed-test
	MUTATIONS=$(MUTATIONS) EXPORT_LONG=1 $(BIN)/python -m pytest -n $(WORKERS) -k "changed_ or compiled_code" \
	  tests/export/test_hostile_files.py tests/export/test_changed_calls.py

lint: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/mypy $(TYPED)
	$(BIN)/lint-imports

results: $(VENV)/installed-bench
	PATH="$(abspath $(BIN)):$$PATH" bash benchmarks/cpu.sh
	$(BIN)/python benchmarks/update_readme.py

clean:
	rm -rf build/cache $(VENV) $(ZOO_VENV) $(TOOLS_VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info < (3, 15) else \
	  "quickfuse needs Python 3.11 to 3.14; $(PYTHON) is %d.%d. Try: make PYTHON=python3.13 ..." % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "pip>=26.3"  # Python 3.11 brings one that takes three times as long to resolve

# Stamps: a second `make` installs nothing, unless pyproject.toml or constraints.txt changed.
$(VENV)/installed-bench: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[bench]"
	@touch $@

# Without bytecode, which takes a minute for all that is installed: what is imported writes its own.
$(VENV)/installed-test: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[bench,test]"
	@touch $@ $(VENV)/installed-bench

$(ZOO_VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(ZOO_VENV)
	$(ZOO_VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[zoo]"
	@touch $@

$(TOOLS_VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(TOOLS_VENV)
	$(TOOLS_VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[export-tools]"
	@touch $@
