// Package identity is who a machine is to the control plane: its node id, its certificate and the key under it, on disk
// and through every change.
//
// A [Store] holds them in one directory. Joining and renewing are the same machine: put a new key on disk, send, check
// the answer, record it, commit identity.json, rename the key. Whatever step the process stops after, the next start
// finds a working identity or a join that resumes with the same certificate request. DESIGN.md beside this file has the
// states and the formats.
//
// [VerifySignature] and [Check] are the checks on an answer, as pure functions: no disk, no clock, no network.
// [Schedule] says when to renew.
//
// # What this package does not do
//
// It opens no connection and reads no clock. It makes no keys: it is given [Keys], and never learns whether a key is in
// a TPM. It decides nothing from the local time: an expired identity loads.
package identity
