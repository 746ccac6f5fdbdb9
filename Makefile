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

.PHONY: help demo demo-torch wheel test test-fast test-launch test-slurm test-images test-jupyter test-torch \
	test-frameworks test-gpu test-kills test-kubernetes test-openstack cluster-up cluster-down lint flakes \
	kill-campaign \
	bench bench-net bench-torch \
	bench-horovod bench-tensorflow bench-launch bench-gpu bench-kube bench-placement clean

# Environments, each with a framework or two of one version: tools/requirements-NAME.txt. `make test` has the newest.
NEWEST := torch-newest tensorflow-newest jax-newest mxnet
FRAMEWORKS := $(NEWEST) torch-oldest $(addprefix tensorflow-,2.19 2.18 2.15 2.13) keras-torch keras-jax
installed = $(patsubst %,target/env/%/.installed,$(1))

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(call installed,demo) ## train a small network over two ranks on this machine
	PATH="$(CURDIR)/target/env/demo/bin:$$PATH" ronde run -np 2 python examples/digits.py

demo-torch: $(call installed,torch-newest) ## the same with PyTorch (downloads 0.5 GB once)
	PATH="$(CURDIR)/target/env/torch-newest/bin:$$PATH" ronde run -np 2 python examples/torch_digits.py

wheel: $(WHEEL) ## build the wheel into dist/

test: ## run all checks and tests, on the newest of each framework
	tools/test all $(NEWEST)

test-fast: $(WHEEL) $(call installed,test torch-newest) ## run the tests that take minutes at most (root)
	tools/test fast

test-launch: $(WHEEL) $(call installed,test) ## run the launcher's tests, on hosts made of namespaces (root)
	tools/test launch

test-slurm: $(WHEEL) $(call installed,test) ## run jobs that a real srun starts, on hosts made of namespaces (root)
	tools/test slurm

test-kills: $(WHEEL) $(call installed,test) ## kill processes of jobs on many hosts at random, KILLS times (root)
	tools/test kills $(or $(KILLS),200)

# What pages are looked at with.
BROWSER := chromium:chromium chromedriver:chromium-driver

test-jupyter: $(WHEEL) $(call installed,jupyter) ## run cells on ranks through the pages of a real JupyterLab, in headless Chromium
	tools/system-packages $(BROWSER)
	target/env/jupyter/bin/python -m pytest tests/jupyter

test-images: $(WHEEL) $(call installed,test) ## build the container images and run them under Docker daemons of their own (root)
	target/env/test/bin/python -m pytest tests/images

# Real Kubernetes clusters made of namespaces of this machine; NODES has the pretended GPUs of each node.
# SIMULATED=500 adds nodes that run nothing, for what happens on large clusters.
# IMAGES may name archives that `docker save` wrote, or tests/kubernetes/deployed.py, for all nodes to have.
TESTBED := PYTHONPATH=tests/kubernetes python3 -m testbed
NODES ?= 5,3,2

test-kubernetes: $(WHEEL) $(call installed,test) ## run the tests on real Kubernetes clusters (builds Kubernetes once, ten minutes; root)
	tools/test kubernetes $(or $(TESTS),tests/kubernetes)

test-openstack: $(WHEEL) $(call installed,openstack) ## run the reference cluster's tests on a real OpenStack, and its module with OpenTofu too (gets OpenStack once, ten minutes; root)
	tools/system-packages ssh:openssh-client ip:iproute2 unshare:util-linux qemu-system-x86_64:qemu-system-x86 \
		qemu-img:qemu-utils genisoimage:genisoimage $(BROWSER)
	TERRAFORM="$$(tools/openstack tofu)/tofu" target/env/openstack/bin/python -m pytest \
		tests/openstack/test_terraform.py tests/openstack/test_terraform_refusals.py
	target/env/openstack/bin/python -m pytest tests/openstack

cluster-up: ## bring a Kubernetes cluster up on this machine, with NODES=5,3,2 pretended GPUs (root)
	@tools/system-packages $$($(TESTBED) packages) >&2
	@$(TESTBED) up $(NODES) $(IMAGES) --simulated=$(or $(SIMULATED),0)

cluster-down: ## end that cluster, and what killed tests have left of theirs
	@$(TESTBED) down

test-torch: $(call installed,torch-newest torch-oldest) ## run the tests that need PyTorch, on the oldest and the newest
	tools/test frameworks torch-newest torch-oldest

test-frameworks: $(call installed,$(FRAMEWORKS)) ## run the tests that need a framework, on all versions (gets 4 GB once); FRAMEWORKS=mxnet names some
	tools/test frameworks $(FRAMEWORKS)

test-gpu: ## run the tests that need a GPU, with the PyTorch of PYTHON=python3; ARGS='--only streams' names some
	@tools/test gpu $(or $(PYTHON),python3) $(ARGS)

lint: ## check formatting, lints, types and licenses
	tools/lint

flakes: ## run every test again and again, idle and under load, for MINUTES=60; ONLY=placement names some, FORGET=1 drops counts
	@$(or $(PYTHON),python3) tools/flakes --minutes $(or $(MINUTES),60) --only '$(ONLY)' $(if $(FORGET),--forget) $(ARGS)

kill-campaign: ## kill ranks at random moments of collectives, KILLS times in each of six layouts
	RONDE_KILLS=$(or $(KILLS),50) cargo test --locked --package ronde-engine --test death

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
	tools/system-packages $$($(TESTBED) packages)
	bench/run kube --wheel $(WHEEL) $(ARGS)

bench-placement: ## check that planning 512 GPUs on 10,000 nodes takes less than 10 ms
	cargo run --locked --release --package ronde-placement --example placement_speed -- --check

clean: ## remove what was built (not the tools in the cache)
	rm -rf target dist

$(WHEEL): $(SOURCES)
	tools/build-wheel $(TAG) dist
	touch $@

# An environment with the pins of tools/requirements-%.txt and the wheel.
target/env/%/.installed: $(WHEEL) tools/install-wheel tools/requirements-%.txt
	tools/install-wheel $* $(WHEEL) target/env/$*
	touch $@
