// Package gateway is what daemons connect to: NodeGateway over TLS 1.3 and HTTP/2 on one port.
//
// A gateway relays. It adds to each request what only it can see, the caller's address and the certificate that the
// handshake proved, and the sites that it serves, and hands it to JoinService over mutual TLS; requests and answers
// pass through it as they are. It verifies a client certificate where one is given, asks for one where a method needs
// it, limits refused calls, and keeps sessions alive.
//
// # What this package does not do
//
// It holds no key but that of its own server certificate and its client certificate for JoinService. It knows no
// database and no CA key, opens no token and signs nothing: a gateway that an attacker owns can deny service and delay,
// nothing else. So it imports nothing of the control plane.
package gateway
