# Everything that one does with this repository. `make help` lists it.

GO ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
# How long one fuzz target runs, and how long all tests of one package may take.
FUZZTIME ?= 20s
# How long the soak test goes on; make test gives it 15 s.
SOAK ?= 10m
# How long writers of many resources meet takeovers on each version of PostgreSQL;
# make test has a fixed number of transactions.
CONTENTION ?= 10m
# How long faults strike in each run of the fault tests (make test gives it 2 s),
# and what decides when; 0 takes another seed each time.
FAULTS ?= 30s
SEED ?= 0
TIMEOUT ?= 25m
TESTFLAGS ?=
BENCHFLAGS ?=

# The version comes by -ldflags. Asking git for more would fail where the checkout
# belongs to another user.
export GOFLAGS += -buildvcs=false

TOOLS := $(CURDIR)/.cache/tools

# In continuous integration every test is named in the log, none is taken from the
# cache, and what failed is told again at the end.
GOTEST := $(GO) test
ifdef CI
TESTFLAGS += -v -count=1
GOTEST := $(TOOLS)/gotestsum --format standard-verbose --
endif

# Modules of their own, so that a user's dependency graph holds neither linters
# nor the types of Kubernetes. Their tests read files outside of them, which the
# cache of go test doesn't watch, so they are always run.
NESTED := $(patsubst ./%/go.mod,%,$(shell find . -mindepth 2 -name go.mod -not -path './.*' -not -path '*/testdata/*' -not -path '*/node_modules/*'))
GOFILES = $(shell find . -name '*.go' -not -path './.*' -not -path '*/node_modules/*')

.DEFAULT_GOAL := help

.PHONY: help
help: ## List what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: build ## See a zombie's write refused, on servers that are started for it
	scripts/install-servers
	bin/wirefence demo

.PHONY: test
test: $(if $(CI),$(TOOLS)/.installed) ## Run all tests with the race detector, against real servers
	scripts/install-servers --all
	$(GOTEST) -race -timeout $(TIMEOUT) -p 2 $(TESTFLAGS) ./...
	@$(MAKE) --no-print-directory -j 2 --output-sync=target $(addprefix test-in/,$(NESTED))

.PHONY: $(addprefix test-in/,$(NESTED))
$(addprefix test-in/,$(NESTED)): test-in/%:
	cd $* && $(GOTEST) -count=1 -timeout $(TIMEOUT) $(TESTFLAGS) ./...

.PHONY: matrix
matrix: ## Run every driver on every version of PostgreSQL, and write docs/compatibility.md
	scripts/install-servers --all
	$(GO) test -count=1 -timeout 60m -run TestMatrix ./proxy/drivertest -matrix -page $(CURDIR)/docs/compatibility.md

.PHONY: wire
wire: ## Run the protocol's scripts on every version of PostgreSQL
	scripts/install-servers --all
	$(GO) test -timeout 30m $(TESTFLAGS) ./proxy/wiretest -every

.PHONY: bench
bench: build ## Compare speed side by side: direct, fenced, PgBouncer
	scripts/install-servers --all
	$(GO) run ./bench $(BENCHFLAGS)

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (20s)
	tools/fuzz $(FUZZTIME)

.PHONY: model
model: ## Let spin try every schedule of the protocol's model, and of broken ones
	scripts/install-servers --all
	$(GO) test -count=1 -timeout $(TIMEOUT) -v ./model

.PHONY: soak
soak: ## Let clients of all manners come and go for SOAK (10m), and look what is left
	scripts/install-servers
	$(GO) test -count=1 -timeout 0 -v ./proxy/soaktest -soak $(SOAK)

.PHONY: contend
contend: ## Let writers of many resources meet takeovers for CONTENTION (10m)
	scripts/install-servers --all
	$(GO) test -count=1 -timeout 0 -v ./proxy/contentiontest -run TestContention -contention $(CONTENTION) -seed $(SEED)

.PHONY: faults
faults: ## Let stores, networks and clients fail for FAULTS (30s) each, and write docs/availability.md
	scripts/install-servers --all
	$(GO) test -count=1 -timeout 0 -v ./lockclient/faulttest -faults $(FAULTS) -seed $(SEED) -page $(CURDIR)/docs/availability.md

.PHONY: lint
lint: $(TOOLS)/.installed ## Check formatting, vet, staticcheck, import rules and scripts
	@unformatted=$$(gofmt -l $(GOFILES)); \
	if [ -n "$$unformatted" ]; then echo "run make fmt, for:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(TOOLS)/staticcheck ./...
	$(TOOLS)/depguard ./...
	@set -e; for module in $(NESTED); do \
	  echo "$(GO) vet ./... in $$module"; \
	  $(GO) vet -C $$module ./...; \
	done
	$(GO) test -C tools -count=1 ./...
	tools/lint-scripts

.PHONY: fmt
fmt: ## Format all Go files
	gofmt -w $(GOFILES)

.PHONY: build
build: ## Build the static binary bin/wirefence
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/wirefence ./cmd/wirefence

.PHONY: image
image: ## Build the container image wirefence/wirefence:VERSION
	docker build -f deploy/Dockerfile --build-arg VERSION=$(VERSION) -t wirefence/wirefence:$(VERSION) .

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin .cache

# The linters and gotestsum, in the versions that tools/go.mod names.
$(TOOLS)/.installed: tools/go.mod tools/go.sum
	mkdir -p $(TOOLS)
	GOBIN=$(TOOLS) $(GO) install -C tools tool
	@touch $@
