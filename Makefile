# make test is all there is to know before a change lands. The other targets
# are parts of it, or take longer.

# make help prints these lines; a test compares them with the targets.
## make TARGET [VARIABLE=VALUE ...]
##
##   test        all tests and linters; installs the Debian packages that are missing, and says which
##   raced       the part of test under the race detector
##   outside     the part of test that runs whole programs, without it
##   lint        the part of test that formats, vets and checks; leaves out modules with Kubernetes or containerd, and other systems
##   deps        the Debian packages that the tests need, without the tests; starts no service
##   fuzz        each fuzz test for FUZZTIME (30s)
##   faults      the scorecard of faults, in about 45 minutes, to FAULTS_TABLE (faults.txt)
##   cluster     the daemon's tests on Kubernetes' own API server, which it builds first: ten minutes of processors and 2 GB of cache, once
##   bench       the cost of an attachment beside go-cni and netavark; BENCH_QUICK=1 takes 3 minutes
##   shims       the start of a shim, SHIM_ROUNDS (500) times
##   quickstart  containers attached, traffic proven, nothing left; changes nothing on the machine
##   install     the program embedcni, its man pages and completions, to DESTDIR and PREFIX (/usr/local)
##   daemon      the daemon of a node, its shim and its unit, to DESTDIR, PREFIX and CNIDIR (/opt/cni/bin)
##   deb         the program as a Debian package in DEB_DIR (the current directory), unpacked and tried
##   help        this text
##
## PACKAGES=./guard tests one package of each module that has it, without lint; GO=/path/to/go uses another Go.

.DEFAULT_GOAL := help
.PHONY: help
help:
	@sed -n 's/^## \{0,1\}//p' $(firstword $(MAKEFILE_LIST))

GO         ?= go
PACKAGES   ?= ./...
# The library compiles on these too: one with the calls of Unix and one without. A test
# builds a small importer for the same two, so that no third standard library is compiled.
# The other modules are vetted for Linux alone, and their dependencies compiled for it alone.
ELSEWHERE  := windows darwin
# The root's go.mod holds what an importer links, and no more; these hold the
# rest. REQUIRING have requirements alone, and no packages. Of what the library
# imports, those whose tests need no later version of CNI's or OpenTelemetry's module require
# the root's versions, so that the library is compiled and checked once for all of them.
MODULES    ?= . internal/oracle internal/oracle/whereabouts thick/multus bench thick/metrics thick/kube thick/cmd/embedcnid gocni examples/faas examples/overlay cmd/embedcni
REQUIRING  := internal/refplugins/mains internal/refplugins/mains/flannel internal/lint internal/deb examples/overlay/flanneld
# These require Kubernetes or containerd, whose packages take minutes to compile and check the
# first time. make lint leaves them to make test, and with them the other systems, for which
# the standard library is compiled.
HEAVY      := thick/multus thick/kube thick/cmd/embedcnid examples/faas
LINTED     ?= $(filter-out $(HEAVY),$(MODULES))
LINTED_FOR ?=
# What the race detector sees: each package of the library under its own tests and those
# of behaviour. These run the library's programs from outside, or compare it with others;
# without the detector they start thousands of processes in a fifth of the time, and no
# dependency is compiled twice.
RACELESS   := internal/oracle internal/oracle/whereabouts thick/multus thick/cmd/embedcnid bench gocni examples/faas examples/overlay cmd/embedcni
OUTSIDE    := /(internal/(damage|faults|interchange)|examples(/.*)?)$$
STATIC     := $(GO) tool -modfile=$(CURDIR)/internal/lint/go.mod staticcheck
FUZZTIME   ?= 30s
# Packages that are tested at once in each of the two runs: most tests wait for the kernel
# half of their time.
AT_ONCE    ?= $(shell getconf _NPROCESSORS_ONLN)
TESTS      := $(GO) test -vet=off -p $(AT_ONCE) -timeout 25m
# The package whose tests take longest begins first: all others together take as long.
LONGEST    := internal/behaviour

.PHONY: test raced outside deps lint fuzz faults cluster bench shims quickstart

# The linter works while the tests wait for the kernel. It looks at all packages, so the
# tests of a single one do without.
test: deps
	@$(MAKE) --no-print-directory --jobs=3 LINTED="$(MODULES)" LINTED_FOR="$(ELSEWHERE)" raced outside $(if $(filter ./...,$(PACKAGES)),lint)

