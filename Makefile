VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

# giouring links with Go 1.23 and later only when the linker is told not to check linknames. This is the one place that
# says so: any -ldflags on a command line would replace it, so none is passed.
export GOFLAGS := '-ldflags=-checklinkname=0 -X=main.version=$(VERSION)' $(GOFLAGS)

GOLANGCI := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

.PHONY: build demo test race invariants sanitize fuzz lint bench clean

build:
	go build -o bin/epq-uring ./cmd/epq-uring

# The embedded model, paged from disk through the ring in the smallest arena that works.
demo: build
	bin/epq-uring run --ram min --temp 0 "What is the capital of France?"

test:
	go test ./...

race:
	go test -race ./uring/... ./pager/... ./prefetch/... ./engine/... ./server/... ./kernels/... ./iotest/... ./bench/... ./internal/...

# Freed slots are poisoned and every step of the pager is checked.
invariants:
	go test -tags invariants ./pager/... ./engine/... ./tests/...

# The C kernels under AddressSanitizer, which allocates by itself.
sanitize:
	CGO_CFLAGS="-g -O1 -fsanitize=address -fno-omit-frame-pointer" CGO_LDFLAGS="-fsanitize=address" go test -asan -skip Allocate ./kernels/...

fuzz:
	go test -run '^$$' -fuzz FuzzParse -fuzztime 60s ./gguf

lint:
	gofmt -l . | (! grep .)
	go vet ./...
	go run $(GOLANGCI) run

bench:
	go test -run '^$$' -bench . ./kernels/... ./pager/... ./uring/...

clean:
	rm -rf bin
