# The only entry point. `make` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
UV := $(BIN)/uv
# More arguments for pytest: make unit PYTEST='-k lease -x'
PYTEST ?=

# The tests start servers hundreds of times: byte code is compiled once and kept.
unexport PYTHONDONTWRITEBYTECODE

# Property tests find the same examples on every run; HYPOTHESIS_PROFILE=dev looks for others.
export HYPOTHESIS_PROFILE ?= ci

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# --- set-up ------------------------------------------------------------------

.PHONY: setup
setup: $(VENV)/.setup ## make .venv with the locked tools and the project in it

$(VENV)/.venv:
	@PYTHON=$(PYTHON) scripts/preflight
	$(PYTHON) -m venv --clear $(VENV)
	sed -n '/^uv==/,/[^\\]$$/p' requirements/dev.lock > $(VENV)/uv.txt
	$(PY) -m pip install --quiet --require-hashes -r $(VENV)/uv.txt
	@touch $@

# uv is fast; pip is the way out where only pip knows how to reach the packages.
$(VENV)/.dev: requirements/dev.lock $(VENV)/.venv
	$(UV) pip sync --quiet --compile-bytecode --python $(PY) --require-hashes requirements/dev.lock \
	  || $(PY) -m pip install --quiet --require-hashes -r requirements/dev.lock
	@touch $@

$(VENV)/.setup: pyproject.toml $(VENV)/.dev
	$(UV) pip install --quiet --offline --python $(PY) --no-deps --no-build-isolation -e .
	@touch $@

# Data for the demo; nothing imports it, so it comes without what it depends on.
$(VENV)/.demo: requirements/demo.lock $(VENV)/.dev
	$(UV) pip install --quiet --compile-bytecode --python $(PY) --no-deps --require-hashes -r requirements/demo.lock \
	  || $(PY) -m pip install --quiet --no-deps --require-hashes -r requirements/demo.lock
	@touch $@

# For the tests of the data source.
$(VENV)/.spark: requirements/spark.lock $(VENV)/.dev
	@echo 'Installing PySpark into $(VENV): 450 MB as source, one to two minutes.'
	$(UV) pip install --quiet --compile-bytecode --python $(PY) --require-hashes -r requirements/spark.lock \
	  || $(PY) -m pip install --quiet --require-hashes -r requirements/spark.lock
	@touch $@

# For their starts of Spark.
$(VENV)/spark.jsa: $(VENV)/.spark | $(VENV)/.setup
	$(PY) -m scripts.spark_archive $@

# For the site of docs/, and for the frameworks in its programs.
$(VENV)/.docs: requirements/docs.lock $(VENV)/.dev
	$(UV) pip install --quiet --compile-bytecode --python $(PY) --require-hashes -r requirements/docs.lock \
	  || $(PY) -m pip install --quiet --require-hashes -r requirements/docs.lock
	@touch $@

COMPILE := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
  --no-header --no-annotate --no-emit-index-url --no-emit-find-links

