package joinservice

import (
	"context"
	"crypto/ecdh"
	"crypto/sha256"
	"errors"

	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/bearer"
	"github.com/better-compute/bcd/seal"
)

// AttestorJoinToken is the name of [JoinToken], and what an empty attestor in a request means.
const AttestorJoinToken = "join-token"

// JoinToken admits the bearer of a join token that was sealed for this very request.
type JoinToken struct {
	// Keys open the seal.
	Keys []ecdh.KeyExchanger
}

// Name implements [Attestor].
func (JoinToken) Name() string { return AttestorJoinToken }

// Open implements [Attestor]: it opens the seal.
func (a JoinToken) Open(_ context.Context, r *Request) (Credential, error) {
	opened, err := seal.Open(a.Keys, r.body.GetSealedToken(), r.body.GetCsr())
	if errors.Is(err, seal.ErrKeyUnavailable) {
		return nil, err
	}
	if err != nil {
		return nil, Refuse("join:token")
	}
	defer clear(opened.Token)
	id, secret, err := bearer.Parse(opened.Token)
	if err != nil {
		return nil, Refuse("join-token:malformed")
	}
	return &tokenCredential{id: id, secret: secret, role: r.Role()}, nil
}

type tokenCredential struct {
	id     string
	secret bearer.Secret
	role   string
	token  store.Token // of the last Prove
}

// Prove implements [Credential]. An unknown id costs the same compare as a wrong secret.
func (c *tokenCredential) Prove(tx *store.Tx) (*Grant, error) {
	t, err := tx.Token(c.id)
	known := err == nil
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	digest := t.SecretSHA256
	if !known {
		digest = sha256.Sum256(nil) // the digest of no secret
	}
	matches := c.secret.Matches(digest[:])
	switch {
	case !known:
		return nil, Refuse("join-token:unknown")
	case !matches:
		return nil, Refuse("join-token:secret-mismatch")
	}
	c.token = t
	return &Grant{
		TokenID: t.ID, TenantID: t.TenantID, SiteID: t.SiteID, PoolID: t.PoolID, NodeID: t.NodeID,
		Expect: t.Expect, PlaceholderOK: t.Expect != nil, AllowReclaim: t.AllowReclaim, Hosted: t.Hosted != "",
	}, nil
}

// Check implements [Credential].
func (c *tokenCredential) Check(tx *store.Tx, _ *Grant) error {
	switch t := c.token; {
	case !t.RevokedAt.IsZero():
		return Refuse("join-token:revoked")
	case !tx.Now().Before(t.ExpiresAt):
		return Refuse("join-token:expired")
	case t.UsesLeft < 1:
		return Refuse("join-token:exhausted")
	case !admits(t.Role, c.role):
		return Refuse("join-token:role-mismatch")
	}
	return nil
}

// Spend implements [Credential].
func (c *tokenCredential) Spend(tx *store.Tx, _ *Grant) error {
	err := tx.SpendToken(c.id)
	if errors.Is(err, store.ErrNotFound) {
		return Refuse("join-token:exhausted")
	}
	return err
}

// admits reports whether a token of the role admits a machine that asks for the other.
func admits(token store.TokenRole, asked string) bool {
	switch token {
	case store.TokenNode, store.TokenProvisioned:
		return asked == store.RoleNode
	case store.TokenSite:
		return asked == store.RoleSite
	case store.TokenDiscovery:
		return asked == store.RoleRamdisk
	}
	return false
}