raced:
	@for module in $(filter-out $(RACELESS),$(MODULES)); do \
		echo "go test -race in $$module"; \
		(cd $$module && all=$$($(GO) list $(PACKAGES)) || exit 1; \
			packages=$$(echo "$$all" | grep -vE '$(OUTSIDE)'); \
			first=$$(echo "$$packages" | grep '/$(LONGEST)$$'); \
			[ -z "$$packages" ] || GORACE=atexit_sleep_ms=10 $(TESTS) -race $$first $$packages) || exit 1; \
	done

outside:
	@for module in $(filter . $(RACELESS),$(MODULES)); do \
		echo "go test in $$module"; \
		(cd $$module && packages=$$($(GO) list $(PACKAGES)) || exit 1; \
			[ $$module != . ] || packages=$$(echo "$$packages" | grep -E '$(OUTSIDE)'); \
			[ -z "$$packages" ] || $(TESTS) $$packages) || exit 1; \
	done

# What the tests need of the system: a C compiler for the race detector, the tools that the
# reference plugins call, what the examples run, and what checks the files in deploy. .ci/deps says which are missing before it
# installs them. The firewalld, the containerd and the etcd are for tests that start one of their
# own: the system's does not start, and is not masked.
NEEDED := gcc:gcc iptables:iptables ip6tables:iptables nft:nftables firewalld:firewalld dbus-daemon:dbus-daemon \
	containerd:containerd runc:runc busybox:busybox-static etcd:etcd-server \
	systemd-analyze:systemd systemd-tmpfiles:systemd setpriv:util-linux kubectl:kubernetes-client \
	prometheus:prometheus promtool:prometheus
deps:
	@.ci/deps $(NEEDED)

lint:
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); \
	[ -z "$$unformatted" ] || { echo "gofmt would change:" $$unformatted >&2; exit 1; }
	@for module in $(LINTED) $(REQUIRING); do \
		echo "go mod tidy in $$module"; \
		(cd $$module && $(GO) mod tidy -diff) || exit 1; \
	done
	@for module in $(LINTED); do \
		echo "go vet and staticcheck in $$module"; \
		(cd $$module && $(GO) vet ./... && $(STATIC) ./...) || exit 1; \
	done
	@for os in $(LINTED_FOR); do \
		echo "go vet for $$os"; \
		GOOS=$$os $(GO) vet ./... || exit 1; \
	done

# Each fuzz test for FUZZTIME; make test runs them over their seeds only.
fuzz: deps
	@for module in $(MODULES); do (cd $$module && \
		for pkg in $$($(GO) list ./...); do \
			for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
				echo "$$pkg $$target"; \
				$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; \
			done; \
		done) || exit 1; \
	done

# What is broken in make test a few times, broken often: the scorecard,
# with the figures. It takes about three quarters of an hour on two cores.
RUNTIME_KILLS  ?= 1000
PLUGIN_KILLS   ?= 500
PARTIALS       ?= 500
CROWD          ?= 200
LIVING_ROUNDS  ?= 10
REPAIR_KILLS   ?= 300
GUARD_KILLS    ?= 300
PATTERN_ROUNDS ?= 30
RULE_CHANGES   ?= 1000
FAULTS_TABLE   ?= $(CURDIR)/faults.txt
faults: deps
	@$(GO) test -count=1 -timeout 3h ./internal/faults -run TestScorecard -args \
		-runtime-kills $(RUNTIME_KILLS) -plugin-kills $(PLUGIN_KILLS) -partials $(PARTIALS) \
		-crowd $(CROWD) -living-rounds $(LIVING_ROUNDS) -repair-kills $(REPAIR_KILLS) -guard-kills $(GUARD_KILLS) -pattern-rounds $(PATTERN_ROUNDS) -rule-changes $(RULE_CHANGES) -rule-containers 100 -rule-limit 1s -cuts 0 -cost-rounds 1000 -table $(FAULTS_TABLE); \
	status=$$?; cat $(FAULTS_TABLE); exit $$status

# The tests of embedcnid that need a cluster find the tests' own API server in make test, and here
# Kubernetes', with Debian's etcd and the manifests of deploy/kubernetes. Its module is no part of
# make lint, which would fetch Kubernetes for it.
CLUSTER_SERVER := thick/cmd/embedcnid/apiserver
cluster: deps
	@$(GO) -C $(CLUSTER_SERVER) mod tidy -diff
	@server=$$(CGO_ENABLED=0 $(GO) -C $(CLUSTER_SERVER) tool -n kube-apiserver) && \
	cd $(CLUSTER_SERVER)/.. && EMBEDCNID_APISERVER=$$server $(TESTS) -count=1 -v .

