# Targets: make help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
GO ?= go
BIN := bin
PKGS := ./...

.PHONY: help deps build demo latency test race lint proto bench bench-coordinator chaos e2e clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 20

deps: ## install the distribution's packages that rlfleet uses (Debian: bubblewrap)
	@./tools/deps

build: ## build rlctl, rlfleetd and rlguest into bin/
	@mkdir -p $(BIN)
	@CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o $(BIN)/rlguest ./cmd/rlguest
	@$(GO) build -o $(BIN)/rlctl ./cmd/rlctl
	@$(GO) build -o $(BIN)/rlfleetd ./cmd/rlfleetd

demo: build ## a small language model learns to use a shell in sandboxes
	@./tools/demo

test: ## all tests
	@./tools/test

race: ## all tests under the race detector
	@$(GO) test -race -shuffle=on $(PKGS)

lint: ## gofumpt, go vet, staticcheck, generated code
	@./tools/lint

proto: ## generate the code of proto/
	@./tools/proto

bench: build ## measure against the floors; exits 1 when one is short
	@./tools/bench

bench-coordinator: ## measure the coordinator beside etcd; exits 1 when a floor is short
	@./tools/bench-coordinator

chaos: ## break a cluster of real processes in every way and check that nothing is lost; N=1000 faults
	@./tools/chaos

clean: ## remove what was built and what runs left here
	@rm -rf $(BIN) .cache .rlfleet .rlfleet-cluster certs examples/files/tasks examples/files/tasks-latency examples/files/policy examples/files/sft.jsonl examples/files/.rlfleet
