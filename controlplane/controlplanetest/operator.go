package controlplanetest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/controlplane/tokens"
)

// NewToken makes a join token and returns its bearer form. What r leaves out is the root tenant, its pool, an hour, one
// use and a fresh idempotency key.
func (cp *ControlPlane) NewToken(t testing.TB, r tokens.CreateRequest) string {
	t.Helper()
	if r.TenantID == "" {
		r.TenantID = cp.Tenant
	}
	if r.PoolID == "" {
		r.PoolID = cp.Pool
	}
	if r.TTL == 0 {
		r.TTL = time.Hour
	}
	if r.IdempotencyKey == "" {
		cp.mu.Lock()
		cp.tokens++
		r.IdempotencyKey = fmt.Sprintf("%s-%d", t.Name(), cp.tokens)
		cp.mu.Unlock()
	}
	_, token, err := cp.Server().Tokens().Create(t.Context(), "operator", r)
	check(t, err)
	return string(token.Bytes())
}

// IssueToken makes a token of a role that [ControlPlane.NewToken] does not make, and returns its bearer form. What r leaves
// out is the root tenant's pool, or its site for a site token, an hour and one use.
func (cp *ControlPlane) IssueToken(t testing.TB, r tokens.IssueRequest) string {
	t.Helper()
	switch {
	case r.Role == store.TokenSite && r.SiteID == "":
		r.SiteID = cp.Site
	case r.Role != store.TokenSite && r.PoolID == "":
		r.PoolID = cp.Pool
	}
	if r.TTL == 0 {
		r.TTL = time.Hour
	}
	if r.IssuedBy == "" {
		r.IssuedBy = "operator"
	}
	_, token, err := cp.Server().Tokens().Issue(t.Context(), r)
	check(t, err)
	return string(token.Bytes())
}

// Token returns a token's row, by its id.
func (cp *ControlPlane) Token(t testing.TB, id string) (token store.Token) {
	t.Helper()
	cp.Read(t, func(tx *store.Tx) (err error) {
		token, err = tx.Token(id)
		return err
	})
	return token
}

// Events returns the root tenant's events, oldest first.
func (cp *ControlPlane) Events(t testing.TB) []events.Event { return cp.EventsOf(t, cp.Tenant) }

// EventsOf returns a tenant's events, oldest first.
func (cp *ControlPlane) EventsOf(t testing.TB, tenant string) (all []events.Event) {
	t.Helper()
	cp.Read(t, func(tx *store.Tx) (err error) {
		all, err = tx.Events(tenant, 0, 100_000)
		return err
	})
	return all
}

// WaitForEvent returns the root tenant's n-th event of the type, counted from 1, once it is there. It waits 10 seconds
// of real time.
func (cp *ControlPlane) WaitForEvent(t testing.TB, kind events.Type, n int) events.Event {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		left := n
		for _, e := range cp.Events(t) {
			if e.Type == kind {
				if left--; left == 0 {
					return e
				}
			}
		}
	}
	t.Fatalf("no %d events %q; there are %v", n, kind, cp.Events(t))
	return events.Event{}
}

// Refusals returns the reasons of the root tenant's refused joins and renewals, oldest first.
func (cp *ControlPlane) Refusals(t testing.TB) []string {
	t.Helper()
	var reasons []string
	for _, e := range cp.Events(t) {
		if e.Type != events.TypeJoinRefused && e.Type != events.TypeRenewRefused {
			continue
		}
		var data struct {
			Reason string `json:"reason"`
		}
		check(t, json.Unmarshal(e.Data, &data))
		reasons = append(reasons, data.Reason)
	}
	return reasons
}

// Read runs fn on a snapshot of the database.
func (cp *ControlPlane) Read(t testing.TB, fn func(*store.Tx) error) {
	t.Helper()
	check(t, cp.Store().Read(t.Context(), fn))
}

// Write runs fn in a transaction.
func (cp *ControlPlane) Write(t testing.TB, fn func(*store.Tx) error) {
	t.Helper()
	check(t, cp.Store().Write(t.Context(), fn))
}

// ConfigTOML returns a bcd config.toml with the five keys, for a gateway of this control plane: [ControlPlane.GatewayURL],
// or a relay's.
func (cp *ControlPlane) ConfigTOML(gatewayURL, site string) string {
	return fmt.Sprintf("gateway_url = %q\nsite = %q\nserving_ca_spki_pin = %q\njoin_signing_key_pin = %q\njoin_encryption_key_pin = %q\n",
		gatewayURL, site, cp.Pins.ServingCA, cp.Pins.JoinSigning, cp.Pins.JoinEncryption)
}

// WriteConfig writes config.toml (0600), with more after the five keys, and join-encryption.jwk (0644) to dir, and
// returns the path of config.toml.
func (cp *ControlPlane) WriteConfig(t testing.TB, dir, gatewayURL, more string) string {
	t.Helper()
	jwk, err := json.Marshal(cp.EncryptionJWK)
	check(t, err)
	check(t, os.WriteFile(filepath.Join(dir, "join-encryption.jwk"), jwk, 0o644)) //nolint:gosec // public
	path := filepath.Join(dir, "config.toml")
	check(t, os.WriteFile(path, []byte(cp.ConfigTOML(gatewayURL, cp.Site)+more), 0o600))
	return path
}