# Who is how fast, in one run: bench/results, the README's table and docs/cost.md. At most
# BENCH_BUDGET, which is 27 minutes, or 3 with BENCH_QUICK=1. netavark takes part
# where it is installed (Debian has it).
BENCH_QUICK    ?=
BENCH_ROUNDS   ?= 0
BENCH_BUDGET   ?= 0
BENCH_SEED     ?= 0
BENCH_ONLY     ?=
BENCH_DIR      ?=
bench: deps
	cd bench && $(GO) run . $(if $(BENCH_QUICK),-quick) -rounds $(BENCH_ROUNDS) -budget $(BENCH_BUDGET) \
		-seed $(BENCH_SEED) -only "$(BENCH_ONLY)" -dir "$(abspath $(BENCH_DIR))" -docs ..

# How long the shim takes from start to end, beside Multus' shim and a reference plugin:
# as ratios in one run. The first one builds Multus' shim, with Kubernetes' client.
SHIM_ROUNDS    ?= 500
shims: deps
	cd thick/multus && $(GO) test -run '^$$' -bench Shim -benchtime $(SHIM_ROUNDS)x .

quickstart:
	$(GO) run ./examples/quickstart

# The program: for the host as it is, or with DESTDIR for a package.
PREFIX         ?= /usr/local
DESTDIR        ?=
BASHDIR        ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR         ?= $(PREFIX)/share/zsh/site-functions
FISHDIR        ?= $(PREFIX)/share/fish/vendor_completions.d
# The last tag with the number of commits since, or the last release of the changelog.
VERSION        ?= $(or $(shell git describe --tags --match 'v[0-9]*' 2>/dev/null | sed 's/^v//; s/-\([0-9]*\)-g/+\1.g/'),$\
	$(shell sed -n 's/^## v\([0-9.]*[0-9]\).*/\1/p' CHANGELOG.md | head -n 1),0.0.0)
.PHONY: install
install:
	@umask 022 && to='$(patsubst %/,%,$(abspath $(DESTDIR)/))' && cd cmd/embedcni && \
	mkdir -p "$$to$(PREFIX)/bin" "$$to$(BASHDIR)" "$$to$(ZSHDIR)" "$$to$(FISHDIR)" && \
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w -X github.com/embedcni/cni/cmd/embedcni/internal/cli.release=v$(VERSION)' \
		-o "$$to$(PREFIX)/bin/embedcni" . && \
	export GOARCH= && $(GO) run ./internal/man "$$to$(PREFIX)/share/man/man8" && \
	$(GO) run . completion bash >"$$to$(BASHDIR)/embedcni" && \
	$(GO) run . completion zsh >"$$to$(ZSHDIR)/_embedcni" && \
	$(GO) run . completion fish >"$$to$(FISHDIR)/embedcni.fish" && \
	echo "embedcni $(VERSION) is in $$to$(PREFIX)"

CNIDIR         ?= /opt/cni/bin
DAEMON_BUILD   ?= CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w -X main.release=v$(VERSION)'
.PHONY: daemon
daemon:
	@umask 022 && to='$(patsubst %/,%,$(abspath $(DESTDIR)/))' && share="$$to$(PREFIX)/lib" && \
	mkdir -p "$$to$(PREFIX)/bin" "$$to$(CNIDIR)" "$$share/systemd/system" "$$share/tmpfiles.d" && \
	$(DAEMON_BUILD) -o "$$to$(CNIDIR)/embedcni-shim.new" ./thick/cmd/embedcni-shim && \
	mv -f "$$to$(CNIDIR)/embedcni-shim.new" "$$to$(CNIDIR)/embedcni-shim" && \
	(cd thick/cmd/embedcnid && $(DAEMON_BUILD) -o "$$to$(PREFIX)/bin/embedcnid" .) && \
	sed 's|/usr/local|$(PREFIX)|' deploy/systemd/embedcnid.service >"$$share/systemd/system/embedcnid.service" && \
	cp deploy/systemd/embedcnid.tmpfiles.conf "$$share/tmpfiles.d/embedcnid.conf" && \
	echo "embedcnid is in $$to$(PREFIX), embedcni-shim in $$to$(CNIDIR)"

DEB_DIR        ?= .
.PHONY: deb
deb:
	@GO='$(GO)' internal/deb/build '$(VERSION)' '$(DEB_DIR)'
