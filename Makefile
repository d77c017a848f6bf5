# The release profile everywhere that RocksDB takes part: it is the one slow thing to compile (15 to 20 minutes on two cores),
# and each profile has a copy of its own. With one profile the demo, the tests and the benchmarks share a copy.
#
# CARGO_TARGET_DIR is honoured. ARGS is handed on: make demo ARGS="--help"

.PHONY: help setup demo test bench loom mutants fuzz check

help: ## List these targets (the default)
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-7s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## Say what this machine lacks to build RocksDB, and install it
	@bash .ci/setup

demo: setup ## Run the example: the history of a git repository, processed in parallel
	cargo run --release --locked --example git_history -- $(ARGS)

test: setup ## Run all tests: on the store in memory, then on RocksDB
	@bash .ci/test

bench: setup ## Print what a job costs, as ratios to floors of the same run
	cargo bench --locked --bench ratios -- $(ARGS)

loom: ## Run the models of what threads do to one another, in every order up to a bound
	@bash .ci/loom $(ARGS)

mutants: ## Plant each bug of tests/mutants.txt, and see a test find it
	@bash .ci/mutants "$(ARGS)"

fuzz: ## Look for bugs with random bytes, TIME seconds (60) for each target (needs nightly Rust and cargo-fuzz)
	@bash .ci/fuzz $(or $(TIME),60)

check: ## Run everything that has to hold before a change goes in
	@bash .ci/run
