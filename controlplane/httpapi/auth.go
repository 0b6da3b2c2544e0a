package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/better-compute/bcd/controlplane/apikeys"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
)

// Caller is who calls: an API key.
type Caller struct {
	// KeyID is the key's id, key_….
	KeyID string
	// TenantID is the tenant that the key acts for.
	TenantID string
	// Actions is what the key may do; see [KeyActions].
	Actions []string
	// ExpiresAt is when the key ends; the zero time is never.
	ExpiresAt time.Time
}

// errUnauthenticated is the one answer to every credential that is not good: which part of it is wrong is not said.
var errUnauthenticated = fault.New(fault.Unauthenticated,
	"send a valid API key as Authorization: Bearer bcak_…", "the API key is missing or not valid")

// authenticate returns the caller that the request's API key proves.
func (a *API) authenticate(r *http.Request) (Caller, error) {
	headers := r.Header.Values("Authorization")
	if len(headers) != 1 {
		return Caller{}, errUnauthenticated
	}
	scheme, bearer, _ := strings.Cut(headers[0], " ")
	digest, ok := apikeys.Digest(bearer)
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return Caller{}, errUnauthenticated
	}
	var caller Caller
	err := a.store.Read(r.Context(), func(tx *store.Tx) error {
		// The lookup is by digest: how long it takes tells a guesser about the digest of the guess, not about the key.
		key, err := tx.APIKeyByDigest(digest)
		if err == nil && !key.Good(tx.Now()) {
			err = store.ErrNotFound
		}
		caller = Caller{KeyID: key.ID, TenantID: key.TenantID, Actions: key.Actions, ExpiresAt: key.ExpiresAt}
		return err
	})
	switch {
	case errors.Is(err, store.ErrNotFound):
		return Caller{}, errUnauthenticated
	case err != nil:
		return Caller{}, err
	}
	return caller, nil
}

// Authorizer decides what a caller may do. Every decision of the API goes through it.
type Authorizer interface {
	// Authorize returns nil where the caller may do the action, "compute:join-tokens:create" for instance, on the
	// resource, "compute-pool/pool_…" for instance, and a [fault.AccessDenied] error where it may not.
	Authorize(ctx context.Context, caller Caller, action, resource string) error
}

// KeyActions is the [Authorizer] that follows the list of actions of the API key. An entry is an action, or a prefix
// that ends in ":*": "compute:*" is everything.
type KeyActions struct{}

// Authorize implements [Authorizer].
func (KeyActions) Authorize(_ context.Context, caller Caller, action, _ string) error {
	if apikeys.Covers(caller.Actions, action) {
		return nil
	}
	return fault.New(fault.AccessDenied, "use an API key whose actions include "+action, "the API key may not %s", action)
}

// The actions of the API.
const (
	actionReadTenants    = "compute:tenants:read"
	actionCreateTenants  = "compute:tenants:create"
	actionManageSites    = "compute:sites:manage"
	actionManagePools    = "compute:pools:manage"
	actionCreateKeys     = "compute:api-keys:create"
	actionReadKeys       = "compute:api-keys:read"
	actionRevokeKeys     = "compute:api-keys:revoke"
	actionReadSites      = "compute:sites:read"
	actionReadPools      = "compute:pools:read"
	actionCreateTokens   = "compute:join-tokens:create"
	actionReadTokens     = "compute:join-tokens:read"
	actionRevokeTokens   = "compute:join-tokens:revoke"
	actionCreateEKAllow  = "compute:ek-allow:create"
	actionReadEKAllow    = "compute:ek-allow:read"
	actionDeleteEKAllow  = "compute:ek-allow:delete"
	actionReadNodes      = "compute:nodes:read"
	actionAdoptNodes     = "compute:nodes:adopt"
	actionCordonNodes    = "compute:nodes:cordon"
	actionDeleteNodes    = "compute:nodes:delete"
	actionRevokeIdentity = "compute:nodes:revoke-identity"
	actionReadEvents     = "compute:events:read"
	resourceTenant       = "compute-tenant/"
	resourcePool         = "compute-pool/"
	resourceNode         = "compute-node/"
	resourceSite         = "compute-site/"
	resourceKey          = "compute-api-key/"
)

// Actions are all that there are, for the API keys that are made.
var Actions = []string{
	actionReadTenants, actionCreateTenants,
	actionReadSites, actionManageSites,
	actionReadPools, actionManagePools,
	actionCreateKeys, actionReadKeys, actionRevokeKeys,
	actionCreateTokens, actionReadTokens, actionRevokeTokens,
	actionCreateEKAllow, actionReadEKAllow, actionDeleteEKAllow,
	actionReadNodes, actionAdoptNodes, actionCordonNodes, actionDeleteNodes, actionRevokeIdentity,
	actionReadEvents,
}

// authorize checks that the caller acts for its own tenant and may do the action. Another tenant does not exist for it.
func (a *API) authorize(ctx context.Context, caller Caller, tenantID, action, resource string) error {
	if err := checkID("tenantId", store.PrefixTenant, tenantID); err != nil {
		return err
	}
	if err := a.authorizer.Authorize(ctx, caller, action, resource); err != nil {
		return err
	}
	if tenantID != caller.TenantID {
		return notFound("tenant", tenantID)
	}
	return nil
}

// checkID refuses a value that is no id of the type. It does not repeat it: it may be a secret that was pasted into the
// wrong place.
func checkID(field string, prefix store.Prefix, id string) error {
	if store.CheckID(prefix, id) != nil {
		return invalid("field %q must be an id that starts with %s_", field, prefix)
	}
	return nil
}

func notFound(what, id string) error { return fault.New(fault.NotFound, "", "no %s %q", what, id) }
