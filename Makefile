# Every target sets up what it needs: a .venv in the repository, rebuilt only when what it is made of has changed.
PYTHON ?= python3
JOBS ?= 2
MAKEFLAGS += --jobs=$(JOBS)
VENV := .venv
BIN := $(VENV)/bin
NATIVE := CMakeLists.txt $(shell find native -name '*.cpp' -o -name '*.hpp' -o -name '*.h')
CPP := $(shell find native -name '*.cpp' -o -name '*.hpp')
# An editable install knows the modules that were there when it was made: a new file makes it stale too.
BUILT := $(VENV)/.built-$(shell find src -name '*.py' | sort | cksum | cut -d' ' -f1)
# Python compiles a module when it is imported first. Compiling all that is installed, as pip does, takes longer than
# installing it. Containers forbid Python to keep what it compiles, and each process would compile anew.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
unexport PYTHONDONTWRITEBYTECODE
# MXNet needs a numpy before 1.24, so it has an environment of its own. What `setup` has compiled is the same for both: it
# comes there as a wheel.
MXNET := .venv-mxnet
MXNET_BUILT := $(MXNET)/$(notdir $(BUILT))
MXNET_PIP := $(MXNET)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
WHEEL := build/wheel
# Its wheel for ARM is linked against Arm Performance Libraries and does not bring them. Where they are not installed,
# the functions it takes from them are in scipy's OpenBLAS, too.
MXNET_ARM := ldd libmxnet.so | sed -nE 's/^\s*(lib(armpl_lp64_mp|amath|astring)\.so) => not found/\1/p'

.PHONY: setup demo test test-commands test-torch test-rest test-frameworks test-mxnet test-cuda sanitize fuzz lint \
	format wheel docs environment-page bench clean

setup: $(BUILT)

$(VENV)/.tools: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) 'scikit-build-core>=1.1' 'nanobind>=3.1' ninja 'cmake>=3.18'
	touch $@

EXTRAS := dev,bench,docs,examples,jax,tensorflow,tune
REQUIREMENTS := import sys, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	extras = [project["optional-dependencies"][extra] for extra in sys.argv[1].split(",")]; \
	print(*project["dependencies"], *sum(extras, []), sep="\n")
$(VENV)/.deps: $(VENV)/.tools
	$(BIN)/python -c '$(REQUIREMENTS)' $(EXTRAS) > $(VENV)/requirements.txt
	$(PIP) -r $(VENV)/requirements.txt
	touch $@

# Compiled while the rest is installed: all but the modules for TensorFlow and JAX, which bring the headers for them.
$(VENV)/.engine: $(VENV)/.tools $(NATIVE)
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps -w $(WHEEL) .
	touch $@

$(BUILT): $(VENV)/.deps $(VENV)/.engine
	$(PIP) --no-build-isolation --no-deps -e .
	rm -f $(VENV)/.built-*
	touch $@

demo: setup
	$(BIN)/python -m bench.demo

# Tests run in groups, each in a process of its own, two groups beside each other: most tests compute in one thread, or
# wait. A group's output comes when it has ended; `make test-torch` shows it as it comes. TensorFlow and JAX have a group
# of their own: elsewhere tests watch threads, files and heartbeats, of which they bring their own. Both environments are
# made first, so that no compiler runs beside tests.
COMMANDS := tests/bench tests/cli tests/compat tests/docs tests/doctor tests/examples
TORCH := tests/torch tests/tuning
FRAMEWORKS := tests/jax tests/keras tests/tensorflow
ELSEWHERE := $(COMMANDS) $(TORCH) $(FRAMEWORKS)

test:
	$(MAKE) setup $(MXNET_BUILT)
	$(MAKE) --output-sync=target --keep-going \
		test-commands test-torch test-rest test-frameworks test-mxnet

test-commands: setup
	$(BIN)/python -m pytest $(COMMANDS)

test-torch: setup
	$(BIN)/python -m pytest $(TORCH)

test-rest: setup
	$(BIN)/python -m pytest $(ELSEWHERE:%=--ignore=%)

test-frameworks: setup
	$(BIN)/python -m pytest $(FRAMEWORKS)

test-mxnet: $(MXNET_BUILT)
	$(MXNET)/bin/python -m pytest tests/mxnet

$(MXNET)/.deps: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(MXNET)
	$(MXNET_PIP) --upgrade pip
	$(MXNET_PIP) 'hypothesis>=6.150' 'pytest>=8.4' 'pytest-benchmark>=5.1' 'pytest-timeout>=2.4' 'scikit-learn<1.4' 'scipy<1.12'
	touch $@

