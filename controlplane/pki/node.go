package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

// The roles of a node certificate.
const (
	RoleNode       = "node"
	RoleSite       = "site"
	RoleRamdisk    = "ramdisk"
	RoleNodeTenant = "node-tenant"
)

// Bounds of a node certificate's lifetime, from notBefore to notAfter.
const (
	MaxNodeLifetime    = 24 * time.Hour
	MaxRamdiskLifetime = 2 * time.Hour
)

// StatementPrefix begins every URI of a node certificate but the first: a statement about the key, never a name.
const StatementPrefix = "urn:bc:"

// NodeRequest is what a node certificate says. All of it is JoinService's decision; nothing comes from a CSR but the
// key.
type NodeRequest struct {
	// Site and Node are ids, such as `site_01k5w…`.
	Site, Node string
	// Role is one of the roles above.
	Role string
	// Statements are the URIs after the SPIFFE ID. Each starts [StatementPrefix].
	Statements []string
	// Key is the node's, ECDSA P-256.
	Key crypto.PublicKey
	// Now is the time of issue.
	Now time.Time
	// Lifetime is from notBefore to notAfter, in whole seconds. It is capped at the role's bound.
	Lifetime time.Duration
}

// IssueNode issues a node certificate. It returns the leaf, whose issuer is [Public.NodeCA].
//
// The certificate is backdated by a tenth of its lifetime and at most 5 minutes, counted inside the lifetime.
func (b *Bundle) IssueNode(r NodeRequest) (*x509.Certificate, error) {
	t, err := b.nodeTemplate(r)
	if err != nil {
		return nil, fmt.Errorf("cannot issue a node certificate: %w", err)
	}
	leaf, err := issue(t, b.public.nodeCA, r.Key, b.nodeCA)
	if err != nil {
		return nil, fmt.Errorf("cannot issue a node certificate: %w", err)
	}
	return leaf, nil
}

// idSegment is a path segment of a SPIFFE ID that needs no escape. The ids that JoinService makes are narrower.
var idSegment = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

func (b *Bundle) nodeTemplate(r NodeRequest) (*x509.Certificate, error) {
	if k, ok := r.Key.(*ecdsa.PublicKey); !ok || k.Curve != elliptic.P256() {
		return nil, errors.New("key is not ECDSA P-256")
	}
	for _, id := range []string{r.Site, r.Node} {
		if !idSegment.MatchString(id) {
			return nil, fmt.Errorf("%q is not an id", id)
		}
	}
	if !slices.Contains([]string{RoleNode, RoleSite, RoleRamdisk, RoleNodeTenant}, r.Role) {
		return nil, fmt.Errorf("%q is not a role", r.Role)
	}
	uris := []*url.URL{{Scheme: "spiffe", Host: b.public.trustDomain, Path: "/site/" + r.Site + "/node/" + r.Node}}
	for _, s := range r.Statements {
		u, err := url.Parse(s)
		if err != nil || !strings.HasPrefix(s, StatementPrefix) || u.String() != s {
			return nil, fmt.Errorf("%q is not a statement", s)
		}
		uris = append(uris, u)
	}
	lifetime := min(r.Lifetime, MaxNodeLifetime)
	if r.Role == RoleRamdisk {
		lifetime = min(lifetime, MaxRamdiskLifetime)
	}
	if lifetime = lifetime.Truncate(time.Second); lifetime <= 0 {
		return nil, fmt.Errorf("lifetime %v is less than a second", r.Lifetime)
	}
	notBefore := r.Now.Add(-min(backdate, lifetime/10)).Truncate(time.Second)
	return &x509.Certificate{
		SerialNumber:          newSerial(),
		Subject:               pkix.Name{OrganizationalUnit: []string{"bc-role:" + r.Role}},
		NotBefore:             notBefore,
		NotAfter:              notBefore.Add(lifetime),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
		URIs:                  uris,
	}, nil
}
