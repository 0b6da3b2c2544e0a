// Package tpmkey makes and opens the keys of a node: ECDSA P-256, in the machine's TPM 2.0 where it can, else in a file.
//
// Both kinds are a [crypto.Signer] and a [crypto.MessageSigner] over SHA-256, and both have a record: the PEM text that
// a caller stores with mode 0600. The record of a file key is the key itself (PKCS#8). The record of a TPM key is a
// "TSS2 PRIVATE KEY" (draft-bottomley-tpm2-keys): the public area, and the private area encrypted by a storage key that
// never leaves that one chip. Its public key is read without a TPM; the TPM is opened by the first signature.
//
// # How the TPM is used
//
// A connection lives for one operation, and operations take turns: a software TPM serves one client at a time, and a
// resource manager frees what a closed connection leaves. Inside an operation at most two objects and one session are
// loaded (a chip has as few as three slots), and each is flushed on every path. Every command has a deadline. Answers
// that mean "not now" are retried within a bound. The storage root key at handle 0x81000001 is used when it fits, and
// never written: an operator or another program owns it. Without one a storage key is derived from the owner hierarchy
// for each operation, which costs a key generation on the chip (about 100 ms on many) for each signature.
//
// # Which TPM it is
//
// An [Attester] proves it to others: by an endorsement key, whose maker may have put a certificate into the TPM, and by an
// attestation key that vouches for a node's key. Both are derived anew for each operation, and survive the clearing of the
// TPM. Package attest beside this verifies what they say.
//
// # What this package does not do
//
// It stores no file, keeps no policy about when a key is renewed, and trusts no certificate. Callers see no TPM type.
package tpmkey
