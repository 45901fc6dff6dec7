# The two commands: `make run` starts a broker, `make test` sets up and passes the tests.
# `make help` lists the rest; each area keeps its own targets in make/.
PY ?= python3
V  := .venv
OK := $(V)/.installed
# Most tests wait for something most of the time, so more run at once than there are cores.
WORKERS ?= 6
# In the order of tests/conftest.py, which begins with the longest files.
SPREAD = -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Tests that need more than Python have targets of their own.
QUICK := not apache and not browser and not cpp and not etcd and not go and not node and not rust and not spark and not slow and not root
# In these folders all tests do: they are not even collected, because every worker would collect them.
ELSEWHERE := $(addprefix --ignore=tests/,clients exchange spark system)

# Without bytecode every worker, and every broker and command that a test starts, compiles the whole
# package anew, which takes seconds: so it is written, whatever the caller has set.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help run test test-long coverage check check-tests changelog format clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sort | \
	  awk 'BEGIN{FS=":.*## "}{printf "  %-22s %s\n",$$1,$$2}'

COMPILED := hatch_build.py $(wildcard broker/compiled/*.pyx broker/compiled/*.pxi broker/compiled/*.h)

$(OK): pyproject.toml constraints.txt $(COMPILED)
	@echo "setting up $(V) with $$($(PY) --version) (once, about a minute)"
	@$(PY) -m venv $(V)
	@$(V)/bin/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

run: $(OK) ## set up what is missing and start a broker with its name service (ARGS="--set key=value")
	@echo 'Starting a broker; Ctrl-C stops it. Once it says "ready", in another terminal:'
	@echo '    $(V)/bin/aerobee send orders "hello"'
	@echo '    $(V)/bin/aerobee consume orders'
	@echo 'A Java client: producer.setNamesrvAddr("127.0.0.1:9876")'
	@$(V)/bin/aerobee broker $(ARGS)

test: $(OK) ## set up what is missing and run the tests that need Python only
	AEROBEE_FORKED=1 $(V)/bin/pytest -q $(SPREAD) $(ELSEWHERE) -m "$(QUICK)" $(ARGS)

test-long: $(OK) ## all cases of the tests of which `make test` runs a share
	AEROBEE_LONG=1 $(V)/bin/pytest -q -m "$(QUICK)" $$(grep -rl --include='test_*.py' '^from effort import' tests | sort) $(ARGS)

coverage: $(OK) ## the tests of `make test`, and how many lines they reach (nearly free with Python 3.12+)
	COVERAGE_CORE=sysmon $(V)/bin/pytest -q $(SPREAD) $(ELSEWHERE) -m "$(QUICK)" --cov --cov-report=term:skip-covered $(ARGS)

check: $(OK) ## format, lint, imports between layers, changelog entries, and types
	$(V)/bin/ruff format --check .
	$(V)/bin/ruff check .
	$(V)/bin/lint-imports --no-logo
	$(V)/bin/python make/changes.py --check
	$(V)/bin/mypy

check-tests: $(OK) ## types of the tests
	cd tests && "$(abspath $(V))/bin/mypy" --config-file mypy.ini

changelog: $(OK) ## move the entries of changes/ into CHANGELOG.md
	$(V)/bin/python make/changes.py

format: $(OK) ## rewrite the code in the project's format
	$(V)/bin/ruff format .
	$(V)/bin/ruff check --fix .

clean: ## remove what the other targets made
	rm -rf .venv .venv-* dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .ci/work
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The tools that build the compiled part outside of an installation.
BUILD_OK := $(V)/.build-installed
$(BUILD_OK): $(OK)
	@$(V)/bin/pip install -q --disable-pip-version-check 'cython>=3.1,<4' 'setuptools>=77' 'hatchling>=1.26'
	@touch $@

include $(wildcard make/*.mk)

.PHONY: lock
lock: $(OK) ## write the versions now installed to constraints.txt
	@{ sed -n 1p constraints.txt; $(V)/bin/pip freeze --exclude-editable; } > constraints.new
	@mv constraints.new constraints.txt
