# `make help` lists the commands. Everything runs in .venv, which `make env` builds from the hash locks.

# Inside an image (EYRIE_VENV) the environment is there already, and nothing is built.
VENV := $(or $(EYRIE_VENV),.venv)
STAMP := $(if $(EYRIE_VENV),,.venv/.installed)
LOCKS := docker/requirements
PROFILE ?=
ARGS ?=
# `make repro IN=container`; NETWORK=host where the target or a remote is to be fetched meanwhile
IN ?=
NETWORK ?= none
# Packages published after this day are not looked at, so that `make lock` gives the same locks on any day.
LOCK_DAY := 2026-08-01
UV ?= uv
# `make test-contract`: its environment, the release whose code it imports, where wheels are kept, and which of them to read
CONTRACT := .venv-contract
SGLANG := 0.5.15.post1
WHEELS := .eyrie/sglang-wheels
VERSIONS ?=

export PATH := $(abspath $(VENV))/bin:$(PATH)
# Waiting OpenMP threads spin by default: on a machine with other work that costs up to 8 times the run time.
export OMP_WAIT_POLICY := PASSIVE
export GOMP_SPINCOUNT := 0
export TOKENIZERS_PARALLELISM := false
export HF_HUB_DISABLE_TELEMETRY := 1
export DVC_NO_ANALYTICS := 1
# Set iteration must not differ between two runs of a stage.
export PYTHONHASHSEED := 0

.DEFAULT_GOAL := help
.PHONY: help env repro preflight smoke test test-contract test-gpu test-container image image-gpu lint lock

help:
	@echo "make env                            build .venv (Python 3.12 or 3.11; PYTHON=... picks one,"
	@echo "                                    TORCH_INDEX=... names an index that has CPU builds of torch)"
	@echo "make repro [PROFILE=name] [ARGS=..] run the pipeline; a failed stage leaves the last good outputs in place"
	@echo "make preflight [PROFILE=name]       check all that can be checked before the first answer is generated, in a minute"
	@echo "... IN=container                    the same in the image that the profile names; NETWORK=host if something is to be fetched"
	@echo "make smoke                          the whole pipeline on a tiny random target, in a copy, in about a minute"
	@echo "make test                           the tests"
	@echo "make test-contract [VERSIONS=all]   the serving contract against SGLang's own code, on the CPU, in an environment beside"
	@echo "make test-gpu                       real servers of SGLang on a GPU (PYTHON=... of the environment that has SGLang)"
	@echo "make image, make image-gpu          build the container images (docs/container.md)"
	@echo "make test-container                 build the CPU image and run the pipeline in it (needs Docker, or root and docker.io;"
	@echo "                                    EYRIE_TEST_GPU_IMAGE=1: the GPU image too, 5 GB of downloads and 30 GB of disk)"
	@echo "make lint                           ruff, and hadolint for the Dockerfile"
	@echo "make lock                           write the hash locks anew (needs uv)"

env: $(STAMP)

.venv/.installed: $(LOCKS)/install.sh $(LOCKS)/pip.txt $(LOCKS)/cpu-py311.txt $(LOCKS)/cpu-py312.txt $(LOCKS)/torch.txt \
                  $(LOCKS)/torch-default.txt $(LOCKS)/image-tools.txt
	@bash $(LOCKS)/install.sh .venv
	@touch $@

# The profile is written outside: it says which image to start.
CONTAINER = $(VENV)/bin/python -m tools.container run --network $(NETWORK) $(if $(PROFILE),--profile $(PROFILE)) -- python -m tools.repro
REPRO = $(if $(filter container,$(IN)),$(CONTAINER),$(VENV)/bin/python -m tools.repro $(if $(PROFILE),--profile $(PROFILE)))

repro: $(STAMP)
	@$(REPRO) $(ARGS)

preflight: $(STAMP)
	@$(REPRO) preflight $(ARGS)

