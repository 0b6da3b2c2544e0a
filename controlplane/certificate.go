package controlplane

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/better-compute/bcd/controlplane/pki"
	"github.com/better-compute/bcd/internal/fault"
)

// renewSoon is how long before its end a gateway's certificate is warned about: no machine connects after it.
const renewSoon = 30 * 24 * time.Hour

// gatewayCertificate returns how the gateway gets its certificate: gateway.crt of the directory where it is there, else
// one that the server issues for names and replaces by itself.
func gatewayCertificate(dir string, b *pki.Bundle, names []string, now func() time.Time, log *slog.Logger) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	path, key := filepath.Join(dir, pki.GatewayCertFile), filepath.Join(dir, pki.GatewayKeyFile)
	if missing(path) && missing(key) {
		if len(names) == 0 {
			return nil, fault.New(fault.Config, "set gateway.url in "+configFile, "the gateway has no certificate and no name to issue one for")
		}
		return b.GatewayCertificate(names, now)
	}
	const again = `move gateway.crt and gateway.key away and run "better-compute pki issue-gateway" again, or let serve issue its own`
	pair, err := tls.LoadX509KeyPair(path, key)
	if err != nil {
		return nil, fault.New(fault.Config, again, "cannot read the gateway's certificate: %w", err)
	}
	for _, name := range names {
		opts := x509.VerifyOptions{DNSName: name, Roots: poolOf(b.Public().ServingCA()), CurrentTime: now()}
		if _, err := pair.Leaf.Verify(opts); err != nil {
			return nil, fault.New(fault.Config, again, "cannot use %q: machines that dial %q would refuse it: %w", path, name, err)
		}
	}
	if left := pair.Leaf.NotAfter.Sub(now()); left < renewSoon {
		log.Warn("renew gateway certificate", "file", path, "not_after", pair.Leaf.NotAfter.UTC(), "hint", again)
	}
	// The CA travels in the chain, whatever the file has: machines know only the hash of its key.
	pair.Certificate = [][]byte{pair.Leaf.Raw, b.Public().ServingCA().Raw}
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil }, nil
}

func missing(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

func poolOf(c *x509.Certificate) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(c)
	return pool
}
