# The one list of commands; CI calls these. `make` alone explains them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
CHECK_VENV := .venv-check
CHECK_PY := $(CHECK_VENV)/bin/python
CHECK_TREE := target/check/python
UV := $(shell command -v uv 2>/dev/null || echo $(VENV)/bootstrap/bin/uv)
RUST_SOURCES := $(shell find crates -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock
LOOM := RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -q -p rollway-core --profile loom --test loom
BENCHES := ring net records weights replay kills groups cuts rollouts orphans vector_env
FUZZ_TARGETS := frame inventory record schema segment
CARGO_DENY := target/tools/bin/cargo-deny
HOST = $(shell rustc +nightly -vV | sed -n 's/^host: //p')
ASAN_TESTS := $(addprefix tests/unit/,metrics net records ring weights compat/test_zero_copy_shm_buffer.py test_numbers.py)
INSTALL := $(UV) pip install -q --python $(PY)
INSTALL_CHECK := $(UV) pip install -q --python $(CHECK_PY)
# A dozen processes of the tests import torch, ray and SkyRL: compiled once, not by each of them anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo check check-tree check-unit check-unit-slow test test-rust test-loom test-fault test-types test-python test-core test-process test-commands test-vector-env test-peers test-ray test-ray-deaths test-docs \
	soak fuzz asan tsan miri bench screenshots recordings chromium lint lint-rust lint-python lint-monitoring lint-workflows docs docs-serve format hooks wheel test-wheel deny advisories check-release clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "%-15s %s\n", $$1, $$2 }'

demo: $(VENV)/.built ## Set up everything, then stream trajectories from four workers to a learner
	$(VENV)/bin/rollway demo

check: ## On every save: linters, all Rust tests but loom, Python unit tests without torch; 90 s when warm
	$(MAKE) --no-print-directory --jobs=3 --output-sync=target test-rust lint-rust lint-python check-unit check-unit-slow

# Two halves side by side, because these tests wait more than they compute.
SLOW_UNITS := tests/unit/segment tests/unit/cli

check-unit: check-tree
	$(call pytest,$(CHECK_PY),tests/unit $(addprefix --ignore=,$(SLOW_UNITS)))

check-unit-slow: check-tree
	$(call pytest,$(CHECK_PY),$(SLOW_UNITS))

# The longest first.
PYTHON_TESTS := test-ray-deaths test-ray test-process test-core test-peers test-commands test-docs test-vector-env

# What only computes runs `nice`: it takes what the others leave, because these wait more than they compute.
test: ## Before a push: set up everything, then run every test
	$(MAKE) --no-print-directory --jobs=5 --output-sync=target $(VENV)/.test $(PYTHON_TESTS) test-rust test-loom test-types

test-rust: ## Unit and property tests of the core, and the kill matrix
	nice cargo test -q -p rollway-core --features fault --no-run
	cargo test -q -p rollway-core --features fault

test-loom: ## The shipped protocol under loom: every interleaving of two or three threads
	nice env $(LOOM)

test-fault: ## The kill matrix alone: SIGKILL and SIGSTOP at every named crash point
	cargo test -q -p rollway-core --features fault --test fault

test-types: $(VENV)/.test ## mypy where torch and the peers are installed, whose types `make lint` does not see
	$(VENV)/bin/mypy

test-python: $(VENV)/.test ## All Python tests, four runs at a time side by side
	$(MAKE) --no-print-directory --jobs=4 --output-sync=target $(PYTHON_TESTS)

# Each run has a directory of its own for shared memory, out of reach of a gc next door, and leaves it empty; and one in
# which Ray notes its clusters, so that `ray.init()` joins none of another run.
# $(call pytest,python,arguments)
define pytest
directory=$$(mktemp -d /dev/shm/test-rollway.XXXXXX); ray=$$(mktemp -d /tmp/ray-XXXXXX); \
	trap 'rm -rf "$$directory" "$$ray"' EXIT; \
	ROLLWAY_SHM_DIR="$$directory" RAY_TMPDIR="$$ray" $(1) -m pytest -q $(2); \
	test -z "$$(ls -A "$$directory")"
endef

# A fork of a process with torch, jax and Ray in it costs five times as much as of one without. So the tests that import these, and the
# tests of vector environments, which fork most, have runs of their own.
COMMAND_TESTS := $(addprefix tests/process/,algorithms cli dashboard)
VECTOR_ENV_TESTS := $(addsuffix /vector_env,tests/peers tests/process tests/fault)
WITHOUT := $(addprefix --ignore=,$(COMMAND_TESTS) $(VECTOR_ENV_TESTS) tests/peers/ray tests/unit/site)  # for the last, see docs

