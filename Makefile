# Each target does the set-up it needs: a virtual environment in .venv, updated when pyproject.toml changes. Dependencies
# of tests, documentation and benchmarks are installed on first use.

BIN := .venv/bin
READY := .venv/ready
DEV := .venv/dev
export PYTHON

.DEFAULT_GOAL := help
.PHONY: help demo serve test slow sweeps sweeps-spark bench bench-spark bench-peers docs wheel clean

# What sweeps generate and run: `make sweeps SEED=7 EXAMPLES=1500 ONLY="tests/conformance/test_eps.py -k contexts"`.
ifndef SEED
SEED := $(shell date +%s)
endif
ONLY ?= tests/conformance
SWEEP = $(BIN)/pytest -n 2 --dist loadgroup --sweep-seed $(SEED) $(ONLY)

help:
	@echo 'make demo    find fires in a million events'
	@echo 'make serve   the service with made-up events, and a console to look at it'
	@echo 'make test    every check, and the tests: real Spark, cluster, broker and browser among them'
	@echo 'make slow    the tests that make test leaves out, as each takes up to some minutes (pytest -m long: the longest)'
	@echo 'make sweeps  conformance tests with new cases, without Spark: SEED=7 (default: the time) EXAMPLES=1500 (for each'
	@echo '             test) ONLY="tests/conformance/test_eps.py -k contexts" (what pytest takes; default tests/conformance)'
	@echo 'make sweeps-spark  the same on Spark; EXAMPLES=60 is the number of queries, each of up to 60 cases'
	@echo 'make bench   the benchmarks, on one core and then on Spark (make bench-spark: these alone)'
	@echo 'make bench-peers   compared with Flink CEP, Esper, Siddhi, polars, DuckDB (PEERS="--quick --only Esper" for less)'
	@echo 'make docs    the documentation as a site, in build/site'
	@echo 'make wheel   a source archive and a wheel, in dist'
	@echo 'make clean   remove all generated files'

demo: $(READY)
	@JAVA_HOME=$$(scripts/java.sh) && export JAVA_HOME && $(BIN)/tocsin demo

serve: $(READY)
	@$(BIN)/tocsin serve --demo

test: $(DEV) lint
	$(BIN)/pytest -n 2 --dist loadgroup --doctest-modules src tests

slow: $(DEV)
	$(BIN)/pytest -n 2 --dist loadgroup -m 'slow and not long' tests

sweeps: $(DEV)
	$(SWEEP) --examples $(or $(EXAMPLES),1500) -m 'not spark'

sweeps-spark: $(DEV)
	$(SWEEP) --examples $(or $(EXAMPLES),60) -m spark

.PHONY: lint
lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(DEV)
	@status=0; $(BIN)/python benchmarks/bench.py || status=1; \
	$(BIN)/python benchmarks/spark_bench.py || status=1; exit $$status

bench-spark: $(DEV)
	$(BIN)/python benchmarks/spark_bench.py

bench-peers: $(DEV)
	@JAVA_HOME=$$(scripts/java.sh) && export JAVA_HOME && $(BIN)/python benchmarks/peers_bench.py $(PEERS)

docs: $(DEV)
	$(BIN)/python -m mkdocs build --strict

wheel: $(DEV)
	$(BIN)/python -m build

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist src/*.egg-info
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml scripts/setup.sh
	scripts/setup.sh .venv
	@touch $@

$(DEV): $(READY)
	scripts/setup.sh .venv dev
	@touch $@
