# Two commands set everything up on a fresh machine: `make demo` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-for-demo
FAST := tests/unit tests/privacy tests/contract tests/protocol tests/lab

.PHONY: demo test test-fast test-services test-long test-soak chaos images test-images lint bench bench-stream accuracy services clean

demo: $(DEMO_STAMP)  ## a synthetic fleet through the embedded runtime: no services, no files; on a terminal, in the browser
	$(BIN)/udp-stream demo --slots 3

test: $(STAMP)  ## every check; Kafka and Redis as containers where there are images, else as child processes
	$(BIN)/python -m pytest --numprocesses 5 --dist loadscope -m "not long and not soak"

test-fast: $(STAMP)  ## half of `make test`: what needs no service and starts no program
	$(BIN)/python -m pytest --numprocesses 4 --dist loadscope -m "not long and not soak" $(FAST) udp_stream streams lab

test-services: $(STAMP)  ## the other half: whole programs, and a real Kafka, Redis and browser
	$(BIN)/python -m pytest --numprocesses 4 --dist loadscope -m "not long and not soak" tests $(addprefix --ignore=,$(FAST))

test-long: $(STAMP)  ## what `make test` has a short form of, in full; the tutorial; the examples, which need Node.js
	$(BIN)/python -m pytest --numprocesses 4 --dist loadscope -m "long and not soak"

test-soak: $(STAMP)  ## what takes many minutes: worlds of workers, lemmas and adversaries at full size, 100,000 mutated messages
	$(BIN)/python -m pytest --numprocesses 3 --dist loadscope -m soak

# Tests start our program hundreds of times. Where Python is told to keep no compiled code it would compile it each time.
test test-fast test-services test-long test-soak chaos: export PYTHONDONTWRITEBYTECODE =

images: $(STAMP)  ## local equivalents of the images, where none can be pulled; out/images.env names them to compose
	mkdir -p out
	deploy/local-images > out/images.env.new
	mv out/images.env.new out/images.env

test-images: $(STAMP)  ## the same, and RabbitMQ: out/test-images.env
	mkdir -p out
	deploy/local-images --tests > out/test-images.env.new
	mv out/test-images.env.new out/test-images.env

chaos: $(STAMP)  ## the long run: make chaos KILLS=300 SECONDS=240 SEED=7 PROFILE=in-rho FEED=day.ndjson.gz
	$(BIN)/python -m tests.chaos $(if $(KILLS),--kills $(KILLS)) $(if $(SECONDS),--seconds $(SECONDS)) \
		$(if $(SEED),--seed $(SEED)) $(if $(PROFILE),--profile $(PROFILE)) $(if $(FEED),--feed $(FEED))

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(STAMP)  ## prints ratios beside a peer over the same bytes; the page beside its shapes alone, in a Chromium
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.page
	$(BIN)/python -m benchmarks.bulk

accuracy: $(STAMP)  ## what a typical week errs by, and a day beside every guess: make accuracy DATA=folder-of-recorded-days SEEDS=10
	$(BIN)/python -m benchmarks.typical $(if $(SEEDS),--seeds $(SEEDS))
	$(BIN)/python -m benchmarks.accuracy $(if $(SEEDS),--seeds $(SEEDS)) $(or $(DATA),data)

bench-stream: $(STAMP)  ## a worker beside plain clients of a real broker, and how long a slot takes to close
	$(BIN)/python -m benchmarks.stream
	$(BIN)/python -m benchmarks.closing

services: $(STAMP)  ## a real Kafka and a real Redis for trying things by hand
	$(BIN)/udp-stream services

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[services,test,lint]'
	touch $(STAMP)

# The demo needs the package and its page: no services, no tools. On a terminal pip shows what it does.
$(DEMO_STAMP): pyproject.toml
	@echo "installing udp-stream into $(VENV), once"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test $(STAMP) -nt pyproject.toml \
		|| $(BIN)/python -m pip install $(if $(MAKE_TERMOUT),,--quiet) --disable-pip-version-check --editable '.[dashboard]'
	touch $(DEMO_STAMP)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
