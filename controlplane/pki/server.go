package pki

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/better-compute/bcd/internal/fault"
)

const (
	// servingLifetime is that of a gateway's certificate on disk: long enough to be renewed by hand once a year.
	servingLifetime = 397 * 24 * time.Hour
	// onlineLifetime is that of certificates which a running process issues to itself and replaces by itself.
	onlineLifetime = 30 * 24 * time.Hour
)

// Names that the two ends of the internal connection present. No resolver knows them (RFC 2606 section 2).
const (
	JoinServiceName = "joinservice.better-compute.invalid"
	gatewayName     = "gateway.better-compute.invalid"
)

// Credential is a certificate chain with its private key.
type Credential struct {
	// Leaf is the certificate, Issuer the authority that it verifies to.
	Leaf, Issuer *x509.Certificate
	// Key is the leaf's.
	Key *ecdsa.PrivateKey
}

// TLS returns the credential in the form that crypto/tls presents: the leaf, then its issuer. The issuer is there so
// that a daemon, which knows only the hash of its key, can find it.
func (c *Credential) TLS() tls.Certificate {
	return tls.Certificate{Certificate: [][]byte{c.Leaf.Raw, c.Issuer.Raw}, PrivateKey: c.Key, Leaf: c.Leaf}
}

// IssueGateway issues a gateway's server certificate for 397 days. Each name is a DNS name, a wildcard such as
// *.gw.example.com included, or an IP address.
func (b *Bundle) IssueGateway(names []string, now time.Time) (*Credential, error) {
	return b.issueServing(names, now, servingLifetime)
}

func (b *Bundle) issueServing(names []string, now time.Time, lifetime time.Duration) (*Credential, error) {
	if len(names) == 0 {
		return nil, fault.New(fault.Usage, "name the gateway with --san", "cannot issue a gateway certificate: no name given")
	}
	t := serverTemplate(now, lifetime)
	for _, name := range names {
		switch ip := net.ParseIP(name); {
		case ip != nil:
			t.IPAddresses = append(t.IPAddresses, ip)
		case isDNSName(name):
			t.DNSNames = append(t.DNSNames, name)
		default:
			return nil, fault.New(fault.Usage, "give a host name or an IP address, without a scheme or a port",
				"cannot issue a gateway certificate: %q is not a name", name)
		}
	}
	t.Subject = pkix.Name{CommonName: names[0]}
	if len(names[0]) > 64 { // RFC 5280 appendix A: ub-common-name
		t.Subject = pkix.Name{CommonName: "gateway"}
	}
	return newCredential(t, b.public.servingCA, b.servingCA)
}

// InternalServer returns JoinService's side of the mutual TLS with gateways. It replaces its own certificate.
func (b *Bundle) InternalServer(now func() time.Time) *tls.Config {
	c := &selfIssued{now: now, issue: func(at time.Time) (*Credential, error) {
		t := serverTemplate(at, onlineLifetime)
		t.Subject, t.DNSNames = pkix.Name{CommonName: "JoinService"}, []string{JoinServiceName}
		return newCredential(t, b.public.internalCA, b.internalCA)
	}}
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{"h2"},
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.get() },
		ClientAuth:             tls.RequireAndVerifyClientCert,
		ClientCAs:              poolOf(b.public.internalCA),
		SessionTicketsDisabled: true,
		Time:                   now,
	}
}

// InternalClient returns a gateway's side of the mutual TLS with JoinService. It replaces its own certificate.
func (b *Bundle) InternalClient(now func() time.Time) *tls.Config {
	c := &selfIssued{now: now, issue: func(at time.Time) (*Credential, error) {
		t := serverTemplate(at, onlineLifetime)
		t.Subject, t.DNSNames = pkix.Name{CommonName: "gateway"}, []string{gatewayName}
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		return newCredential(t, b.public.internalCA, b.internalCA)
	}}
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		NextProtos:           []string{"h2"},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.get() },
		RootCAs:              poolOf(b.public.internalCA),
		ServerName:           JoinServiceName,
		Time:                 now,
	}
}

// GatewayCertificate returns a callback for [tls.Config.GetCertificate] that issues the gateway's certificate for names
// and replaces it long before it ends. It is for a gateway in the process that holds the bundle.
func (b *Bundle) GatewayCertificate(names []string, now func() time.Time) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	c := &selfIssued{now: now, issue: func(at time.Time) (*Credential, error) { return b.issueServing(names, at, onlineLifetime) }}
	if _, err := c.get(); err != nil {
		return nil, err
	}
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.get() }, nil
}

// selfIssued is a certificate that is issued when it is first needed and again once a third of its life is left, or
// when the clock stands before its beginning.
type selfIssued struct {
	now   func() time.Time
	issue func(time.Time) (*Credential, error)

	mu   sync.Mutex
	leaf *tls.Certificate
}

func (s *selfIssued) get() (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if s.leaf != nil && now.After(s.leaf.Leaf.NotBefore) && now.Before(s.leaf.Leaf.NotAfter.Add(-onlineLifetime/3)) {
		return s.leaf, nil
	}
	c, err := s.issue(now)
	if err != nil {
		return nil, fmt.Errorf("cannot issue the process's own certificate: %w", err)
	}
	leaf := c.TLS()
	s.leaf = &leaf
	return s.leaf, nil
}

func serverTemplate(now time.Time, lifetime time.Duration) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber:          newSerial(),
		NotBefore:             now.Add(-serverBackdate),
		NotAfter:              now.Add(lifetime),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
}

func newCredential(t, issuer *x509.Certificate, issuerKey *ecdsa.PrivateKey) (*Credential, error) {
	key, err := newKey()
	if err != nil {
		return nil, fmt.Errorf("cannot make a key: %w", err)
	}
	leaf, err := issue(t, issuer, &key.PublicKey, issuerKey)
	if err != nil {
		return nil, fmt.Errorf("cannot issue a certificate: %w", err)
	}
	return &Credential{Leaf: leaf, Issuer: issuer, Key: key}, nil
}

func poolOf(c *x509.Certificate) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(c)
	return pool
}

var dnsLabel = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// isDNSName takes lower-case host names (RFC 1123 section 2.1), with a wildcard as the whole first label.
func isDNSName(s string) bool {
	if len(s) > 253 {
		return false
	}
	s = strings.TrimPrefix(s, "*.")
	for label := range strings.SplitSeq(s, ".") {
		if !dnsLabel.MatchString(label) {
			return false
		}
	}
	return true
}
