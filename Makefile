# `make help` says what there is. Targets make .venv on first use. Needed beforehand: Python 3.11+ and
# a C compiler; a JDK 17+ for Spark and for the tests.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
KERNELS := setup.py spark_jar.py $(wildcard */kernels/*.pyx logstore/kernels/*.pxd logstore/kernels/*.c logstore/kernels/*.h logstore/spark/java/logstore/*.java)
KERNEL_SOURCES := $(filter-out logstore/kernels/_%.c,$(KERNELS))
SANITIZED := build/sanitize
# Python itself has no sanitizer: its memory comes from malloc, and what it never frees is no leak.
IN_SANITIZED = cd $(SANITIZED) && PYTHONPATH=. PYTHONMALLOC=malloc \
	LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libubsan.so)" \
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
	$(abspath $(BIN))/python
KERNEL_TESTS := tests/contract/test_kernels.py tests/contract/test_arrow_kernels.py \
	tests/contract/test_verify_kernels.py tests/fuzz/kernels \
	tests/unit/format/test_crc32c.py tests/unit/format/test_format_hostile.py tests/unit/format/test_record_objects.py
# Of a fuzzer: more than this and the machine, not the code, decides how long it takes.
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo quick test test-all crash fuzz sanitize check lint types imports figures docs build clean need-compiler need-sanitizers need-jdk

help: ## what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "ARGS='…' is handed on: make demo ARGS=--no-spark; make quick ARGS=-x"

# Without the act of Spark it takes neither PySpark nor a JDK.
demo: $(if $(filter --no-spark,$(ARGS)),$(VENV)/.flights,need-jdk $(VENV)/.demo) ## the main job, on real flights
	$(BIN)/python -m examples.demo $(ARGS)

quick: $(VENV)/.quick ## what needs nothing but Python, of slow tests a sample: SEED=7 repeats one
	$(BIN)/python -m tests quick $(if $(SEED),--seed $(SEED)) $(ARGS)

test: need-jdk $(VENV)/.test ## quick, then what matters of Spark, a real Kafka, ZooKeeper
	$(BIN)/python -m tests test $(if $(SEED),--seed $(SEED)) $(ARGS)

# Suites of others take Go, Cargo, make, Node and kcat where they are, or are skipped with the reason.
test-all: need-jdk $(VENV)/.all ## every test, lane by lane; goes on where it ended: ARGS='--lane kafka'
	$(BIN)/python -m tests all $(ARGS)

crash: $(VENV)/.quick ## long searches: kill -9, crash points, lives of topics
	$(BIN)/python -m tests.crash.killed --runs $(or $(RUNS),200) --seed $(or $(SEED),1)
	for each in crash lives cleaner groups; do \
	  $(BIN)/python -m tests.histories $$each --first $(or $(SEED),1) --seeds $(or $(SEEDS),2000) || exit; done

fuzz: $(VENV)/.quick ## long searches: hostile directories
	$(BIN)/python -m tests.fuzz --directories $(or $(POINTS),20000) --seed $(or $(SEED),1) --jobs $(WORKERS)

# Kernels with every check of the compiler, beside the ordinary ones: fuzzers, then their tests.
sanitize: $(VENV)/.quick $(VENV)/.dev need-sanitizers ## fuzzers and tests of kernels with sanitizers
	CC="$(CC)" LOGSTORE_SANITIZE=1 $(BIN)/python setup.py -q build
	rm -rf $(SANITIZED)/tests && cp -R tests pyproject.toml $(SANITIZED)
	$(IN_SANITIZED) -m tests.fuzz.kernels --rounds $(or $(ROUNDS),500) --seed $(or $(SEED),1)
	$(IN_SANITIZED) -m pytest -q -p no:cacheprovider $(or $(ARGS),$(KERNEL_TESTS))

check: lint types imports ## all three

lint: $(VENV)/.dev ## style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev ## mypy, strict, of the snippets on the pages too
	$(BIN)/python -m replication.protocol.stub
	$(BIN)/mypy
	$(BIN)/python -m tests.pages types

imports: $(VENV)/.dev ## checkpoints <- logstore <- replication
	$(BIN)/lint-imports

figures: need-jdk $(VENV)/.bench ## measures everything, alone; writes all figures of the pages
	$(BIN)/python bench/figures.py $(ARGS)

docs: $(VENV)/.docs ## all pages and the reference of the API in build/docs; a warning is an error
	$(BIN)/python -m sphinx -q -W --keep-going -c docs . build/docs
	@echo "begin with build/docs/docs/index.html"

build: $(VENV)/.build ## a wheel in dist/, tagged manylinux
	rm -rf build dist
	PYTHON=$(abspath $(BIN)/python) .ci/wheel . dist

clean: ## remove .venv and what was built
	rm -rf $(VENV) build dist *.egg-info */kernels/*.so */kernels/_*.c logstore/spark/*.jar

# -- the environment ------------------------------------------------------------------------------

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "logstore needs Python 3.11 or newer; '$(PYTHON)' is missing or older." >&2; \
	  echo "Install it, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments; on Debian: apt-get install python3-venv" >&2; \
	  exit 1; }
	$(PYTHON) -m venv $(VENV)

need-compiler:
	@command -v $(or $(CC),cc) >/dev/null 2>&1 || { \
	  echo "logstore builds native kernels and found no C compiler ('$(or $(CC),cc)')." >&2; \
	  echo "On Debian: apt-get install gcc libc6-dev" >&2; exit 1; }

need-sanitizers: need-compiler
	@echo 'int main(void) { return 0; }' | $(CC) -fsanitize=address,undefined -x c -o /dev/null - \
	  2>/dev/null && test -e "$$($(CC) -print-file-name=libasan.so)" || { \
	  echo "'$(CC)' has no address and undefined-behaviour sanitizers to be loaded into Python." >&2; \
	  echo "GCC brings them along; on Debian: apt-get install gcc; make sanitize CC=gcc" >&2; exit 1; }

need-jdk:
	@java -version 2>&1 | awk -F'[".]' '/version/ { found = ($$2 >= 17) } END { exit !found }' || { \
	  echo "Spark, and the real Apache Kafka of the tests, need a JDK 17 or newer on the PATH." >&2; \
	  echo "On Debian: apt-get install openjdk-17-jdk-headless" >&2; exit 1; }

# One stamp for each set of extras; the kernels are rebuilt when their sources change. pip builds in
# an environment without PySpark, so the jar that is compiled against it follows.
EXTRAS_flights := flights
EXTRAS_demo := demo
EXTRAS_quick := test
EXTRAS_test := test-spark,test-zookeeper,test-clients
EXTRAS_all := demo,test-spark,test-zookeeper,test-clients,test-browser
EXTRAS_build := build,spark
EXTRAS_dev := dev
EXTRAS_bench := demo,test-spark,bench
EXTRAS_docs := docs
$(VENV)/.flights $(VENV)/.demo $(VENV)/.quick $(VENV)/.test $(VENV)/.all $(VENV)/.build $(VENV)/.dev $(VENV)/.bench $(VENV)/.docs: $(VENV)/.%: \
		pyproject.toml $(KERNEL_SOURCES) | need-compiler $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(EXTRAS_$*)]'
	@! $(BIN)/python -c 'import pyspark' 2>/dev/null || $(BIN)/python spark_jar.py
	@touch $@
