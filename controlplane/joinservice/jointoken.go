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
	c, err := openToken(AttestorJoinToken, a.Keys, r)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// openToken opens a request's seal for an attestor, whose name its refusals have.
func openToken(attestor string, keys []ecdh.KeyExchanger, r *Request) (*tokenCredential, error) {
	opened, err := seal.Open(keys, r.body.GetSealedToken(), r.body.GetCsr())
	if errors.Is(err, seal.ErrKeyUnavailable) {
		return nil, err
	}
	if err != nil {
		return nil, Refuse("join:token")
	}
	defer clear(opened.Token)
	c := &tokenCredential{attestor: attestor, role: r.Role()}
	if c.id, c.secret, err = bearer.Parse(opened.Token); err != nil {
		return nil, c.refuse("malformed")
	}
	return c, nil
}

type tokenCredential struct {
	attestor string
	id       string
	secret   bearer.Secret
	role     string
	token    store.Token // of the last Prove
}

// refuse is a refusal by the attestor.
func (c *tokenCredential) refuse(reason string) error { return Refuse(c.attestor + ":" + reason) }

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
		return nil, c.refuse("unknown")
	case !matches:
		return nil, c.refuse("secret-mismatch")
	}
	c.token = t
	return &Grant{
		TokenID: t.ID, TenantID: t.TenantID, SiteID: t.SiteID, PoolID: t.PoolID, NodeID: t.NodeID,
		Expect: t.Expect, PlaceholderOK: t.Expect != nil, AllowReclaim: t.AllowReclaim, Hosted: t.Hosted != "",
	}, nil
}

// Check implements [Credential].
func (c *tokenCredential) Check(tx *store.Tx, g *Grant) error {
	switch t := c.token; {
	case !t.RevokedAt.IsZero():
		return c.refuse("revoked")
	case !g.Remembered && !tx.Now().Before(t.ExpiresAt):
		return c.refuse("expired")
	case t.UsesLeft < 1:
		return c.refuse("exhausted")
	case !admits(c.attestor, t.Role, c.role):
		return c.refuse("role-mismatch")
	}
	return nil
}

// Spend implements [Credential].
func (c *tokenCredential) Spend(tx *store.Tx, _ *Grant) error {
	err := tx.SpendToken(c.id)
	if errors.Is(err, store.ErrNotFound) {
		return c.refuse("exhausted")
	}
	return err
}

// admits reports whether an attestor admits a machine that asks for the role by a token of the other. A discovery token is
// good for its own attestor alone: that one asks a person where it must.
func admits(attestor string, token store.TokenRole, asked string) bool {
	if attestor == AttestorDiscovery {
		return token == store.TokenDiscovery && asked == store.RoleRamdisk
	}
	switch token {
	case store.TokenNode, store.TokenProvisioned:
		return asked == store.RoleNode
	case store.TokenSite:
		return asked == store.RoleSite
	case store.TokenDiscovery:
	}
	return false
}
