package identity

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/pin"
	"github.com/better-compute/bcd/internal/signing"
)

// CheckName names one check of an answer. The text is stable: logs and JSON carry it.
type CheckName string

// The checks, in their order. The first that fails is the one that is reported.
const (
	CheckSignature      CheckName = "signature"       // under the pinned join-signing key
	CheckCSR            CheckName = "csr-sha256"      // the answer is for our certificate request
	CheckKey            CheckName = "key"             // the leaf certifies our key
	CheckSPIFFE         CheckName = "spiffe-id"       // the leaf's names are the body's
	CheckRole           CheckName = "role"            // the leaf's role is the body's and answers what was asked for
	CheckRequest        CheckName = "request-sha256"  // the answer is for this very request
	CheckSite           CheckName = "site"            // the configuration's site
	CheckNodeID         CheckName = "node-id"         // the node id that was asked for
	CheckAttestationKey CheckName = "attestation-key" // the leaf names our attestation key, and only that
	CheckSameNode       CheckName = "same-node"       // a renewal changes neither names, role nor statements
	CheckChain          CheckName = "chain"           // verifies to the node CA
	CheckAlgorithm      CheckName = "algorithm"       // P-256
	CheckUsage          CheckName = "usage"           // a client certificate, not a CA
	CheckLifetime       CheckName = "lifetime"        // 24 h at most, 2 h for a ramdisk
	CheckDates          CheckName = "dates"           // valid at the server's time
	CheckGeneration     CheckName = "generation"      // at least 1, never lower than it was
	CheckContent        CheckName = "content"         // the rest of the body has its limits and forms
)

// The longest lifetimes, from notBefore to notAfter.
const (
	MaxLifetime        = 24 * time.Hour
	MaxRamdiskLifetime = 2 * time.Hour
)

// CheckError is an answer that failed a check. It stands in a [fault.Verification] error.
type CheckError struct {
	Check CheckName
	Err   error
}

// Error names the check and says what is wrong.
func (e *CheckError) Error() string { return fmt.Sprintf("check %s: %v", e.Check, e.Err) }

// Unwrap returns what is wrong.
func (e *CheckError) Unwrap() error { return e.Err }

// FailedCheck returns the check that err reports, or "".
func FailedCheck(err error) CheckName {
	if e, ok := errors.AsType[*CheckError](err); ok {
		return e.Check
	}
	return ""
}

func failed(check CheckName, err error) error {
	hint := "nothing was changed; try again, and tell the control plane's operator which check failed if it stays"
	if check == CheckSignature {
		hint = `compare join_signing_key_pin with what "better-compute pki show" prints`
	}
	return fault.New(fault.Verification, hint, "the control plane's answer is not acceptable: %w", &CheckError{check, err})
}

// VerifySignature is the first check. The signing certificate only carries the key that the pins name: its dates, names
// and issuer are not looked at. The caller parses body only afterwards.
func VerifySignature(purpose signing.Purpose, body, sig, certificate []byte, pins pin.Set) error {
	cert, err := x509.ParseCertificate(certificate)
	if err != nil {
		return failed(CheckSignature, fmt.Errorf("the signing certificate does not parse: %w", err))
	}
	if got := pin.OfCertificate(cert); !pins.Has(got) {
		return failed(CheckSignature, fmt.Errorf("it is signed by the key %s, not by the pinned %s", got, pins))
	}
	if err := signing.Verify(cert.PublicKey, purpose, body, sig); err != nil {
		return failed(CheckSignature, err)
	}
	return nil
}

// Admission is the admission that a verified body carries, field by field.
type Admission struct {
	NodeID       string
	Chain        [][]byte // DER, leaf first
	NodeCA       [][]byte // DER
	CommandTrust [][]byte // DER
	CSRSHA256    []byte
	TrustDomain  string
	Site         string
	Role         string
	AllowedKinds []string
	Generation   uint64

	// RequestSHA256 is the body's request_sha256.
	RequestSHA256 []byte
	// ServerTime is the body's server_time.
	ServerTime time.Time
	// The body's next_pins, as texts.
	NextServingCA, NextJoinSigningKey, NextJoinEncryptionKey []string
}

