package events

import "time"

// The events of what operators set up: tenants, sites, pools, API keys and allowed endorsement keys.
const (
	TypeTenantCreated  Type = "tenant.created"
	TypeSiteCreated    Type = "site.created"
	TypeSiteUpdated    Type = "site.updated"
	TypePoolCreated    Type = "pool.created"
	TypePoolUpdated    Type = "pool.updated"
	TypePoolArchived   Type = "pool.archived"
	TypeAPIKeyCreated  Type = "security.api-key.created"
	TypeAPIKeyRevoked  Type = "security.api-key.revoked"
	TypeEKAllowAdded   Type = "security.ek-allow.added"
	TypeEKAllowRemoved Type = "security.ek-allow.removed"
)

// The audited actions of what operators set up.
const (
	ActionTenantCreated  Action = "tenant.created"
	ActionSiteCreated    Action = "site.created"
	ActionSiteUpdated    Action = "site.updated"
	ActionPoolCreated    Action = "pool.created"
	ActionPoolUpdated    Action = "pool.updated"
	ActionPoolArchived   Action = "pool.archived"
	ActionAPIKeyCreated  Action = "api-key.created"
	ActionAPIKeyRevoked  Action = "api-key.revoked"
	ActionEKAllowAdded   Action = "ek-allow.added"
	ActionEKAllowRemoved Action = "ek-allow.removed"
)

// TenantCreated reports a new tenant, to the root tenant.
type TenantCreated struct {
	TenantID  string `json:"tenantId"`
	Name      string `json:"name"`
	CreatedBy string `json:"createdBy"`
}

// SiteCreated reports a new site.
type SiteCreated struct {
	SiteID    string `json:"siteId"`
	Name      string `json:"name"`
	Custom    bool   `json:"custom"`
	CreatedBy string `json:"createdBy"`
}

// SiteUpdated reports what a changed site is now.
type SiteUpdated struct {
	SiteID    string `json:"siteId"`
	Name      string `json:"name"`
	Custom    bool   `json:"custom"`
	UpdatedBy string `json:"updatedBy"`
}

// Pool is what the events of pools say of one.
type Pool struct {
	PoolID     string `json:"poolId"`
	SiteID     string `json:"siteId"`
	Name       string `json:"name"`
	Agent      string `json:"agent"`
	Acceptance bool   `json:"acceptance"`
	// JoinAttestors is null where the policy names none, which is every one that is configured.
	JoinAttestors []string `json:"joinAttestors"`
	// PlatformOperated is what the policy says, in effect or not.
	PlatformOperated bool `json:"platformOperated"`
}

// PoolCreated reports a new pool.
type PoolCreated struct {
	Pool
	CreatedBy string `json:"createdBy"`
}

// PoolUpdated reports what a changed pool is now.
type PoolUpdated struct {
	Pool
	UpdatedBy string `json:"updatedBy"`
}

// PoolArchived reports a pool that admits no machine any more.
type PoolArchived struct {
	PoolID     string `json:"poolId"`
	ArchivedBy string `json:"archivedBy"`
}

// APIKeyCreated reports a new API key, to the tenant that it acts for. It never holds the key.
type APIKeyCreated struct {
	KeyID   string   `json:"keyId"`
	Name    string   `json:"name"`
	Actions []string `json:"actions"`
	// ExpiresAt is absent from the event of a key that does not expire.
	ExpiresAt time.Time `json:"expiresAt,omitzero"`
	CreatedBy string    `json:"createdBy"`
}

// APIKeyRevoked reports the end of an API key.
type APIKeyRevoked struct {
	KeyID     string `json:"keyId"`
	RevokedBy string `json:"revokedBy"`
}

// EKAllowAdded reports an endorsement key whose machine may join a pool.
type EKAllowAdded struct {
	EntryID string `json:"entryId"`
	PoolID  string `json:"poolId"`
	SiteID  string `json:"siteId"`
	// EKSHA256 is the SHA-256 of the endorsement key, lower-case hex.
	EKSHA256 string `json:"ekSha256"`
	AddedBy  string `json:"addedBy"`
}

// EKAllowRemoved reports an endorsement key that lets no machine join any more. A node that joined by it stays.
type EKAllowRemoved struct {
	EntryID string `json:"entryId"`
	PoolID  string `json:"poolId"`
	SiteID  string `json:"siteId"`
	// EKSHA256 is the SHA-256 of the endorsement key, lower-case hex.
	EKSHA256  string `json:"ekSha256"`
	RemovedBy string `json:"removedBy"`
}

// EventType implements [Payload].
func (TenantCreated) EventType() Type { return TypeTenantCreated }

// EventType implements [Payload].
func (SiteCreated) EventType() Type { return TypeSiteCreated }

// EventType implements [Payload].
func (SiteUpdated) EventType() Type { return TypeSiteUpdated }

// EventType implements [Payload].
func (PoolCreated) EventType() Type { return TypePoolCreated }

// EventType implements [Payload].
func (PoolUpdated) EventType() Type { return TypePoolUpdated }

// EventType implements [Payload].
func (PoolArchived) EventType() Type { return TypePoolArchived }

// EventType implements [Payload].
func (APIKeyCreated) EventType() Type { return TypeAPIKeyCreated }

// EventType implements [Payload].
func (APIKeyRevoked) EventType() Type { return TypeAPIKeyRevoked }

// EventType implements [Payload].
func (EKAllowAdded) EventType() Type { return TypeEKAllowAdded }

// EventType implements [Payload].
func (EKAllowRemoved) EventType() Type { return TypeEKAllowRemoved }