test-core: $(VENV)/.test ## Python tests: unit and fault
	$(call pytest,$(PY),tests/unit tests/fault $(WITHOUT))

test-process: $(VENV)/.test ## Python tests: process
	$(call pytest,$(PY),tests/process $(WITHOUT))

test-commands: $(VENV)/.test chromium ## Python tests: the commands, training, and the dashboard in a real browser
	$(call pytest,$(PY),$(COMMAND_TESTS))

test-vector-env: $(VENV)/.test ## Python tests of vector environments: processes, faults, beside Gymnasium's
	$(call pytest,$(PY),$(VECTOR_ENV_TESTS))

test-peers: $(VENV)/.test ## Python tests with large packages in them: SkyRL, Atropos, torch, JAX
	$(call pytest,$(PY),tests/peers $(WITHOUT))

# They wait more than they compute, so the deaths have a run of their own.
RAY_DEATHS := tests/peers/ray/test_deaths.py tests/peers/ray/test_ranks.py

test-ray: $(VENV)/.test ## Python tests with clusters of Ray, but for those where processes are killed
	$(call pytest,$(PY),tests/peers/ray $(addprefix --ignore=,$(RAY_DEATHS)))

test-ray-deaths: $(VENV)/.test ## Python tests with clusters of Ray in which processes are killed
	$(call pytest,$(PY),$(RAY_DEATHS))

test-docs: $(VENV)/.test ## Python tests: what the documents and examples say; packaging
	$(call pytest,$(PY),tests/docs tests/packaging)

soak: $(VENV)/.test ## Hours in minutes: 8 producers x 1,000,000 samples, kills under full load; every model with two preemptions
	$(PY) -m pytest -q tests --soak -m soak
	LOOM_MAX_PREEMPTIONS=2 $(LOOM)

fuzz: ## Any bytes, read as frames, segments, schemas, inventories and records, a minute each (needs nightly and cargo-fuzz)
	@cargo +nightly fuzz --version >/dev/null || { echo "make fuzz needs: cargo install cargo-fuzz" >&2; exit 1; }
	directory=$$(mktemp -d /dev/shm/test-rollway.XXXXXX); trap 'rm -rf "$$directory"' EXIT; \
	for target in $(FUZZ_TARGETS); do \
	    ROLLWAY_SHM_DIR="$$directory" cargo +nightly fuzz run $$target -- -max_total_time=60 -timeout=10; \
	done

# Python itself is not built for it, so the runtime is preloaded, and with it what throws exceptions through it (optree's
# C++). numpy's arrays come from malloc, and are watched too.
ASAN := LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" \
	    PYTHONMALLOC=malloc PYTHONPATH=$(CURDIR)/target/asan/python \
	    ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:handle_segv=0

asan: $(VENV)/.test ## AddressSanitizer over the extension: mutated weights, live fuzzing, unit tests (needs nightly and gcc)
	RUSTFLAGS="-Zsanitizer=address" CARGO_TARGET_DIR=target/asan CARGO_PROFILE_RELEASE_LTO=off \
	    cargo +nightly build -q --release --target $(HOST) -p rollway-py --features pyo3/extension-module
	rm -rf target/asan/python && mkdir target/asan/python && cp -r python/rollway target/asan/python/
	cp target/asan/$(HOST)/release/lib_core.so target/asan/python/rollway/_core.abi3.so
	$(ASAN) $(PY) -m tests.fault.weights.weights_mutations --mutations 10000
	$(ASAN) $(PY) -m tests.fault.segment.live_fuzz --trials 200
	directory=$$(mktemp -d /dev/shm/test-rollway.XXXXXX); trap 'rm -rf "$$directory"' EXIT; \
	    ROLLWAY_SHM_DIR="$$directory" $(ASAN) $(PY) -m pytest -q --capture=sys --timeout=600 $(ASAN_TESTS)

tsan: ## ThreadSanitizer over segments, leases, rings, records, weights and tables, in threads (needs nightly)
	RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer" CARGO_TARGET_DIR=target/tsan \
	    TSAN_OPTIONS="suppressions=$(CURDIR)/crates/core/tests/tsan.supp" \
	    cargo +nightly test -q --target $(HOST) -p rollway-core \
	    --test unit -- segment:: ring:: records:: weights:: replay::