$(MXNET_BUILT): $(MXNET)/.deps $(BUILT) $(shell find src -name '*.py')
	rm -rf $(WHEEL)
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps -w $(WHEEL) .
	$(MXNET_PIP) "$$(echo $(WHEEL)/*.whl)[mxnet]"
	$(MXNET_PIP) --no-deps --force-reinstall $(WHEEL)/*.whl
	cd $(MXNET)/lib/python3*/site-packages/mxnet && for missing in $$($(MXNET_ARM)); do \
		ln -sf ../scipy.libs/libopenblas*.so $$missing; done
	rm -f $(MXNET)/.built-*
	touch $@

# What needs an accelerator; bench/results/cuda-tests.txt keeps what it said last.
test-cuda: setup
	$(BIN)/python -m tests.cuda

# The engine and the kernels with the compiler's checks of memory, behaviour and threads: -fsanitize, a build of its own.
# Not in it: a test whose allocation must fail, one that measures what the allocator keeps, and forks, in which the
# sanitizers' own locks stay locked. The thread sanitizer leaves out the kernels, which have no threads, and the longest
# sums. It sees one process only: of shared memory, the rings whose two ends are threads of the test.
SANITIZE := build/sanitize
SANITIZED = $(BIN)/python -S -m pytest -q -p no:cacheprovider \
	--deselect tests/engine/test_faults.py::test_an_exception_on_an_io_thread_is_a_failure_that_everybody_hears_of \
	--deselect tests/engine/test_lifetime.py::test_thousands_of_steps_do_not_grow --ignore tests/engine/test_forks.py
# The interpreter is not built with a sanitizer, so its runtime is loaded first, and C++'s, whose exceptions it watches.
# Without `site` (-S) the editable install stays out of the way of the sanitized one.
SANITIZED_ENV = LD_PRELOAD="$$(g++ -print-file-name=lib$(1).so) $$(g++ -print-file-name=libstdc++.so)" \
	PYTHONPATH=$(SANITIZE)/$(2)/site:$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

sanitize: $(SANITIZE)/address/.built $(SANITIZE)/thread/.built
	$(call SANITIZED_ENV,asan,address) ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
		$(SANITIZED) tests/engine tests/native
	$(call SANITIZED_ENV,tsan,thread) TSAN_OPTIONS=halt_on_error=1 \
		$(SANITIZED) tests/engine -k 'not 1000003'

# Every parser on inputs that chance has changed, so many seconds each, with the same build: SECONDS=600 make fuzz
SECONDS ?= 60
fuzz: $(SANITIZE)/address/.built
	$(call SANITIZED_ENV,asan,address) ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
		$(BIN)/python -S -m bench.fuzz --seconds $(SECONDS)

$(SANITIZE)/address/.built: SANITIZERS := address,undefined
$(SANITIZE)/thread/.built: SANITIZERS := thread
$(SANITIZE)/%/.built: $(BUILT) $(NATIVE)
	$(PIP) --no-build-isolation --no-deps --upgrade --target $(@D)/site -C build-dir=$(@D)/cmake \
		-C cmake.build-type=RelWithDebInfo -C cmake.define.LEGATO_SANITIZE=$(SANITIZERS) .
	touch $@

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

# A wheel and an sdist in dist/. The wheel is built from the sdist, which so is complete; then tests/wheel.py installs it
# into a fresh environment without a compiler, where two workers train.
UNPACKED := build/sdist
wheel: setup
	rm -rf dist $(UNPACKED)
	mkdir -p $(UNPACKED)
	$(BIN)/python -c "from scikit_build_core.build import build_sdist; build_sdist('dist')"
	tar -xzf dist/legato-*.tar.gz -C $(UNPACKED)
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps -w dist \
		$(UNPACKED)/legato-*
	$(BIN)/python -m tests.wheel dist/legato-*.whl

# The pages of docs/ and the interfaces as HTML: open build/docs/index.html. Warnings are errors.
docs: setup
	$(BIN)/python -m sphinx -q -W --keep-going -d build/doctrees docs build/docs

# docs/environment.md is made from the model of settings; tests/test_settings.py compares the two.
environment-page: setup
	$(BIN)/legato config page > build/environment.md
	mv build/environment.md docs/environment.md

bench: setup
	$(BIN)/python -m pytest --benchmark-only tests

clean:
	rm -rf $(VENV) $(MXNET) build dist
