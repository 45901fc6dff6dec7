# The two commands: `make run` starts a broker, `make test` sets up and passes the tests.
PY ?= python3
V  := .venv
OK := $(V)/.installed

.PHONY: run test check format

$(OK): pyproject.toml
	@echo "setting up $(V) (once, about a minute)"
	@$(PY) -m venv $(V)
	@$(V)/bin/pip install -q -e '.[dev]'
	@touch $@

run: $(OK)
	@$(V)/bin/aerobee broker $(ARGS)

check: $(OK)
	$(V)/bin/ruff format --check .
	$(V)/bin/ruff check .
	$(V)/bin/mypy

format: $(OK)
	$(V)/bin/ruff format .
	$(V)/bin/ruff check --fix .

test: $(OK)
	$(V)/bin/pytest -q
