// Package api says how the wire types below it are made from their .proto files.
//
// The generated code is committed: a build needs neither protoc nor the network. `make generate` runs this file's
// directive and fails where the result differs.
package api

//go:generate sh generate.sh
