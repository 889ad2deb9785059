# Everything that one does with this repository. `make help` lists it.

GO ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT ?= $(shell git rev-parse HEAD 2>/dev/null)
COMMIT_DATE ?= $(shell git show -s --format=%cI HEAD 2>/dev/null)
LDFLAGS = -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT) -X main.commitDate=$(COMMIT_DATE)
# How long one fuzz target runs, and how long the tests of one package may take.
FUZZTIME ?= 20s
# How long the soak test goes on, and with how many clients at once; make verify-tests
# gives it 15 s and 120.
SOAK ?= 10m
CLIENTS ?= 2000
# How long the simulation goes on; make test gives it 2 s.
SIMULATE ?= 5m
# How long writers of many resources meet takeovers on each version of PostgreSQL;
# make verify-tests has a fixed number of transactions.
CONTENTION ?= 10m
# How long faults strike in each run of the fault tests (make verify-tests gives it 2 s),
# and what decides when; 0 takes another seed each time. This is enough for 1,000 strikes.
FAULTS ?= 150s
# How many jobs each queue is given, and how often a worker of each is stopped.
JOBS ?= 1000
STOPS ?= 250
HURRY ?= 1
# How often PostgreSQL under Patroni gets another primary, by switchover and by failover.
FAILOVERS ?= 10
SEED ?= 0
# How often each job that is right by itself is explored.
TIMES ?= 25
TIMEOUT ?= 25m
TESTFLAGS ?=
BENCHFLAGS ?=

# The version and the commit come by -ldflags. Asking git for more would fail where the checkout
# belongs to another user.
export GOFLAGS += -buildvcs=false
# All is compiled as the binary is, which links in less time, too. C is for the race detector, and for
# PostgreSQL's parser, with which parsertest compares.
export CGO_ENABLED = 0

TOOLS := $(CURDIR)/.cache/tools

# What is told of tests while they run: each package when it has ended, with what
# failed. In continuous integration every test is named, none is taken from the cache.
FORMAT ?= pkgname-and-test-fails
ifdef CI
FORMAT := standard-verbose
TESTFLAGS += -count=1
endif
RUN_TESTS := GO=$(GO) GOTESTSUM="$(TOOLS)/gotestsum --format $(FORMAT)" scripts/test

# Modules of their own, so that a user's dependency graph holds neither linters
# nor the types of Kubernetes.
NESTED := $(patsubst ./%/go.mod,%,$(shell find . -mindepth 2 -name go.mod -not -path './.*' -not -path './tools/cluster/*' -not -path '*/testdata/*' -not -path '*/node_modules/*'))
GOFILES = $(shell find . -name '*.go' -not -path './.*' -not -path '*/node_modules/*')

.DEFAULT_GOAL := help

##@ First

.PHONY: help
help: ## List what can be made
	@awk -F ':.*## ' '/^##@ / { print "\n" substr($$0, 5) ":" } /^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## See a zombie's write refused, on servers that are started for it
	scripts/install-servers
	@$(MAKE) --no-print-directory build
	bin/wirefence demo

.PHONY: build
build: ## Build the static binary bin/wirefence
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/wirefence ./cmd/wirefence

.PHONY: test
test: $(TOOLS)/gotestsum ## Run the tests that need Go, PostgreSQL and Redis alone
	scripts/install-servers
	$(RUN_TESTS) short -timeout $(TIMEOUT) $(TESTFLAGS)

.PHONY: lint
lint: $(TOOLS)/.installed ## Check formatting, vet, staticcheck, import rules, comments and scripts
	@unformatted=$$(gofmt -l $(GOFILES)); \
	if [ -n "$$unformatted" ]; then echo "run make fmt, for:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) vet -tags portable ./proxy/...
	$(GO) vet -tags manual ./cmd/wirefence
	$(TOOLS)/staticcheck ./...
	$(TOOLS)/depguard ./...
	@set -e; for module in $(NESTED); do \
	  echo "$(GO) vet ./... in $$module"; \
	  case $$module in */parsertest) export CGO_ENABLED=1 ;; *) export CGO_ENABLED=0 ;; esac; \
	  $(GO) vet -C $$module ./...; \
	done
	$(GO) test -C tools -count=1 ./...
	tools/lint-scripts
	tools/lint-comments

