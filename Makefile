# Every target sets up what it needs; `make demo` and `make test` work in a fresh clone.
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Two workers with one core each are faster than one with two: tests are many small calls.
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile
DEMO_MODEL := models/smollm2-135m-instruct-dflash

.PHONY: demo test test-all check bench clean

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

bench: $(INSTALLED) build/demo build/demo-int8 build/demo-long
	$(BIN)/python scripts/bench_core.py --fp32 build/demo --int8 build/demo-int8 --long build/demo-long --target build/target

build/demo: | $(INSTALLED)
	$(BIN)/dflash-export demo $@

build/demo-int8: | $(INSTALLED)
	$(BIN)/dflash-export demo $@ --precision int8

build/demo-long: | $(INSTALLED)
	$(BIN)/dflash-export demo $@ --max-len 8192

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[export,ort,training,dev]'
	touch $@

clean:
	rm -rf build dist
