package controlplane_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/controlplane"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
)

// makersCertificate is a self-signed certificate in PEM.
func makersCertificate(t *testing.T, authority bool) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Maker"}, NotAfter: time.Now().Add(time.Hour),
		BasicConstraintsValid: true, IsCA: authority,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	check(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// withTPM is a directory of a control plane whose server.toml has a section for the attestor tpm; SITE and POOL in it are those
// of the first start.
func withTPM(t *testing.T, section string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "cp")
	s, stop := run(t, options(t, dir))
	var site, pool string
	check(t, s.Store().Read(t.Context(), func(tx *store.Tx) error {
		pools, err := tx.Pools(s.Config().RootTenant, true, "", 1)
		check(t, err)
		site, pool = pools[0].SiteID, pools[0].ID
		return nil
	}))
	stop()
	file := filepath.Join(dir, "server.toml")
	text, err := os.ReadFile(file)
	check(t, err)
	section = strings.NewReplacer("SITE", site, "POOL", pool).Replace(section)
	check(t, os.WriteFile(file, fmt.Appendf(text, "\n[attestors.tpm]\n%s", section), 0o600))
	check(t, os.WriteFile(filepath.Join(dir, "maker.pem"), []byte(makersCertificate(t, true)+makersCertificate(t, true)), 0o600))
	check(t, os.WriteFile(filepath.Join(dir, "leaf.pem"), []byte(makersCertificate(t, true)+makersCertificate(t, false)), 0o600))
	check(t, os.WriteFile(filepath.Join(dir, "key.pem"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")}), 0o600))
	check(t, os.WriteFile(filepath.Join(dir, "broken.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}), 0o600))
	check(t, os.WriteFile(filepath.Join(dir, "none.pem"), nil, 0o600))
	return dir
}

func TestTheSectionOfTheAttestorTPM(t *testing.T) {
	dir := withTPM(t, "")
	s, stop := run(t, options(t, dir))
	if diff := cmp.Diff(&controlplane.TPMConfig{PendingTTLSeconds: 86400}, s.Config().Attestors.TPM); diff != "" {
		t.Error(diff)
	}
	stop()
	// Paths are relative to the directory, or absolute.
	for _, root := range []string{"maker.pem", filepath.Join(dir, "maker.pem")} {
		dir = withTPM(t, fmt.Sprintf("ek_roots = [%q]\nenrollment = true\npending_ttl_seconds = 60\n[attestors.tpm.pools]\nSITE = \"POOL\"\n", root))
		s, stop = run(t, options(t, dir))
		if c := s.Config().Attestors.TPM; !c.Enrollment || c.PendingTTLSeconds != 60 || len(c.Pools) != 1 || c.EKRoots[0] != root {
			t.Errorf("configuration %+v", c)
		}
		stop()
	}
}

func TestSectionsOfTheAttestorTPMThatAreRefused(t *testing.T) {
	const pools = "ek_roots = [\"maker.pem\"]\n[attestors.tpm.pools]\n"
	for section, want := range map[string]string{
		"pending_ttl_seconds = 59\n":                                 "attestors.tpm.pending_ttl_seconds is 59",
		"pending_ttl_seconds = 0\n":                                  "attestors.tpm.pending_ttl_seconds is 0",
		"pending_ttl_seconds = 604801\n":                             "attestors.tpm.pending_ttl_seconds is 604801",
		"roots = []\n":                                               `unknown key "attestors.tpm.roots"`,
		"ek_roots = \"maker.pem\"\n":                                 "line ",
		"ek_roots = [\"maker.pem\", \"gone.pem\"]\n":                 `attestors.tpm.ek_roots[1], "gone.pem"`,
		"ek_roots = [\"none.pem\"]\n":                                "no certificate",
		"ek_roots = [\"key.pem\"]\n":                                 `"PRIVATE KEY"`,
		"ek_roots = [\"broken.pem\"]\n":                              "certificate 1: ",
		"ek_roots = [\"leaf.pem\"]\n":                                "certificate 2, of ",
		"ek_roots = [\"\"]\n":                                        "ek_roots[0]",
		"[attestors.tpm.pools]\nSITE = \"POOL\"\n":                   "without attestors.tpm.ek_roots",
		pools + "eu = \"POOL\"\n":                                    `has the key "eu"`,
		pools + "SITE = \"metal\"\n":                                 `is "metal"`,
		pools + "SITE = \"pool_01k5w000000000000000000000\"\n":       "does not exist",
		pools + "site_01k5w000000000000000000000 = \"POOL\"\n":       "a pool of site",
		pools + "SITE = \"POOL\"\nSITE = \"POOL\"\n":                 "line ",
		"ek_roots = [\"maker.pem\"]\n[attestors.tpm.pools.SITE]\n\n": "line ",
	} {
		dir := withTPM(t, section)
		s, err := controlplane.New(t.Context(), options(t, dir))
		if err == nil {
			t.Errorf("%q was taken: %v", section, s.Close())
			continue
		}
		if !fault.Is(err, fault.Config) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", section, err, want)
		}
	}
}
