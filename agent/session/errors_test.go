package session_test

import (
	"testing"

	"github.com/better-compute/bcd/agent/session"
)

// The texts are gRPC's, as it wraps and quotes them.
func TestConnectionCause(t *testing.T) {
	for in, want := range map[string]string{
		"draining": "draining",
		`connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`:                 "dial tcp 127.0.0.1:1: connect: connection refused",
		`connection error: desc = "error reading server preface: read tcp 127.0.0.1:2->127.0.0.1:1: use of closed network connection"`: "it did not answer in time",
		"name resolver error: produced zero addresses": "its name does not resolve to an address",
		`connection error: desc = "transport: Error while dialing: failed to do connect handshake, response: \"HTTP/1.1 407 Proxy Authentication Required\\r\\nConnection: close\\r\\n\\r\\n\""`: "the proxy that HTTPS_PROXY names does not connect to it: HTTP/1.1 407 Proxy Authentication Required",
	} {
		if got := session.ConnectionCause(in); got != want {
			t.Errorf("%s:\n%s, want %s", in, got, want)
		}
	}
}
