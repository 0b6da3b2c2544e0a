package identity

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/pin"
)

// Version is the version of identity.json that this package writes.
const Version = 1

// Limits of what an answer may carry and so of what the files hold.
const (
	// MaxChain is the number of certificates in a chain, the leaf included.
	MaxChain = 8
	// MaxBundle is the number of certificates in a trust bundle.
	MaxBundle = 32
	// MaxDER is the size in bytes of all certificates of one chain or one bundle, DER.
	MaxDER = 64 << 10
	// MaxKinds is the number of allowed command kinds.
	MaxKinds = 256
	// maxText is the size in bytes of a name: node id, site, trust domain, a command kind.
	maxText = 255
	// maxFile is the size in bytes of a state file with all of that in it, base64 and JSON included.
	maxFile = 512 << 10
)

// Identity is the content of identity.json: what the control plane said this machine is.
type Identity struct {
	// Version is the format's version, 1.
	Version int `json:"version"`
	// NodeID is the node's id, node_….
	NodeID string `json:"nodeId"`
	// Site is the id of the node's site, site_….
	Site string `json:"site"`
	// TrustDomain is the SPIFFE trust domain of the control plane.
	TrustDomain string `json:"trustDomain"`
	// Role is node, site, ramdisk or node-tenant.
	Role string `json:"role"`
	// Chain is the certificate chain, leaf first.
	Chain Certificates `json:"chain"`
	// NodeCA is the CAs that node certificates verify to.
	NodeCA Bundle `json:"nodeCa"`
	// CommandTrust is the CAs that command-signing certificates verify to.
	CommandTrust Bundle `json:"commandTrust,omitempty"`
	// Generation counts the node's admissions. It starts at 1 and a reclaim raises it.
	Generation uint64 `json:"generation"`
	// AllowedKinds are exact command kinds or prefix.*; empty allows every kind.
	AllowedKinds []string `json:"allowedKinds,omitempty"`
	// NextPins are honoured beside the configuration's.
	NextPins NextPins `json:"nextPins,omitzero"`
	// KeySPKISHA256 is the pin of the leaf's public key. It lets a person match the file to a key.
	KeySPKISHA256 pin.Pin `json:"keySpkiSha256"`
	// JoinedAt is the server's time in the answer to the join.
	JoinedAt time.Time `json:"joinedAt"`
	// IssuedAt is the server's time in the answer that carried this certificate. The certificate's lifetime is counted
	// from here: its notBefore is backdated.
	IssuedAt time.Time `json:"issuedAt"`
}

// NextPins are the pins of a rotation that the control plane has announced.
type NextPins struct {
	ServingCA         pin.Set `json:"servingCaSpki,omitempty"`
	JoinSigningKey    pin.Set `json:"joinSigningKey,omitempty"`
	JoinEncryptionKey pin.Set `json:"joinEncryptionKey,omitempty"`
}

// Leaf returns the node's certificate.
func (id *Identity) Leaf() *x509.Certificate { return id.Chain[0] }

// SPIFFEID returns spiffe://<trust domain>/site/<site>/node/<node id>.
func (id *Identity) SPIFFEID() string { return spiffeID(id.TrustDomain, id.Site, id.NodeID) }

// parseIdentity reads identity.json and checks that it agrees with itself. It needs neither a clock nor a key.
func parseIdentity(data []byte) (*Identity, error) {
	if err := checkVersion(data, Version); err != nil {
		return nil, err
	}
	id := new(Identity)
	if err := json.Unmarshal(data, id); err != nil {
		return nil, err
	}
	if err := id.validate(); err != nil {
		return nil, err
	}
	return id, nil
}

// checkVersion reads the version before anything else: a newer format may not even have the same shape.
func checkVersion(data []byte, latest int) error {
	var v struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return err
	}
	switch {
	case v.Version > latest:
		return fault.New(fault.Newer, "install the version of bcd that wrote it, or a later one",
			"format version %d is newer than %d, the latest that this bcd knows", v.Version, latest)
	case v.Version < 1:
		return fmt.Errorf("format version %d does not exist", v.Version)
	}
	return nil
}

// validate checks that the fields agree with the leaf. Dates are not looked at.
func (id *Identity) validate() error {
	if len(id.Chain) == 0 {
		return errors.New("it has no certificate")
	}
	leaf := id.Leaf()
	if _, ok := leaf.PublicKey.(*ecdsa.PublicKey); !ok {
		return errors.New("its certificate's key is not ECDSA")
	}
	if got := pin.OfCertificate(leaf); got != id.KeySPKISHA256 {
		return fmt.Errorf("keySpkiSha256 is %s, the certificate's key has %s", id.KeySPKISHA256, got)
	}
	if err := checkSPIFFE(leaf, id.TrustDomain, id.Site, id.NodeID); err != nil {
		return err
	}
	return checkRole(leaf, id.Role, "")
}
