package helper

import (
	"net"
	"net/http"
)

// What the tests of the protocol use.
const (
	MaxClients = maxClients
	MaxMessage = maxMessage
)

var (
	TLS13Head = tls13Head
	IsTLS13   = isTLS13
	NewGate   = newGate
	IDOf      = idOf
)

// Paths are those of all calls.
var Paths = []string{
	pathSignTLS13, pathSignPurpose, pathSignCSR, pathNewNextKey, pathCertifyNextKey, pathAttestationKey, pathFirmware, pathConfig,
}

// Handler is the helper's, without its socket.
func Handler(o Options) http.Handler { return newServer(o).handler() }

// Work marks a connection that a gate let in as one whose request is there.
func Work(c net.Conn) { c.(*entry).work() }
