# Each target creates a virtual environment in .venv and installs what it needs there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS ?= qo-sqlite,huey-sqlite
ENVS ?= qo huey raw
REPS ?= 3
TORTURE ?= 10

# Engines that run only some of the random histories in `make test`.
HISTORIES := tests/engines/test_http.py tests/engines/test_one_object.py tests/engines/test_large_values.py tests/engines/test_log_simulation.py tests/engines/test_log_mutants.py tests/engines/test_redis_archive.py
SCRATCH = $(shell sh tests/servers/scratch.sh)

# Containers often set this. Every process would then compile qo and its dependencies again, which doubles the duration of the tests.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo docs deployment test pytest torture compile model check bench format lock clean

help:  ## show this help
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /make \1	/' | expand -t 16

demo: $(VENV)/installed  ## a one-minute tour on SQLite: submit, run, a schedule, progress, retry, replay, survive kill -9
	@$(BIN)/python -m qo.demo

# The theme prints an advertisement for its successor on every build. The version is pinned, so silence it.
docs: $(VENV)/documenter  ## build the documentation site in build/site, with the Python API from the code
	NO_MKDOCS_2_WARNING=1 $(VENV)/site/bin/mkdocs build --strict
	@echo "open build/site/index.html"

# The schemas of Kubernetes are 100 MB, so `make test` does without them.
deployment: $(VENV)/validator  ## check the files of docs/deployment.md: manifests against the schemas of Kubernetes, the Dockerfile with hadolint
	PATH="$(CURDIR)/$(VENV)/validators/bin:$$PATH" $(VENV)/validators/bin/python tests/docs/deployment_files.py

# The tests start while mypy still runs on one core. If a check fails, the tests run to their end, and make fails.
test: $(VENV)/developer  ## run all checks and tests: style, types, architecture, tests
	@$(MAKE) --no-print-directory -j4 check model pytest

# Six processes for two cores: a test waits for other processes, for a browser or for a lock half of its time.
pytest: WORKERS ?= 6
pytest: compile $(VENV)/servers
	TMPDIR="$(SCRATCH)" \
	QO_TEST_MINISTACK=$(CURDIR)/$(VENV)/ministack/bin/ministack \
	QO_TEST_AZURITE=$$(ls $(CURDIR)/$(VENV)/azurite/node_modules/.bin/azurite 2>/dev/null) \
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder --ignore=tests/model

torture: WORKERS ?= 4
torture: $(VENV)/developer $(VENV)/servers  ## longer tests with kills, clocks, partitions, damage, poison, fuzz and the audit trail (ONLY=clock runs one subject, SEED=7 repeats a run)
	TMPDIR="$(SCRATCH)" QO_TORTURE=$(TORTURE) QO_SEED=$(SEED) \
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -rA \
	$(if $(ONLY),$(wildcard tests/torture/test_$(ONLY).py tests/engines/test_$(ONLY)*.py),tests/torture $(wildcard tests/engines/test_layouts*.py tests/engines/test_*_processes.py) $(HISTORIES) tests/dashboard/test_injections.py)

# Each test process would compile all tests and all packages at the same time as the others. Here it happens once.
compile: $(VENV)/developer
	@$(BIN)/python -m pytest --collect-only --quiet > $(VENV)/collected || (tail -30 $(VENV)/collected; false)

model: compile
	$(BIN)/python -m coverage run -m pytest tests/model -q
	$(BIN)/python -m coverage report

check: $(VENV)/developer  ## check formatting, lint, types and architecture
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench:  ## run benchmarks against another queue and the raw limits of this machine (PEERS=..., ENVS=...; see bench/README.md)
	PYTHON=$(PYTHON) sh bench/setup_envs.sh bench/work/envs $(ENVS)
	$(PYTHON) bench --peers $(PEERS) --raw --reps $(REPS) --envs bench/work/envs --work bench/work --out bench/work/results

format: $(VENV)/developer  ## format the code and apply lint fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock:  ## regenerate requirements/ with hashes from pyproject.toml and constraints.txt (needs uv)
	PATH="$(CURDIR)/$(BIN):$$PATH" sh requirements/lock.sh

clean:  ## delete the virtual environment and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .coverage bench/work build/site

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "qo needs Python 3.11 or newer: make PYTHON=/path/to/python3")'
	$(PYTHON) -m venv $(VENV)
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt

# uv installs in seconds what takes pip a minute. If uv fails (for example because only pip is configured with the index), pip does it.
install = $(BIN)/uv pip install --quiet --python $(1)/bin/python $(2) || $(BIN)/python -m pip --python $(1)/bin/python install --quiet $(2)

# Packages are installed with hashes (requirements/, see docs/decisions/0035-hashes-in-requirements.md), then qo itself without.
itself = --no-deps --no-build-isolation -e .

$(VENV)/installed: $(VENV)/bin/python pyproject.toml requirements/web.txt
	$(call install,$(VENV),--require-hashes -r requirements/web.txt)
	$(call install,$(VENV),$(itself))
	@touch $@

$(VENV)/developer: $(VENV)/bin/python pyproject.toml requirements/dev.txt
	$(call install,$(VENV),--require-hashes -r requirements/dev.txt)
	$(call install,$(VENV),$(itself))
	@touch $@ $(VENV)/installed

# The packages of the site are not those of qo, so they have an environment of their own.
$(VENV)/documenter: $(VENV)/bin/python requirements/docs.txt
	$(PYTHON) -m venv --without-pip $(VENV)/site
	$(call install,$(VENV)/site,--require-hashes -r requirements/docs.txt)
	@touch $@

$(VENV)/validator: $(VENV)/bin/python requirements/deployment.txt
	$(PYTHON) -m venv --without-pip $(VENV)/validators
	$(call install,$(VENV)/validators,--require-hashes -r requirements/deployment.txt)
	@touch $@

# Test servers whose dependencies conflict with ours, or that are not Python packages. The others are in requirements/dev.txt.
$(VENV)/servers: $(VENV)/bin/python requirements/ministack.txt requirements/oidc.txt requirements/azurite/package-lock.json
	$(PYTHON) -m venv --without-pip $(VENV)/ministack
	$(call install,$(VENV)/ministack,--require-hashes -r requirements/ministack.txt)
	$(PYTHON) -m venv --without-pip $(VENV)/oidc
	$(call install,$(VENV)/oidc,--require-hashes -r requirements/oidc.txt)
	mkdir -p $(VENV)/azurite
	cp requirements/azurite/package.json requirements/azurite/package-lock.json $(VENV)/azurite/
	if command -v npm >/dev/null; then npm ci --silent --no-audit --no-fund --ignore-scripts --prefix $(VENV)/azurite; fi
	sh tests/servers/install_browser.sh
	@touch $@
