# Needs Python >= 3.10, make and PyPI: all commands make their own virtual environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Where an environment forbids it, each of the tests' processes would compile this package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-shared soak test test-all test-oldest lint bench clean

# Kills a crawl with SIGKILL, resumes it, and shows what was lost, beside Scrapy's own scheduler.
demo: $(VENV)/installed
	$(BIN)/python example_project/demo.py

# Crawls with three workers on one Redis server, kills each of them, and shows what was lost.
demo-shared: $(VENV)/installed
	$(BIN)/python example_project/demo_shared.py

# Kills one crawl 200 times at random moments until it completes: nothing lost, nothing dead; with
# STORE=sqlite, one with that engine.
STORE ?= auto
soak: $(VENV)/installed
	$(BIN)/python example_project/soak.py -s ALTSCHED_STORE=$(STORE)

# The files of the tests, 50 MB at a time, are in memory where they can be: it takes a fifth less time.
IN_MEMORY := $(shell grep -qs ' /dev/shm .*noexec' /proc/mounts || \
	df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 1048576 { print "TMPDIR=/dev/shm" }')

# Lint, types, and what needs no process of its own, with a dozen whole crawls: three minutes.
test: lint
	$(IN_MEMORY) $(BIN)/python -m pytest -n auto -m "not long"

# All other tests: commands and crawls in processes of their own, matrices of faults, many deaths.
test-all: $(VENV)/installed
	$(BIN)/python -m pytest -n auto -m long

# All tests but the slowest again, where everything is as old as is supported: see tox.ini. On Python 3.10 if the
# machine has it, else on the next one that it has; of pyenv's, all that are installed count.
test-oldest: $(VENV)/installed
	PYENV_VERSION="$$(pyenv versions --bare 2>/dev/null | paste -sd: -)" $(BIN)/tox run -e oldest

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy

# What scheduling costs, beside Scrapy's own queues and scrapy-redis (if redis-server is on PATH).
bench: $(VENV)/installed-bench
	$(BIN)/python -m benchmarks --output benchmarks/results

$(VENV)/installed-bench: $(VENV)/installed
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --editable '.[bench]'
	touch $@

$(VENV)/installed: setup.cfg pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or newer is needed, not " + sys.version if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .tox build dist *.egg-info
