# Two commands matter: `make demo` and `make test`. Both make what they need first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST = $(BIN)/python -m pytest
# Tests at a time, where they start no server.
WORKERS ?= 2
STAMP := $(VENV)/.stamp
# A package of the name auxtap for the type checker, which does not follow editable installs; links to what git
# tracks, so that a worktree of SGLang below this folder is not checked along.
TYPES := .build/types

DOCS := .build/docs
DOCS_STAMP := $(DOCS)/venv/.stamp

.PHONY: regen matrix device drafter demo test test-fast test-engine test-unit check lint format types contract bench setup clean docs readme house

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "auxtap needs Python 3.11 or newer (set PYTHON=...)")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/auxtap demo

test: check test-fast test-engine

# Two at a time, a file's tests by one worker: they share what takes long to make.
test-fast: $(STAMP)
	$(PYTEST) -n $(WORKERS) --dist loadfile -m 'not engine'

# One after the other: real servers want the machine for themselves.
test-engine: $(STAMP)
	$(PYTEST) -m engine

# What says within a minute whether something broke; FOLDER=tracer for one folder of tests.
test-unit: $(STAMP)
	$(PYTEST) -n $(if $(FOLDER),0,$(WORKERS)) --dist loadfile -m 'not engine and not slow' tests/$(FOLDER)

check: lint types contract house docs

# The site in $(DOCS)/site, a manual page in $(DOCS)/auxtap.1; a broken link, or a page that no menu holds, is an error.
docs: $(STAMP) $(DOCS_STAMP)
	$(BIN)/python docs/pages.py $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(DOCS)/venv/bin/mkdocs build --strict --config-file $(DOCS)/mkdocs.yml

# What the README says of releases comes from generated/.
readme: $(STAMP)
	$(BIN)/python docs/pages.py --readme

$(DOCS_STAMP): constraints.txt
	$(PYTHON) -m venv $(DOCS)/venv
	$(DOCS)/venv/bin/python -m pip install --quiet --constraint constraints.txt mkdocs-material
	touch $@

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

types: $(STAMP)
	rm -rf $(TYPES)
	mkdir -p $(TYPES)/auxtap
	for name in $$(git ls-files '*.py' | cut -d/ -f1 | sort -u); do ln -s ../../../$$name $(TYPES)/auxtap/$$name; done
	cd $(TYPES) && ../../$(BIN)/mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache -p auxtap

# Code that nothing uses; circles, names and functions that stand twice.
house: $(STAMP)
	$(BIN)/vulture
	$(BIN)/python examples/benchmarks/house.py --check

contract: $(STAMP)
	$(BIN)/lint-imports

# The patches and manifests of all releases, and the page beside them; the tests hold them against the tool.
regen: $(STAMP)
	$(BIN)/auxtap sweep
	$(BIN)/python docs/pages.py --readme

# Patched servers against transformers, committed below docs/: three releases under every setting (about fifteen minutes
# each on two cores), the others with the default setting (two minutes each).
MATRIX := 0.5.9 0.5.14 0.5.23
MATRIX_DEFAULT := 0.5.6 0.5.8.post1 0.5.10.post1 0.5.12.post1 0.5.13.post1 0.5.17 0.5.21

matrix: $(STAMP)
	@failed=0; for release in $(MATRIX); do \
		$(BIN)/auxtap verify pypi:$$release --engine --matrix --model all --table docs || failed=1; \
	done; for release in $(MATRIX_DEFAULT); do \
		$(BIN)/auxtap verify pypi:$$release --engine --settings default --model all --table docs || failed=1; \
	done; $(BIN)/python examples/upstream/run.py --out .build/upstream --engine || failed=1; exit $$failed

# A Python whose torch has CUDA; ends with 77 and `not run: no CUDA device` where there is none.
device:
	$(PYTHON) tests/device/cuda_script.py

# A target trained, extracted, and draft heads trained on right and faulty states; docs/drafter.md has the result.
drafter: $(STAMP)
	$(BIN)/python examples/drafter/run.py --out drafter-output

bench: $(STAMP)
	@for script in examples/benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) .build build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
