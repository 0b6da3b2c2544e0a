package main

// The peer is SPIRE v1.13.3 (https://github.com/spiffe/spire): an agent that joins with a token and renews its
// certificate, and its server. Its figures were measured once, with its programs built with the same compiler flags
// (stripped), on a busy virtual machine with 2 CPUs: the agent attested with a join token over loopback, the server on
// SQLite with its own defaults, each client with a new TLS connection, the client's own work included. They are
// constants: the peer is no dependency of this project. On another machine the ratios of sizes and memory still say
// something, those of times and rates only roughly.
const (
	peerName = "SPIRE v1.13.3, measured once on a busy virtual machine with 2 CPUs"

	peerBinary    = 57.0 // MiB, the agent, stripped
	peerRSS       = 57.0 // MiB, the idle agent
	peerAnonymous = 11.8 // MiB of peerRSS that no file backs
	peerCPU       = 0.18 // % of one core, the idle agent
	peerWakeUps   = 25.0 // context switches a second, the idle agent
	peerColdJoin  = 46.0 // ms from exec to attested

	// The server: joins a second, and its own CPU time for each.
	peerRate1, peerRate1CPU   = 200.0, 3.9 // with 1 client
	peerRate16, peerRate16CPU = 440.0, 2.5 // with 16 clients at once
)
