# Every target but help and clean first brings .venv up to date. Works with pip's own settings: a mirror or an offline
# folder is named to it as always (PIP_INDEX_URL, or PIP_NO_INDEX=1 with PIP_FIND_LINKS); nothing here names a host.

SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOCK := deploy/requirements.lock
LOCK_DEV := deploy/requirements-dev.lock
# Set PYTHON=/path/to/python3 to choose another; the first of these that runs and is new enough is taken.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo "$$p"; break; }; done)
# Test files that run at a time, each with brokers, a Spark session and routers of its own. Half of a test's time is
# waiting, also of those that start nothing; so there are two for a core, where there are 3 GiB of memory for each.
CORES := $(shell getconf _NPROCESSORS_ONLN)
WORKERS ?= $(shell awk -v most=$$((2 * $(CORES))) '/^MemTotal/ { n = int($$2 / 3145728) } \
	END { print n < 1 ? 1 : n < most ? n : most }' /proc/meminfo)
# Compiled modules are kept beside their sources, whatever the surroundings say: each start of a router, of its workers and
# of those that run tests would compile all it imports anew.
export PYTHONDONTWRITEBYTECODE :=
# What pip does, a line each; and signs of life, since it unpacks for minutes without a word.
STEPS := awk '/^ +(Downloading|Using cached|Building wheel.*started)/ { print; fflush() } \
	/^Installing collected/ { print "  Unpacking all of them"; fflush() }'
TICKING := { while sleep 15 </dev/null >/dev/null 2>&1; do echo "  ... $$(du -sm $(VENV) | cut -f1) MB in $(VENV)"; done; } & \
	trap "kill $$!" EXIT;
# More options for pytest, such as --junitxml=FILE.
PYTEST_FLAGS ?=
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
	--custom-compile-command 'make lock' $(LOCK_FLAGS)

.PHONY: help prerequisites install check format test test-full test-kill demo bench bench-catalog bench-library bench-judging bench-rendering bench-gateways bench-tables bench-steady-tables bench-latency bench-start bench-definitions bench-cluster bench-registry bench-peers bench-demultiplexing docs lock connectors pins weights screenshot clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

prerequisites:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is missing: install it, or name one with make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) has no venv module: install it (on Debian: python3-venv)" >&2; exit 1; }
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	version=$$("$$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1); \
	case "$$version" in \
	17|21) ;; \
	"") echo "Java is missing ($$java does not run): install Java 17 or 21, or set JAVA_HOME" >&2; exit 1 ;; \
	*) echo "Java $$version found ($$java), but Spark needs 17 or 21: install one, or set JAVA_HOME to it" >&2; exit 1 ;; \
	esac

install: $(STAMP) ## make .venv with the xrouter command in it

$(STAMP): pyproject.toml $(LOCK_DEV)
	@$(MAKE) --no-print-directory prerequisites
	@echo "1/3 a Python environment in $(VENV)"
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@echo "2/3 packages, half a gigabyte of them: minutes, of which PySpark takes the most"
	@set -o pipefail; $(TICKING) $(BIN)/python -m pip install --progress-bar off --require-hashes -r $(LOCK_DEV) | $(STEPS)
	@echo "3/3 the xrouter command: $(BIN)/xrouter"
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

check: install ## format, lint, types, quick unit tests and architecture tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -m "not full and not slow and not broker and not spark" -n $$((2 * $(CORES))) --dist loadfile --no-loadscope-reorder tests/unit tests/test_architecture.py

format: install ## format, and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: install ## all tests but the long ones, with a real broker
	$(BIN)/python -m pytest -m "not full" -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_FLAGS)

test-full: install ## all tests
	$(BIN)/python -m pytest --hypothesis-profile=full

test-kill: install ## 50,000 messages through each protocol, while routers, gateways and brokers are killed and disks fill
	$(BIN)/python -m pytest -m full tests/reliability

demo: install ## the whole router on embedded defaults, in a few minutes
	$(BIN)/xrouter demo

