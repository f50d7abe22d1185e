# Every target sets up what it needs; `make demo` and `make test` work in a fresh clone.
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Two workers with one core each are faster than one with two: tests are many small calls.
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile
DEMO_MODEL := models/smollm2-135m-instruct-dflash

.PHONY: demo test test-all check bench bench-report clean

demo: $(INSTALLED) build/demo
	$(BIN)/dflash-generate build/demo --compare --max-new-tokens 128 --prompts docs/demo_prompts.jsonl

test: check
	$(PYTEST) -m "not slow"

test-all: check
	$(PYTEST)

check: $(INSTALLED)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

# The core ratios, each of two things run in turn; the cost of large caches needs a bundle that has them.
bench: $(INSTALLED) build/demo build/demo-int8 build/demo-long
	$(BIN)/dflash-bench build/demo build/demo-int8 --preset core --peer transformers
	$(BIN)/dflash-bench build/demo-long --mode cache

# Every mode, with all peers that are installed; MINUTES is what it may take.
MINUTES ?= 10
PEERS ?= --peer transformers --peer transformers-prompt-lookup --peer authors-loop
bench-report: $(INSTALLED) build/demo build/demo-int8
	$(BIN)/dflash-bench build/demo build/demo-int8 --preset report --minutes $(MINUTES) $(PEERS) --out docs/bench

build/demo: | $(INSTALLED)
	$(BIN)/dflash-export demo $@

build/demo-int8: | $(INSTALLED)
	$(BIN)/dflash-export demo $@ --precision int8

build/demo-long: | $(INSTALLED)
	$(BIN)/dflash-export demo $@ --max-len 8192

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[export,ort,serve,training,dev]'
	touch $@

clean:
	rm -rf build dist
