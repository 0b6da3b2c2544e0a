// Package controlplanetest runs the whole control plane in a test's process: real TLS, real gRPC, a real database, on
// loopback, in the test's temporary folder. It is embedded, not fake: every check of JoinService happens.
//
// [Start] gives a [ControlPlane] with a clock that the test sets, tokens, events and restarts. Faults of the network are
// made where they happen: [ControlPlane.DropAnswer] loses an answer that JoinService has committed, [ControlPlane.StopGateway]
// takes the gateway away, and a [Relay] is a gateway that an attacker owns.
//
// It is for tests of every package; no program links it.
package controlplanetest
