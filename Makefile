# `make demo` and `make test` are all a newcomer needs: each makes .venv first where it is missing or out of date.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules
SHELL := /bin/sh

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# PYTHON=/path/to/python picks another one.
PYTHON ?=
CANDIDATES := python3 python3.14 python3.13 python3.12 python3.11

SAMPLE := traces/vllm_cpu_mixed_60steps.json.gz
DEMO_OUT := demo_out
DEMO := split $(SAMPLE) --CONC 8 --OSL 128 --R 0.5 -o $(DEMO_OUT) --force

# Options for pytest, e.g. `make test PYTEST_ARGS="-m 'not slow' -x"`.
PYTEST_ARGS ?=
# Options for the benchmarks, e.g. `make bench BENCH_ARGS=--help`.
BENCH_ARGS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

.PHONY: help demo test lint types layers pytest bench format clean

help: ## show this list
	@echo "usage: make TARGET"
	@echo
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/  \1|\2/p' Makefile | while IFS='|' read -r target text; do \
		printf '%-10s %s\n' "  $$target" "$$text"; done
	@echo
	@echo "Python: the first of [$(CANDIDATES)] that is 3.11 or newer; PYTHON=... picks one."

demo: $(STAMP) ## install, then find the steady state in a sample trace: see demo_out/
	$(BIN)/tracelens $(DEMO)
	@echo
	@echo "Made by:  tracelens $(DEMO)"
	@echo
	@ls -l $(DEMO_OUT) | sed '1d; s/^/  /'
	@echo
	@echo "Look at:"
	@echo "  $(DEMO_OUT)/split.json    what was found, how sure it is, and every note"
	@echo "  $(DEMO_OUT)/steps.csv     one row a step: kind, requests, tokens, times (steps.parquet holds the same)"
	@echo "  $(DEMO_OUT)/*.json.gz     the windows as small traces: open them at https://ui.perfetto.dev"
	@echo "Next:     $(BIN)/tracelens info $(SAMPLE)"

test: lint types layers pytest ## install, then lint, types, layer contract and tests

lint: $(STAMP) ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## mypy, strict
	$(BIN)/mypy --strict

layers: $(STAMP) ## import-linter: imports go one way
	$(BIN)/lint-imports

pytest: $(STAMP) ## the tests alone
	$(BIN)/python -m pytest $(PYTEST_ARGS)

bench: $(STAMP) ## run the benchmarks and print a table
	$(BIN)/python -m tests.benchmarks $(BENCH_ARGS)

format: $(STAMP) ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove .venv, demo_out and every cache
	rm -rf $(VENV) $(DEMO_OUT) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last, so that an installation that was broken off is done again. Constraints are given by the
# environment, too: only so do they reach the separate environment in which pip builds the package.
$(STAMP): pyproject.toml constraints.txt
	@python=''; \
	for candidate in $(if $(PYTHON),"$(PYTHON)",$(CANDIDATES)); do \
		if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
			python=$$candidate; break; \
		fi; \
	done; \
	if [ -z "$$python" ]; then \
		echo "tracelens-infer needs Python 3.11 or newer." >&2; \
		echo "$(if $(PYTHON),$(PYTHON) is older or cannot be run.,Of [$(CANDIDATES)] none is; python3 says: $$(python3 --version 2>&1 || true))" >&2; \
		echo "Install one (Debian and Ubuntu: apt install python3 python3-venv), or run make PYTHON=/path/to/python3.11." >&2; \
		exit 1; \
	fi; \
	echo "making $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv --clear $(VENV) || { \
		echo "The virtual environment could not be made with $$python." >&2; \
		echo "On Debian and Ubuntu the module venv is a package of its own: apt install python3-venv." >&2; \
		exit 1; \
	}
	@echo "installing tracelens-infer and its tools into $(VENV)"
	@PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
		$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $(STAMP)
