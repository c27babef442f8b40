# Every target works on a fresh Debian or Ubuntu machine with Python 3.11+ and nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TRAINERS := .venv-trainers

.PHONY: setup run test test-trainers prove-sd-scripts check bench lock clean

setup: $(VENV)/.ready

# Exact pins with hashes; the project itself is added last, without its dependencies being resolved again.
$(VENV)/.ready: pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

run: setup
	$(BIN)/tunewarden demo

test: setup
	$(BIN)/python -m pytest

# Real trainers, in an environment of their own: torch and accelerate never come into ours. README: the CPU build.
$(TRAINERS)/.ready: tests/trainers/requirements.txt
	$(PYTHON) -m venv $(TRAINERS)
	$(TRAINERS)/bin/python -m pip install --quiet -r tests/trainers/requirements.txt
	touch $@

test-trainers: setup $(TRAINERS)/.ready
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/trainers

# Runs an unmodified checkout of kohya-ss/sd-scripts that you name; what it needs: tests/prove/sd_scripts/README.md
prove-sd-scripts: setup
	@test -n "$(SD_SCRIPTS)" || { echo "say where it is: make prove-sd-scripts SD_SCRIPTS=DIR [SD_PYTHON=DIR/venv/bin/python]"; exit 2; }
	$(BIN)/python -m tests.prove.sd_scripts.prove "$(SD_SCRIPTS)" $(if $(SD_PYTHON),--python "$(SD_PYTHON)") $(if $(OUT),--out "$(OUT)")

check: setup
	$(BIN)/ruff check app tests docs/examples
	$(BIN)/ruff format --check app tests docs/examples
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/unit/test_architecture.py

bench: setup
	$(BIN)/python -m tests.bench

lock:
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --extra dev --generate-hashes --no-header --no-annotate --no-emit-index-url -o requirements.lock pyproject.toml .ci/build-requirements.in

clean:
	rm -rf $(VENV) $(TRAINERS) .demo
