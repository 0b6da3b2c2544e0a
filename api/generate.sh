#!/bin/sh
# Generates the Go code of every .proto file. Needs protoc (Debian: protobuf-compiler); the plugins come from tools/go.mod.
set -eu
cd "$(dirname "$0")"
plugins=$(mktemp -d)
trap 'rm -rf "$plugins"' EXIT
for p in google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc; do
	(cd ../tools && go build -o "$plugins/" "$p")
done
PATH="$plugins:$PATH" protoc -I . \
	--go_out=. --go_opt=paths=source_relative \
	--go-grpc_out=. --go-grpc_opt=paths=source_relative \
	daemon/v1/daemon.proto join/v1/join.proto