// Expectation is what was asked for.
type Expectation struct {
	// CSR is the certificate request that was sent, DER.
	CSR []byte
	// RequestSHA256 is the SHA-256 that request_sha256 must be: of the join request's body, or of the payload that a
	// renewal's pop_sig signs.
	RequestSHA256 [sha256.Size]byte
	// Role is the role that a join asked for; empty in a renewal.
	Role string
	// Site is the configuration's site. Empty accepts the body's: a bootstrap has no configuration yet.
	Site string
	// NodeID is the node id that the operator gave; empty accepts the body's.
	NodeID string
	// AttestationKey is urn:bc:tpm-ak:<nameAlg>:<digest> in a join by the attestor tpm, else empty.
	AttestationKey string
	// Current is the identity that is renewed or re-joined with its expired certificate, else nil.
	Current *Identity
	// Rejoins is a join with the expired certificate of Current: it stays in its generation.
	Rejoins bool
}

// Check runs every check after [VerifySignature] in the protocol's order and returns the identity that the admission
// makes. The error is a [fault.Verification] one with a [CheckError] in it that names the first check that failed.
func Check(a Admission, want Expectation) (*Identity, error) {
	csr, err := x509.ParseCertificateRequest(want.CSR)
	if err != nil {
		return nil, fmt.Errorf("cannot parse our own certificate request: %w", err)
	}
	c := &checker{a: a, want: want, csr: csr}
	for _, check := range []struct {
		name CheckName
		run  func() error
	}{
		{CheckCSR, c.csrHash},
		{CheckKey, c.key},
		{CheckSPIFFE, func() error { return checkSPIFFE(c.leaf, a.TrustDomain, a.Site, a.NodeID) }},
		{CheckRole, func() error { return checkRole(c.leaf, a.Role, want.Role) }},
		{CheckRequest, func() error { return equalHash(a.RequestSHA256, want.RequestSHA256) }},
		{CheckSite, func() error { return equalIfSet("site", a.Site, want.Site) }},
		{CheckNodeID, func() error { return equalIfSet("node id", a.NodeID, want.NodeID) }},
		{CheckAttestationKey, c.attestationKey},
		{CheckSameNode, c.sameNode},
		{CheckChain, c.chain},
		{CheckAlgorithm, c.algorithm},
		{CheckUsage, c.usage},
		{CheckLifetime, c.lifetime},
		{CheckDates, c.dates},
		{CheckGeneration, c.generation},
		{CheckContent, c.content},
	} {
		if err := check.run(); err != nil {
			return nil, failed(check.name, err)
		}
	}
	return c.identity(), nil
}

// Deferral is the deferral that a verified body carries.
type Deferral struct {
	CSRSHA256     []byte
	RequestID     string
	RequestSHA256 []byte // the body's request_sha256
}

// CheckDeferral runs the checks that a deferral can have after [VerifySignature]: it is for our certificate request and
// for this very request, and it names a join request.
func CheckDeferral(d Deferral, want Expectation) error {
	if err := equalHash(d.CSRSHA256, sha256.Sum256(want.CSR)); err != nil {
		return failed(CheckCSR, err)
	}
	if err := equalHash(d.RequestSHA256, want.RequestSHA256); err != nil {
		return failed(CheckRequest, err)
	}
	if n := len(d.RequestID); n > maxText {
		return failed(CheckContent, fmt.Errorf("the id of the join request has %d bytes, more than %d", n, maxText))
	}
	if !isName(d.RequestID) {
		return failed(CheckContent, fmt.Errorf("%q cannot be the id of a join request", d.RequestID))
	}
	return nil
}

type checker struct {
	a    Admission
	want Expectation
	csr  *x509.CertificateRequest

	leaf      *x509.Certificate
	certs     Certificates
	datesWait error // what the chain's verification found out about dates
	nextPins  NextPins
}

func (c *checker) csrHash() error { return equalHash(c.a.CSRSHA256, sha256.Sum256(c.want.CSR)) }

