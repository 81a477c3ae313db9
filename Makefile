# Two commands set everything up on a fresh machine: `make demo` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint bench services clean

demo: $(STAMP)  ## a synthetic fleet through the embedded runtime: no services, no files
	$(BIN)/udp-stream demo --headless --slots 3

test: $(STAMP)  ## everything that CI runs
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)  ## prints ratios beside a decode-only run over the same bytes
	$(BIN)/python -m benchmarks

services: $(STAMP)  ## a real Kafka and a real Redis for trying things by hand
	$(BIN)/udp-stream services

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[services,test,lint]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
