# Each of these, alone, sets everything up on a machine with git, make and Python 3.11 or newer.
PYTHON ?= python3
# The folder with the exact versions that were tested, and their hashes: `make lock` writes it. LOCK= (empty) takes the
# newest versions that pyproject.toml permits, into an environment of its own.
LOCK := .ci/lock
VENV := .venv$(if $(LOCK),,-newest)
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := $(VENV)/.ready-demo
DOCS := $(VENV)/.ready-docs
# CI installs by uv, and tries failed tests again. Programs compile what they import when they first run: compiling all
# that is installed would take a third of the time of `make demo`.
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
PYTEST := -m pytest
UV := .venv-lock/bin/uv

.DEFAULT_GOAL := help
.PHONY: help setup lock demo test test-all test-redis jaeger soak check format docs docs-serve bench bench-check dist clean

help: ## show what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# What each of the three installs: the extra of pyproject.toml, in the versions of the lock.
$(READY): EXTRA := dev
$(DEMO): EXTRA := demo
$(DOCS): EXTRA := docs
$(READY): $(LOCK:%=%/dev.txt)
$(DEMO): $(LOCK:%=%/demo.txt)
$(DOCS): $(LOCK:%=%/docs.txt)

$(READY) $(DEMO) $(DOCS): pyproject.toml
	@echo "installing toolbus[$(EXTRA)] into $(VENV): this takes a minute the first time"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "toolbus needs Python 3.11 or newer; set PYTHON=")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
ifeq ($(LOCK),)
	@$(INSTALL) --editable '.[$(EXTRA)]'
else # in two steps, since an editable project cannot have a hash
	@$(INSTALL) --require-hashes -r $(LOCK)/$(EXTRA).txt
	@$(INSTALL) --no-deps --no-build-isolation --editable .
endif
	@touch $@

setup: $(READY) ## make the virtual environment with everything in it

lock: ## write the newest versions that pyproject.toml permits, with hashes, into .ci/lock
	@test -x $(UV) || { $(PYTHON) -m venv .venv-lock && .venv-lock/bin/python -m pip install --quiet --disable-pip-version-check uv; }
	@bounds=; for extra in dev demo docs; do \
	  printf 'hatchling\neditables\n' | $(UV) pip compile --quiet --upgrade --universal --generate-hashes --no-emit-index-url \
	    --no-header --extra $$extra $$bounds --output-file .ci/lock/$$extra.txt pyproject.toml - || exit 1; \
	  bounds='--constraints .ci/lock/dev.txt'; \
	done

demo: $(DEMO) ## real calls on real data between a server and three hosts, in under a minute
	@$(BIN)/toolbus demo $(ARGS)

test: $(READY) ## every test, in four processes side by side; ARGS=-n0 for one
	@$(BIN)/python $(PYTEST) --numprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS)

test-all: ## every test on each Python of this machine, each in a virtual environment of its own
	@PYTHON=$(PYTHON) .ci/test-all $(ARGS)

test-redis: $(READY) ## what many nodes need of a Redis, with Valkey 9 and 8, Redis 7 and 8
	@PYTHONPATH=tests $(BIN)/python -m support.redis.matrix $(ARGS)

jaeger: ## build Jaeger with Go, into the user's cache or ARGS=FOLDER
	@deploy/jaeger/build.sh $(ARGS)

soak: $(READY) ## the tests that take many minutes and gigabytes
	@PYTHONPATH=tests $(BIN)/python -m pytest -p support.pytest_plugins.given_descriptions -c pyproject.toml -m soak $(ARGS)

check: $(READY) ## lint, types, import contracts, sizes, names
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@PATH="$(CURDIR)/$(BIN):$$PATH" pyright --ignoreexternal --verifytypes toolbus > $(VENV)/verifytypes.txt || { cat $(VENV)/verifytypes.txt; exit 1; }
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python .ci/sizes.py
	@$(BIN)/python .ci/names.py
	@echo "all checks passed"

format: $(READY) ## put the code into the agreed form
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix .

docs: $(DOCS) ## build the documentation into site/; a broken link or reference fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "the documentation is in site/: open site/index.html"

docs-serve: $(DOCS) ## show the documentation on http://127.0.0.1:8000 and reload it on changes
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve $(ARGS)

bench: $(READY) ## measure beside bare relays and rivals, and write tests/bench/RESULTS.md
	@PYTHONPATH=tests $(BIN)/python -m bench --write $(ARGS)

bench-check: $(READY) ## fail if a promised figure does not hold
	@PYTHONPATH=tests $(BIN)/python -m bench --check $(ARGS)

dist: ## make the files of a release and try them; REPOSITORY=URL is where it is published
	@test -x .venv-dist/bin/python || $(PYTHON) -m venv .venv-dist
	@.venv-dist/bin/python -m pip install --quiet --disable-pip-version-check build twine cyclonedx-bom
	@.venv-dist/bin/python .ci/dist.py $(REPOSITORY)

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .venv-* build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