.PHONY: docs
docs: ## Build the documentation as a site, .cache/site, and check its links
	scripts/install-servers --docs
	PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 tools/site/test_site.py --buffer
	PYTHONDONTWRITEBYTECODE=1 mkdocs build --strict --quiet
	@echo "The site is in .cache/site; python3 -m http.server -d .cache/site serves it."

##@ Change it

.PHONY: fmt
fmt: ## Format all Go files
	gofmt -w $(GOFILES)

.PHONY: cli
cli: ## Write what follows from commands and settings: docs/reference/cli.md, tables of docs/reference/settings.md, the chart's schema
	$(GO) run -tags manual ./cmd/wirefence manual --docs docs/reference
	$(GO) generate ./deploy/helm

.PHONY: wire
wire: ## Run the protocol's scripts on every version of PostgreSQL
	scripts/install-servers --all
	$(GO) test -count=1 -timeout 30m $(TESTFLAGS) ./proxy/wiretest

.PHONY: schema
schema: $(TOOLS)/gotestsum ## Run the schema's tests on every version of PostgreSQL
	scripts/install-servers --all
	$(RUN_TESTS) schema -timeout 25m $(TESTFLAGS)

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (20s)
	CGO_ENABLED=1 tools/fuzz $(FUZZTIME)

.PHONY: bench
bench: build ## Compare speed side by side: direct, fenced, PgBouncer
	scripts/install-servers --all
	$(GO) run ./bench -out docs/reference/benchmarks.md $(BENCHFLAGS)

.PHONY: bench-compare
bench-compare: ## Compare the speed of this tree with that of a commit: BASE=<commit>
	@test -n "$(BASE)" || { echo "which commit? make bench-compare BASE=<commit>"; exit 2; }
	scripts/install-servers --all
	git worktree add --force --detach .cache/base $(BASE)
	(cd .cache/base && $(GO) build -ldflags=-w -o ../base-wirefence ./cmd/wirefence); status=$$?; \
	  git worktree remove --force .cache/base; exit $$status
	$(GO) run ./bench -compare .cache/base-wirefence $(BENCHFLAGS)

##@ Tests that take longer, or need more

.PHONY: more
more: $(TOOLS)/gotestsum ## Run tests with the race detector, other servers, drivers and a browser
	@echo "This installs, once: $$(scripts/install-servers --missing)"
	scripts/install-servers --test
	$(RUN_TESTS) more -timeout $(TIMEOUT) $(TESTFLAGS)

.PHONY: verify
verify: ## Run what takes long, two hours in all, whatever of it fails
	@echo "This installs, once: $$(scripts/install-servers --missing --suites)"
	@$(MAKE) --no-print-directory --keep-going verify-tests ways verify-drivers verify-faults fuzz simulate soak contend verify-explored queues suites newcomer

.PHONY: verify-tests
verify-tests: $(TOOLS)/gotestsum ## Run the tests on every version of PostgreSQL, and those that make more leaves out
	scripts/install-servers --suites
	$(RUN_TESTS) long -timeout 25m $(TESTFLAGS)

.PHONY: ways
ways: $(TOOLS)/gotestsum ## Run tests through proxies with TLS, and with the portable driver
	scripts/install-servers --all
	$(RUN_TESTS) ways -timeout 25m $(TESTFLAGS)

.PHONY: verify-drivers
verify-drivers: ## Run every driver on every version of PostgreSQL
	scripts/install-servers --all
	$(GO) test -count=1 -timeout 60m -run TestMatrix ./proxy/drivertest -matrix

.PHONY: verify-faults
verify-faults: ## Let stores, networks and clients fail for FAULTS (150s) each, and PostgreSQL FAILOVERS (10) times
	scripts/install-servers --all
	$(GO) test -count=1 -timeout 0 ./lockclient/faulttest -faults $(FAULTS) -failovers $(FAILOVERS) -seed $(SEED)

.PHONY: verify-explored
verify-explored: ## Explore jobs around public lock libraries, and right ones TIMES (25) times each
	scripts/install-servers --test
	WIREFENCE_TEST_MORE=1 $(GO) test -C internal/zombie/jobstest -count=1 -timeout 0 -v -run 'TestLibraries|TestRightJobs' -all -times $(TIMES) $(TESTFLAGS)