.PHONY: lock
lock: setup ## resolve requirements/*.lock again from pyproject.toml (UPGRADE=--upgrade for the newest)
	$(COMPILE) $(UPGRADE) pyproject.toml -o requirements/base.lock
	$(COMPILE) $(UPGRADE) pyproject.toml --extra server -c requirements/base.lock -o requirements/server.lock
	$(COMPILE) $(UPGRADE) pyproject.toml --extra server --group dev -c requirements/server.lock -o requirements/dev.lock
	$(COMPILE) $(UPGRADE) --group demo --no-deps -o requirements/demo.lock
	$(COMPILE) $(UPGRADE) --group docs -c requirements/dev.lock -o requirements/docs.lock
	$(COMPILE) $(UPGRADE) pyproject.toml --extra spark -c requirements/dev.lock -o requirements/spark.lock
	@! grep -n '://' requirements/*.lock

# --- use ---------------------------------------------------------------------

.PHONY: run
run: setup ## start one node on ./data
	$(BIN)/querator serve --data-dir ./data --new

.PHONY: cluster
cluster: setup ## run three nodes on this machine, in ./data/cluster
	@cluster/local/run

.PHONY: demo
demo: setup $(VENV)/.demo ## push real flights through three nodes, kill one, prove none was lost
	$(PY) -m querator demo

# The last line is JSON. FLIGHTS=336776 takes all of them; MONTH=2 those of a month.
.PHONY: durable-demo
durable-demo: setup $(VENV)/.demo ## flights as executions: workers and a node killed, counts equal (FLIGHTS=20000 MONTH=n)
	$(PY) -m scripts.durable_demo $(if $(FLIGHTS),--flights $(FLIGHTS)) $(if $(MONTH),--month $(MONTH))

.PHONY: spark-demo
spark-demo: setup $(VENV)/.demo $(VENV)/.spark ## the same flights by Spark: driver, worker and node killed, totals equal (needs Java 17)
	$(PY) -m querator spark demo

.PHONY: bench
bench: setup ## measure a node and the client beside it
	$(PY) -m scripts.bench

.PHONY: bench-compare
bench-compare: setup ## measure this version and the checkout BEFORE=../before in turn
	$(PY) -m scripts.bench.compare $(BEFORE)

.PHONY: bench-spark
bench-spark: setup $(VENV)/.spark ## measure scans, archives and ingests of a queue by Spark
	$(PY) -m scripts.bench.spark

.PHONY: failover
failover: setup ## measure how long clients stand still when a node of three dies or hands off
	$(PY) -m scripts.bench.failover

PAIRS ?= 5
.PHONY: beside
beside: setup ## measure what a healthy queue keeps of its rate beside stuck ones (PAIRS=5)
	$(PY) -m scripts.bench.beside --pairs $(PAIRS)

PARTITIONS ?= 1000
.PHONY: idle
idle: setup ## measure what PARTITIONS (1000) cost on three nodes in which nothing happens
	$(PY) -m scripts.bench.idle --partitions $(PARTITIONS)

.PHONY: due
due: setup ## measure whether 100,000 scheduled items come in order and on time when a leader dies
	$(PY) -m scripts.bench.due

# The last line is the summary.
.PHONY: fairness
fairness: setup ## measure whether 1,000 groups of a fair queue share its leases by their weights
	$(PY) -m scripts.bench.fairness

# KEYS with ITEMS items each. The last line is the summary.
.PHONY: keyed
keyed: KEYS ?= 10000
keyed: ITEMS ?= 100
keyed: setup ## check the order of KEYS (10000) keys of a keyed queue under faults, and measure its rate
	$(PY) -m scripts.bench.keyed --keys $(KEYS) --per-key $(ITEMS)

# In the process of the program, without nodes. The last line is the summary.
.PHONY: worst
worst: setup ## measure what the worst mix of work costs a partition, by backlog and by groups
	$(PY) -m scripts.bench.worst_case

# In the process of the program, without nodes. The last line is the summary.
.PHONY: journal
journal: SCALE ?= 1
journal: setup ## measure what a Record costs, by the length of its journal and by parked executions
	$(PY) -m scripts.bench.journal --scale $(SCALE)

# The last line is the summary.
.PHONY: replies
replies: setup ## check that each of 10,000 requests has one answer while workers and leaders are killed
	$(PY) -m scripts.bench.replies

# The last line is the summary.
.PHONY: bulk
bulk: setup ## check a redrive of 100,000 items at a rate and a purge of 1,000,000 while leaders are killed
	$(PY) -m scripts.bench.bulk

# The last line is the summary.
.PHONY: locks
locks: setup ## check locks and fencing tokens while holders are stopped, and leaders killed and cut off
	$(PY) -m scripts.bench.locks

# The last line is the summary.
.PHONY: events
events: setup ## check that a follower that is killed sees 1,000,000 operations once, and what events cost
	$(PY) -m scripts.bench.events

.PHONY: durable-replay
durable-replay: setup ## measure how fast the code of executions is replayed from journals
	$(PY) -m scripts.bench.durable_replay

.PHONY: bench-durable
bench-durable: setup ## measure durable execution on one node and on three: lives, steps, signals, children
	$(PY) -m scripts.bench.durable

EXECUTIONS ?= 1000
.PHONY: deployments
deployments: setup ## deploy changed code back and forth under load, with EXECUTIONS (1000) parked executions
	$(PY) -m scripts.bench.deployments --executions $(EXECUTIONS)

SEEDS_OF_PROGRAMS ?= 10000
.PHONY: durable-programs
durable-programs: setup ## compare random durable programs with plain asyncio, on each Python that is here
	@scripts/durable-programs $(SEEDS_OF_PROGRAMS)

.PHONY: docs
docs: setup $(VENV)/.docs ## build the site of docs/ in build/site; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "build/site/index.html"

# --- static checks -----------------------------------------------------------

.PHONY: fmt
fmt: setup ## format the code and fix what can be fixed by rule
	$(BIN)/ruff check --quiet --fix-only .
	$(BIN)/ruff format .

.PHONY: lint
lint: setup ## formatting and lint rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@! git grep -nE '^(<<<<<<<|>>>>>>>)( |$$)'

.PHONY: type
type: setup ## mypy --strict
	$(BIN)/mypy

.PHONY: layers
layers: setup ## which package may import which (.importlinter)
	$(BIN)/lint-imports --no-logo

.PHONY: prose
prose: setup ## English of the docs, docstrings and comments (scripts/check_prose.py)
	$(PY) -m scripts.check_prose

.PHONY: proto
proto: setup ## make querator/v1 from proto/
	scripts/proto

.PHONY: proto-check
proto-check: setup ## lint proto/ and check that querator/v1 comes from it
	$(BIN)/buf lint
	scripts/proto --check

# --- tests -------------------------------------------------------------------

# Each tier is a folder of tests/.
.PHONY: unit
unit: setup ## tests/unit: one package at a time
	$(BIN)/pytest tests/unit -n 2 $(PYTEST)

# Seeds that the tier runs, from SEED_START on, in addition to those of tests/simulation/seeds.txt.
SIMULATION_SEEDS ?= 30
export SIMULATION_SEEDS
# The same of whole nodes, and of whole nodes with more faults at once (seeds from 1,000,001 on).
WHOLE_SEEDS ?= 20
export WHOLE_SEEDS
HARSH_SEEDS ?= 10
export HARSH_SEEDS

.PHONY: simulation
simulation: setup ## tests/simulation: many seeds of a cluster under virtual time
	$(BIN)/pytest tests/simulation -n 2 --timeout 2700 $(PYTEST)

# make sim SEEDS=1000 [SEED_START=1]; make sim SEED=17 replays one and tells what happens.
# WHOLE=1: seeds of whole nodes; from 1,000,001 on with more faults at once.
SEEDS ?= 100
SEED_START ?= 1
export SEED_START

.PHONY: sim
sim: setup ## run SEEDS seeds of the simulator, or replay one SEED with a transcript
	$(PY) -m tests.simulation $(if $(WHOLE),--whole) $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) --start $(SEED_START))

.PHONY: sim-executions
sim-executions: setup ## run SEEDS seeds of durable functions on a partition, under faults
	$(PY) -m tests.simulation.executions --seeds $(SEEDS) --start $(SEED_START)
	$(PY) -m tests.simulation.families --seeds $(SEEDS) --start $(SEED_START)
	$(PY) -m tests.simulation.loops --seeds $(SEEDS) --start $(SEED_START)
	$(PY) -m tests.simulation.restarts --seeds $(SEEDS) --start $(SEED_START)
	$(PY) -m tests.simulation.rewinds --seeds $(SEEDS) --start $(SEED_START)

# The mends that are taken back, one at a time, and a few mutants: MUTANT=name for one alone.
.PHONY: mutants
mutants: MUTANT ?=
mutants: setup ## count the seeds that find each mended defect again (SEEDS=300 MUTANT=name)
	$(PY) -m tests.simulation.defects $(MUTANT) --seeds $(if $(filter file,$(origin SEEDS)),300,$(SEEDS))

.PHONY: slow-mutants
slow-mutants: export SLOW_MUTANTS := 1
slow-mutants: setup ## all mutants of whole nodes, with those that take many seeds
	$(BIN)/pytest tests/simulation/test_whole_mutants.py -n 2 --timeout 2700 $(PYTEST)

.PHONY: integration
integration: setup $(VENV)/.demo $(VENV)/.docs ## tests/integration: nodes on this machine
	$(BIN)/pytest tests/integration -n 2 --dist loadfile --no-loadscope-reorder $(PYTEST)

# Of six workers, most wait: for leases that lapse, and for what the nodes write to disk.
.PHONY: conformance
conformance: setup ## tests/conformance: what users see, by each door, on one node and on three
	$(BIN)/pytest tests/conformance -n 6 $(PYTEST)

.PHONY: kill9
kill9: export KILLS ?= 50
kill9: setup ## one node is killed KILLS (50) times under load, and loses nothing
	$(BIN)/pytest tests/integration/test_kill9.py $(PYTEST)

.PHONY: durable-kill9
durable-kill9: export KILLS ?= 50
durable-kill9: setup ## a worker and the node are killed KILLS (50) times each under 200 executions
	$(BIN)/pytest tests/integration/test_durable_kills.py -n 0 $(PYTEST)

.PHONY: clients
clients: setup ## tests/clients: the clients in each language
	$(BIN)/pytest tests/clients -n 2 $(PYTEST)

# The worker in Go and the node are killed ROUNDS times each under 200 executions.
.PHONY: go-worker
go-worker: export ROUNDS ?= 20
go-worker: setup ## tests of the worker of durable functions in Go, with many kills
	$(BIN)/pytest tests/clients/test_durable_worker.py tests/clients/test_durable_takeover.py -n 0 -s $(PYTEST)

.PHONY: spark
spark: setup $(VENV)/spark.jsa $(VENV)/.demo ## tests/spark: the data source on real PySpark (needs Java 17)
	$(BIN)/pytest tests/spark -n 2 --dist loadfile --no-loadscope-reorder $(PYTEST)

# RUNS under load, with SEED and the seeds after it: make powerloss RUNS=1 SEED=7
.PHONY: powerloss
powerloss: RUNS ?= 20
powerloss: SEED ?= 1
powerloss: setup ## tests/powerloss: disks that forget what was not synced (RUNS=20 SEED=1)
	POWERLOSS_RUNS=$(RUNS) POWERLOSS_SEED=$(SEED) $(BIN)/pytest tests/powerloss -n 2 $(PYTEST)

# The last line is the summary; what failed is kept, with the command that checks it again.
.PHONY: chaos
chaos: MINUTES ?= 5
chaos: SEED ?= 0
chaos: setup ## three nodes under load and random faults, then every checker (MINUTES=5 SEED=n)
	$(PY) -m tests.chaos --minutes $(MINUTES) --seed $(SEED)

# The last line is the summary. What does not balance is kept.
.PHONY: spark-chaos
spark-chaos: MINUTES ?= 10
spark-chaos: SEED ?= 0
spark-chaos: setup $(VENV)/.spark ## two streams of Spark while driver, workers and nodes are killed (MINUTES=10 SEED=n)
	$(PY) -m tests.spark_chaos --minutes $(MINUTES) --seed $(SEED)

# The last line is the summary. With SHORT=1 it takes a minute.
.PHONY: grow
grow: setup $(VENV)/.demo ## nodes and partitions come and go under 3,000 flights a second, and the counts balance
	$(PY) -m tests.growth $(if $(SHORT),--short)

# Writes build/soak/soak.md and soak.png.
.PHONY: soak
soak: MINUTES ?= 60
soak: SEED ?= 0
soak: setup $(VENV)/.spark ## load and every fault for an hour: nothing wrong, and nothing grows (MINUTES=60 SEED=n)
	$(PY) -m tests.soak --minutes $(MINUTES) --seed $(SEED)

# The last line is the summary; the table says which goals were met.
.PHONY: stalls
stalls: TIMES ?= 5
stalls: setup ## leaders that hang or are cut off: how long nothing is acknowledged (TIMES=5)
	$(PY) -m tests.stalls --times $(TIMES)

# The simulation only computes, at the lowest priority beside all others. The unit tests come first:
# many of them wait for tenths of a second, and have but this one beside them. The tiers with real
# processes wait much of the time, so two run at a time.
.PHONY: test
test: export RUNS ?= 1
test: setup $(VENV)/.demo $(VENV)/.docs $(VENV)/.spark ## every tier
	scripts/side-by-side --lowest simulation -- unit processes

# Of the tiers that `make test` makes, those with nodes and other programs.
.PHONY: processes
processes:
	scripts/side-by-side spark clients conformance powerloss -- integration

.PHONY: check
check: lint type layers prose unit ## what to run before each commit; about two minutes

.PHONY: static
static: setup $(VENV)/.docs ## the static checks and the site, beside each other
	scripts/side-by-side docs -- type -- lint layers prose proto-check collect

# Each worker of a tier would compile all of its tests when they begin at the same time.
.PHONY: collect
collect: setup ## compile all tests, and run none
	@mkdir -p build
	$(BIN)/pytest tests --collect-only -qqq -n 0 > build/collect.log || { cat build/collect.log; false; }

.PHONY: ci
ci: export CI := true
ci: setup $(VENV)/.demo $(VENV)/.docs $(VENV)/.spark static test ## everything; a skipped test must be listed in tests/skips.toml

# --- release -----------------------------------------------------------------

.PHONY: wheel
wheel: setup ## build the wheel into dist/, and try nothing
	$(PY) -m scripts.dist --only-build

.PHONY: dist
dist: setup ## build the wheel and try it in empty environments: client, server, spark (WITHOUT=spark)
	$(PY) -m scripts.dist $(addprefix --without ,$(WITHOUT))

.PHONY: clean
clean: ## remove what make has made (not ./data)
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find querator tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