func equalHash(got []byte, want [sha256.Size]byte) error {
	if !bytes.Equal(got, want[:]) {
		return fmt.Errorf("it is %x, want %x", got, want)
	}
	return nil
}

func equalIfSet(what, got, want string) error {
	if want != "" && got != want {
		return fmt.Errorf("the %s is %q, want %q", what, got, want)
	}
	return nil
}

func (c *checker) key() error {
	if len(c.a.Chain) == 0 {
		return errors.New("the answer has no certificate")
	}
	if n := len(c.a.Chain[0]); n > MaxDER {
		return fmt.Errorf("the certificate has %d bytes, more than %d", n, MaxDER)
	}
	leaf, err := x509.ParseCertificate(c.a.Chain[0])
	if err != nil {
		return fmt.Errorf("the certificate does not parse: %w", err)
	}
	if !bytes.Equal(leaf.RawSubjectPublicKeyInfo, c.csr.RawSubjectPublicKeyInfo) {
		return errors.New("the certificate is for another key")
	}
	c.leaf = leaf
	return nil
}

func (c *checker) attestationKey() error {
	if c.want.AttestationKey == "" {
		return nil
	}
	got, err := AttestationKeys(c.leaf)
	if err != nil {
		return err
	}
	if !slices.Equal(got, []string{c.want.AttestationKey}) {
		return fmt.Errorf("the certificate names the attestation keys %q, want only %q", got, c.want.AttestationKey)
	}
	return nil
}

func (c *checker) sameNode() error {
	old := c.want.Current
	if old == nil {
		return nil
	}
	before, err := Statements(old.Leaf())
	if err != nil {
		return err
	}
	now, err := Statements(c.leaf)
	if err != nil {
		return err
	}
	for _, f := range []struct{ what, got, want string }{
		{"node id", c.a.NodeID, old.NodeID},
		{"site", c.a.Site, old.Site},
		{"trust domain", c.a.TrustDomain, old.TrustDomain},
		{"role", c.a.Role, old.Role},
	} {
		if f.got != f.want {
			return fmt.Errorf("the %s changes from %q to %q", f.what, f.want, f.got)
		}
	}
	if !slices.Equal(before, now) {
		return fmt.Errorf("the statements change from %q to %q", before, now)
	}
	return nil
}

func (c *checker) chain() (err error) {
	if c.certs, err = parseChain(c.a.Chain); err != nil {
		return err
	}
	if err := checkSizes(c.a.NodeCA, MaxBundle); err != nil {
		return fmt.Errorf("node CA: %w", err)
	}
	intermediates := x509.NewCertPool()
	for _, cert := range c.certs[1:] {
		intermediates.AddCert(cert)
	}
	// Dates are a later check. Here the chain is judged at a moment at which the leaf is good, as near to the server's
	// time as that can be.
	at := c.a.ServerTime
	if at.Before(c.leaf.NotBefore) {
		at = c.leaf.NotBefore
	} else if at.After(c.leaf.NotAfter) {
		at = c.leaf.NotAfter
	}
	_, err = c.leaf.Verify(x509.VerifyOptions{
		Roots:         Bundle(c.a.NodeCA).Pool(),
		Intermediates: intermediates,
		CurrentTime:   at,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		c.datesWait = err
		return nil
	}
	return err
}

func (c *checker) algorithm() error {
	key, ok := c.leaf.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return fmt.Errorf("the certificate's key is not ECDSA P-256 but %s", c.leaf.PublicKeyAlgorithm)
	}
	return nil
}

func (c *checker) usage() error {
	switch {
	case c.leaf.IsCA:
		return errors.New("the certificate is a CA's")
	case c.leaf.KeyUsage != 0 && c.leaf.KeyUsage&x509.KeyUsageDigitalSignature == 0:
		return errors.New("the certificate's key may not sign")
	case !slices.Contains(c.leaf.ExtKeyUsage, x509.ExtKeyUsageClientAuth):
		return errors.New("the certificate is not for client authentication")
	}
	return nil
}

