# Every target sets up what it needs: a .venv in the repository, rebuilt only when what it is made of has changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := CMakeLists.txt $(shell find native -name '*.cpp' -o -name '*.hpp')
CPP := $(shell find native -name '*.cpp' -o -name '*.hpp')
# An editable install knows the modules that were there when it was made: a new file makes it stale too.
BUILT := $(VENV)/.built-$(shell find src -name '*.py' | sort | cksum | cut -d' ' -f1)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: setup demo test test-cuda lint format bench clean

setup: $(BUILT)

$(VENV)/.deps: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) 'scikit-build-core>=1.1' 'nanobind>=3.1' ninja 'cmake>=3.18'
	$(PIP) --no-build-isolation -e '.[dev,bench,examples,tune]'
	touch $@

$(BUILT): $(VENV)/.deps $(NATIVE)
	$(PIP) --no-build-isolation --no-deps -e .
	rm -f $(VENV)/.built-*
	touch $@

demo: setup
	$(BIN)/python -m bench.demo

test: setup
	$(BIN)/python -m pytest

# What needs an accelerator; bench/results/cuda-tests.txt keeps what it said last.
test-cuda: setup
	$(BIN)/python -m tests.cuda

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror $(CPP)

format: setup
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

bench: setup
	$(BIN)/python -m pytest --benchmark-only tests

clean:
	rm -rf $(VENV) build dist