bench: bench-catalog ## Kafka to Kafka against a bare pass-through of Spark, after bench-catalog
	$(BIN)/python -m tests.benchmarks.kafka_passthrough

bench-library: install ## one record through `xrouter.load(...).match`, for each protocol
	$(BIN)/python -m tests.benchmarks.library

bench-judging: install ## rows of the inbox, from Arrow batch to outcomes, on one core for each protocol, at any number of definitions
	$(BIN)/python -m tests.benchmarks.judging

bench-rendering: install ## records rendered for tables, JSON lines and structured mode, as columns and one by one
	$(BIN)/python -m tests.benchmarks.rendering

bench-gateways: install ## messages acknowledged by gateway and inbox, beside the same client dropping them
	$(BIN)/python -m tests.benchmarks.gateways

bench-tables: install ## Kafka to Delta tables against Spark's own Kafka to Delta
	$(BIN)/python -m tests.benchmarks.tables

bench-latency: install ## time of records from broker to broker at 1,000 and 5,000 a second, beside Spark's own
	$(BIN)/python -m tests.benchmarks.latency

bench-start: install ## a router's start to its first record out, and its first batches against later ones
	$(BIN)/python -m tests.benchmarks.start

bench-definitions: install ## 10 to 10,000 definitions from Kafka to Kafka, and PySpark written by hand at 1,500
	$(BIN)/python -m tests.benchmarks.definitions

bench-peers: install ## the router beside Kafka Streams, Quix Streams and PySpark by hand, in under 15 minutes; needs a JDK
	$(BIN)/python -m tests.benchmarks.peers

bench-demultiplexing: install ## a topic into typed tables by the library, by hand and by the router, with two versions of Spark
	$(BIN)/python -m tests.benchmarks.demultiplexing

bench-cluster: install ## one and two executors of a standalone Spark cluster, and the share of the work that is the driver's
	$(BIN)/python -m tests.benchmarks.cluster

bench-steady-tables: install ## fifty typed tables under a trigger of 500 ms, fed with 5,000 records a second
	$(BIN)/python -m tests.benchmarks.steady_tables

bench-registry: install ## reads and writes of a registry, an import, and the first page of 50,000 messages
	$(BIN)/python -m tests.benchmarks.registry

bench-catalog: install ## catalogs of 10 to 10,000 definitions, from file to plan
	$(BIN)/python -m tests.benchmarks.catalog_load

connectors: install ## fill the cache of jars and classes, for quick starts, and tests without a network
	$(BIN)/python -m router.spark.connectors
	$(BIN)/python -m tests.support.brokers
	$(BIN)/python -m tests.support.qpid
	$(BIN)/python -m tests.support.apicurio
	if command -v go >/dev/null; then $(BIN)/python -m tests.support.helm; fi

weights: install ## write how long each file of tests takes, from REPORT, a JUnit report of make test
	$(BIN)/python -m tests.support.weights $(REPORT)

pins: install ## write the hashes of all jars anew, after a change of their versions
	$(BIN)/python -m tests.support.pins

screenshot: install ## the status page of a router under traffic, as deploy/status-page.png
	STATUS_SCREENSHOT=$(CURDIR)/deploy/status-page.png $(BIN)/python -m pytest -q -m "not full" tests/integration/test_status_page.py

docs: install ## the documentation as a site in build/site, self-contained; warnings are errors
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --conf-dir deploy/docs --fresh-env . build/site

lock: install ## write the lock files anew; LOCK_FLAGS=--upgrade takes new versions
	$(COMPILE) --extra all pyproject.toml -o $(LOCK)
	$(COMPILE) --extra dev -c $(LOCK) pyproject.toml -o $(LOCK_DEV)
	echo quixstreams | $(COMPILE) - -o tests/benchmarks/quix_requirements.txt

clean: ## remove .venv and what tools and runs leave behind, but not the jar cache
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis spark-warehouse metastore_db derby.log
	find catalog bindings registry router xrouter tests -name __pycache__ -type d -prune -exec rm -rf {} +
