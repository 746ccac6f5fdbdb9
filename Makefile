# Everything a developer types. Recipes are short; what is longer than a few lines is a script in tools/.
# Tools are installed by the scripts themselves into a per-user cache (see tools/cache.sh), never into this folder.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VERSION := $(shell sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
# The glibc the wheel asks for: 2.28, as the wheels of the frameworks do.
TAG := manylinux_2_28
WHEEL := dist/ronde-$(VERSION)-cp39-abi3-$(TAG)_$(shell uname -m).whl
SOURCES := $(shell find crates python deploy/openstack deploy/images examples -type f ! -name '*.pyc' ! -path '*/tests/*') \
	Cargo.toml Cargo.lock pyproject.toml README.md LICENSE tools/build-wheel tools/zig-cc tools/requirements-build.txt

.PHONY: help demo demo-torch wheel test test-system test-launch test-slurm test-images test-jupyter test-torch \
	test-frameworks test-gpu test-kills test-kubernetes test-openstack cluster-up cluster-down lint flakes mutants \
	kill-campaign \
	bench bench-net bench-torch \
	bench-horovod bench-tensorflow bench-launch bench-gpu bench-kube bench-placement clean setup test-setup

# Comes before all other work: this machine has what is needed, or gets it.
setup:
	@tools/setup demo

# Environments, each with a framework or two of one version: tools/requirements-NAME.txt. `make test` has the newest.
NEWEST := torch-newest tensorflow-newest jax-newest mxnet
FRAMEWORKS := $(NEWEST) torch-oldest $(addprefix tensorflow-,2.19 2.18 2.15 2.13) keras-torch keras-jax
installed = $(patsubst %,target/env/%/.installed,$(1))

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: target/env/demo/.installed ## train a small network over two ranks on this machine
	@PATH="$(CURDIR)/target/env/demo/bin:$$PATH" ronde run -np 2 python examples/digits.py

demo-torch: $(call installed,torch-newest) ## the same with PyTorch (downloads 0.5 GB once)
	PATH="$(CURDIR)/target/env/torch-newest/bin:$$PATH" ronde run -np 2 python examples/torch_digits.py

wheel: $(WHEEL) ## build the wheel into dist/

test: ## run the tests that need neither root nor a cluster, on the newest of each framework
	@tools/setup test plain
	@source tools/environment.sh; "$$PYTHON" tools/test plain

test-system: ## run those with hosts made of namespaces, Kubernetes, the local cluster and a browser (root; Go)
	@tools/setup test system go
	@source tools/environment.sh; "$$PYTHON" tools/test system

test-launch: $(WHEEL) $(call installed,test) ## run the launcher's tests, on hosts made of namespaces (root)
	@tools/setup test hosts
	target/env/test/bin/python -m pytest tests/launch

test-slurm: $(WHEEL) $(call installed,test) ## run jobs that a real srun starts, on hosts made of namespaces (root)
	@tools/setup test hosts slurm
	target/env/test/bin/python -m pytest tests/slurm

test-kills: $(WHEEL) $(call installed,test) ## kill processes of jobs on many hosts at random, KILLS times (root)
	@tools/setup test hosts
	target/env/test/bin/python tests/launch/kill_campaign.py --kills $(or $(KILLS),200)

test-jupyter: $(WHEEL) $(call installed,jupyter) ## run cells on ranks through the pages of a real JupyterLab, in headless Chromium
	@tools/setup test browser
	target/env/jupyter/bin/python -m pytest tests/jupyter

test-images: $(WHEEL) $(call installed,test) ## build the container images and run them under Docker daemons of their own (root)
	target/env/test/bin/python -m pytest tests/images

# Real Kubernetes clusters made of namespaces of this machine; NODES has the pretended GPUs of each node.
# SIMULATED=500 adds nodes that run nothing, for what happens on large clusters.
# IMAGES may name archives that `docker save` wrote, or tests/kubernetes/deployed.py, for all nodes to have.
TESTBED := PYTHONPATH=tests/kubernetes python3 -m testbed
NODES ?= 5,3,2

test-kubernetes: $(WHEEL) $(call installed,test) ## run the tests on real Kubernetes clusters (builds Kubernetes once, ten minutes; root)
	@tools/setup test kubernetes go
	target/env/test/bin/python -m pytest $(or $(TESTS),tests/kubernetes)

test-openstack: $(WHEEL) $(call installed,openstack) ## run the reference cluster's tests on a real OpenStack, and its module with OpenTofu too (gets OpenStack once, ten minutes; root)
	@tools/setup test openstack browser go
	TERRAFORM="$$(tools/openstack tofu)/tofu" target/env/openstack/bin/python -m pytest \
		tests/openstack/test_terraform.py tests/openstack/test_terraform_refusals.py
	target/env/openstack/bin/python -m pytest tests/openstack

