# Each target makes what it needs, on a fresh machine: Python 3.11 or newer, make, and a package index.
PYTHON ?= python3
VENV   ?= .venv
TORCH  ?= torch==2.13.0
BIN    := $(VENV)/bin
TORTURE := $(CURDIR)/build/torture.jsonl
CORE   := $(VENV)/.core
STAMP  := $(VENV)/.installed

.PHONY: help install quickstart test test-all tests types style launchers torture lint claims claims-small docs docs-check site bench clean

help:            ## show this list
	@grep -E '^[a-z-]+: .*##' Makefile | sed 's/:.*## /\t/' | expand -t 14

install: $(STAMP) ## make .venv with the package and all that its tests need

# A torch that $(PYTHON) has already (a CUDA build, say) is used as it is: the environment then sees
# the packages around it. Elsewhere the pinned one comes first, so that no index is asked for "the
# newest torch" and its gigabytes of CUDA packages.
HAS_TORCH = -c "import torch, sys; sys.exit(tuple(map(int, torch.__version__.split('.')[:2])) < (2, 10))"

$(CORE): pyproject.toml constraints.txt
	@test -x $(BIN)/python || { \
	  if $(PYTHON) $(HAS_TORCH) 2>/dev/null; then \
	    echo "using the torch of $(PYTHON)"; $(PYTHON) -m venv --system-site-packages $(VENV); \
	  else $(PYTHON) -m venv $(VENV); fi; }
	$(BIN)/python $(HAS_TORCH) 2>/dev/null || $(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(STAMP): $(CORE)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

quickstart: $(CORE) ## make .venv with the package alone, run experiments/first.yaml, write its report
	$(BIN)/llama-ablate run experiments/first.yaml

test: style      ## lint, types, and the fast tier of the tests: what CI runs (six minutes on two cores)
	@$(TESTS_AND_TYPES)

test-all: style  ## the same with the full tier: some 17 minutes on two cores
	@$(TESTS_AND_TYPES)

test-all: TIER := full
TIER := fast
# Side by side, each to its end. What mypy says is shown after the tests, where it is seen.
MYPY_SAID := $(VENV)/mypy.txt
TESTS_AND_TYPES = $(MAKE) --no-print-directory --jobs=2 --keep-going TIER=$(TIER) tests types; \
  code=$$?; cat $(MYPY_SAID); exit $$code

tests: $(STAMP)
	$(BIN)/pytest --tier $(TIER) --numprocesses auto --maxprocesses 8 --dist worksteal

types: $(STAMP)
	$(BIN)/mypy >$(MYPY_SAID) 2>&1

style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

launchers: $(STAMP) ## the launchers, on a Ray cluster and Slurm daemons of this machine (slurm-wlm, munge)
	LLAMA_ABLATE_LAUNCHERS=1 $(BIN)/pytest tests/launchers

torture: $(STAMP) ## the torture tier of the reliability battery (an hour or two), and its table
	mkdir -p $(dir $(TORTURE)) && rm -f $(TORTURE)
	LLAMA_ABLATE_TORTURE=$(TORTURE) $(BIN)/pytest --tier torture tests \
	  --timeout 7200 --numprocesses 2 --dist worksteal
	$(BIN)/python -m tests.tally $(TORTURE)
	$(BIN)/python -m docs.generate

lint: $(STAMP)   ## format, mend what ruff can mend, then check
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/mypy

CLAIMS = experiments/claims/e*.yaml
claims: $(STAMP) ## run the claims suite (18 minutes of an H100 with 16 cores) and write results/reference/claims.md
	@for file in $(CLAIMS); do \
	  echo "== $$file"; \
	  $(BIN)/llama-ablate run $$file --results results/claims || test $$? -eq 1 || exit 2; \
	done
	@for folder in results/claims/*; do \
	  $(BIN)/llama-ablate pack $$folder --out results/reference/claims/$$(basename $$folder) || exit 2; \
	done
	$(BIN)/python -m docs.generate

claims-small: $(STAMP) ## the same experiments with 0.4M tokens a run, for two cores (forecast: 3 hours)
	@for file in $(CLAIMS); do \
	  echo "== $$file"; \
	  $(BIN)/llama-ablate run $$file --set train.tokens=400_000 --set train.batch=16 --set 'train.branches=[]' \
	    --results results/claims-small || test $$? -eq 1 || exit 2; \
	done

docs: $(STAMP)   ## write the generated parts of the pages again
	$(BIN)/python -m docs.generate

docs-check: $(STAMP) ## check that the generated parts of the pages are what would be written now
	$(BIN)/pytest tests/test_docs.py --tier full

site: $(STAMP)   ## build the documentation site, build/site/index.html, which needs no network
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[docs]"
	$(BIN)/python -m docs.site

bench: $(STAMP)  ## time steps, grids and decoding beside other libraries, and the harness itself (half an hour)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[bench]"
	$(BIN)/python benchmarks/training_step.py
	$(BIN)/python benchmarks/grid.py
	$(BIN)/python benchmarks/decode.py
	$(BIN)/python benchmarks/harness.py

clean:           ## remove the environment and caches; results stay
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
