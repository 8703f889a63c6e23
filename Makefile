# The doors: make deps | demo | test | soak | fuzz | check | bench | bench-peers | bench-axes | bench-micro | install | install-service
.DEFAULT_GOAL := help
.PHONY: help deps bench-deps build demo test soak fuzz check bench bench-peers bench-axes bench-micro install install-service

PREFIX ?= /usr/local
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
# What building and the tests call; the command itself needs none of it.
DEPS := acl attr b3sum btrfs-progs build-essential cmake e2fsprogs iproute2 jq mount nftables \
        openssh-client openssl procps python3 qemu-utils strace systemd util-linux util-linux-extra xfsprogs
# What `make bench-peers` compares with, where Debian has it.
BENCH_DEPS := iperf3 libnbd-bin mbuffer nbdkit openssh-client openssh-server qemu-utils rclone rsync socat

define install_missing
present=$$(dpkg-query -W -f='$${db:Status-Abbrev} $${Package}\n' $(1) 2>/dev/null | awk '$$1=="ii"{print $$2}'); \
want=$$(for p in $(1); do echo "$$present" | grep -qx "$$p" || echo $$p; done); \
if [ -n "$$want" ]; then \
  echo "installing:" $$want; \
  $(SUDO) apt-get update -qq && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$want >/dev/null; \
fi
endef

help:            ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

deps:            ## install the Debian packages that building and tests need
	@$(call install_missing,$(DEPS))

bench-deps: deps ## also the other tools that bench-peers compares with
	@$(call install_missing,$(BENCH_DEPS))

build:           ## the command, optimised
	cargo build --release --locked -p vmferry

demo: deps       ## move a filesystem image and a dense one between two hosts on this machine
	cargo build --release --locked -p vmferry -p vmferry-testbed
	testbed/demo target/release

test: deps       ## every test (root: also namespaces, loop disks, FUSE)
	@if cargo nextest --version >/dev/null 2>&1; \
	then cargo nextest run --locked --workspace; \
	else cargo test --locked --workspace --no-fail-fast; fi

soak: deps       ## random jobs under random faults (root), SECONDS (600) long, chosen by SEED (1)
	cargo build --release --locked -p vmferry -p vmferry-testbed
	target/release/testbed soak --seconds $(or $(SECONDS),600) --seed $(or $(SEED),1)

fuzz: deps       ## every parser of what a peer says, SECONDS_EACH (60) seconds each
	fuzz/run

check:           ## what must be clean before a push
	cargo fmt --all --check
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps
	cargo deny check bans licenses sources
	$(MAKE) test

bench: deps      ## against the raw loop, over a shaped link (root)
	cargo build --release --locked -p vmferry -p vmferry-testbed -p vmferry-benches
	target/release/against-rawloop

bench-peers: bench-deps ## against other tools, 1.5 hours (root); PEERS='--quick' and other options
	cargo build --release --locked -p vmferry -p vmferry-testbed -p vmferry-benches
	target/release/peers --json target/peers.json --report docs/benchmarks.md $(PEERS)

bench-micro:     ## each hot piece alone (PIECE=hash, scan, frame, disk, lane or compress: only that one)
	cargo bench --locked -p vmferry-benches --bench micro -- '$(PIECE)'

bench-axes: deps ## one setting at a time (root; AXES='streams chunk images size', MORE=--quick)
	cargo build --release --locked -p vmferry -p vmferry-testbed -p vmferry-benches
	target/release/axes $(AXES) $(MORE)

install: build   ## to $(PREFIX)/bin
	install -D -m 755 target/release/vmferry $(DESTDIR)$(PREFIX)/bin/vmferry

install-service: install ## also the receiver service, for systemd
	install -D -m 644 docs/service.md $(DESTDIR)$(PREFIX)/share/doc/vmferry/service.md
	install -D -m 644 packaging/vmferry.socket $(DESTDIR)/etc/systemd/system/vmferry.socket
	sed 's#/usr/local#$(PREFIX)#' packaging/vmferry.service | install -D -m 644 /dev/stdin $(DESTDIR)/etc/systemd/system/vmferry.service
	[ -n "$(DESTDIR)" ] || systemctl daemon-reload
