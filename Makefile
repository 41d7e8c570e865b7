# Two commands do everything on a fresh machine: `make demo` and `make test`.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# pip's find-links, where the machine has them, serve uv too
export UV_FIND_LINKS ?= $(shell $(PYTHON) -m pip config get global.find-links 2>/dev/null || echo $(PIP_FIND_LINKS))

.PHONY: demo test check bench install dev system clean

demo: install
	$(BIN)/python examples/demo.py

test: dev
	$(BIN)/pytest -n 4 --dist loadgroup

check: dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: dev
	status=0; for script in benchmarks/*.py; do $(BIN)/python $$script || status=1; done; exit $$status

# The operator's side: no torch in it.
install: system $(VENV)/installed
$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable .
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m compileall -q opsctl
	touch $@

# What the tests need beside it: the tools, and the trainer's pinned set.
dev: install $(VENV)/dev-installed
$(VENV)/dev-installed: $(VENV)/installed env/cpu.lock
	$(BIN)/pip install --quiet --editable '.[dev]'
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r env/cpu.lock $(if $(strip $(UV_FIND_LINKS)),,--torch-backend cpu)
	touch $@

# Programs of the system: named at once, and installed where we may.
system:
	@PYTHON=$(PYTHON) sh tools/system-packages.sh

clean:
	rm -rf $(VENV)