func (c *checker) lifetime() error {
	limit := MaxLifetime
	if c.a.Role == RoleRamdisk {
		limit = MaxRamdiskLifetime
	}
	if life := c.leaf.NotAfter.Sub(c.leaf.NotBefore); life > limit {
		return fmt.Errorf("the certificate lasts %s, more than %s", life, limit)
	}
	return nil
}

func (c *checker) dates() error {
	now := c.a.ServerTime
	if now.Before(c.leaf.NotBefore) || now.After(c.leaf.NotAfter) {
		return fmt.Errorf("the certificate is good from %s to %s, the server's time is %s",
			stamp(c.leaf.NotBefore), stamp(c.leaf.NotAfter), stamp(now))
	}
	return c.datesWait
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func (c *checker) generation() error {
	if c.a.Generation == 0 {
		return errors.New("the identity generation is 0")
	}
	if old := c.want.Current; old != nil && c.a.Generation < old.Generation {
		return fmt.Errorf("the identity generation falls from %d to %d", old.Generation, c.a.Generation)
	} else if old != nil && c.want.Rejoins && c.a.Generation != old.Generation {
		return fmt.Errorf("the identity generation changes from %d to %d", old.Generation, c.a.Generation)
	}
	return nil
}

func (c *checker) content() (err error) {
	if err := checkSizes(c.a.CommandTrust, MaxBundle); err != nil {
		return fmt.Errorf("command trust: %w", err)
	}
	if n := len(c.a.AllowedKinds); n > MaxKinds {
		return fmt.Errorf("%d allowed kinds, more than %d", n, MaxKinds)
	}
	for _, kind := range c.a.AllowedKinds {
		if !isKind(kind) {
			return fmt.Errorf("%q cannot be an allowed kind", kind)
		}
	}
	var before NextPins
	if c.want.Current != nil {
		before = c.want.Current.NextPins
	}
	for _, p := range []struct {
		texts  []string
		before pin.Set
		to     *pin.Set
	}{
		{c.a.NextServingCA, before.ServingCA, &c.nextPins.ServingCA},
		{c.a.NextJoinSigningKey, before.JoinSigningKey, &c.nextPins.JoinSigningKey},
		{c.a.NextJoinEncryptionKey, before.JoinEncryptionKey, &c.nextPins.JoinEncryptionKey},
	} {
		if *p.to, err = nextPins(p.texts, p.before); err != nil {
			return err
		}
	}
	return nil
}

// nextPins puts the announced pins before those that were announced earlier. The earlier ones stay: once the control
// plane has switched it announces nothing more, and the configuration still has the pin from before the rotation.
func nextPins(texts []string, before pin.Set) (pin.Set, error) {
	if len(texts) > pin.MaxSet {
		return nil, fmt.Errorf("%d next pins of one kind, more than %d", len(texts), pin.MaxSet)
	}
	var set pin.Set
	for _, text := range texts {
		p, err := pin.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("next pin: %w", err)
		}
		set = set.With(p)
	}
	set = set.With(before...)
	return set[:min(len(set), pin.MaxSet)], nil
}

func (c *checker) identity() *Identity {
	id := &Identity{
		Version:       Version,
		NodeID:        c.a.NodeID,
		Site:          c.a.Site,
		TrustDomain:   c.a.TrustDomain,
		Role:          c.a.Role,
		Chain:         c.certs,
		NodeCA:        c.a.NodeCA,
		CommandTrust:  c.a.CommandTrust,
		Generation:    c.a.Generation,
		AllowedKinds:  c.a.AllowedKinds,
		NextPins:      c.nextPins,
		KeySPKISHA256: pin.OfCertificate(c.leaf),
		JoinedAt:      c.a.ServerTime.UTC(),
		IssuedAt:      c.a.ServerTime.UTC(),
	}
	if old := c.want.Current; old != nil {
		id.JoinedAt = old.JoinedAt
		if len(id.CommandTrust) == 0 {
			id.CommandTrust = old.CommandTrust
		}
	}
	return id
}
