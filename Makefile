# `make help` is the developer's manual. Everything runs in .venv, which the first target that needs it creates.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
SOURCES := api kube operator trainer cli python tests scripts benchmarks examples
PYTEST := $(BIN)/python -m pytest
# A file's tests run in one process, where they share what they compile and start. Few tests may take long: not last.
TWO := -n 2 --dist loadfile --no-loadscope-reorder
# What compiles nothing and plays no thousands of lives; a new folder of unit tests is in it by itself.
QUICK := tests/unit --ignore=tests/unit/pttrainer --ignore-glob='*simulation.py'

.DEFAULT_GOAL := help
.PHONY: help demo test check static quick unit integration format crds golden docs site bench learning bench-peers bench-gpu parity vllm vllm-tpu verifiers references aot tune-attention audit images clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

$(VENV)/.python: | pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("posttrain needs Python 3.11 or newer; found " + sys.version.split()[0] + "; hint: make PYTHON=python3.11 …") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.run: $(VENV)/.python pyproject.toml constraints.txt
	$(PIP) install -q -c constraints.txt -e '.[operator,trainer-cpu,cli]'
	@touch $@

$(VENV)/.dev: $(VENV)/.python pyproject.toml constraints.txt
	$(PIP) install -q -c constraints.txt -e '.[dev]'
	@touch $(VENV)/.run $@

demo: $(VENV)/.run  ## teach a small model to add, through the operator, in an embedded cluster (2 to 5 minutes)
	@$(BIN)/ptctl demo $(ARGS)

test: $(VENV)/.dev  ## every test (unit, then integration)
	$(PYTEST) tests/unit -q $(TWO)
	$(PYTEST) tests/integration -q $(TWO)

quick: $(VENV)/.dev  ## the tests that compile nothing with JAX and need no cluster (a minute and a half on two cores): while you work
	JAX_PLATFORMS=none $(PYTEST) $(QUICK) -q $(TWO)

unit: $(VENV)/.dev  ## the tests that need no cluster
	$(PYTEST) tests/unit -q $(TWO)

integration: $(VENV)/.dev  ## the tests on an API server, and real small training runs
	$(PYTEST) tests/integration -q $(TWO)

check: static unit  ## format, lint, types, layers, unit tests, generated files: before every commit

static: $(VENV)/.dev  ## format, lint, types and layers
	$(BIN)/ruff format --check $(wildcard $(SOURCES))
	$(BIN)/ruff check $(wildcard $(SOURCES))
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev  ## format and mend what can be mended
	$(BIN)/ruff format $(wildcard $(SOURCES))
	$(BIN)/ruff check --fix $(wildcard $(SOURCES))

crds: $(VENV)/.dev  ## write manifests/crds, the chart's copy and RBAC rules, and the chart that ptctl installs, from the code
	$(BIN)/python scripts/make_crds.py
	$(BIN)/python scripts/make_rbac.py
	$(BIN)/python scripts/make_install.py

golden: $(VENV)/.dev  ## rewrite the golden files, to be read in the diff
	UPDATE_GOLDEN=1 $(PYTEST) tests/unit -q -k golden

docs: $(VENV)/.dev  ## write the generated reference pages
	$(BIN)/python scripts/make_reference.py
	$(BIN)/python scripts/make_message_index.py

site: $(VENV)/.dev  ## build the documentation site into site/ (make site ARGS=serve: look at it, rebuilt as you write)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs $(or $(ARGS),build)

bench: $(VENV)/.dev  ## run the benchmarks (quiet machine; each prints its ratio)
	@for file in apply_to_jobset ptctl_cpu; do echo "== $$file"; $(BIN)/python benchmarks/operator_and_cli/$$file.py || exit 1; done

learning: $(VENV)/.dev  ## the learning curves of docs/results.md again (TASK=arithmetic SEEDS="0 1"; else all)
	$(BIN)/python benchmarks/learning/run.py $(or $(TASK),all) --seeds $(or $(SEEDS),0 1 2) $(ARGS)

PARITY := .venv-parity

$(PARITY)/.ready: pyproject.toml
	$(PYTHON) -m venv $(PARITY)
	$(PARITY)/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt -e '.[parity]'
	@touch $@

parity: $(PARITY)/.ready  ## compare with torch, transformers, peft and TRL, live (its own environment, 1.3 GB)
	$(PARITY)/bin/python -m pytest tests/parity -q

VLLM := .venv-vllm

# PyPI's torchvision, torchaudio and torchcodec are for CUDA and break the import of a torch for CPUs; texts need none.
$(VLLM)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip --disable-pip-version-check install -q -e '.[vllm]'
	@$(VLLM)/bin/python -c 'import torchvision' 2>/dev/null || $(VLLM)/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	@touch $@

vllm: $(VLLM)/.ready  ## sample with a real vLLM on the CPU: server and in-process (its own environment, 3.5 GB)
	$(VLLM)/bin/python -m pytest tests/vllm -q -o faulthandler_timeout=3000 $(ARGS)

UV := .venv-uv

$(UV)/.ready:
	$(PYTHON) -m venv $(UV)
	$(UV)/bin/python -m pip --disable-pip-version-check install -q 'uv>=0.13'
	@touch $@