.PHONY: model
model: ## Let spin try every schedule of the protocol's model, and of broken ones
	scripts/install-servers --all
	$(GO) test -count=1 -timeout 25m -v ./model

.PHONY: simulate
simulate: ## Simulate clients, proxies, a server and takeovers for SIMULATE (5m)
	$(GO) test -count=1 -timeout 0 -v ./proxy/internal/session -run 'TestSimulation$$' -simulate $(SIMULATE)

.PHONY: soak
soak: ## Let clients of all manners come and go for SOAK (10m), and look what is left
	scripts/install-servers
	$(GO) test -count=1 -timeout 0 -v ./proxy/loadtest -run 'TestSoak|TestStatements' -length $(SOAK) -clients $(CLIENTS)

.PHONY: contend
contend: ## Let writers of many resources meet takeovers for CONTENTION (10m)
	scripts/install-servers --all
	$(GO) test -count=1 -timeout 0 -v ./proxy/loadtest -run TestContention -length $(CONTENTION) -seed $(SEED)

.PHONY: queues
queues: ## Stop workers of each queue STOPS (250) times for longer than it waits, and give it JOBS (1000) at HURRY (1) times the pace
	scripts/install-servers --test
	WIREFENCE_TEST_MORE=1 $(GO) test -C proxy/queuetest -count=1 -timeout 60m -v -run TestSoak -jobs $(JOBS) -stops $(STOPS) -hurry $(HURRY) -seed $(SEED)

.PHONY: suites
suites: ## Run the tests of PostgreSQL, drivers, ORMs and clients of Redis, direct and through the proxy, and write docs/suites.json
	scripts/install-servers --suites
	$(GO) test -count=1 -timeout 0 -v ./proxy/suitetest -figures $(CURDIR)/docs/suites.json; status=$$?; \
	  $(GO) test -count=1 ./internal/house -run TestBadgesShowWhatWasRun -update-badges; exit $$status

.PHONY: incident
incident: ## Play incidents that alerts are for, before a real Prometheus and Alertmanager
	scripts/install-servers --test
	CGO_ENABLED=1 $(GO) test -race -count=1 -timeout 20m $(TESTFLAGS) ./deploy/mixin/incidenttest

.PHONY: compose
compose: ## Follow docs/howto/compose.md on a Docker engine, which is started if none runs
	scripts/engine ./deploy/composetest $(TESTFLAGS)

.PHONY: pods
pods: ## Run manifests, chart and sidecars on the cluster of TEST_KUBECONFIG, or on one that is built for it, once in 25 minutes
	scripts/engine --cluster ./deploy/test/podtest $(TESTFLAGS)

.PHONY: newcomer
newcomer: ## Follow the tutorial on a minimal system, and install the packages there
	scripts/newcomer

.PHONY: packages
packages: snapshot ## Build it twice, compare, install the package, and restart its service under load
	scripts/install-servers --all
	scripts/reproduce
	$(GO) test -count=1 -timeout 10m -v $(TESTFLAGS) ./deploy/packages/packagetest

.PHONY: client-packages
client-packages: ## Build the packages of the clients, install each in an empty place, and run its tests there
	scripts/install-servers --all
	scripts/package-clients
	$(GO) test -count=1 -timeout 10m -v $(TESTFLAGS) -run 'TestCases|TestClientsBySQL' ./clients/conformance -packages $(CURDIR)/bin/clients

