VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
# giouring links with Go 1.23 and later only when the linker is told not to check linknames.
export GOFLAGS := '-ldflags=-checklinkname=0 -X=main.version=$(VERSION)' $(GOFLAGS)

.PHONY: build demo test
build:
	go build -o bin/epq-uring ./cmd/epq-uring
demo: build
	bin/epq-uring run "What is the capital of France?"
test:
	go test ./...