miri: ## Miri over layouts, the allocator and formats (needs nightly with the component miri)
	@cargo +nightly miri --version >/dev/null 2>&1 || \
	    { echo "make miri needs: rustup component add --toolchain nightly miri rust-src" >&2; exit 1; }
	MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=16 CARGO_TARGET_DIR=target/miri \
	    cargo +nightly miri test -p rollway-core --lib -- layout allocator ledger format header histogram

bench: $(VENV)/.bench ## Measure beside the peers, in one run, whatever fails on the way; writes docs/bench/
	@failed=(); trap 'exit 130' INT; \
	for bench in $(BENCHES); do \
	    echo "$(PY) benches/$$bench.py"; \
	    $(PY) benches/$$bench.py || failed+=("benches/$$bench.py ended with status $$?"); \
	done; \
	if (($${#failed[@]})); then printf '%s\n' "$${failed[@]}" >&2; exit 1; fi

screenshots: $(VENV)/.test chromium ## Make the screenshots of the dashboard in docs/assets anew
	$(PY) scripts/make_screenshots.py

recordings: $(VENV)/.test ## Record `rollway demo`, and `rollway top` while a worker is killed; writes docs/assets/*.svg
	$(PY) scripts/record_terminal.py

chromium:
	@scripts/install_chromium.sh

lint: lint-rust lint-python lint-monitoring lint-workflows docs ## rustfmt, clippy, ruff, mypy, stubs, alert rules, workflows, the documentation site; without torch, ray or jax

lint-rust:
	cargo fmt --all --check
	cargo clippy -q --workspace --all-targets --features rollway-core/fault -- -D warnings

lint-python: check-tree
	$(CHECK_VENV)/bin/ruff check
	$(CHECK_VENV)/bin/ruff format --check
	$(CHECK_VENV)/bin/mypy
	$(CHECK_PY) -m mypy.stubtest rollway._core

lint-monitoring: ## Alert rules and their tests, by promtool (downloads it on Debian: scripts/promtool.sh)
	promtool=$$(scripts/promtool.sh); \
	$$promtool check rules monitoring/alerts.yaml; \
	$$promtool test rules monitoring/alerts_test.yaml

lint-workflows: $(CHECK_VENV)/.tools
	$(CHECK_VENV)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(CHECK_VENV)/bin/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml

docs: check-tree ## Build the documentation site into target/site; a warning is an error, and so is a broken link
	NO_MKDOCS_2_WARNING=1 $(CHECK_VENV)/bin/mkdocs build
	$(call pytest,$(CHECK_PY),tests/unit/site)

docs-serve: check-tree ## Show the documentation site on http://127.0.0.1:8000, and build it again when a page changes
	NO_MKDOCS_2_WARNING=1 $(CHECK_VENV)/bin/mkdocs serve

format: $(CHECK_VENV)/.tools ## Format everything
	cargo fmt --all
	$(CHECK_VENV)/bin/ruff check --fix
	$(CHECK_VENV)/bin/ruff format

hooks: $(CHECK_VENV)/.tools ## Let git call `make format` before a commit and `make check` before a push
	$(INSTALL_CHECK) "pre-commit>=4"
	$(CHECK_VENV)/bin/pre-commit install --hook-type pre-commit --hook-type pre-push

deny: $(CARGO_DENY) ## Licences and sources of the crates that we link, and no crate twice; THIRD_PARTY_LICENSES.txt has all of them
	$(CARGO_DENY) check licenses bans sources
	python3 scripts/third_party_licenses.py --check

advisories: $(CARGO_DENY) ## Known faults of the crates that we link, from RustSec's database (needs GitHub)
	$(CARGO_DENY) check advisories

wheel: dist/.built ## Build dist/: a wheel for manylinux, this architecture and Python 3.11 or later, and the source distribution

test-wheel: dist/.built $(CHECK_VENV)/.tools ## Install the wheel without cargo on every Python here; PYTHONS="3.11 3.12": these must be here
	directory=$$(mktemp -d /dev/shm/test-rollway.XXXXXX); trap 'rm -rf "$$directory"' EXIT; \
	ROLLWAY_SHM_DIR="$$directory" ROLLWAY_DIST=$(CURDIR)/dist ROLLWAY_PYTHONS="$(PYTHONS)" ROLLWAY_UV=$(abspath $(UV)) \
	    $(CHECK_PY) -m pytest -q --noconftest tests/packaging/test_wheel.py

check-release: ## Whether TAG, the version and the changelog fit together: make check-release TAG=v0.2.0
	python3 scripts/check_release.py "$${TAG-}"

clean: ## Remove what was built
	rm -rf target $(VENV) $(CHECK_VENV) dist

# ── set-up ────────────────────────────────────────────────────────────────────────────────────────────────────────

$(VENV)/bin/python:
	@command -v uv >/dev/null || (python3 -m venv $(VENV)/bootstrap && $(VENV)/bootstrap/bin/pip install -q uv)
	$(UV) venv -q --allow-existing --python "$$(command -v python3)" $(VENV)

$(VENV)/.tools: pyproject.toml | $(VENV)/bin/python
	$(INSTALL) "maturin>=1.9,<2"
	touch $@

# $(call develop,profile): the extension and the package into $(VENV). There is one at a time.
define develop
VIRTUAL_ENV=$(CURDIR)/$(VENV) PATH="$(dir $(abspath $(UV))):$$PATH" $(VENV)/bin/maturin develop -q --profile $(1) --uv --extras cli
endef

$(VENV)/.built: $(VENV)/.tools $(RUST_SOURCES)
	$(call develop,release)
	rm -f $(VENV)/.quick
	touch $@

$(VENV)/.quick: $(VENV)/.tools $(RUST_SOURCES)
	$(call develop,quick)
	rm -f $(VENV)/.built
	touch $@

$(VENV)/.test: $(VENV)/.quick
	$(INSTALL) --group test --group peers
	$(INSTALL) --no-deps skyrl==0.3.0 unilab==1.5.2
	touch $@

$(VENV)/.bench: $(VENV)/.built
	$(INSTALL) --group bench --group peers
	$(INSTALL) --no-deps skyrl==0.3.0 unilab==1.5.2
	$(INSTALL) --no-build-isolation faster-fifo==1.5.2
	$(INSTALL) --no-build-isolation --no-deps pufferlib==1.0.1 gym==0.23.0 gym-notices  # it asks for an old Gymnasium, and runs with ours
	touch $@

$(CARGO_DENY):
	CARGO_PROFILE_DEV_DEBUG=0 cargo install -q --debug --locked --root target/tools cargo-deny@0.20.2

# zig has the headers and symbols of every glibc: what is linked with it runs from 2.17 on (2014). The wheel is built from the source
# distribution, so that this one is complete; and without the paths of this machine, which panics would show.
# Nothing of an earlier build is used: files of a source distribution are all of 2006, and cargo would take what it built before for new.
dist/.built: $(VENV)/.tools $(RUST_SOURCES) $(shell find python -type f -not -name '*.pyc' -not -name '*.so') README.md LICENSE THIRD_PARTY_LICENSES.txt
	$(INSTALL) ziglang==0.17.0
	rm -rf dist target/wheel
	RUSTFLAGS="--remap-path-prefix=$${CARGO_HOME:-$$HOME/.cargo}=cargo" CARGO_TARGET_DIR=$(CURDIR)/target/wheel PATH="$(CURDIR)/$(VENV)/bin:$$PATH" \
	    $(VENV)/bin/maturin build -q --release --zig --compatibility manylinux2014 --auditwheel check --sdist --out dist
	touch $@

# The environment of `make check` and `make lint`: no torch, ray or jax.
$(CHECK_VENV)/.tools: pyproject.toml
	@command -v $(UV) >/dev/null || (python3 -m venv $(VENV)/bootstrap && $(VENV)/bootstrap/bin/pip install -q uv)
	$(UV) venv -q --allow-existing --python "$$(command -v python3)" $(CHECK_VENV)
	$(INSTALL_CHECK) -r pyproject.toml --extra cli --group check --group docs
	echo "$(CURDIR)/$(CHECK_TREE)" > "$$($(CHECK_PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/rollway-check.pth"
	touch $@

# The package with an extension of the dev profile: links to the sources, so that the release build in python/ stays as it is.
check-tree: $(CHECK_VENV)/.tools
	cargo build -q -p rollway-py --features pyo3/extension-module
	rm -rf $(CHECK_TREE) && mkdir -p $(CHECK_TREE)/rollway.dist-info
	cp -rs $(CURDIR)/python/rollway $(CHECK_TREE)/
	ln -sf $(CURDIR)/target/debug/lib_core.so $(CHECK_TREE)/rollway/_core.abi3.so
	sed -n '0,/^version = /s/^version = "\(.*\)"/Metadata-Version: 2.1\nName: rollway\nVersion: \1/p' Cargo.toml \
	    > $(CHECK_TREE)/rollway.dist-info/METADATA