.PHONY: release-check
release-check: ## Build and try all that a release has, and list it
	$(MAKE) packages
	$(MAKE) client-packages
	$(GO) test -C tools/release -count=1 ./...
	@printf '%-48s %9s  %s\n' file bytes 'tried by'
	@for file in dist/*.deb dist/*.rpm dist/*.tar.gz dist/*.cdx.json bin/clients/*; do \
	  case $$file in bin/*) by=client-packages ;; *) by=packages ;; esac; \
	  printf '%-48s %9s  make %s\n' "$$(basename "$$file")" "$$(stat -c %s "$$file")" $$by; done

##@ Tests that write a page

.PHONY: matrix
matrix: ## Run every driver on every version of PostgreSQL, and write docs/reference/compatibility.md
	scripts/install-servers --all
	$(GO) test -count=1 -timeout 60m -run TestMatrix ./proxy/drivertest -matrix -page $(CURDIR)/docs/reference/compatibility.md

.PHONY: explored
explored: ## The same as verify-explored, and write docs/reference/explored.md
	$(MAKE) --no-print-directory verify-explored TESTFLAGS='-parallel 1 -page $(CURDIR)/docs/reference/explored.md'

.PHONY: faults
faults: ## The same as verify-faults, and write docs/reference/faults.md
	scripts/install-servers --all
	$(GO) test -count=1 -timeout 0 -v ./lockclient/faulttest -faults $(FAULTS) -failovers $(FAILOVERS) -seed $(SEED) -page $(CURDIR)/docs/reference/faults.md

.PHONY: picture
picture: build ## Draw docs/refused.svg from what the demo prints
	scripts/install-servers
	@mkdir -p .cache
	bin/wirefence demo >.cache/demo.txt
	tools/draw-demo <.cache/demo.txt >docs/refused.svg

##@ Make files

.PHONY: man
man: ## Write the manual pages of the commands to bin/man
	rm -rf bin/man
	$(GO) run -tags manual -ldflags '$(LDFLAGS)' ./cmd/wirefence manual --man bin/man

.PHONY: image
image: ## Build the container image wirefence/wirefence:VERSION
	docker build -f deploy/Dockerfile --build-arg VERSION=$(VERSION) --build-arg COMMIT=$(COMMIT) --build-arg COMMIT_DATE=$(COMMIT_DATE) -t wirefence/wirefence:$(VERSION) .

.PHONY: package-files
package-files: build man ## Write what packages have besides the binary: manual pages and completions
	gzip -9nkf bin/man/*.1
	mkdir -p bin/completions
	bin/wirefence completion bash >bin/completions/wirefence.bash
	bin/wirefence completion zsh >bin/completions/_wirefence
	bin/wirefence completion fish >bin/completions/wirefence.fish

.PHONY: snapshot
snapshot: $(TOOLS)/goreleaser ## Build what a release has, but for the image, into dist/
	$(TOOLS)/goreleaser release --snapshot --clean --skip=docker

# These two are for .github/workflows/release.yml, on a tag.
.PHONY: release-files
release-files: $(TOOLS)/goreleaser ## Build the files of the release that HEAD is tagged as into dist/
	@test -n "$(MAINTAINER)" || { echo "MAINTAINER='Name <address>' must be set: packages name whom to write to"; exit 1; }
	$(TOOLS)/goreleaser release --clean --skip=docker,publish,announce

.PHONY: release
release: $(TOOLS)/goreleaser ## Build and upload the release that HEAD is tagged as: a draft, and the image
	@test -n "$(MAINTAINER)" || { echo "MAINTAINER='Name <address>' must be set: packages name whom to write to"; exit 1; }
	awk '/^## \[/ { on = index($$2, "[$(VERSION:v%=%)]") } on' CHANGELOG.md >.cache/notes.md
	@test -s .cache/notes.md || { echo "CHANGELOG.md has no part for $(VERSION:v%=%)"; exit 1; }
	@grep -qx 'version = "$(VERSION:v%=%)"' clients/rust/Cargo.toml || { echo "the clients have another version than $(VERSION:v%=%)"; exit 1; }
	scripts/package-clients
	$(TOOLS)/goreleaser release --clean --release-notes=.cache/notes.md

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin dist .cache

# What tells of the tests, in the version that tools/go.mod names. It is the first
# thing that a fresh clone needs.
$(TOOLS)/gotestsum: tools/go.mod tools/go.sum
	@echo "The first run fetches Go modules, PostgreSQL and Redis, and compiles: some minutes, once."
	mkdir -p $(TOOLS)
	GOBIN=$(TOOLS) $(GO) install -C tools gotest.tools/gotestsum
	@touch $@

# What makes releases, in the versions that tools/release/go.mod names.
$(TOOLS)/goreleaser: tools/release/go.mod tools/release/go.sum tools/release/sbom/main.go
	mkdir -p $(TOOLS)
	GOBIN=$(TOOLS) $(GO) install -C tools/release -ldflags=-w github.com/goreleaser/goreleaser/v2 ./sbom
	@touch $@

# The linters, in the versions that tools/go.mod names.
$(TOOLS)/.installed: tools/go.mod tools/go.sum
	mkdir -p $(TOOLS)
	GOBIN=$(TOOLS) $(GO) install -C tools tool
	@touch $@
