// Package controlplane is the whole control plane in one process: the store, JoinService, the gateway in front of it and
// the HTTP API, from one directory.
//
// [New] opens the directory, completes its first start and opens the listeners; [Server.Run] serves until its context
// ends and then drains. The directory holds `server.toml` ([Config]), `admin.toml` (the API's address and the first API
// key, 0600), `control-plane.db`, the files of package pki, and a lock: one server runs on a directory at a time.
//
// Gateway and JoinService talk over mutual TLS here too, as they do between machines: nothing that the gateway could not
// do from elsewhere works because it is near.
//
// # What this package does not do
//
// It decides nothing about machines, tokens or callers: it builds the parts that do and runs them. It reads no
// environment; the secret of the PKI comes in as an option.
package controlplane
