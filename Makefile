# Every command that needs RocksDB uses the release profile. RocksDB is slow to compile (15 to 20
# minutes on two cores), and each profile has a copy of its own. The tests and the benchmarks share
# this copy. The demo needs none: its store is one on SQLite.
#
# CARGO_TARGET_DIR names another folder for what is compiled. ARGS is passed on to the program:
# make demo ARGS="--help"

.PHONY: help setup demo test test-quick test-engines test-ui test-cli test-others soak bench bench-engines compare draw \
	loom mutants fuzz fixture deny check

help: ## List these targets (the default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## Install the programs that this machine lacks to build RocksDB
	@bash .ci/setup

demo: ## Run the example: the history of a git repository, in parallel (STORE=rocksdb, ARGS="--page")
	@bash .ci/setup $(or $(STORE),sqlite)
	cargo run --release --locked -p waterline-demo $(if $(filter rocksdb,$(STORE)),--features rocksdb) \
		$(if $(filter --page,$(ARGS)),--features page) -- \
		$(if $(STORE),--store $(STORE)) $(ARGS)

test: setup ## Run each test: in memory, and on SQLite and RocksDB if its subject is a store
	@bash .ci/test

test-quick: ## Run the tests that need no RocksDB: in memory and on SQLite, from nothing in minutes
	@bash .ci/setup sqlite
	@bash .ci/test --no-rocksdb

test-engines: ## Run the tests of the engines, each on a real server that they start (PostgreSQL)
	@bash .ci/setup engines
	@bash .ci/test engines

test-ui: ## Run the tests of the page for the browser, some of them in a Chromium
	@bash .ci/setup ui
	@bash .ci/test ui

test-cli: ## Run the tests of the tool for the terminal, beside applications and at a PostgreSQL server
	@bash .ci/setup sqlite
	@bash .ci/setup engines
	@bash .ci/test cli

test-others: ## Run the three above in one call, which compiles the library once
	@bash .ci/setup engines
	@bash .ci/setup ui
	@bash .ci/test engines ui cli

soak: setup ## Run the tests in their whole size for TIME seconds (600), or one round with SEED
	@TIME="$(TIME)" SEED="$(SEED)" SINCE="$(SINCE)" bash .ci/soak

bench: setup ## Measure the cost of a job, as a ratio to the least possible cost (ARGS=scale: on many cores, ARGS=growth: after many jobs)
	cargo bench --locked -p waterline-benches --features "sqlite tokio $(filter scale growth,$(ARGS))" \
		--bench $(or $(filter scale growth,$(ARGS)),ratios -- $(ARGS))

# The competitors have lock files and a folder of their own. Our columns share the build of `bench`.
COMPARE = cargo run --release --locked --manifest-path benches/compare/driver/Cargo.toml \
	--target-dir $(or $(CARGO_TARGET_DIR),target)/compare --

compare: setup ## Measure beside what people would pick instead (ARGS="stream", ROUNDS=1 for a look)
	@bash .ci/setup engines
	@$(COMPARE) measure $(ARGS)

draw: ## Put the figures of the last comparison into the pages and the plots
	@$(COMPARE) draw

bench-engines: ## Measure the engines on a real server, as ratios to the least possible cost
	@bash .ci/setup engines
	cargo bench --locked -p waterline-postgres --bench ratios -- $(ARGS)
	cargo bench --locked -p waterline-redis --bench ratios

loom: ## Run the models of the threads: every order of their steps, up to a bound
	@bash .ci/loom $(ARGS)

mutants: ## Plant each bug of tests/mutants.txt, or cargo-mutants' in what changed (SINCE=HEAD~20)
	@SINCE=$(SINCE) bash .ci/mutants "$(ARGS)"

fuzz: ## Search for bugs with random bytes, TIME seconds (60) a target (needs nightly Rust, cargo-fuzz)
	@bash .ci/fuzz $(or $(TIME),60)

fixture: ## Write the bytes of a store anew that tests/store/formats.rs reads (until 0.1.0 is published)
	WATERLINE_FIXTURE=new cargo test --locked --no-default-features -p waterline-tests --test store \
		a_life_leaves_the_records_of_the_fixture

deny: ## Check the licences and the sources of all dependencies (installs cargo-deny)
	@bash .ci/deny

check: ## Run every check that a change must pass
	@bash .ci/run
