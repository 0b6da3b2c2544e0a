// Package agent is the daemon: it wires the parts and runs them. It joins a machine, holds its session and renews its
// certificate.
//
// It is the only package of the daemon that knows all the others. What a machine is, keys, the sealed token and the
// identity on disk are leaves that never meet each other but here, as standard-library interfaces. Time, randomness,
// configuration and the logger come from outside; nothing here reads the environment or ends the process.
package agent
