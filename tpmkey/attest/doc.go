// Package attest verifies what a machine's TPM says: that an attestation key (AK) is bcd's and lives in the TPM with a
// given endorsement key (EK), and that a node's key was made by that TPM and never leaves it.
//
// A proof has two steps. [MakeCredential] encrypts a secret so that only a TPM that holds both the EK and the AK opens it:
// who answers with [Proof] has that AK in that TPM. From then on [VerifyCertification] takes the AK's word for a node's
// key: TPM2_Certify, which a restricted key only does for keys of its own TPM. Who the EK belongs to is said by its
// maker's certificate, [VerifyEKChain], or by a person who knows its hash.
//
// Everything crosses this package as bytes, the TPM's own structures, and as crypto types. It opens no TPM, reads no clock
// and reaches no network. testdata/vectors/attest has known answers for another implementation.
//
// # What this package does not do
//
// It keeps no state: that a challenge is fresh, an EK is allowed, or an AK is the one of a certificate is its caller's to know.
package attest