smoke: $(STAMP)
	@$(VENV)/bin/python -m tools.smoke $(ARGS)

test: $(STAMP)
	@$(VENV)/bin/python -m pytest -n 2 tests $(ARGS)

test-contract: $(CONTRACT)/.installed
	@if [ "$(VERSIONS)" = all ]; then bash $(LOCKS)/sglang-wheels.sh $(WHEELS) all; fi
	@$(if $(filter all,$(VERSIONS)),EYRIE_SGLANG_WHEELS=$(WHEELS)) $(CONTRACT)/bin/python -m pytest tests/contract $(ARGS)

# In an environment that has SGLang, which .venv has not; GPUs are shared by as many tests as ARGS="-n 4" says.
test-gpu: PYTHON ?= python
test-gpu:
	@$(PYTHON) -m pytest tests/gpu $(ARGS)

$(CONTRACT)/.installed: $(STAMP) $(LOCKS)/install-contract.sh $(LOCKS)/contract-py311.txt $(LOCKS)/contract-py312.txt \
                        $(LOCKS)/sglang-wheels.txt
	@bash $(LOCKS)/install-contract.sh $(VENV) $(CONTRACT) $(WHEELS) $(SGLANG)
	@touch $@

image: $(STAMP)
	@$(VENV)/bin/python -m tools.container build cpu $(ARGS)

image-gpu: $(STAMP)
	@$(VENV)/bin/python -m tools.container build gpu $(ARGS)

test-container: $(STAMP)
	@EYRIE_TEST_CONTAINER=1 $(VENV)/bin/python -m pytest tests/container $(ARGS)

lint: $(STAMP)
	@$(VENV)/bin/ruff check $(ARGS) .
	@$(VENV)/bin/hadolint Dockerfile

# --universal: one file for every operating system; --no-header and --no-annotate: no paths of the machine that wrote it.
# The GPU lock is for one machine: CUDA's packages are Linux only, SGLang's wheel needs glibc 2.34. It comes first; -c carries its
# versions over to the others, so that a package has one version in whichever environment.
COMPILE = $(UV) pip compile --quiet --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
          --exclude-newer $(LOCK_DAY)
lock:
	$(COMPILE) --python-version 3.12 --python-platform x86_64-manylinux_2_34 --prerelease if-necessary-or-explicit \
	  -o $(LOCKS)/gpu.txt $(LOCKS)/gpu.in
	$(COMPILE) --universal --python-version 3.11 -c $(LOCKS)/gpu.txt -o $(LOCKS)/cpu-py311.txt $(LOCKS)/cpu.in
	$(COMPILE) --universal --python-version 3.12 -c $(LOCKS)/gpu.txt -o $(LOCKS)/cpu-py312.txt $(LOCKS)/cpu.in
	$(COMPILE) --universal --python-version 3.12 -c $(LOCKS)/cpu-py312.txt -o $(LOCKS)/dvc.txt $(LOCKS)/dvc.in
	$(COMPILE) --universal --python-version 3.11 -c $(LOCKS)/cpu-py311.txt -c $(LOCKS)/gpu.txt \
	  --override $(LOCKS)/contract-overrides.in -o $(LOCKS)/contract-py311.txt $(LOCKS)/contract.in
	$(COMPILE) --universal --python-version 3.12 -c $(LOCKS)/cpu-py312.txt -c $(LOCKS)/gpu.txt \
	  --override $(LOCKS)/contract-overrides.in -o $(LOCKS)/contract-py312.txt $(LOCKS)/contract.in
	$(COMPILE) --universal --python-version 3.11 -c $(LOCKS)/cpu-py311.txt -o $(LOCKS)/torch-default.txt $(LOCKS)/torch-default.in
	$(COMPILE) --universal --python-version 3.11 -o $(LOCKS)/pip.txt $(LOCKS)/pip.in
	$(COMPILE) --universal --python-version 3.11 -o $(LOCKS)/image-tools.txt $(LOCKS)/image-tools.in
