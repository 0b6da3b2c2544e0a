package controlplane

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/better-compute/bcd/controlplane/joinservice"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
)

// make makes the attestors that have a section. None is an empty list, never nil: that would be the default. path finds
// the files that the sections name.
func (c AttestorsConfig) make(keys *joinservice.Keys, path func(string) string) ([]joinservice.Attestor, error) {
	made := []joinservice.Attestor{}
	if c.JoinToken != nil {
		made = append(made, joinservice.JoinToken{Keys: keys.Decryption})
	}
	if d := c.Discovery; d != nil {
		made = append(made, joinservice.Discovery{
			Keys: keys.Decryption, Approval: d.Approval, PendingTTL: time.Duration(d.PendingTTLSeconds) * time.Second,
		})
	}
	if c.X509PoP != nil {
		made = append(made, joinservice.X509PoP{})
	}
	if t := c.TPM; t != nil {
		roots, err := t.roots(path)
		if err != nil {
			return nil, err
		}
		tpm, err := joinservice.NewTPM(keys, joinservice.TPMOptions{
			Roots: roots, Pools: t.Pools, Enrollment: t.Enrollment, PendingTTL: time.Duration(t.PendingTTLSeconds) * time.Second,
		})
		if err != nil {
			return nil, err
		}
		made = append(made, tpm)
	}
	return made, nil
}

// roots reads the authorities of TPM makers.
func (t *TPMConfig) roots(path func(string) string) (all []*x509.Certificate, err error) {
	for i, name := range t.EKRoots {
		found, err := readCertificates(path(name))
		if err != nil {
			return nil, fault.New(fault.Config, "name a file with the makers' certificates in PEM; openssl x509 -inform DER makes PEM of what makers publish",
				"cannot read attestors.tpm.ek_roots[%d], %q: %w", i, name, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// readCertificates reads a PEM file of certificates, of authorities all of them.
func readCertificates(path string) (all []*x509.Certificate, err error) {
	text, err := os.ReadFile(path) //nolint:gosec // the operator's own configuration names it
	if err != nil {
		return nil, err
	}
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("it holds %q, which is no certificate", block.Type)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(all)+1, err)
		}
		if !c.IsCA {
			return nil, fmt.Errorf("certificate %d, of %q, is not that of an authority", len(all)+1, c.Subject)
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, errors.New("it holds no certificate in PEM")
	}
	return all, nil
}

// checkPools refuses a pool that could not take the machines that the configuration sends to it.
func (t *TPMConfig) checkPools(tx *store.Tx) error {
	if t == nil {
		return nil
	}
	for site, id := range t.Pools {
		pool, err := tx.Pool(id)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return fault.New(fault.Config, `"better-compute pools list" shows the pools`, "attestors.tpm.pools.%s is %q, which does not exist", site, id)
		case err != nil:
			return err
		case pool.SiteID != site:
			return fault.New(fault.Config, "name a pool of the site", "attestors.tpm.pools.%s is %q, a pool of site %q", site, id, pool.SiteID)
		}
	}
	return nil
}
