package agent

import (
	"context"
	"crypto"
	"log/slog"

	"github.com/better-compute/bcd/agent/config"
	"github.com/better-compute/bcd/agent/helper"
	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/tpmkey"
	"github.com/better-compute/bcd/tpmkey/attest"
)

// keyring makes and opens the node's keys: with the TPM itself, or under [helper] by asking who holds it.
type keyring interface {
	identity.Keys
	// Require returns keys that are made in the TPM or not at all.
	Require() keyring
	// Attester returns what the TPM proves to others.
	Attester() prover
}

// prover is what a TPM proves to others; see [tpmkey.Attester].
type prover interface {
	Identify(ctx context.Context) (tpmkey.Identity, error)
	AKPublic(ctx context.Context) ([]byte, error)
	ActivateCredential(ctx context.Context, credentialBlob, encryptedSecret []byte) ([]byte, error)
	Certify(ctx context.Context, key crypto.Signer, qualifying [32]byte) (attest.Certification, error)
}

// ownTPM is the keyring of a process that opens the TPM.
type ownTPM struct{ *tpmkey.Store }

// Require implements keyring.
func (k ownTPM) Require() keyring { return ownTPM{k.Store.Require()} }

// Attester implements keyring.
func (k ownTPM) Attester() prover { return k.Store.Attester() }

// heldTPM is the keyring of a node whose TPM the helper holds.
type heldTPM struct{ *helper.Keys }

// Require implements keyring.
func (k heldTPM) Require() keyring { return heldTPM{k.Keys.Require()} }

// Attester implements keyring.
func (k heldTPM) Attester() prover { return k.Keys.Attester() }

// newTPM returns the machine's TPM, unopened.
func newTPM(c *config.Config, log *slog.Logger) (*tpmkey.Store, error) {
	return tpmkey.New(tpmkey.Options{
		Mode:                tpmkey.Mode(c.TPM.Mode),
		Device:              c.TPM.Device,
		EK:                  c.TPM.EK,
		OwnerAuthFile:       c.TPM.OwnerAuthFile,
		EndorsementAuthFile: c.TPM.EndorsementAuthFile,
		Log:                 log,
	})
}

// newKeyring returns the keyring of this process: root's is the TPM itself.
func newKeyring(c *config.Config, log *slog.Logger, asked *helper.Client) (keyring, error) {
	if asked != nil {
		keys, err := asked.Keys(tpmkey.Mode(c.TPM.Mode), log)
		return heldTPM{keys}, err
	}
	store, err := newTPM(c, log)
	return ownTPM{store}, err
}
