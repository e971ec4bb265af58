# Two commands: `make demo` shows what simcoll does, `make test` checks that it does it right.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
BENCH  ?= full
# These take half of the time of all tests.
HALF   := tests/accuracy tests/engine tests/prediction tests/report

.PHONY: help demo test thorough half-of-rooms other-rooms ranks versions pages docs browser lint types lines bench accuracy install clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.core  ## simulate a scenario; plots and rows go to demo/
	$(BIN)/simcoll run scenarios/quickstart.yaml -o demo
	@echo "Plots: $(CURDIR)/demo/plots   Rows: $(CURDIR)/demo/results.csv"

ifdef ROOM
test: $(VENV)/.dev
	$(BIN)/pytest -n 2 --dist loadfile -m "not long" tests/$(ROOM)
else
test: $(VENV)/.dev lint types  ## lint, types and tests; ROOM=engine: the tests of one room
	$(MAKE) -j2 half-of-rooms other-rooms
endif

thorough: $(VENV)/.dev  ## tests that take more than about two CPU seconds each, which CI runs after `make test`
	$(MAKE) -j2 half-of-rooms other-rooms KIND=thorough

# Of all rooms each of two processes has its own: workers of pytest-xdist would each collect all tests, and send every
# result of thousands.
KIND := not thorough
half-of-rooms other-rooms:
	$(BIN)/pytest -q -m "not long and not ranks and $(KIND)" $(if $(filter half%,$@),$(HALF),$(HALF:%=--ignore=%))

ranks: $(VENV)/.dev  ## tests whose ranks each import torch, which takes most of their time
	$(BIN)/pytest -m "ranks and not long"

pages: $(VENV)/.dev  ## make tables and printed examples of the pages and the README anew; look at the difference
	$(BIN)/python docs/generated.py
	$(BIN)/pytest -q tests/house/test_docs.py tests/house/test_readme.py --update-golden

versions:  ## tests of some rooms on other releases of Python, and on the oldest libraries
	PYTHON=$(PYTHON) .ci/versions

docs: $(VENV)/.docs  ## write the tables of the pages, and build the pages into docs/_build/html; warnings are errors
	$(BIN)/python docs/generated.py
	$(BIN)/python -m sphinx -E -W --keep-going -q -b html docs docs/_build/html
	@echo "Pages: $(CURDIR)/docs/_build/html/index.html"

browser: $(VENV)/.dev  ## what tests in a browser need: Debian's chromium (as root), and what drives it
	command -v chromium > /dev/null || { apt-get -qq update && \
	  DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=3 install -y --no-install-recommends chromium > /dev/null; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[browser]" -c constraints-ci.txt

lint: $(VENV)/.dev  ## ruff and the order of the rooms
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(VENV)/.dev  ## mypy, strict
	$(BIN)/mypy

lines:  ## lines and modules of each room and in all; BASE=main: and the difference to a commit
	@$(PYTHON) tools/lines.py $(BASE)

bench: $(VENV)/.dev  ## how fast simcoll is on this machine; BENCH=quick: the short form
	$(BIN)/python -m benchmarks $(BENCH)

accuracy: $(VENV)/.dev  ## score the shipped measured tables; TABLES=DIR: and those of clusters
	$(BIN)/simcoll validate --folder validation/accuracy
	$(if $(TABLES),$(BIN)/python tools/board.py $(TABLES))

install: $(VENV)/.core  ## install simcoll into .venv

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("simcoll needs Python 3.11 or newer; set PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV) || ($(PYTHON) -m pip install --user virtualenv && $(PYTHON) -m virtualenv $(VENV))

$(VENV)/.core: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

# torch is pinned for the tests where a small CPU build of that version can be had (Python 3.11); tests that need it
# are named as skipped elsewhere.
$(VENV)/.dev: pyproject.toml constraints-ci.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev,cluster]" -c constraints-ci.txt
	if $(BIN)/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check "torch==2.13.0" -c constraints-ci.txt || echo "torch==2.13.0 cannot be had here: tests that need it will be skipped" >&2; fi
	@touch $(VENV)/.core $@

$(VENV)/.docs: pyproject.toml constraints-ci.txt | $(VENV)/.core
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[docs]" -c constraints-ci.txt
	@touch $@

clean:  ## remove what the other targets made
	rm -rf $(VENV) demo docs/_build build dist .pytest_cache .mypy_cache .ruff_cache
