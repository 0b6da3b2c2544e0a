// Package helper separates privileges: a root helper holds the TPM and reads what is root's, and the daemon, which speaks to
// the network, runs as a user who has neither.
//
// [Serve] is the helper. [Client] is the node's side: [Client.Keys] makes and opens keys for package identity, which does not
// learn where they are; [Client.Firmware] is the hardware's root-only claims; [Client.Config] is the configuration for a node
// that may read none. Between the two is HTTP with JSON on a Unix socket, version 1, as on the status socket.
//
// # What the node can do with the helper, and what it cannot
//
// There is a call for each thing that a node signs, and the helper hashes by itself what it can see is that thing: the
// CertifyVerify message of a TLS 1.3 client, the payload of one of five purposes, a certificate request for the key itself. The
// three kinds of input differ in their first byte, so that none is ever another one. There is no call that signs a digest, none
// that takes a TPM command, and none that answers a challenge for the endorsement key: whoever takes over the node's process
// can be that node while he is in it, and nothing else. He cannot carry the key away, make another program's TPM keys sign
// what that program signs, or join the machine as another one.
//
// crypto/tls hands a [crypto.MessageSigner] the whole message (Go 1.25 and later), x509.CreateCertificateRequest and
// internal/signing do the same: hence [Key] has a SignMessage that sorts what it is given into the calls, and a Sign that
// refuses. The message of TLS ends in a transcript hash of the cipher suite's hash, which the gateway chooses: 32 bytes or 48.
//
// # Which keys
//
// A call names its key by the SHA-256 of its public key, and the helper looks for it in the key files of the node's data
// directory, and among the last few keys that it made, which may not be on the disk yet. Those files are the node's user's: he
// can put any record there. That gains nothing. A record counts only if its public area is exactly that of a node's key
// (package tpmkey), which no key with another purpose has, and what it may sign is the same few things. The AK vouches for the
// next key alone, and only as far as the TPM itself says that it is one of its own.
//
// # Who is let in
//
// The kernel says who connects (SO_PEERCRED): root, or the node's user; everybody else is cut off before a byte is read, whatever
// the socket's mode. The client in turn speaks to no one but root. A request is bounded in size and time, and so is the number
// of connections. Where there are too many, the oldest that has not sent its request yet makes room, so that a peer that sends
// nothing keeps nobody out; what has been asked for is done in turn, one TPM operation at a time.
//
// # What this package does not do
//
// It knows no configuration file, reads no clock and ends no process. It keeps no state: a restart of either side loses at
// most the key that was being made, and the next try makes another.
package helper
