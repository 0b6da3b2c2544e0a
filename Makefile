# `make` alone prints what there is. The two that a newcomer runs are `make demo` and `make test`.
GO      ?= go
VERSION ?= 0.0.0-dev
TOOL     = $(GO) tool -modfile=tools/go.mod

# grpcnotrace: grpc's request tracing pages would link html/template, which keeps the linker from dropping dead code.
TAGS     = grpcnotrace
LDFLAGS  = -s -w -X main.release=$(VERSION)
BUILD    = CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)'

# The tests that need a TPM, a JOSE library of another maker and so on skip without them; where REQUIRE is 1, as in CI, a
# skip for want of one of these is a failure.
REQUIRE ?= $(if $(filter true,$(CI)),1,)
TESTENV  = BCD_REQUIRE_TPM=$(REQUIRE) BCD_REQUIRE_JWCRYPTO=$(REQUIRE) BCD_REQUIRE_OPENSSL=$(REQUIRE)

# What the tests in a virtual machine boot. Made once.
BCD_VM_CACHE ?= .build/vm

.PHONY: help build demo demo-tpm test e2e check lint generate vuln bench fuzz requirements clean
help: ## print the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## bin/bcd, bin/bcd-static (containers, musl) and bin/better-compute
	$(BUILD) -tags $(TAGS) -o bin/bcd ./cmd/bcd
	$(BUILD) -tags $(TAGS),nonvml -o bin/bcd-static ./cmd/bcd
	$(BUILD) -tags $(TAGS) -o bin/better-compute ./cmd/better-compute

demo: build ## a machine joins, connects and renews twice, on this machine, in a minute
	@$(GO) run ./e2e/demo

demo-tpm: build ## the same without a token: the machine is let in by its TPM (needs swtpm)
	@$(GO) run ./e2e/demo -attestor tpm

test: ## every test, with the race detector; installs what the tests need where it can
	@tools/deps test
	$(TESTENV) $(GO) test -race -shuffle=on ./...
	cd tools && $(GO) test ./...

e2e: ## bcd on a server with systemd and a TPM, in a virtual machine (CONTRIBUTING.md)
	@tools/deps e2e
	@e2e/vm/image "$(BCD_VM_CACHE)"
	BCD_VM_IMAGE="$(abspath $(BCD_VM_CACHE))" $(GO) test -count=1 -v -timeout 50m ./e2e/vm

check: lint test requirements ## everything that must hold before a push

lint: ## format, vet, staticcheck, module files, shell scripts
	@out=$$(git ls-files '*.go' | grep -v '\.pb\.go$$' | xargs $(TOOL) gofumpt -extra -l); test -z "$$out" || { echo "run: go tool -modfile=tools/go.mod gofumpt -extra -w" $$out; exit 1; }
	$(GO) vet ./...
	$(GO) vet -tags fakehw ./...
	CGO_ENABLED=0 $(GO) vet -tags nonvml ./cmd/... ./agent/... ./hwclaims/...
	$(TOOL) staticcheck ./...
	$(GO) mod tidy -diff
	cd tools && $(GO) mod tidy -diff && $(GO) vet ./...
	@if command -v shellcheck >/dev/null; then shellcheck tools/deps api/generate.sh e2e/vm/image .ci/run; else echo "shellcheck is not installed: scripts not checked"; fi

generate: ## the code of the .proto files; fails where the committed code differs
	$(GO) generate ./api
	git diff --exit-code -- api

vuln: ## known vulnerabilities of what is linked
	$(TOOL) govulncheck -tags $(TAGS) ./cmd/...

bench: build ## sizes, memory, times and rates, beside a peer's
	@$(GO) run ./e2e/bench

fuzz: ## each fuzz target for FUZZTIME (default 30s)
	@tools/fuzz $(or $(FUZZTIME),30s)

requirements: ## the rows of docs/requirements.md without a test
	@cd tools && $(GO) run ./requirements ..

clean: ## remove what build made
	rm -rf bin dist .build
