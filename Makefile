# `make help` lists the commands. Everything runs in .venv, which `make env` builds from the hash locks.

VENV := .venv
STAMP := $(VENV)/.installed
PROFILE ?=
ARGS ?=
# Packages published after this day are not looked at, so that `make lock` gives the same locks on any day.
LOCK_DAY := 2026-08-01
UV ?= uv
# `make test-contract`: its environment, the release whose code it imports, where wheels are kept, and which of them to read
CONTRACT := .venv-contract
SGLANG := 0.5.15.post1
WHEELS := .eyrie/sglang-wheels
VERSIONS ?=

export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
# Waiting OpenMP threads spin by default: on a machine with other work that costs up to 8 times the run time.
export OMP_WAIT_POLICY := PASSIVE
export GOMP_SPINCOUNT := 0
export TOKENIZERS_PARALLELISM := false
export HF_HUB_DISABLE_TELEMETRY := 1
export DVC_NO_ANALYTICS := 1
# Set iteration must not differ between two runs of a stage.
export PYTHONHASHSEED := 0

.DEFAULT_GOAL := help
.PHONY: help env repro preflight smoke test test-contract test-gpu lint lock

help:
	@echo "make env                            build .venv (Python 3.12 or 3.11; PYTHON=... picks one,"
	@echo "                                    TORCH_INDEX=... names an index that has CPU builds of torch)"
	@echo "make repro [PROFILE=name] [ARGS=..] run the pipeline; a failed stage leaves the last good outputs in place"
	@echo "make preflight [PROFILE=name]       check all that can be checked before the first answer is generated, in a minute"
	@echo "make smoke                          the whole pipeline on a tiny random target, in a copy, in about a minute"
	@echo "make test                           the tests"
	@echo "make test-contract [VERSIONS=all]   the serving contract against SGLang's own code, on the CPU, in an environment beside"
	@echo "make test-gpu                       real servers of SGLang on a GPU (PYTHON=... of the environment that has SGLang)"
	@echo "make lint                           ruff"
	@echo "make lock                           write the hash locks anew (needs uv)"

env: $(STAMP)

$(STAMP): requirements/install.sh requirements/pip.txt requirements/cpu-py311.txt requirements/cpu-py312.txt \
          requirements/torch.txt requirements/torch-default.txt
	@bash requirements/install.sh $(VENV)
	@touch $@

repro: $(STAMP)
	@$(VENV)/bin/python -m tools.repro $(if $(PROFILE),--profile $(PROFILE)) $(ARGS)

preflight: $(STAMP)
	@$(VENV)/bin/python -m tools.repro $(if $(PROFILE),--profile $(PROFILE)) preflight $(ARGS)

smoke: $(STAMP)
	@$(VENV)/bin/python -m tools.smoke $(ARGS)

test: $(STAMP)
	@$(VENV)/bin/python -m pytest -n 2 tests $(ARGS)

test-contract: $(CONTRACT)/.installed
	@if [ "$(VERSIONS)" = all ]; then bash requirements/sglang-wheels.sh $(WHEELS) all; fi
	@$(if $(filter all,$(VERSIONS)),EYRIE_SGLANG_WHEELS=$(WHEELS)) $(CONTRACT)/bin/python -m pytest tests/contract $(ARGS)

# In an environment that has SGLang, which .venv has not; GPUs are shared by as many tests as ARGS="-n 4" says.
test-gpu: PYTHON ?= python
test-gpu:
	@$(PYTHON) -m pytest tests/gpu $(ARGS)

$(CONTRACT)/.installed: $(STAMP) requirements/install-contract.sh requirements/contract-py311.txt requirements/contract-py312.txt \
                        requirements/sglang-wheels.txt
	@bash requirements/install-contract.sh $(VENV) $(CONTRACT) $(WHEELS) $(SGLANG)
	@touch $@

lint: $(STAMP)
	@$(VENV)/bin/ruff check $(ARGS) .

# --universal: one file for every operating system; --no-header and --no-annotate: no paths of the machine that wrote it.
COMPILE = $(UV) pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url \
          --no-emit-find-links --exclude-newer $(LOCK_DAY)
lock:
	$(COMPILE) --python-version 3.11 -c requirements/shared.txt -o requirements/cpu-py311.txt requirements/cpu.in
	$(COMPILE) --python-version 3.12 -c requirements/shared.txt -o requirements/cpu-py312.txt requirements/cpu.in
	$(COMPILE) --python-version 3.11 -c requirements/cpu-py311.txt --override requirements/contract-overrides.in \
	  -o requirements/contract-py311.txt requirements/contract.in
	$(COMPILE) --python-version 3.12 -c requirements/cpu-py312.txt --override requirements/contract-overrides.in \
	  -o requirements/contract-py312.txt requirements/contract.in
	$(COMPILE) --python-version 3.11 -c requirements/cpu-py311.txt -o requirements/torch-default.txt \
	  requirements/torch-default.in
	$(COMPILE) --python-version 3.11 -o requirements/pip.txt requirements/pip.in