cluster-up: ## bring a Kubernetes cluster up on this machine, with NODES=5,3,2 pretended GPUs (root)
	@tools/setup test kubernetes go
	@$(TESTBED) up $(NODES) $(IMAGES) --simulated=$(or $(SIMULATED),0)

cluster-down: ## end that cluster, and what killed tests have left of theirs
	@$(TESTBED) down

test-torch: FRAMEWORKS := torch-newest torch-oldest
test-torch: test-frameworks ## run the tests that need PyTorch, on the oldest and the newest

test-frameworks: ## run the tests that need a framework, on all versions (gets 4 GB once); FRAMEWORKS=mxnet names some
	@tools/setup test plain
	@source tools/environment.sh; "$$PYTHON" tools/test frameworks $(FRAMEWORKS)

test-setup: $(WHEEL) $(call installed,test) ## run the two commands of README.md in bare systems of Debian (hours; root)
	@tools/setup test roots
	target/env/test/bin/python -m pytest tests/setup/bare_systems.py $(ARGS)

test-gpu: ## run the tests that need a GPU, with the PyTorch of PYTHON=python3; ARGS='--only streams' names some
	@tools/test-gpu $(or $(PYTHON),python3) $(ARGS)

lint: ## check formatting, lints, documentation, types and licenses
	@tools/setup test
	@source tools/environment.sh; "$$PYTHON" tools/lint

flakes: ## run every test again and again, idle and under load, for MINUTES=60; ONLY=placement names some, FORGET=1 drops counts
	@tools/setup test plain
	@source tools/environment.sh; "$$PYTHON" tools/flakes --minutes $(or $(MINUTES),60) --only '$(ONLY)' $(if $(FORGET),--forget) $(ARGS)

mutants: ## check that tests notice changes of the pure code: CORE=placement SAMPLE=60 SEED=1 (without SAMPLE hours)
	@tools/setup test
	@source tools/environment.sh; "$$PYTHON" tools/mutants $(or $(CORE),all) $(if $(SAMPLE),--sample $(SAMPLE)) --seed $(or $(SEED),1) $(ARGS)

kill-campaign: ## kill ranks at random moments of collectives, KILLS times in each of six layouts
	@tools/setup demo
	source tools/environment.sh; RONDE_KILLS=$(or $(KILLS),50) cargo test --locked --package ronde-engine --test death

bench: ## compare collectives and training on this machine with the peers; as root also between hosts, and starts
	bench/run $(ARGS)

bench-net: ## the same between hosts with limited links
	bench/run net $(ARGS)

bench-torch: ## compare training with PyTorch over two ranks with DDP and Gloo
	bench/run torch $(ARGS)

bench-horovod: ## the same, with upstream Horovod beside it (builds it once, ten minutes)
	bench/run torch --horovod $(ARGS)

bench-tensorflow: ## compare training with TensorFlow over two ranks with MultiWorkerMirroredStrategy
	bench/run tensorflow $(ARGS)

bench-launch: ## compare starting jobs on ssh hosts, and their output, with mpirun and horovodrun (root)
	bench/run launch --horovod $(ARGS)

bench-gpu: ## compare training and collectives on a GPU with plain PyTorch and Gloo, with the PyTorch of PYTHON=python3
	@bench/run gpu --python $(or $(PYTHON),python3) $(ARGS)

bench-kube: $(WHEEL) ## compare jobs on Kubernetes with the MPI Operator's (builds Kubernetes, kwok and the operator once; root)
	@tools/setup test kubernetes go
	bench/run kube --wheel $(WHEEL) $(ARGS)

bench-placement: ## check that planning 512 GPUs on 10,000 nodes takes less than 10 ms
	@tools/setup demo
	source tools/environment.sh; cargo run --locked --release --package ronde-placement --example placement_speed -- --check

clean: ## remove what was built (not the tools in the cache)
	rm -rf target dist

$(WHEEL): $(SOURCES) | setup
	tools/build-wheel $(TAG) dist
	touch $@

# The demo needs only a part of the wheel, which is built in a third of the time.
target/env/demo/.installed: $(SOURCES) tools/install-wheel tools/requirements-demo.txt | setup
	@source tools/environment.sh; "$$PYTHON" tools/prepare-demo $(TAG)
	@touch $@

# An environment with the pins of tools/requirements-%.txt and the wheel.
target/env/%/.installed: $(WHEEL) tools/install-wheel tools/requirements-%.txt | setup
	tools/install-wheel $* $(WHEEL) target/env/$*
	touch $@
