// Package pki holds the keys of a control plane and issues the certificates that they vouch for.
//
// A [Bundle] has four certificate authorities, each for one relation only, so that a certificate of one relation never
// verifies in another:
//
//   - the node CA: the client certificates of daemons ([Bundle.IssueNode]). Path length 0, and no name constraints: a
//     constraint on URIs breaks the `urn:` names beside the SPIFFE ID;
//   - the serving CA: the gateway's server certificate ([Bundle.IssueGateway]). Daemons pin its key;
//   - the internal CA: the mutual TLS between gateway and JoinService;
//   - the command CA: the certificate whose key signs commands;
//
// two keys that daemons pin, one that signs JoinService's answers and one that opens sealed tokens, and a secret from
// which keys are derived that all replicas of JoinService share ([Bundle.DeriveKey]).
//
// # Files
//
// [Init] writes two files. `pki.age` (0600) holds everything, encrypted with a passphrase in the format of
// age-encryption.org/v1 (scrypt). `pki-public.json` (0644) holds what anybody may know: certificates, pins and the
// encryption key as a JWK. [IssueGatewayFiles] writes `gateway.crt` (0644: the certificate, then its CA) and
// `gateway.key` (0600, PKCS#8) into the same directory, where `better-compute serve` finds them. Nothing here ever
// writes over an existing file.
//
// # What this package does not do
//
// It decides nothing about who gets a certificate: it issues what JoinService, which has decided, asks for, within the
// bounds that no certificate may leave. It reads no environment and knows no database. Rotation and revocation are
// elsewhere.
package pki