vllm-tpu: $(UV)/.ready  ## resolve the packages of the image with vLLM for TPUs (ARGS='--upgrade VERSION' renews them)
	PATH="$(UV)/bin:$$PATH" $(UV)/bin/python scripts/images/vllm_tpu/resolve.py $(ARGS)

VERIFIERS := .venv-verifiers

$(VERIFIERS)/.ready: | $(VENV)/.dev
	$(BIN)/python -m pip --disable-pip-version-check install -q --target $(VERIFIERS) verifiers==0.1.14
	@touch $@

verifiers: $(VERIFIERS)/.ready  ## play environments of the real `verifiers` package (a directory of its own, 600 MB)
	VERIFIERS=$(CURDIR)/$(VERIFIERS) $(BIN)/python -m pytest tests/verifiers -q $(ARGS)

TUNIX := .venv-tunix

$(TUNIX)/.ready: | pyproject.toml
	$(PYTHON) -m venv $(TUNIX)
	$(TUNIX)/bin/python -m pip --disable-pip-version-check install -q google-tunix==0.1.7 jax==0.10.2
	@touch $@

bench-peers: $(VENV)/.dev $(PARITY)/.ready $(TUNIX)/.ready  ## SFT, GRPO and sampling against Tunix, TRL, plain torch, transformers (75 minutes; quiet machine)
	$(BIN)/python benchmarks/peers/sft.py --tunix $(TUNIX)/bin/python --torch $(PARITY)/bin/python $(ARGS)
	$(BIN)/python benchmarks/peers/grpo.py --tunix $(TUNIX)/bin/python --torch $(PARITY)/bin/python $(ARGS)
	$(BIN)/python benchmarks/peers/rollout.py --tunix $(TUNIX)/bin/python --torch $(PARITY)/bin/python $(ARGS)

bench-gpu: $(VENV)/.python  ## on a machine with one GPU: MFU, memory, decoding, GRPO; ARGS="--model DIR --torch PYTHON" adds TRL and vLLM
	$(PIP) install -q -c constraints.txt -e '.[trainer-cuda]'
	$(BIN)/python benchmarks/gpu/gpu_bench.py $(ARGS)

references: $(PARITY)/.ready  ## write the numbers of transformers, peft and TRL that the unit tests compare with
	$(PARITY)/bin/python scripts/make_parity_references.py
	$(PARITY)/bin/python scripts/make_loss_references.py

AOT := .venv-aot

$(AOT)/.ready: pyproject.toml
	$(PYTHON) -m venv $(AOT)
	$(AOT)/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt -e '.[tpu-compiler]'
	@touch $@

aot: $(AOT)/.ready  ## compile training and decoding for TPUs that are not here (its own environment, 1.4 GB, 2 minutes)
	JAX_PLATFORMS=cpu $(AOT)/bin/python -m pytest tests/integration/pttrainer/test_tpu_compile.py tests/integration/pttrainer/test_tpu_decode.py tests/integration/pttrainer/test_preflight.py tests/integration/pttrainer/test_mesh_of_tpus.py tests/unit/pttrainer/runtime/test_pathways.py -q
	JAX_PLATFORMS=cpu $(AOT)/bin/python benchmarks/preflight/preflight_times.py hopeless
	JAX_PLATFORMS=cpu $(AOT)/bin/python benchmarks/tpu/tpu_programs.py v6e-8 --model qwen3-0.6b --rows 8 --length 256
	JAX_PLATFORMS=cpu $(AOT)/bin/python benchmarks/tpu/rl_step.py v5p-16 --model qwen3-0.6b --rows 16 --length 512 --new-tokens 256 --only rollout
	JAX_PLATFORMS=cpu $(AOT)/bin/python benchmarks/tpu/decode_step.py v6e-4 --model qwen3-0.6b --rows 16 --length 512 --new-tokens 256
	JAX_PLATFORMS=cpu $(AOT)/bin/python benchmarks/tpu/feed_forward.py v6e-8 0 98304 --rows 1 --length 1024 --d-model 1024 --d-ff 2048
	JAX_PLATFORMS=cpu $(AOT)/bin/python benchmarks/tpu/feed_forward.py v6e-8 0 --rows 1 --length 1024 --d-model 1024 --d-ff 2048 --split

tune-attention: $(AOT)/.ready  ## write the table of splash attention's tiles again, by the TPU compiler (35 minutes)
	$(AOT)/bin/python scripts/tune_attention.py

AUDIT := .venv-audit

$(AUDIT)/.ready: scripts/images/audit_tools.txt
	$(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/python -m pip --disable-pip-version-check install -q --require-hashes -r scripts/images/audit_tools.txt
	@touch $@

audit: $(AUDIT)/.ready  ## look up advisories of what the images install (ARGS=--unreachable-ok where no service may be reachable)
	$(AUDIT)/bin/python scripts/audit.py $(ARGS)

images: $(VENV)/.python  ## build both images with podman, buildah or docker, try them, and record what is in them (ACCELERATOR=tpu REGISTRY=… PYTHON_IMAGE=…)
	$(BIN)/python -m scripts.images.build

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) $(PARITY) $(VLLM) $(TUNIX) $(AOT) $(AUDIT) $(UV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
